"""Liu et al., "FedMuon", arXiv:2510.27403: tables 2 to 7, figures 3 and 6.

    python -m experiments.papers.fedmuon_004 table_2 --data-dir DATA  # a core, 105 min
    python -m experiments.papers.fedmuon_004 table_5 --data-dir DATA  # after table_2
    python -m experiments.papers.fedmuon_004 table_6 --data-dir DATA  # 20 min
    python -m experiments.papers.fedmuon_004 table_7 --data-dir DATA  # after table_5
    python -m experiments.papers.fedmuon_004 table_2 --scale full --data-dir DATA

CIFAR-100 is divided over 100 clients by drawing the classes of each from Dirichlet(0.6)
or Dirichlet(0.1), as the public code does. In each of 300 rounds, 10 clients take 50
local steps of batch 50, with a cosine learning rate schedule and seeds 42 to 46. The
published numbers are in fedmuon_004_published.csv. Learning rates are those of the
paper's grids (section 7): FedLADA has that of Adam, with its b2 of 0.999 there, and
SCAFFOLD and FedCM that of SGD. Methods with plain local steps have the paper's weight
decay of 0.001, added to the gradient. FedLADA has none, as in its own paper.

Figures 4 (b) and 6 are table 2's curves under Dirichlet(0.1); figure 4 (a) has a module
of its own, experiments.studies.condition_numbers.

`--scale cpu` trains LeNet with 5 of 50 clients, 10 local steps of batch 20, 100 rounds
and seeds 42 to 44. Adam and Muon have larger rates there, because there are fewer
steps. These rates were chosen after trials with seed 42, those of the ablations after
table 2. There is no weight decay for SGD, and FedLADA has its own paper's b2, 0.99.

Tables 3 and 4 start at pretrained weights: Swin-Tiny's by timm's names, and RoBERTa's,
of which only adapters of rank 16 are trained:

    python -m experiments.papers.fedmuon_004 table_4 --scale full --data-dir DATA \\
        --checkpoint CHECKPOINT

For a CPU they are cut to 4 rounds of 5 steps with two methods.
"""

import dataclasses
from collections.abc import Mapping

from experiments.papers.frame import Item, Panel, Scale, command, sized, swept
from fedjax_muon.runs.config import Config

BASE = Config(
    dataset="cifar100",
    num_clients=100,
    cohort_size=10,
    local_steps=50,
    batch_size=50,
    partition="dirichlet_per_client",
    lr_schedule="cosine",
    augmentation="crop_and_flip",
    rounds=300,
    evaluate_every=10,
    weight_decay=0.001,
)
SEEDS = (42, 43, 44, 45, 46)
MODELS = ("resnet18", "vit_tiny")
ALPHAS = (0.6, 0.1)
Grids = Mapping[str, Mapping[str, tuple[float, ...]]]
SGD = {"lr": (0.01, 0.03, 0.05, 0.1, 0.3)}
ADAM = {"lr": (1e-4, 3e-4, 5e-4, 8e-4, 1e-3)}
MUON = {"lr": (0.03, 0.02, 0.003)}
RIVALS: Grids = {
    "fedavg": SGD,
    "scaffold": SGD,
    "fedcm": SGD,
    "fedlada": {**ADAM, "b2": (0.999,)},
    "local_adamw": ADAM,
    "local_muon": MUON,
}
FEWER: Grids = {  # for `--scale cpu`: larger rates, since steps are fewer
    "fedavg": {"lr": (0.03, 0.1, 0.3)},
    "scaffold": {"lr": (0.01, 0.03, 0.1, 0.3)},
    "fedcm": {"lr": (0.1, 0.3, 1.0)},
    "fedlada": {"lr": (1e-3, 3e-3, 1e-2, 3e-2)},
    "local_adamw": {"lr": (1e-3, 3e-3, 1e-2)},
    "local_muon": {"lr": (0.01, 0.03, 0.1)},
    "fedmuon_align": {"lr": (0.003, 0.01, 0.03)},
    "fedmuon_svd": {"lr": (0.003, 0.01, 0.03)},
    "fedmuon_align_reset": {"lr": (0.01, 0.03, 0.1, 0.3, 1.0)},
    "local_muon_averaged": {"lr": (0.003, 0.01, 0.03)},
    "local_sgd_align": {"lr": (0.003, 0.01, 0.03)},  # averaged momenta diverge above
    "local_adamw_align": {"lr": (1e-3, 3e-3, 1e-2)},
}
START = "4 rounds of 5 local steps, two methods, one seed"
REDUCED = (
    "LeNet, 5 of 50 clients, 10 local steps of batch 20, 100 rounds, other rates, "
    "3 seeds, no weight decay for SGD, no augmentation"
)


def config(model: str, alpha: float, scale: Scale) -> Config:
    """Returns the config of a setting."""
    as_printed = dataclasses.replace(BASE, model=model, alpha=alpha)
    small = {"model": "lenet", "local_steps": 10, "batch_size": 20, "rounds": 100}
    small |= {"num_clients": 50, "cohort_size": 5, "augmentation": "none"}
    small |= {"weight_decay": 0.0}
    return sized(as_printed, scale, evaluate_every=25, **small)


def panel(model: str, alpha: float, grids: Grids, scale: Scale) -> Panel:
    """Returns the panel of some methods in a setting."""
    one = config(model, alpha, scale)
    sweep = swept(one, grids, scale, SEEDS[:3] if scale == "cpu" else SEEDS)
    printed_for = f"{model}, Dirichlet({alpha:g})"
    setting = printed_for.replace(model, one.model) if scale == "cpu" else printed_for
    return Panel(setting, sweep, printed_for=printed_for)


def panels(grids: Grids, alphas: tuple[float, ...], scale: Scale) -> dict[str, Panel]:
    """Returns the panels of methods in every setting.

    At reduced scales, one small model replaces both of the paper's.
    """
    if scale == "cpu":
        grids = {name: FEWER[name] for name in grids}
    return {
        f"{model}_dir{alpha:g}": panel(model, alpha, grids, scale)
        for model in models(scale)
        for alpha in alphas
    }


def models(scale: Scale) -> tuple[str, ...]:
    """Returns the paper's models that a scale has, or replaces by a smaller one."""
    return MODELS if scale == "full" else MODELS[:1]


def table_2(scale: Scale) -> dict[str, Panel]:
    """Returns the panels of all methods."""
    return panels({**RIVALS, "fedmuon_align": MUON}, ALPHAS, scale)


def table_5(scale: Scale) -> dict[str, Panel]:
    """Returns the panels of the ablations.

    They are FedMuon without momentum aggregation, without alignment, and with other
    local rules.
    """
    grids: Grids = {
        "fedmuon_align_reset": MUON,
        "local_muon_averaged": MUON,
        "fedmuon_align": MUON,
        "local_sgd_align": {**SGD, "decay": (0.001,)},
        "local_adamw_align": ADAM,
    }
    return panels(grids, (0.1,), scale)


def table_6(scale: Scale) -> dict[str, Panel]:
    """Returns the panels by alignment weight and by momentum, at one rate."""
    rate = {"lr": (0.01,) if scale == "cpu" else (0.03,)}
    varied = {
        "align": (0.0, 0.25, 0.5, 0.75, 0.9),
        "momentum": (0.8, 0.9, 0.95, 0.98, 0.99),
    }
    found = {}
    for model in models(scale):
        for name, values in varied.items():
            grids: Grids = {"fedmuon_align": {**rate, name: values}}
            one = panel(model, 0.1, grids, scale)
            found[f"{model}_{name}"] = one._replace(every_point=True)
    return found


def table_7(scale: Scale) -> dict[str, Panel]:
    """Returns the panels of momentum aggregation: none, full, or truncated by SVD."""
    names = ("fedmuon_align_reset", "fedmuon_align", "fedmuon_svd")
    return panels(dict.fromkeys(names, MUON), (0.1,), scale)


def table_3(scale: Scale) -> dict[str, Panel]:
    """Returns the panels of pretrained Swin-Tiny."""
    found = {}
    for dataset in ("cifar100", "tiny_imagenet"):
        one = dataclasses.replace(
            BASE,
            dataset=dataset,
            model="swin_tiny",
            alpha=0.1,
            cohort_size=5,
            batch_size=16,
            rounds=100,
        )
        found[dataset] = pretrained(one, f"swin_tiny, {dataset}", scale)
    return found if scale == "full" else {"cifar100": found["cifar100"]}


def table_4(scale: Scale) -> dict[str, Panel]:
    """Returns the panels of RoBERTa with adapters on GLUE.

    CoLA's score is Matthews' correlation.
    """
    found = {}
    for dataset in ("cola", "rte", "sst2", "qqp", "mrpc", "qnli", "mnli"):
        one = dataclasses.replace(
            BASE,
            dataset=dataset,
            model="roberta",
            alpha=0.8,
            num_clients=4,
            cohort_size=4,
            batch_size=16,
            rounds=100,
            augmentation="none",
        )
        found[dataset] = pretrained(one, f"roberta, {dataset}", scale)
    return found if scale == "full" else {"rte": found["rte"]}


def pretrained(one: Config, setting: str, scale: Scale) -> Panel:
    """Returns the panel of all methods from a checkpoint."""
    grids: Grids = {**RIVALS, "fedmuon_align": MUON}
    if scale == "cpu":
        grids = {name: FEWER[name] for name in ("local_adamw", "fedmuon_align")}
    small = {"rounds": 4, "local_steps": 5, "evaluate_every": 2}
    seeds = SEEDS[:1] if scale == "cpu" else SEEDS
    sweep = swept(sized(one, scale, **small), grids, scale, seeds)
    return Panel(setting, sweep, pretrained=True)


def figure_3(scale: Scale) -> dict[str, Panel]:
    """Returns the panels of Local SGD, Local AdamW and Local Muon."""
    names = ("fedavg", "local_adamw", "local_muon")
    return panels({name: RIVALS[name] for name in names}, ALPHAS, scale)


ITEMS = {
    "table_2": Item("seven methods, two models, two partitions", table_2, REDUCED),
    "table_3": Item("Swin-Tiny, fine-tuned", table_3, START),
    "table_4": Item("RoBERTa, fine-tuned by adapters", table_4, START),
    "table_5": Item("ablations of FedMuon", table_5, REDUCED),
    "table_6": Item("alignment weight, momentum", table_6, REDUCED),
    "table_7": Item("cost of momentum aggregation", table_7, REDUCED),
    "figure_3": Item("Local SGD, Local AdamW, Local Muon", figure_3, REDUCED),
}

if __name__ == "__main__":
    command("fedmuon_004", __doc__, ITEMS)

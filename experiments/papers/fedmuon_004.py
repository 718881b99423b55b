"""Liu et al., "FedMuon", arXiv:2510.27403: tables 2, 5 to 7, figures 3 and 6.

    python -m experiments.papers.fedmuon_004 table_2 --data-dir DATA  # a core, 105 min
    python -m experiments.papers.fedmuon_004 table_5 --data-dir DATA
    python -m experiments.papers.fedmuon_004 table_6 --data-dir DATA  # 20 min
    python -m experiments.papers.fedmuon_004 table_7 --data-dir DATA
    python -m experiments.papers.fedmuon_004 table_2 --scale full --data-dir DATA

CIFAR-100 is divided over 100 clients by drawing the classes of each from Dirichlet(0.6)
or Dirichlet(0.1), as the public code does. In each of 300 rounds, 10 clients take 50
local steps of batch 50, with a cosine learning rate schedule and seeds 42 to 46. The
published numbers are in fedmuon_004_published.csv. Learning rates are those of the
paper's grids (section 7): FedLADA has that of Adam, with its b2 of 0.999 there, and
SCAFFOLD and FedCM that of SGD. Methods with plain local steps have the paper's weight
decay of 0.001, added to the gradient. FedLADA has none, as in its own paper.

Figures 4 (b) and 6 are table 2's curves under Dirichlet(0.1). Figure 4 (a) had a module
of its own at commit 1b82b27, experiments.studies.condition_numbers. Tables 3 and 4
start at pretrained weights of Swin-Tiny and RoBERTa; commit 5011f469 has their code.

`--scale cpu` trains LeNet with 5 of 50 clients, 10 local steps of batch 20, 100 rounds
and seeds 42 to 44. Adam and Muon have larger rates there, because there are fewer
steps. These rates were chosen after trials with seed 42, those of the ablations after
table 2. There is no weight decay for SGD, and FedLADA has its own paper's b2, 0.99.
"""

import functools
from collections.abc import Mapping

import optax

from experiments.papers.frame import (
    Grid,
    Item,
    Panel,
    Scale,
    chosen,
    command,
    decayed,
    sized,
)
from fedjax_muon import partition, problems
from fedjax_muon.algorithms.registry import Method
from fedjax_muon.core import Algorithm
from fedjax_muon.tasks.augmentation import crop_and_flip

SIZES = {
    "clients": 100,
    "cohort": 10,
    "local_steps": 50,
    "batch_size": 50,
    "rounds": 300,
    "evaluate_every": 10,
}
DECAY, PLAIN = 0.001, ("fedavg", "scaffold", "fedcm")  # methods with plain steps
SEEDS = (42, 43, 44, 45, 46)
MODELS = (problems.resnet18, problems.vit_tiny)
ALPHAS = (0.6, 0.1)
Grids = Mapping[str, Grid]
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
REDUCED = (
    "LeNet, 5 of 50 clients, 10 local steps of batch 20, 100 rounds, other rates, "
    "3 seeds, no weight decay for SGD, no augmentation"
)


def divided(alpha: float) -> problems.Divide:
    return functools.partial(partition.dirichlet_per_client, alpha=alpha)


def made(rounds: int, decay: float, method: Method) -> Algorithm:
    """Returns a method with the schedule of its rate, and decay of plain steps."""
    plain = decay and method.name in PLAIN
    rule = {"rule": optax.add_decayed_weights(decay)} if plain else {}
    return decayed(method.function(**rule), rounds)


def panel(model: problems.Model, alpha: float, grids: Grids, scale: Scale) -> Panel:
    """Returns the panel of some methods in a setting."""
    printed = SIZES | {"dataset": "cifar100", "model": model, "divide": divided(alpha)}
    printed |= {"augment": crop_and_flip(), "seeds": SEEDS}
    small = {"model": problems.lenet, "local_steps": 10, "batch_size": 20}
    small |= {"clients": 50, "cohort": 5, "rounds": 100, "evaluate_every": 25}
    settings = sized(printed, scale, **small, augment=None, seeds=SEEDS[:3])
    decay = 0.0 if scale == "cpu" else DECAY
    make = functools.partial(made, settings["rounds"], decay)
    shown = settings["model"] if scale == "cpu" else model
    return Panel(
        f"{shown.__name__}, Dirichlet({alpha:g})",
        problems.classification,
        settings,
        chosen(grids, scale, make),
        printed_for=f"{model.__name__}, Dirichlet({alpha:g})",
    )


def panels(grids: Grids, alphas: tuple[float, ...], scale: Scale) -> dict[str, Panel]:
    """Returns the panels of methods in every setting.

    At reduced scales, one small model replaces both of the paper's.
    """
    if scale == "cpu":
        grids = {name: FEWER[name] for name in grids}
    return {
        f"{model.__name__}_dir{alpha:g}": panel(model, alpha, grids, scale)
        for model in models(scale)
        for alpha in alphas
    }


def models(scale: Scale) -> tuple[problems.Model, ...]:
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
            found[f"{model.__name__}_{name}"] = one._replace(every_point=True)
    return found


def table_7(scale: Scale) -> dict[str, Panel]:
    """Returns the panels of momentum aggregation: none, full, or truncated by SVD."""
    names = ("fedmuon_align_reset", "fedmuon_align", "fedmuon_svd")
    return panels(dict.fromkeys(names, MUON), (0.1,), scale)


def figure_3(scale: Scale) -> dict[str, Panel]:
    """Returns the panels of Local SGD, Local AdamW and Local Muon."""
    names = ("fedavg", "local_adamw", "local_muon")
    return panels({name: RIVALS[name] for name in names}, ALPHAS, scale)


ITEMS = {
    "table_2": Item("seven methods, two models, two partitions", table_2, REDUCED),
    "table_5": Item("ablations of FedMuon", table_5, REDUCED),
    "table_6": Item("alignment weight, momentum", table_6, REDUCED),
    "table_7": Item("cost of momentum aggregation", table_7, REDUCED),
    "figure_3": Item("Local SGD, Local AdamW, Local Muon", figure_3, REDUCED),
}

if __name__ == "__main__":
    command("fedmuon_004", __doc__, ITEMS)

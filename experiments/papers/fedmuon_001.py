"""Takezawa et al., "FedMuon", arXiv:2509.26337: figures 1 and 2.

    python -m experiments.papers.fedmuon_001 figure_1 --data-dir DATA  # a core, 75 min
    python -m experiments.papers.fedmuon_001 figure_2 --data-dir DATA  # a core, 25 min
    python -m experiments.papers.fedmuon_001 figure_1 --scale full --data-dir DATA

Test accuracy on Fashion-MNIST with LeNet and on CIFAR-10 with ResNet-18 (GroupNorm).
There are 16 clients, of which 8 run 5 local steps per round; data are divided by
Dirichlet(10), which the paper calls homogeneous, and by Dirichlet(0.1). The paper has
curves only. It gives neither the batch size nor the momentum, here 32 and 0.9, nor the
length of an epoch, here as many rounds as use all examples once.

Validation chooses among three learning rates. For FedAvg and SCAFFOLD one of them is
the paper's (appendix G). SCAFFOLD(momentum) diverges at the paper's rate, 0.1: control
variates are averages of the gradients along the local path here, so a client's drift
feeds the next one. The paper does not say which gradients it uses. Its methods with
Muon have the rate 0.001 times a scale that depends on a matrix's dimension (section
7.1) and is not printed. `--scale full` has that of the paper it cites for it (Liu et
al. 2025, arXiv:2502.16982), which is 1 to 4 for LeNet and 1 to 14 for ResNet-18.
Vectors have ten times the rate of matrices, as in the appendix, which has a hundred
times for Local Muon on Fashion-MNIST. Figure 2 has the Newton-Schulz coefficients of
Theorem 3, (15/8, -5/4, 3/8), which converge as T grows.

`--scale cpu` has Fashion-MNIST only, with all its examples, fewer rounds, three seeds
where the paper has two, and steps that are not scaled.
"""

import dataclasses

from experiments.papers.frame import Item, Panel, Scale, command, sized, swept
from fedjax_muon.runs.config import Config

BASE = Config(
    num_clients=16,
    cohort_size=8,
    local_steps=5,
    batch_size=32,
    partition="dirichlet",
    sampler="shuffled_epochs",
)
EXAMPLES_A_ROUND = 8 * 5 * 32
SEEDS = (42, 43, 44)
ROUNDS = {"figure_1": 200, "figure_2": 150}  # for `--scale cpu`
MUON = (0.001, 0.003, 0.01)
GRIDS: dict[str, tuple[float, ...]] = {
    "fedavg_momentum": (0.03, 0.1, 0.3),
    "fedavg_adam": (0.001, 0.01, 0.1),
    "scaffold_momentum": (0.003, 0.01, 0.1),
    "scaffold_adam": (0.001, 0.003, 0.01),
    "local_muon_persistent": MUON,
    "fedmuon_correct": MUON,
}
# for `--scale cpu`: around the best of the grids above, which was at an edge
FEWER: dict[str, tuple[float, ...]] = {
    "fedavg_momentum": (0.03, 0.1, 0.3),
    "fedavg_adam": (0.0003, 0.001, 0.003, 0.01),
    "scaffold_momentum": (0.003, 0.01, 0.1),
    "scaffold_adam": (0.0003, 0.001, 0.003, 0.01),
    "local_muon_persistent": (0.003, 0.01, 0.03, 0.1),
    "fedmuon_correct": (0.003, 0.01, 0.03),
}
MODELS = {"fashion_mnist": "lenet", "cifar10": "resnet18"}
EPOCHS = {"fashion_mnist": 100, "cifar10": 200}
SIZES = {"fashion_mnist": 60_000, "cifar10": 50_000}
ALPHAS = (10.0, 0.1)
STEPS = (0, 1, 2, 3, 4, 5)


def config(dataset: str, alpha: float, item: str, scale: Scale) -> Config:
    """Returns the config of a setting."""
    rounds = round(EPOCHS[dataset] * SIZES[dataset] / EXAMPLES_A_ROUND)
    as_printed = dataclasses.replace(
        BASE,
        dataset=dataset,
        model=MODELS[dataset],
        alpha=alpha,
        rounds=rounds,
        evaluate_every=rounds // EPOCHS[dataset],
        shape_scale="moonlight",
    )
    few = ROUNDS[item]
    small = {"rounds": few, "evaluate_every": few // 10, "shape_scale": "none"}
    return sized(as_printed, scale, **small)


def setting(dataset: str, alpha: float) -> str:
    return f"{dataset}, {MODELS[dataset]}, Dirichlet({alpha:g})"


def figure_1(scale: Scale) -> dict[str, Panel]:
    """Returns the panels of all methods in every setting."""
    chosen = FEWER if scale == "cpu" else GRIDS
    grids = {name: {"lr": rates} for name, rates in chosen.items()}
    found = {}
    for dataset in MODELS if scale == "full" else ("fashion_mnist",):
        for alpha in ALPHAS:
            one = config(dataset, alpha, "figure_1", scale)
            sweep = swept(one, grids, scale, SEEDS)
            found[f"{dataset}_{alpha:g}"] = Panel(setting(dataset, alpha), sweep)
    return found


def figure_2(scale: Scale) -> dict[str, Panel]:
    """Returns the panels of FedMuon by the number of Newton-Schulz steps.

    Without steps, matrices are divided by their Frobenius norm.
    """
    found = {}
    for alpha in ALPHAS[1:] if scale == "smoke" else ALPHAS:
        for steps in STEPS[::3] if scale == "smoke" else STEPS:
            one = config("fashion_mnist", alpha, "figure_2", scale)
            one = dataclasses.replace(
                one, newton_schulz_steps=steps, newton_schulz_coefficients="quintic"
            )
            sweep = swept(one, {"fedmuon_correct": {"lr": (0.003,)}}, scale, SEEDS)
            panel = Panel(setting("fashion_mnist", alpha), sweep, f"T = {steps}")
            found[f"{alpha:g}_{steps}"] = panel
    return found


ITEMS = {
    "figure_1": Item(
        "six methods, two data sets, two partitions",
        figure_1,
        f"Fashion-MNIST only, {ROUNDS['figure_1']} rounds in place of 4688, steps of "
        "matrices not scaled, rates around the best",
    ),
    "figure_2": Item(
        "FedMuon with 0 to 5 Newton-Schulz steps",
        figure_2,
        f"{ROUNDS['figure_2']} rounds in place of 4688, steps of matrices not scaled",
    ),
}

if __name__ == "__main__":
    command("fedmuon_001", __doc__, ITEMS)

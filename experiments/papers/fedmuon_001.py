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

from collections.abc import Mapping
from functools import partial
from typing import Any

from experiments.papers.frame import (
    Item,
    Panel,
    Scale,
    chosen,
    command,
    sized,
    with_options,
)
from fedjax_muon import problems, transforms
from fedjax_muon.linalg import newton_schulz

SIZES = {"clients": 16, "cohort": 8, "local_steps": 5, "batch_size": 32}
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
MODELS = {"fashion_mnist": problems.lenet, "cifar10": problems.resnet18}
EPOCHS = {"fashion_mnist": 100, "cifar10": 200}
EXAMPLES = {"fashion_mnist": 60_000, "cifar10": 50_000}
ALPHAS = (10.0, 0.1)
STEPS = (0, 1, 2, 3, 4, 5)


def panel(
    dataset: str,
    alpha: float,
    item: str,
    scale: Scale,
    rates: Mapping[str, tuple[float, ...]],
    **options: Any,
) -> Panel:
    """Returns the panel of some methods in a setting."""
    rounds, few = (
        round(EPOCHS[dataset] * EXAMPLES[dataset] / EXAMPLES_A_ROUND),
        ROUNDS[item],
    )
    printed = SIZES | {
        "dataset": dataset,
        "model": MODELS[dataset],
        "alpha": alpha,
        "rounds": rounds,
        "evaluate_every": rounds // EPOCHS[dataset],
        "seeds": SEEDS,
    }
    shape_scale = transforms.unscaled if scale == "cpu" else transforms.moonlight
    return Panel(
        f"{dataset}, {MODELS[dataset].__name__}, Dirichlet({alpha:g})",
        problems.classification,
        sized(printed, scale, rounds=few, evaluate_every=few // 10),
        chosen(
            {name: {"lr": lr} for name, lr in rates.items()},
            scale,
            lambda row: with_options(row, shape_scale=shape_scale, **options),
        ),
    )


def figure_1(scale: Scale) -> dict[str, Panel]:
    """Returns the panels of all methods in every setting."""
    rates = FEWER if scale == "cpu" else GRIDS
    return {
        f"{dataset}_{alpha:g}": panel(dataset, alpha, "figure_1", scale, rates)
        for dataset in (MODELS if scale == "full" else ("fashion_mnist",))
        for alpha in ALPHAS
    }


def figure_2(scale: Scale) -> dict[str, Panel]:
    """Returns the panels of FedMuon by the number of Newton-Schulz steps.

    Without steps, matrices are divided by their Frobenius norm.
    """
    found, rates = {}, {"fedmuon_correct": (0.003,)}
    for alpha in ALPHAS[1:] if scale == "smoke" else ALPHAS:
        for steps in STEPS[::3] if scale == "smoke" else STEPS:
            polar = partial(
                newton_schulz.orthogonalize,
                steps=steps,
                coefficients=newton_schulz.QUINTIC,
            )
            one = panel("fashion_mnist", alpha, "figure_2", scale, rates, polar=polar)
            found[f"{alpha:g}_{steps}"] = one._replace(label=f"T = {steps}")
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

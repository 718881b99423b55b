"""FedAvg, Local Muon and FedMuon on clients that are alike, and on clients that differ.

    python -m experiments.studies.drift --data-dir DATA     # 20 minutes on a core

LeNet on Fashion-MNIST, 16 clients by Dirichlet(10) and by Dirichlet(0.1). Rates are
chosen by `fm.compare` on two other seeds, from grids that go on until the best is
inside. The figure is for "Why FedMuon" in the documentation.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fedjax_muon as fm
from experiments import kept
from experiments.arguments import call
from fedjax_muon.reporting.intervals import band
from fedjax_muon.reporting.style import drawing, styles

PLACE = Path("results/drift")
ALPHAS = (10.0, 0.1)
ROUNDS, EVERY, SEEDS = 40, 4, (0, 1, 2, 3, 4)
METHODS = {
    "FedAvg": fm.fedavg(lr=0.1),
    "Local Muon": fm.local_muon(lr=0.1),
    "FedMuon": fm.fedmuon(lr=0.03),
}


def main(data_dir: Path | None = None, output: Path = PLACE) -> None:
    """Trains what is missing, and draws the figure."""
    shown = {}
    for alpha in ALPHAS:
        problem = fm.problems.classification(
            "fashion_mnist", alpha=alpha, model=fm.problems.lenet, data_dir=data_dir
        )
        grids = {name: fm.around(method) for name, method in METHODS.items()}
        result = fm.compare(
            METHODS,
            problem,
            rounds=ROUNDS,
            seeds=SEEDS,
            evaluate_every=EVERY,
            grids=grids,
            directory=Path("runs/drift") / f"{alpha:g}",
        )
        print(result.table())
        shown[f"{alpha:g}"] = {
            name: [
                [100 * np.asarray(run["test_accuracy"]), run["round"]] for run in runs
            ]
            for name, runs in result.runs.items()
        }
    kept.write(output / "fashion.json", shown)
    for suffix in (".png", ".svg"):
        draw(
            kept.read(output / "fashion.json"), (output / "fashion").with_suffix(suffix)
        )


def draw(shown: Mapping[str, Any], path: Path) -> None:
    """Draws a panel for each division of the data."""
    how = styles(METHODS)
    with drawing(path, (8, 3)) as figure:
        panels = figure.subplots(1, len(shown), sharey=True)
        for axis, (alpha, methods) in zip(panels, shown.items(), strict=True):
            alike = "similar clients" if float(alpha) > 1 else "different clients"
            axis.set_title(f"{alike}, Dirichlet({alpha})")
            for name, runs in methods.items():
                values = np.array([scores for scores, _ in runs])
                rounds = runs[0][1]
                band(axis, rounds, values, label=name, **how[name])
            axis.set_xlabel("round")
            axis.set_ylim(40, 92)
        panels[0].set_ylabel("test accuracy, %")
        panels[0].legend(loc="lower right")


def figures(results: Path) -> Any:
    """The figure of kept numbers, for `experiments.figures`."""
    path = results / "drift" / "fashion.json"
    yield path.with_suffix(""), functools.partial(draw, kept.read(path))


if __name__ == "__main__":
    call(main, __doc__)

"""FedAvg, Local Muon and FedMuon on clients that are alike, and on clients that differ.

    python -m experiments.studies.drift --data-dir DATA     # 10 minutes on a core

Clients that differ are those of the board's track `fashion`. For clients that are
alike, the same three rows run by the board's rules with Dirichlet(10), with eight
trials and five seeds. The figure is for "Why FedMuon" in the documentation.
"""

from pathlib import Path

import numpy as np

import fedjax_muon as fm
from experiments.arguments import call
from experiments.board.lines import finals, finish, lines_of
from experiments.board.rows import ROWS
from experiments.board.tracks import TRACKS, labeled
from fedjax_muon.problems import Problem
from fedjax_muon.runs.intervals import band
from fedjax_muon.runs.style import drawing, styles

PLACE = Path("results/drift")
METHODS = "fedavg", "local_muon", "fedmuon"
PANELS = {
    "similar clients, Dirichlet(10)": PLACE / "similar.jsonl",
    "different clients, Dirichlet(0.1)": Path("results/board/fashion.jsonl"),
}


def similar(data_dir: Path | None) -> Problem:
    """Fashion-MNIST, whose clients have all classes."""
    lenet = fm.models.LeNet(10)
    data = fm.data.load("fashion_mnist", data_dir)
    return labeled(data, lenet, 1 / 30, alpha=10.0)


TRACK = TRACKS["fashion"]._replace(problem=similar, trials=8, seeds=5)


def main(data_dir: Path | None = None, output: Path = PLACE) -> None:
    """Trains what is missing for similar clients, and draws the figure."""
    output.mkdir(parents=True, exist_ok=True)
    problem = TRACK.problem(data_dir)
    for name in METHODS:
        for line in finish(output / "similar.jsonl", name, ROWS[name], TRACK, problem):
            shown = {k: v for k, v in line.items() if not isinstance(v, list)}
            print(*shown.values(), flush=True)
    for suffix in (".png", ".svg"):
        draw((output / "fashion").with_suffix(suffix))


def draw(path: Path) -> None:
    """Draws the kept curves, a panel for each division of the data."""
    how = styles([ROWS[name].label for name in METHODS])
    with drawing(path, (8, 3)) as figure:
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for axis, (title, source) in zip(panels, PANELS.items(), strict=True):
            axis.set_title(title)
            for name in METHODS:
                label, runs = ROWS[name].label, finals(lines_of(source, name))
                scores = 100 * np.array([run["scores"] for run in runs])
                band(axis, runs[0]["round"], scores, label=label, **how[label])
            axis.set_xlabel("round")
            axis.set_ylim(10, 90)
        panels[0].set_ylabel("test accuracy, %")
        panels[0].legend(loc="lower right")


if __name__ == "__main__":
    call(main, __doc__)

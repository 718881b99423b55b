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
from fedjax_muon.runs import intervals
from fedjax_muon.runs.style import NOTE, Label, drawing, label_ends, styles

PLACE = Path("results/drift")
METHODS = "fedavg", "local_muon", "fedmuon"
TITLE = "With different clients, Local Muon falls back to FedAvg; FedMuon does not"
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
    looks = styles([ROWS[name].label for name in METHODS])
    with drawing(path, (8, 3.3), title=TITLE) as figure:
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for axis, (title, source) in zip(panels, PANELS.items(), strict=True):
            axis.set(xlabel="round", ylim=(40, 90))
            ends = []
            for name in METHODS:
                label, runs = ROWS[name].label, finals(lines_of(source, name))
                scores = 100 * np.array([run["scores"] for run in runs])
                x, how = runs[0]["round"], looks[label]
                mean = intervals.curve(axis, x, scores, **how)
                interval = intervals.ends(scores[:, -1], 0.0, 100.0)
                ends.append(Label(label, x[-1], mean[-1], how["color"], *interval))
            axis.set_title(f"{title}, {len(runs)} seeds")
            label_ends(axis, ends, 2.2)
        panels[0].set_ylabel("test accuracy, %")
        words = f"lines: means over seeds; bars at their ends: {intervals.WORDS}"
        figure.supxlabel(words, fontsize=7.5, color=NOTE)


if __name__ == "__main__":
    call(main, __doc__)

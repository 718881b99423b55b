"""How the test accuracies of clients differ, as a table and a figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.runs import intervals
from fedjax_muon.runs.style import color_names, drawing, styles
from fedjax_muon.runs.summary import History, mean_and_std
from fedjax_muon.runs.tables import Cells, count, percent

PREFIX = "client_test_accuracy_"
COLUMNS = {  # of metrics.csv, and their titles
    "min": "worst client, %",
    "p10": "10th percentile, %",
    "median": "median, %",
    "std": "deviation, %",
}


def last(runs: Sequence[History], name: str) -> np.ndarray:
    """A column of `COLUMNS` after the last round, one value for each run."""
    return np.array([run[f"{PREFIX}{name}"][-1] for run in runs], float)


def table(methods: Mapping[str, Sequence[History]], heading: str) -> Cells:
    """The table of the clients' accuracies, one row for each method."""
    rows = [
        (method, *(percent(*mean_and_std(last(runs, name))) for name in COLUMNS))
        for method, runs in methods.items()
    ]
    seeds = max(map(len, methods.values()))
    caption = (
        "accuracies of clients on test examples of their own, after the last round: "
        f"mean ± standard deviation of {count(seeds, 'seed')}; deviation: between "
        "clients"
    )
    return Cells(heading, caption, ("algorithm", *COLUMNS.values()), rows)


def figure(
    methods: Mapping[str, Sequence[History]], path: Path, *, title: str = ""
) -> None:
    """Draws the worst client, the 10th percentile and the median of every method.

    Points are means over seeds, with 95% intervals. A line joins those of one method.
    """
    marks = {"min": "v", "p10": "o", "median": "D"}
    seeds = max(map(len, methods.values()))
    with drawing(path, (7, 1.4 + 0.42 * len(methods)), title=title) as picture:
        axis: Any = picture.subplots()
        looks = styles(methods)
        for row, (method, runs) in enumerate(methods.items()):
            color = looks[method]["color"]
            scores = 100 * np.array([last(runs, name) for name in marks])
            means, halves = scores.mean(1), intervals.half_width(scores.T)
            places = row + np.array([-0.2, 0.0, 0.2])  # so that bars do not cover bars
            axis.plot(means, places, color="0.7", lw=1.2, zorder=1)
            reach = intervals.bars(means, halves, 0.0, 100.0).T
            drawn = zip(marks.items(), means, places, reach, strict=True)
            for (name, mark), mean, place, ends in drawn:
                label = COLUMNS[name].removesuffix(", %") if row == 0 else None
                how = {"fmt": mark, "ms": 5, "lw": 1, "color": color, "label": label}
                axis.errorbar(mean, place, xerr=ends[:, None], **how)
        axis.set_yticks(range(len(methods)), list(methods))
        color_names(axis, [look["color"] for look in looks.values()])
        axis.set_ylim(len(methods) - 0.5, -0.5)
        axis.margins(x=0.05)
        bars = f"\nbars: {intervals.WORDS} over {seeds} seeds" if seeds > 1 else ""
        axis.set_xlabel(f"accuracy of clients on their own test examples, %{bars}")
        legend: Any = picture.legend(loc="outside lower center", ncols=len(marks))
        for handle in legend.legend_handles:
            for part in (handle, *handle.get_children()):
                part.set_color("0.3")

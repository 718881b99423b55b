"""How the test accuracies of clients differ, as a table and a figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.runs.style import drawing, styles
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

    Points are means over seeds. A line joins those of one method.
    """
    marks = {"min": "v", "p10": "o", "median": "D"}
    with drawing(path, (7, 1.2 + 0.35 * len(methods))) as picture:
        axis: Any = picture.subplots()
        lines = styles(methods)
        for row, (method, runs) in enumerate(methods.items()):
            color = lines[method]["color"]
            values = [100 * last(runs, name).mean() for name in marks]
            axis.plot(values, [row] * len(values), color="0.7", lw=1.2, zorder=1)
            for (name, mark), value in zip(marks.items(), values, strict=True):
                label = COLUMNS[name].removesuffix(", %") if row == 0 else None
                axis.scatter(value, row, marker=mark, s=28, color=color, label=label)
        axis.set_yticks(range(len(methods)), list(methods))
        axis.invert_yaxis()
        axis.set_xlabel("accuracy of clients on their own test examples, %")
        axis.set_title(title)
        legend: Any = picture.legend(loc="outside lower center", ncols=len(marks))
        for handle in legend.legend_handles:
            handle.set_color("0.3")

"""Sweeps written by hand, with the reports that are right for them."""

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedjax_muon.runs import Swept, metrics_csv
from fedjax_muon.runs.results import report_of
from fedjax_muon.runs.summary import Point


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def rows_by_cell(place: Path, name: str) -> dict[str, dict[str, list[dict[str, str]]]]:
    """The rows of an algorithm's cells, by the words of their point and by seed."""
    found: dict = {}
    for row in table(place / "cells" / f"{name}.csv"):
        options = list(row)[: list(row).index("seed")]
        point = " ".join(f"{option}={float(row[option]):g}" for option in options)
        found.setdefault(point or "-", {}).setdefault(row["seed"], []).append(row)
    return found


def last(runs, column: str) -> list[float]:
    return [float(rows[-1][column]) for rows in runs.values()]


def chosen(points) -> Any:
    """By validation accuracy, then validation loss; no seed may have diverged."""
    ended = lambda runs: all(rows[0]["diverged"] == "-1" for rows in runs.values())
    whole = [point for point, runs in points.items() if ended(runs)]
    score = lambda point: (
        np.mean(last(points[point], "validation_accuracy")),
        -np.mean(last(points[point], "validation_loss")),
    )
    return max(whole, key=score, default=None)


def at_edges(point: str, points) -> str:
    """The options of a point whose value is the first or the last of several."""
    found = []
    for word in point.split() if point != "-" else ():
        option, _, value = word.partition("=")
        tried = {float(dict(w.split("=") for w in p.split())[option]) for p in points}
        if len(tried) > 1 and float(value) in (sorted(tried)[0], sorted(tried)[-1]):
            found.append(option)
    return " ".join(found)


def curve(runs, column: str) -> np.ndarray:
    return np.mean([[float(r[column]) for r in rows] for rows in runs.values()], axis=0)


def values(path: Path) -> list[list]:
    """The lines of a file but its header, numbers as such."""
    is_number = re.compile(r"-?\d[\d.e+-]*|nan").fullmatch
    with path.open(newline="") as file:
        _, *lines = csv.reader(file)
    return [[float(v) if is_number(v) else v for v in line] for line in lines]


def assert_reported(place: Path, labels: dict[str, str]) -> None:
    """points.csv and summary.csv say what follows from cells/ by csv and numpy."""
    grids = {label: rows_by_cell(place, name) for name, label in labels.items()}
    best = {label: chosen(points) for label, points in grids.items()}
    deviation = lambda v: np.sqrt(np.var(v) * len(v) / (len(v) - 1))
    expected: list = []
    for label, points in grids.items():
        for point, seeds in points.items():
            lost = sum(rows[0]["diverged"] != "-1" for rows in seeds.values())
            columns = ("validation_accuracy", "test_accuracy", "train_loss")
            ends = [last(seeds, column) for column in columns]
            numbers = [f(end) for end in ends for f in (np.mean, deviation)]
            status = "diverged" if lost else "finished"
            expected.append([label, point, status, lost, float(point == best[label])])
            expected[-1] += [""] * 6 if lost else numbers
    for line, other in zip(values(place / "points.csv"), expected, strict=True):
        assert line == pytest.approx(other)

    runs: Any = {label: grids[label][p] for label, p in best.items() if p}
    accuracy = {label: curve(some, "test_accuracy") for label, some in runs.items()}
    target = 0.9 * max(map(max, accuracy.values()))
    expected = []
    for label in sorted(runs, key=lambda label: -accuracy[label][-1]):
        final = last(runs[label], "test_accuracy")
        rounds, total = curve(runs[label], "round"), curve(runs[label], "bytes_down")
        total += curve(runs[label], "bytes_up")
        first = next((i for i, a in enumerate(accuracy[label]) if a >= target), None)
        reached = [np.nan] * 2 if first is None else [rounds[first], total[first] / 1e6]
        edge = at_edges(best[label], grids[label])
        row = [label, "finished", best[label], edge, np.mean(final), deviation(final)]
        row += [*reached, (total[-1] - total[0]) / rounds[-1]]
        expected.append([*row, curve(runs[label], "seconds")[-1]])
    lost = [label for label in labels.values() if not best[label]]
    expected += [[label, "diverged", *[""] * 8] for label in lost]
    for line, other in zip(values(place / "summary.csv"), expected, strict=True):
        assert line == pytest.approx(other, nan_ok=True)
    text = (place / "summary.md").read_text()
    assert f"target: {target:.1%}, 90% of the best" in text
    found = re.findall(r"^\| (.+?) \| (\S+)", text, re.MULTILINE)[2:]
    assert found == [(row[0], row[2] or "-") for row in expected]


# Of each method: learning rate -> validation accuracy and loss, test accuracy of one
# seed (the other is 0.02 above), the round in which the other diverged.
BY_HAND = {
    "fedavg": {0.1: (0.5, 1.0, 0.8, -1), 0.2: (0.7, 1.0, 0.3, -1)},
    "scaffold": {0.1: (0.5, 2.0, 0.6, -1), 0.2: (0.5, 1.0, 0.5, -1)},
    "fedmuon": {0.1: (0.9, 0.1, 0.9, 3), 0.2: (0.2, 3.0, 0.1, -1)},
    "stem": {0.1: (0.9, 0.1, 0.9, 0), 0.2: (0.9, 0.1, 0.9, 3)},
}


def by_hand(place: Path, methods, labels: dict[str, str]) -> Path:
    """The report of sweeps whose cells are written down."""
    (place / "cells").mkdir(parents=True)
    grids = {}
    for name, points in methods.items():
        cells, grids[labels[name]] = [], []
        for lr, (accuracy, loss, test, lost) in points.items():
            ended = []
            for seed in (3, 4):
                diverged = lost if seed == 4 else -1
                rounds = [0, 2, 4, 5] if diverged < 0 else [0, 2][: 1 + diverged // 2]
                more = 0.02 * (seed - 3)
                rows = [
                    {"lr": lr, "seed": seed, "diverged": diverged, "round": done}
                    | {"bytes_down": 7000 * done + 50, "bytes_up": 300 * done}
                    | {"test_accuracy": 0.1 + (test + more - 0.1) * done / 5}
                    | {"validation_accuracy": accuracy - (5 - done) / 50 + more}
                    | {"validation_loss": loss, "train_loss": 3 - done * loss / 9}
                    | {"dropped": 0, "seconds": done + 0.5}
                    for done in rounds
                ]
                cells += rows
                if diverged < 0:
                    ended.append({k: np.array([r[k] for r in rows]) for k in rows[0]})
            grids[labels[name]].append(Point({"lr": lr}, ended, 2 - len(ended)))
        text = metrics_csv.text_of(cells, header=True)
        (place / "cells" / f"{name}.csv").write_text(text)
    about = "by hand", 2, "accuracy"
    report_of(
        {label: Swept(label, None, grids[label], *about) for label in grids}, place
    )
    return place

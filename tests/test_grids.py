"""Grids of hyper-parameters: files, best points, tables, figures."""

import csv
import itertools
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from test_cli import run as command

from fedjax_muon.cli import tables
from fedjax_muon.reporting import comparison, metrics_csv, plots
from fedjax_muon.reporting.comparison import Point, Summary
from fedjax_muon.runs import config, directory

# -------------------------------------------------------------------- history

ROWS = [
    {"lr": 0.1, "seed": 3, "diverged": -1, "round": r, "loss": np.sqrt(2) / (r + 1)}
    for r in range(5)
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cells.csv"


def test_rows_that_are_added_together_are_as_rows_added_one_by_one(path, tmp_path):
    metrics_csv.extend(path, ROWS[:2])
    metrics_csv.extend(path, ROWS[2:])
    for row in ROWS:
        metrics_csv.append(tmp_path / "others.csv", row)
    assert path.read_bytes() == (tmp_path / "others.csv").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["cells.csv", "others.csv"]
    columns = metrics_csv.read(path)
    for name, column in columns.items():
        assert column.dtype == (np.float64 if name in ("lr", "loss") else np.int64)
        assert column.tolist() == [row[name] for row in ROWS]


@pytest.mark.parametrize("end", [1, 2, 9, 30])
def test_a_last_line_that_was_cut_off_gives_way(path, end):
    metrics_csv.extend(path, ROWS[:3])
    whole = path.read_bytes()
    assert len(whole) - whole.rindex(b"0.1,") > 30
    path.write_bytes(whole[:-end])
    metrics_csv.extend(path, ROWS[2:3])
    assert path.read_bytes() == whole


def test_rows_are_added_all_or_none_and_durably(path, monkeypatch):
    metrics_csv.extend(path, ROWS[:2])
    before = path.read_bytes()
    synced: list[int] = []

    def crash(self, target):
        assert target == path
        assert synced == [self.stat().st_size]  # durable before it takes the place
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", lambda n: synced.append(os.fstat(n).st_size))
    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        metrics_csv.extend(path, ROWS[2:])
    assert path.read_bytes() == before


# ---------------------------------------------------------------- best points


def run(validation, loss=1.0, test=0.5, start=0.9):
    """A run whose validation accuracy falls or rises to `validation`."""
    return {
        "round": np.array([0, 2]),
        "validation_accuracy": np.array([start, validation]),
        "validation_loss": np.array([9.0 * start, loss]),
        "test_accuracy": np.array([0.1, test]),
    }


def point(lr, *runs, diverged=0):
    return Point({"lr": lr}, runs, diverged)


def test_the_best_point_is_the_best_on_validation_after_the_last_round():
    draw = np.random.default_rng(0).uniform
    for _ in range(30):
        means = draw(size=(4, 3))
        points = [
            point(lr, *(run(v, test=draw(), start=draw()) for v in row))
            for lr, row in enumerate(means)
        ]
        assert comparison.best(points) is points[np.argmax(means.mean(1))]


def test_equals_on_validation_are_told_apart_by_its_loss():
    low, high, nan = run(0.5, 0.2, 0.1), run(0.5, 0.4, 0.9), run(0.5, np.nan, 0.9)
    for order in itertools.permutations([low, high, nan]):
        points = [point(lr, ending) for lr, ending in enumerate(order)]
        expected = points[[ending is low for ending in order].index(True)]
        assert comparison.best(points) is expected
    first, better = point(1, low), point(3, run(0.51, 7.0, 0.1))
    assert comparison.best([first, point(2, low)]) is first
    assert comparison.best([first, better]) is better


def test_points_without_a_validation_score_are_not_chosen():
    undefined, first = point(0, run(0.9), run(np.nan)), point(1, run(0.2))
    assert comparison.best([undefined, first]) is first
    assert comparison.best([undefined]) is None


# ------------------------------------------------------------ reports of sweeps

TINY: Any = {"num_clients": 6, "cohort_size": 3, "local_steps": 2, "batch_size": 8}
CONFIG = config.Config(**TINY, hidden=(8,), rounds=5, evaluate_every=2)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def played(place: Path, name: str) -> dict[str, dict[str, list[dict[str, str]]]]:
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
    grids = {label: played(place, name) for name, label in labels.items()}
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
        row = [label, "finished", best[label], np.mean(final), deviation(final)]
        row += reached
        row += [(total[-1] - total[0]) / rounds[-1], curve(runs[label], "seconds")[-1]]
        expected.append(row)
    expected += [
        [label, "diverged", *[""] * 7] for label in labels.values() if not best[label]
    ]
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


def by_hand(place: Path, methods) -> Path:
    """A sweep whose cells are written down, reported by `resume`."""
    grids = {name: {"lr": tuple(points)} for name, points in methods.items()}
    what = config.Sweep(tuple(methods), grids, (3, 4), 0.1, None, CONFIG)
    directory.create(place, what)
    (place / "cells").mkdir()
    for name, points in methods.items():
        for lr, (accuracy, loss, test, lost) in points.items():
            for seed in (3, 4):
                diverged = lost if seed == 4 else -1
                rounds = [0, 2, 4, 5] if diverged < 0 else [0, 2][: 1 + diverged // 2]
                more = 0.02 * (seed - 3)
                rows = [
                    {"lr": lr, "seed": seed, "diverged": diverged, "round": played}
                    | {"bytes_down": 7000 * played + 50, "bytes_up": 300 * played}
                    | {"test_accuracy": 0.1 + (test + more - 0.1) * played / 5}
                    | {"validation_accuracy": accuracy - (5 - played) / 50 + more}
                    | {"validation_loss": loss, "train_loss": 3 - played * loss / 9}
                    | {"dropped": 0, "seconds": played + 0.5}
                    for played in rounds
                ]
                metrics_csv.extend(place / "cells" / f"{name}.csv", rows)
    command("resume", place)
    return place


def test_the_best_is_best_on_validation_and_never_diverged(tmp_path):
    place = by_hand(tmp_path / "sweep", BY_HAND)
    labels = {"fedavg": "FedAvg", "scaffold": "SCAFFOLD", "fedmuon": "FedMuon"}
    assert_reported(place, labels | {"stem": "STEM (all clients)"})
    summary = {row["method"]: row for row in table(place / "summary.csv")}
    for label in labels.values():
        assert summary[label]["hyper"] == "lr=0.2", label
    assert summary["STEM (all clients)"]["status"] == "diverged"


# --------------------------------------------------------------------- tables


def summary(method, accuracy=0.5, spread=0.02, megabytes=3.0, rounds=4.0):
    return Summary(method, accuracy, spread, rounds, megabytes, 1234567.0, 1.0)


def test_the_table_of_a_sweep_by_hand():
    rows = [
        (summary("A", 0.75, 0.012), point(0.1, run(0.7), run(0.8))),
        (summary("B", 0.5, np.nan, np.nan, np.nan), point(0.2, run(0.4))),
    ]
    table = tables.swept(rows, ["C"], 0.675, "heading", 2)
    assert tables.markdown(table) == (
        "# heading\n\n"
        "| algorithm | best of its grid | validation, % | accuracy, % | "
        "rounds to target | MB to target | kB a round |\n"
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| A | lr=0.1 | 75.00 | 75.00 ± 1.20 | 4 | 3.0 | 1,235 |\n"
        "| B | lr=0.2 | 40.00 | 50.00 ± - | - | - | 1,235 |\n"
        "| C | - | - | diverged | - | - | - |\n\n"
        "Accuracy on the test set: mean ± standard deviation of 2 seeds; "
        "target: 67.5%, 90% of the best; MB, kB: of all clients; "
        "best of its grid: on validation examples.\n"
    )


# ---------------------------------------------------------------------- plots


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved."""
    saved: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **how: saved.append(self))
    return saved


def bars(container):
    """The centres and the half lengths of error bars."""
    line, _, (segments,) = container.lines
    ends = [s for s in segments.get_segments() if len(s) == 2]  # else it has no length
    return line.get_xydata(), np.ptp(np.array(ends), axis=1) / 2


def test_the_ranking_has_a_line_for_every_method(figures, tmp_path):
    rows = [summary("A", 0.8, 0.1, 5.0), summary("B", 0.7, np.nan, np.nan)]
    rows.append(summary("C", 0.6, 0.02, 0.5))
    plots.ranking(rows, tmp_path / "ranking.png")
    accuracy, traffic = figures[0].axes
    centres, spans = bars(accuracy.containers[0])
    np.testing.assert_allclose(centres, [[0.8, 0], [0.7, 1], [0.6, 2]])
    np.testing.assert_allclose(spans[:, 0], [0.1, 0, 0.02])
    assert [label.get_text() for label in accuracy.get_yticklabels()] == list("ABC")
    assert accuracy.yaxis_inverted()  # the first is the highest
    (marks,) = traffic.lines
    np.testing.assert_allclose(marks.get_xydata(), [[5, 0], [np.nan, 1], [0.5, 2]])
    assert traffic.get_xscale() == "log"


GRID = {
    "aligned": [
        Point({"lr": lr, "align": align}, [run(0, test=t), run(0, test=t + 0.2)], 0)
        for lr, align, t in ((1.0, 0, 0.3), (1.0, 1, 0.4), (0.1, 0, 0.5), (0.1, 1, 0.6))
    ],
    "alone": [Point({}, [run(0)], 0)],
    "fragile": [
        point(0.1, run(0, test=0.2), run(0, test=0.4)),
        point(1.0, run(0, test=0.9), diverged=1),
        point(10.0, diverged=2),
    ],
    "from nothing": [point(lr, run(0, test=0.2)) for lr in (0.0, 0.5)],
}


def test_grids_have_a_panel_for_each_method_with_a_grid(figures, tmp_path):
    plots.grids(GRID, tmp_path / "grids.png", title="title")
    panels = {axis.get_title(): axis for axis in figures[0].axes if axis.get_visible()}
    assert list(panels) == ["aligned", "fragile", "from nothing"]
    assert {axis.get_xlabel() for axis in panels.values()} == {"lr"}

    aligned = panels["aligned"]
    names = [text.get_text() for text in aligned.get_legend().get_texts()]
    assert names == ["align=0", "align=1"]
    deviation = np.std([0, 0.2], ddof=1)
    for number, container in enumerate(aligned.containers):
        centres, spans = bars(container)
        means = [[0.1, 0.6 + 0.1 * number], [1, 0.4 + 0.1 * number]]
        np.testing.assert_allclose(centres, means)  # in the order of learning rates
        np.testing.assert_allclose(spans[:, 1], deviation)

    crosses = [line for line in panels["fragile"].lines if line.get_marker() == "x"]
    assert [line.get_xydata().tolist() for line in crosses] == [[[1, 0], [10, 0]]]
    centres, _ = bars(panels["fragile"].containers[0])
    np.testing.assert_allclose(centres, [[0.1, 0.3], [1, np.nan], [10, np.nan]])
    assert panels["fragile"].get_legend() is None
    scales = [axis.get_xscale() for axis in panels.values()]
    assert scales == ["log", "log", "linear"]  # zero has no place on the former


@pytest.mark.parametrize("methods", [1, 2, 6, 7, 13])
def test_every_method_has_its_panel_however_many_there_are(figures, tmp_path, methods):
    names = [f"method {number}" for number in range(methods)]
    plots.grids(dict.fromkeys(names, GRID["aligned"]), tmp_path / "grids.png")
    shown = [axis.get_title() for axis in figures[0].axes if axis.get_visible()]
    assert shown == names

"""Figures of the documentation, drawn again from the kept results.

    python -m experiments.figures

Every figure is written as .png, for pages with a white background, and as .svg, which
has none. Nothing is trained. Figures of finished studies stay as they are, and
`benchmarks.figure` draws those of benchmarks. Where the curves of a paper's
item are not kept, its figure shows scores and losses after the last round.
"""

import contextlib
import csv
import functools
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import fedjax_muon
from experiments import diagrams, dots
from experiments.arguments import call
from experiments.board import page as board, standings
from experiments.papers import paper_report
from experiments.studies import client_privacy, drift, stragglers, tuned
from fedjax_muon.data import partition
from fedjax_muon.runs import plots, style
from fedjax_muon.runs.methods import METHODS
from fedjax_muon.runs.summary import Point, Summary

Figure = tuple[Path, Callable[[Path], None]]  # without a suffix, and what draws it
PAPERS = {
    "fedmuon_001": "Takezawa et al.",
    "fedmuon_003": "Zhang and Gao",
    "fedmuon_004": "Liu et al., CIFAR-100",
    "minimax_000": "Zhang and Gao, minimax",
}
IMAGES = {  # what the figures of private images show
    ("examples", "mnist"): "DP-Muon is level with DP-SGD",
    ("examples", "fashion_mnist"): "DP-Muon is ahead of DP-SGD",
    ("clients", "digits"): "Methods are level",
    ("clients", "fashion_mnist"): "DP-FedMuon is ahead of DP-FedAvg",
}


def read(path: Path) -> list[dict[str, str]]:
    """Returns the lines of a table."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def kept_point(line: dict[str, str]) -> Point:
    """Returns five runs with the mean and the deviation of a line of points.csv."""
    words = [word.split("=") for word in line["hyper"].split() if "=" in word]
    numbers = {name: float(value) for name, value in words}
    diverged = int(line["diverged_seeds"])
    if diverged:
        return Point(numbers, [], diverged)
    mean, spread = (float(line[f"test_accuracy_{of}"]) for of in ("mean", "std"))
    ends = mean + spread * np.array([-1, -1, 0, 1, 1])
    return Point(numbers, [{"test_accuracy": np.array([end])} for end in ends], 0)


def kept_summary(cells: list[str]) -> Summary:
    """Returns a row of summary.md; its numbers are rounded there."""
    number = lambda text: float(text.replace(",", "")) if text != "-" else np.nan
    mean, _, spread = cells[3].partition(" ± ")
    return Summary(
        method=cells[0],
        score_mean=number(mean) / 100,
        score_std=number(spread) / 100,
        rounds_to_target=number(cells[4]),
        megabytes_to_target=number(cells[5]),
        bytes_per_round=1e3 * number(cells[6]),
        seconds=np.nan,
    )


def sweeps(results: Path) -> Iterator[Figure]:
    """The best points of the sweep, and four of its grids."""
    place = results / "sweeps"
    text = (place / "summary.md").read_text()
    lines = [line[2:-2].split(" | ") for line in re.findall(r"^\| .*\|$", text, re.M)]
    rows = [kept_summary(cells) for cells in lines if " ± " in cells[3]]
    rows.sort(key=lambda row: style.line_of(row.method).color in style.GREYS)
    title = "FedMuon scores highest on digits; methods are not equally tuned"
    draw = functools.partial(plots.ranking, rows, title=title, seeds=5)
    yield place / "ranking", draw
    points: dict[str, list[Point]] = {}
    for line in read(place / "points.csv"):
        points.setdefault(line["method"], []).append(kept_point(line))
    shown = ("FedAvg", "FedMuon", "SCAFFOLD(Adam)", "Local Muon")
    grids = {method: points[method] for method in shown}
    title = "SCAFFOLD(Adam) needs an exact learning rate; FedAvg and FedMuon do not"
    yield place / "grids", functools.partial(plots.grids, grids, title=title)


def privacy(results: Path) -> Iterator[Figure]:
    """Private methods and private clients."""
    place = results / "privacy"
    yield place / "audit", functools.partial(draw_audit, read(place / "audit.csv"))
    chosen = client_privacy.best(client_privacy.read(place / "clients.csv"))
    yield place / "clients", functools.partial(client_privacy.draw, chosen)
    found: dict[tuple[str, str], dict[tuple[str, str], list[float]]] = {}
    for row in read(place / "images.csv"):
        scores = found.setdefault((row["unit"], row["dataset"]), {})
        key = row["method"], f"epsilon {float(row['epsilon']):g}"
        scores.setdefault(key, []).append(100 * float(row["accuracy"]))
    for (unit, dataset), scores in found.items():
        shown = [
            dots.dot(f"{dataset}, private {unit}", method, of, epsilon, "accuracy, %")
            for (method, epsilon), of in scores.items()
        ]
        draw = functools.partial(dots.draw, shown, title=IMAGES[unit, dataset])
        yield place / f"images_{unit}_{dataset}", draw


def equal_privacy(results: Path) -> Iterator[Figure]:
    """Agents whose examples are equally private, beside agents without privacy."""
    place = results / "dpmixsgd" / "equal"
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in read(place.with_suffix(".csv")):
        epsilon = float(row["value"])
        series = f"epsilon {epsilon:g}" if np.isfinite(epsilon) else ""
        key = row["dataset"], METHODS[row["method"]].label, series
        found.setdefault(key, []).append(100 * float(row["auc"]))
    shown = [
        dots.dot(dataset, label, scores, series, "test AUC, %")
        for (dataset, label, series), scores in found.items()
    ]
    title = "DPMixSGD is behind at equal privacy"
    yield place, functools.partial(dots.draw, shown, title=title)


def draw_audit(rows: list[dict[str, str]], path: Path) -> None:
    """Draws lower bounds of epsilon for two of the mechanisms."""
    names = ("DPMixSGD (clipped), cyclic", "DPMixSGD (noise inside), Poisson 1/5")
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    with style.drawing(path, (8.5, 3.2)) as drawing:
        panels = drawing.subplots(1, 2, sharex=True, sharey=True)
        for axis, name in zip(panels, names, strict=True):
            found = [row for row in rows if row["mechanism"] == name]
            places = [variants.index(row["variant"]) for row in found]
            for column, words, mark in (
                ("many", "many runs", "o"),
                ("one", "one run", "s"),
            ):
                bounds = np.maximum(0.1, [float(row[column]) for row in found])
                color = "C0" if column == "many" else "C1"
                axis.plot(bounds, places, mark, ms=5, color=color, label=words)
            axis.axvline(3, color=style.NOTE, lw=1)
            axis.text(3.2, -0.55, "claim", fontsize=7.5, color=style.NOTE)
            axis.set_title(name)
            axis.set_xlabel("lower bound of epsilon")
        style.logarithmic(panels[0], [0.1, 100])
        panels[0].set_yticks(range(len(variants)), variants)
        panels[0].set_ylim(len(variants) - 0.5, -0.9)
        panels[1].legend(loc="lower right")
        title = "Audits find mistakes, but not all of them under sampling"
        drawing.suptitle(title, x=0.01, ha="left")


def papers(results: Path) -> Iterator[Figure]:
    """The papers' tables and figures: curves where kept, else the last scores."""
    for path in sorted((results / "papers").glob("*/*.csv")):
        if path.with_suffix(".json").exists():
            draw = functools.partial(paper_report.draw, path.with_suffix(".json"))
        else:
            item = path.stem.replace("_of_16", ", but 16 local steps")
            words = PAPERS[path.parent.name], item.replace("_", " "), "scaled to a CPU"
            title = ", ".join(words)
            shown = paper_report.last(read(path), path.with_suffix(".md").read_text())
            if path.parent.name == "minimax_000":  # losses of a saddle say little
                shown = [one for one in shown if one.unit != "training loss"]
            columns = 2 if any(one.unit for one in shown) else 3
            draw = functools.partial(dots.draw, shown, title=title, columns=columns)
        yield path.with_suffix(""), draw


def front(results: Path) -> Iterator[Figure]:
    """The differences on the tracks of the board, and their summary."""
    found = standings.tables(results / "board")
    place = results / "board"
    yield place / "summary", functools.partial(board.draw_summary, found)
    for track in found:
        yield place / track.name, functools.partial(board.draw, track)


def slow_clients(results: Path) -> Iterator[Figure]:
    """Times to the target of synchronous and asynchronous rounds."""
    title = "Deadlines and asynchronous rounds save time where speeds differ much"
    for name, scale in stragglers.SCALES.items():
        path = results / "stragglers" / f"{name}.jsonl"
        runs = stragglers.best(tuned.read(path), name)
        target = scale.target
        draw = functools.partial(stragglers.draw, runs, target=target, title=title)
        yield path.with_suffix(""), draw


def tutorial(results: Path) -> Iterator[Figure]:
    """The clients of the tutorial, by the code of its page."""
    docs = results.parent / "docs"
    text = (docs / "tutorial" / "1_own_data.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    code = "".join(block for block in blocks if "loans.csv" in block)
    yield docs / "assets" / "tutorial_banks", functools.partial(draw_clients, code)


def draw_clients(code: str, path: Path) -> None:
    """Draws the clients that a page's code makes of the dataset `loans`."""
    names: dict[str, Any] = {"fm": fedjax_muon}
    with (
        tempfile.TemporaryDirectory() as empty,
        contextlib.chdir(empty),
        contextlib.redirect_stdout(None),
    ):
        exec(code, names)
    loans = names["loans"]
    with style.drawing(path, (4.5, 1.8)) as drawing:
        axis = drawing.subplots()
        partition.plot(names["clients"], loans.y_train, loans.classes, axis=axis)
        axis.set_xticks(range(len(names["clients"])), loans.owner_names)
        axis.margins(0.1, 0.5)


def concepts(results: Path) -> Iterator[Figure]:
    """The drawings, and client drift."""
    assets = results.parent / "docs" / "assets"
    yield assets / "round", diagrams.a_round
    yield assets / "messages", diagrams.messages
    yield assets / "late", diagrams.late
    yield assets / "who_sees", diagrams.who_sees
    yield results / "drift" / "fashion", drift.draw


ALL = (
    front,
    concepts,
    slow_clients,
    tutorial,
    sweeps,
    privacy,
    equal_privacy,
    papers,
)


def main(results: Path = Path("results"), /) -> None:
    """Draws figures from kept results.

    Args:
      results: Directory of the results, in which the figures are written.
    """
    for place, draw in (each for found in ALL for each in found(results)):
        for suffix in (".png", ".svg"):
            draw(place.with_suffix(suffix))
        picture = place.with_suffix(".png")
        Image.open(picture).convert("RGB").quantize(128).save(picture, optimize=True)


if __name__ == "__main__":
    call(main, __doc__)

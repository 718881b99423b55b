"""Figures of the documentation, drawn again from the kept results.

    python -m experiments.figures

Nothing is trained. Figures whose curves are not among the kept results are not drawn:
comparison.png, those of papers, theory and newton_schulz, the curves of sweeps and
minimax, the utility of private methods and reconstructions.
"""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from benchmarks import figure, table
from experiments.papers import dpmixsgd_equal
from experiments.studies import audit, private_images
from fedjax_muon.reporting import plots
from fedjax_muon.reporting.comparison import Point, Summary


def read(path: Path) -> list[dict[str, str]]:
    """Returns the lines of a table."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def kept_point(line: dict[str, str]) -> Point:
    """Returns two runs with the mean and the deviation of a line of points.csv."""
    words = [word.split("=") for word in line["hyper"].split() if "=" in word]
    numbers = {name: float(value) for name, value in words}
    diverged = int(line["diverged_seeds"])
    if diverged:
        return Point(numbers, [], diverged)
    mean, spread = (float(line[f"test_accuracy_{of}"]) for of in ("mean", "std"))
    ends = mean + np.array([-1, 1]) * spread / np.sqrt(2)
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


def sweeps(results: Path) -> None:
    """Draws the ranking and the grids of the sweep."""
    place = results / "sweeps"
    text = (place / "summary.md").read_text()
    title = text.splitlines()[0].removeprefix("# ")
    lines = [line[2:-2].split(" | ") for line in re.findall(r"^\| .*\|$", text, re.M)]
    rows = [cells for cells in lines if " ± " in cells[3]]
    plots.ranking(list(map(kept_summary, rows)), place / "ranking.png", title=title)
    grids: dict[str, list[Point]] = {}
    for line in read(place / "points.csv"):
        grids.setdefault(line["method"], []).append(kept_point(line))
    plots.grids(grids, place / "grids.png", title=title)


def speed(results: Path) -> None:
    """Draws times of rounds."""
    place = results / "benchmarks"
    rows = table.read([place / "workloads_cpu.jsonl"])
    figure.draw(rows, place / "workloads_cpu.png")


def dpmixsgd(results: Path) -> None:
    """Draws the test AUC of private methods at equal epsilon."""
    curves: dict[str, dict[str, dict[float, list[float]]]] = {}
    for row in read(results / "dpmixsgd" / "equal.csv"):
        if row["panel"] == "epsilon":
            methods = curves.setdefault(row["dataset"], {})
            by_epsilon = methods.setdefault(dpmixsgd_equal.label(row["method"]), {})
            by_epsilon.setdefault(float(row["value"]), []).append(float(row["auc"]))
    for name, methods in curves.items():
        title = f"{name}, delta {dpmixsgd_equal.DELTA:g}"
        path = results / "dpmixsgd" / f"equal_{name}.png"
        plots.utility(methods, path, title=title)


def privacy(results: Path) -> None:
    """Draws the audit and the accuracies of private images."""
    rows = [
        audit.Row(
            line["mechanism"],
            line["variant"],
            *(float(line[name]) for name in ("claim", "many", "one")),
        )
        for line in read(results / "privacy" / "audit.csv")
    ]
    audit.draw(rows, results / "privacy" / "audit.png")
    lines = read(results / "privacy" / "images.csv")
    kinds = private_images.EXAMPLES, private_images.CLIENTS
    studies = {study.unit: study for study in kinds}
    for unit, name in dict.fromkeys((line["unit"], line["dataset"]) for line in lines):
        study = studies[unit]
        cells = private_images.cells_of(lines, unit, name)
        path = results / "privacy" / f"images_{unit}_{name}.png"
        private_images.draw(study, name, cells, path)


ALL: tuple[Callable[[Path], None], ...] = (sweeps, speed, dpmixsgd, privacy)


def main(results: Annotated[Path, tyro.conf.Positional] = Path("results")) -> None:
    """Draws figures from kept results.

    Args:
      results: Directory of the results, in which the figures are written.
    """
    for draw in ALL:
        draw(results)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)

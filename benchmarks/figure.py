"""Time of a round relative to FedAvg in hand-written JAX, one row per workload.

python -m benchmarks plot RESULTS.jsonl [MORE.jsonl ...] --output FIGURE.png
"""

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backend_bases import FigureCanvasBase

from benchmarks import table
from fedjax_muon.runs.style import NOTE, drawing, logarithmic

OURS = "fedjax_muon"
UNIT = "JAX by hand"  # its time is 1; without it that of this library
LOOKS = {"PyTorch loop": ("^", "#868686"), "Flower": ("D", "#5f5f5f")}
LOOKS |= {"pfl": ("v", "#a9a9a9"), OURS: ("o", "#1f6fd6")}
Row = Mapping[str, Any]


def check_format(path: Path) -> None:
    """Raises `ValueError` for a suffix that is not a figure format."""
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:] not in known:
        raise ValueError(
            f"no figure format {path.name!r}; there are {', '.join(known)}"
        )


def workloads(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Returns relative times of FedAvg by workload and contender.

    Workloads without FedAvg of this library are left out.
    """
    timed = [
        row
        for row in rows
        if "wall_seconds" in row and row.get("algorithm") == "fedavg"
    ]
    found = {}
    for own in (row for row in timed if row["contender"] == OURS):
        here = [row for row in timed if row["workload"] == own["workload"]]
        seconds = {row["contender"]: row["wall_seconds"] for row in here}
        base = seconds.get(UNIT, own["wall_seconds"])
        title = f"{textwrap.fill(table.about(own), 44)}; {base:.3g} s"
        found[title] = {name: value / base for name, value in seconds.items()}
    return found


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws a row of dots for every workload.

    Raises:
      ValueError: If no workload has a time of FedAvg, or the suffix is not a figure
        format.
    """
    check_format(path)
    found = workloads(rows)
    if not found:
        raise ValueError("no row has wall_seconds of FedAvg: nothing to draw")
    path.parent.mkdir(parents=True, exist_ok=True)
    with drawing(path, (7.5, 0.5 * len(found) + 1.2)) as figure:
        axis: Any = figure.subplots()
        axis.axvline(1, color=NOTE, lw=1, zorder=1)
        names = dict.fromkeys(name for ratios in found.values() for name in ratios)
        for name in sorted(names, key=lambda name: name == OURS):  # ours in front
            label, _, version = name.partition(", jax ")
            mark, color = LOOKS.get(label, ("X", NOTE))
            # hollow: with another JAX
            how = {"label": name, "color": color, "mfc": "none" if version else color}
            dots = [(d[name], y) for y, d in enumerate(found.values()) if name in d]
            if name != UNIT:
                axis.plot(*zip(*dots, strict=True), mark, ms=6, **how)
        axis.set_yticks(range(len(found)), list(found), fontsize=7.5)
        axis.set_ylim(len(found) - 0.5, -0.5)
        logarithmic(
            axis, [ratio for ratios in found.values() for ratio in ratios.values()]
        )
        unit = UNIT if UNIT in names else OURS
        axis.set_xlabel(f"time of a round of FedAvg; {unit} = 1, its time on the left")
        figure.legend(loc="outside lower center", ncols=4)


def main(given: Sequence[str]) -> None:
    """Runs the command `plot`.

    Raises:
      ValueError: As `draw` does, and if there is no such file.
    """
    parser = argparse.ArgumentParser("python -m benchmarks plot", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(given)
    draw(table.read(options.results), options.output)

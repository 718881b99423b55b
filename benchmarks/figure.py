"""Time of a round relative to FedAvg of this library, one row per workload.

python -m benchmarks plot RESULTS.jsonl [MORE.jsonl ...] --output FIGURE.png
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from benchmarks import table
from fedjax_muon.reporting.style import STYLE, logarithmic, save, styles

OURS = "fedjax_muon"
NAMES = {"fedavg": "FedAvg", "fedmuon": "FedMuon", "local_adamw": "Local AdamW"}
MARKS = {  # of other libraries; shades of grey
    "JAX by hand": ("s", "0.15"),
    "PyTorch loop": ("^", "0.4"),
    "Flower": ("D", "0.55"),
    "pfl": ("v", "0.7"),
}
Row = Mapping[str, Any]


def check_format(path: Path) -> None:
    """Raises `ValueError` for a suffix that is not a figure format."""
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:] not in known:
        raise ValueError(
            f"no figure format {path.name!r}; there are {', '.join(known)}"
        )


class Dot(NamedTuple):
    """A time relative to FedAvg of this library on the same workload."""

    label: str
    ratio: float
    ours: bool  # the library's


def workloads(rows: Sequence[Row]) -> dict[str, list[Dot]]:
    """Returns the dots of every workload, by its name, seconds and any reduced sizes.

    Workloads without FedAvg of this library are left out.
    """
    timed = [row for row in rows if "wall_seconds" in row and row.get("algorithm")]
    found: dict[str, list[Dot]] = {}
    for base in timed:
        if (base["contender"], base["algorithm"]) != (OURS, "fedavg"):
            continue
        title = f"{base['workload']}\n{base['wall_seconds']:.3g} s"
        if base.get("whole") is False:
            title += "; {cohort} of {clients} clients, {steps} steps".format(**base)
        for row in timed:
            if row["workload"] != base["workload"]:
                continue
            name: str = NAMES.get(row["algorithm"]) or row["algorithm"]
            ours = row["contender"] == OURS
            label = name if ours else f"{row['contender']}, {name}"
            ratio = row["wall_seconds"] / base["wall_seconds"]
            found.setdefault(title, []).append(Dot(label, ratio, ours))
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
    labels = dict.fromkeys(dot for dots in found.values() for dot in dots)
    lines = styles(dot.label for dot in labels if dot.ours)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 0.5 * len(found) + 1.2), layout="constrained")
        axis: Any = figure.subplots()
        axis.axvline(1, color="0.4", lw=0.8, zorder=1)
        for place, dots in enumerate(found.values()):
            for dot in sorted(dots, key=lambda dot: dot.ours):
                name = dot.label.partition(", ")[0]
                mark, color = MARKS.get(name, ("X", "0.5"))
                if dot.ours:
                    mark, color = "o", lines[dot.label]["color"]
                axis.plot(
                    dot.ratio, place, mark, color=color, label=dot.label, ms=6, mew=0
                )
        axis.set_yticks(range(len(found)), list(found))
        axis.set_ylim(len(found) - 0.5, -0.5)
        logarithmic(axis, [dot.ratio for dots in found.values() for dot in dots])
        axis.set_xlabel("time of a round relative to FedAvg, whose time is on the left")
        marks = dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
        names = [*lines, *(name for name in marks if name not in lines)]
        handles = [marks[name] for name in names]
        figure.legend(handles, names, loc="outside lower center", ncols=4)
        path.parent.mkdir(parents=True, exist_ok=True)
        save(figure, path)


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

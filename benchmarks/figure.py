"""Bar charts of seconds per round, one panel per workload.

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

OURS, THEIRS = "tab:blue", "0.65"
NAMES = {"fedavg": "FedAvg", "fedmuon": "FedMuon", "local_adamw": "Local AdamW"}
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "font.size": 9,
}
Row = Mapping[str, Any]


def check_format(path: Path) -> None:
    """Raises `ValueError` for a suffix that is not a figure format."""
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:] not in known:
        raise ValueError(
            f"no figure format {path.name!r}; there are {', '.join(known)}"
        )


class Bar(NamedTuple):
    """A row with a time."""

    label: str
    seconds: float
    ours: bool  # the library's


def panels(rows: Sequence[Row]) -> dict[str, list[Bar]]:
    """Returns the bars of every workload, by its name and any reduced sizes."""
    found: dict[str, list[Bar]] = {}
    for row in rows:
        if "wall_seconds" not in row:
            continue
        title = row["workload"]
        if row.get("whole") is False:
            sizes = "; {clients} clients, {cohort} a round, {steps} steps of {batch}"
            title += sizes.format(**row)
        algorithm = row.get("algorithm", "")
        names = row.get("case"), row["contender"], NAMES.get(algorithm, algorithm)
        label = ", ".join(name for name in names if name)
        ours = row["contender"] == "fedjax_muon"
        found.setdefault(title, []).append(Bar(label, row["wall_seconds"], ours))
    return found


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws the panels below each other, with bars of equal height.

    Raises:
      ValueError: If no row has a time, or the suffix is not a figure format.
    """
    check_format(path)
    workloads = panels(rows)
    if not workloads:
        raise ValueError("no row has wall_seconds: nothing to draw")
    counts = [len(bars) for bars in workloads.values()]
    with matplotlib.rc_context(STYLE):
        height = 0.6 * len(workloads) + 0.24 * sum(counts) + 0.3
        figure = Figure(figsize=(7.5, height), layout="constrained")
        ratios = {"height_ratios": [0.4 + count for count in counts]}
        axes = figure.subplots(len(workloads), squeeze=False, gridspec_kw=ratios)[:, 0]
        for axis, (title, bars) in zip(axes, workloads.items(), strict=True):
            labels, seconds, ours = zip(*bars, strict=True)
            positions = range(len(bars))
            colors = [OURS if own else THEIRS for own in ours]
            drawn = axis.barh(positions, seconds, color=colors, height=0.7)
            axis.bar_label(drawn, [f"{s:.3g}" for s in seconds], padding=3)
            axis.set_yticks(positions, labels)
            axis.set_ylim(len(bars) - 0.5, -0.5)
            axis.margins(x=0.12)
            axis.set_title(title, loc="left", fontsize=9)
        axes[-1].set_xlabel("seconds per round, or per call")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


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

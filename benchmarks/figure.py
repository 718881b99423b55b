"""Bars of seconds a round, a panel for each work.

python -m benchmarks plot RESULTS.jsonl [MORE.jsonl ...] --output FIGURE.png
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

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
    """Raises `ValueError` for a suffix that no figure is written as."""
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:] not in known:
        raise ValueError(
            f"no figure format {path.name!r}; there are {', '.join(known)}"
        )


def panels(rows: Sequence[Row]) -> dict[str, list[tuple[str, float, bool]]]:
    """For every work with a time: label, seconds, and whether it is the library's."""
    found: dict[str, list[tuple[str, float, bool]]] = {}
    for row in rows:
        if "wall_seconds" not in row:
            continue
        title = row["work"] + (f", {row['case']}" if "case" in row else "")
        if row.get("whole") is False:
            title += " ({cohort} x {steps} steps of {batch})".format(**row)
        ours = row["contender"] == "fedjax_muon"
        label = row["contender"]
        if "algorithm" in row:
            label += f", {NAMES.get(row['algorithm'], row['algorithm'])}"
        found.setdefault(title, []).append((label, row["wall_seconds"], ours))
    return found


def draw(rows: Sequence[Row], path: Path) -> None:
    """Raises `ValueError` if no row has a time, or for an unknown suffix."""
    check_format(path)
    works = panels(rows)
    if not works:
        raise ValueError("no row has wall_seconds: nothing to draw")
    columns = 1 if len(works) == 1 else 2
    lines = -(-len(works) // columns)
    most = max(map(len, works.values()))
    with matplotlib.rc_context(STYLE):
        size = (5.6 * columns, (0.7 + 0.26 * most) * lines)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False).flat
        for axis, (title, bars) in zip(axes, works.items(), strict=False):
            labels, seconds, ours = zip(*bars, strict=True)
            places = range(len(bars))
            colors = [OURS if own else THEIRS for own in ours]
            drawn = axis.barh(places, seconds, color=colors, height=0.7)
            axis.bar_label(drawn, [f"{s:.3g}" for s in seconds], padding=3)
            axis.set_yticks(places, labels)
            axis.set_ylim(most - 0.5, -0.5)  # bars of one height in all panels
            axis.margins(x=0.15)
            axis.set_title(title, loc="left", fontsize=9)
            axis.set_xlabel("seconds" + ("" if "case" in title else " a round"))
        for axis in list(figure.axes)[len(works) :]:
            axis.remove()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def main(given: Sequence[str]) -> None:
    """The command `plot`. Raises `ValueError` as `draw` does, and for no such file."""
    parser = argparse.ArgumentParser("python -m benchmarks plot", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(given)
    rows = []
    for path in options.results:
        if not path.is_file():
            raise ValueError(f"no file {path}")
        rows += [json.loads(line) for line in path.read_text().splitlines()]
    draw([row for row in rows if "work" in row], options.output)

"""Bars of seconds a round, a panel for each work.

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
    """Raises `ValueError` for a suffix that no figure is written as."""
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:] not in known:
        raise ValueError(
            f"no figure format {path.name!r}; there are {', '.join(known)}"
        )


class Bar(NamedTuple):
    """A row that has a time."""

    label: str
    seconds: float
    ours: bool  # the library's


def panels(rows: Sequence[Row]) -> dict[str, list[Bar]]:
    """The bars of every work, titled by its name and what is less than the whole."""
    found: dict[str, list[Bar]] = {}
    for row in rows:
        if "wall_seconds" not in row:
            continue
        title = row["work"]
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
    """One panel under the other, all bars of one height.

    Raises `ValueError` if no row has a time, or for an unknown suffix.
    """
    check_format(path)
    works = panels(rows)
    if not works:
        raise ValueError("no row has wall_seconds: nothing to draw")
    counts = [len(bars) for bars in works.values()]
    with matplotlib.rc_context(STYLE):
        height = 0.6 * len(works) + 0.24 * sum(counts) + 0.3
        figure = Figure(figsize=(7.5, height), layout="constrained")
        ratios = {"height_ratios": [0.4 + count for count in counts]}
        axes = figure.subplots(len(works), squeeze=False, gridspec_kw=ratios)[:, 0]
        for axis, (title, bars) in zip(axes, works.items(), strict=True):
            labels, seconds, ours = zip(*bars, strict=True)
            places = range(len(bars))
            colors = [OURS if own else THEIRS for own in ours]
            drawn = axis.barh(places, seconds, color=colors, height=0.7)
            axis.bar_label(drawn, [f"{s:.3g}" for s in seconds], padding=3)
            axis.set_yticks(places, labels)
            axis.set_ylim(len(bars) - 0.5, -0.5)
            axis.margins(x=0.12)
            axis.set_title(title, loc="left", fontsize=9)
        axes[-1].set_xlabel("seconds: a round, or a call")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def main(given: Sequence[str]) -> None:
    """The command `plot`. Raises `ValueError` as `draw` does, and for no such file."""
    parser = argparse.ArgumentParser("python -m benchmarks plot", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(given)
    draw(table.read(options.results), options.output)

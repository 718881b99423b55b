"""Measurements of the papers' theorems on matrix quadratics.

    python -m experiments.theory                          # all; minutes on 2 cores
    python -m experiments.theory --only stall consensus
    python -m experiments.theory --scale smoke            # a small smoke test

Writes theory.md, theory.csv, and per study a figure and its numbers as JSON;
results/theory has those of the first command. Criteria were set before any measurement.
Grids were widened afterwards where the best setting was at their edge.
"""

import time
from pathlib import Path
from typing import Literal, get_args

import tyro
from rich.console import Console

from benchmarks.machine import machine
from experiments import kept
from experiments.theory import (
    consensus,
    heavy_tails,
    newton_schulz,
    report,
    speedup,
    stall,
)

STUDIES = {
    "stall": stall,
    "newton_schulz": newton_schulz,
    "consensus": consensus,
    "speedup": speedup,
    "heavy_tails": heavy_tails,
}
Name = Literal["stall", "newton_schulz", "consensus", "speedup", "heavy_tails"]
COMMAND = "python -m experiments.theory --scale {} --only {}"


def main(
    output: Path = Path("runs/theory"),
    only: tuple[Name, ...] = (),
    scale: Literal["smoke", "full"] = "full",
) -> None:
    """Runs the studies and writes their findings.

    Args:
      output: Directory of the results; it may be new.
      only: Studies to run; all by default.
      scale: full is the version in the documentation, smoke a small one.
    """
    output.mkdir(parents=True, exist_ok=True)
    console = Console()
    entries = []
    for name in only or get_args(Name):
        begin = time.perf_counter()
        found, drawn = STUDIES[name].study(STUDIES[name].SIZES[scale])
        kept.write(output / f"{name}.json", drawn)
        drawn = kept.read(output / f"{name}.json")
        report.draw(STUDIES[name], drawn, scale, output / f"{name}.png")
        seconds = time.perf_counter() - begin
        command = COMMAND.format(scale, name)
        entries.append(report.Entry(name, found, seconds, command))
        console.print(f"{name}: {seconds:.0f} s")
    console.print(report.table(entries))
    text = report.markdown(entries, machine("experiments.theory"))
    (output / "theory.md").write_text(text)
    report.write_csv(entries, output / "theory.csv")


if __name__ == "__main__":
    tyro.cli(main)

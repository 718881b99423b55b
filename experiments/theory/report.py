"""Findings as a table in the terminal, in Markdown and, number by number, as CSV."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import matplotlib
from rich.table import Table

from experiments.theory.finding import CAVEAT, FAILS, HOLDS, UNDECIDED, Finding
from fedjax_muon.reporting.style import NO_BACKGROUND, STYLE, save

COLORS = {HOLDS: "green", CAVEAT: "yellow", FAILS: "red", UNDECIDED: "blue"}
COLUMNS = ("study", "claim", "source", "criterion", "measured", "verdict")


class Entry(NamedTuple):
    """The results of one study."""

    name: str
    findings: tuple[Finding, ...]
    seconds: float
    command: str


NOTE = (
    "Criteria were set before any measurement. Grids were widened afterwards where the "
    "best setting was at their edge, which changed verdicts of heavy_tails."
)


def draw(module: ModuleType, drawn: Mapping[str, Any], scale: str, path: Path) -> None:
    """Draws the figure of a study's module from its numbers."""
    bare = path.suffix == ".svg"
    with matplotlib.rc_context(NO_BACKGROUND if bare else STYLE):
        save(module.draw(drawn, module.SIZES[scale]), path)


def table(entries: Sequence[Entry]) -> Table:
    """Returns the table for the terminal."""
    shown = Table("study", "claim", "measured", "verdict", show_lines=True)
    for entry in entries:
        for f in entry.findings:
            verdict = f"[{COLORS[f.verdict]}]{f.verdict}"
            shown.add_row(entry.name, f.claim, f.measured, verdict)
    return shown


def markdown(entries: Sequence[Entry], machine: dict[str, object]) -> str:
    """Returns the whole table, the commands and the machine as Markdown."""
    row = lambda cells: "| " + " | ".join(c.replace("|", r"\|") for c in cells) + " |"
    lines = ["# Theorems, measured on matrix quadratics", "", NOTE, ""]
    lines += [row(COLUMNS), row(["---"] * len(COLUMNS))]
    for entry in entries:
        for f in entry.findings:
            lines.append(row([entry.name, *f[: len(COLUMNS) - 1]]))
    lines += ["", row(["study", "command", "seconds"]), row(["---"] * 3)]
    for entry in entries:
        lines.append(row([entry.name, f"`{entry.command}`", f"{entry.seconds:.0f}"]))
    lines += ["", ", ".join(f"{k}: {v}" for k, v in machine.items() if k != "command")]
    lines += [f"\n![{entry.name}]({entry.name}.png)" for entry in entries]
    return "\n".join(lines) + "\n"


def write_csv(entries: Sequence[Entry], path: Path) -> None:
    """Writes one row for every number behind a finding."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("study", "claim", "source", "quantity", "value", "verdict"))
        for entry in entries:
            for f in entry.findings:
                for quantity, value in f.numbers.items():
                    numbers = quantity, f"{value:.6g}", f.verdict
                    writer.writerow((entry.name, f.claim, f.source, *numbers))

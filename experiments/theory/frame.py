"""Claims of theorems, each with a verdict by a criterion that was set beforehand."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

TAKEZAWA = "Takezawa et al. 2026, arXiv:2509.26337"
ZHANG = "Zhang and Gao, On provable benefits of Muon in federated learning"
DERIVED = "not in the paper"  # part of the source of a claim that is derived here

HOLDS = "holds"
CAVEAT = "holds with a caveat"
FAILS = "does not hold"
UNDECIDED = "undecided"  # of a bound O(.), which no slope at finite T refutes
NOTE = (
    "Criteria were set before any measurement. Grids were widened afterwards where the "
    "best setting was at their edge, which changed verdicts of heavy_tails."
)


class Finding(NamedTuple):
    """One claim and its verdict."""

    claim: str
    source: str  # paper and theorem
    criterion: str  # condition under which the claim holds
    measured: str  # in words
    verdict: str


class Entry(NamedTuple):
    """The results of one study."""

    name: str
    findings: Sequence[Finding]
    seconds: float


def bound_verdict(holds) -> str:
    """Returns HOLDS for a slope that agrees with a bound O(.), else UNDECIDED."""
    return HOLDS if holds else UNDECIDED


def verdict(holds, with_caveat=False) -> str:
    """Returns HOLDS if `holds`, else CAVEAT if `with_caveat`, else FAILS."""
    return HOLDS if holds else CAVEAT if with_caveat else FAILS


def markdown(entries: Sequence[Entry], machine: Mapping[str, Any]) -> str:
    """Returns all findings, the commands and the machine as Markdown."""
    row = lambda cells: "| " + " | ".join(c.replace("|", r"\|") for c in cells) + " |"
    lines = ["# Theorems, measured on matrix quadratics", "", NOTE, ""]
    lines += [row(("study", *Finding._fields)), row(["---"] * 6)]
    lines += [row((entry.name, *f)) for entry in entries for f in entry.findings]
    lines += ["", row(["study", "command", "seconds"]), row(["---"] * 3)]
    for name, _, seconds in entries:
        command = f"`python -m experiments.theory --only {name}`"
        lines.append(row([name, command, f"{seconds:.0f}"]))
    lines += ["", ", ".join(f"{k}: {v}" for k, v in machine.items() if k != "command")]
    return "\n".join([*lines, "", "![what stalls](stall.png)"]) + "\n"

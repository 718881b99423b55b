"""Findings of a study: claims, each with a verdict by a criterion set beforehand."""

from collections.abc import Mapping
from typing import Any, NamedTuple

TAKEZAWA = "Takezawa et al. 2026, arXiv:2509.26337"
ZHANG = "Zhang and Gao, On provable benefits of Muon in federated learning"

HOLDS = "holds"
CAVEAT = "holds with a caveat"
FAILS = "does not hold"
UNDECIDED = "undecided"  # of a bound O(.), which no slope at finite T refutes
DERIVED = "not in the paper"  # part of the source of a claim that is derived here


class Finding(NamedTuple):
    """One claim and its verdict."""

    claim: str
    source: str  # paper and theorem
    criterion: str  # condition under which the claim holds
    measured: str  # in words
    verdict: str  # HOLDS, CAVEAT, FAILS or UNDECIDED
    numbers: Mapping[str, float]  # numbers behind `measured`


class Study(NamedTuple):
    """Findings, and the numbers of their figure."""

    findings: tuple[Finding, ...]
    drawn: Mapping[str, Any]  # what the module's `draw` takes, as JSON can have it


def bound_verdict(holds: bool) -> str:
    """Returns HOLDS for a slope that agrees with a bound O(.), else UNDECIDED."""
    return HOLDS if holds else UNDECIDED


def verdict(holds, with_caveat=False) -> str:
    """Returns HOLDS if `holds`, else CAVEAT if `with_caveat`, else FAILS."""
    if holds:
        return HOLDS
    return CAVEAT if with_caveat else FAILS

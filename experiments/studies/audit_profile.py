"""Audits of privacy profiles: of prepared simulations, and of planted faults.

    python -m experiments.studies.audit_profile --output results/privacy

The programs of prepared private simulations run in many worlds, with and without a
record that is made for the audit (`experiments.audits`). First nothing is
changed, and there must be no alarm. Then the faults of
`tests/privacy/planted_faults.py` are planted in the package one by one, and audits of
growing size look for them.
"""

import collections
import csv
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import tyro

from benchmarks.machine import machine
from experiments.audits.findings import audited, audited_together
from experiments.audits.worlds import chunks
from fedjax_muon.decentralized.private import PRIVATE
from tests.privacy import private_worlds
from tests.privacy.planted_faults import FAULTS, Fault
from tests.privacy.private_worlds import CASES

LEVEL = 1e-3  # probability of an alarm of an honest audit, at most
SIZES = (250, 500, 1000, 2000, 4000)  # worlds of each kind
HONEST = {
    **{name: lambda name=name: private_worlds.agents(CASES[name]) for name in PRIVATE},
    **{
        setting: lambda name=name: private_worlds.command(name)
        for setting, name in private_worlds.COMMANDS.items()
    },
    "clients": private_worlds.clients,
    **{
        name: lambda given=given: private_worlds.clients(**given)
        for name, given in private_worlds.CLIENTS.items()
    },
    "FedMuon's prologue": private_worlds.prologue,
}


class Row(NamedTuple):
    """A fault, and the fewest worlds in which a test finds it."""

    fault: str
    setting: str
    test: str
    worlds: int


def honest(make, seeds: int, worlds: int) -> collections.Counter:
    """Counts the alarms of every test of an unchanged simulation."""
    made, found = make(), collections.Counter()
    pair = made.run_both(0, seeds * worlds)
    for absent, present in zip(
        *(chunks(releases, worlds) for releases in pair), strict=True
    ):
        findings = audited(made.record, absent, present, LEVEL)
        found.update(finding.test for finding in findings if finding.alarm)
    return found


def findings_of(fault: Fault, seed: int, most: int) -> dict[str, int]:
    """Returns the fewest worlds in which each test finds a fault."""
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        audit = _prepared(fault.setting, seed, most)
        found: dict[str, int] = {}
        for count in (size for size in SIZES if size <= most):
            for finding in audit(count):
                if finding.alarm:
                    found.setdefault(finding.test, count)
        return found


def _prepared(setting: str, seed: int, most: int):
    """Runs the worlds of a setting once, to be audited in parts."""
    several = private_worlds.worlds_of(setting)
    seen = [worlds.run_both(seed, most) for worlds in several]
    records = [worlds.record for worlds in several]

    def audit(count: int):
        first = [[next(chunks(releases, count)) for releases in pair] for pair in seen]
        if len(several) == 1:
            return audited(records[0], *first[0], LEVEL)
        absent, present = (list(kind) for kind in zip(*first, strict=True))
        return audited_together(records, absent, present, LEVEL)

    return audit


def table(rows: list[Row]) -> list[str]:
    """Returns the faults as Markdown: what finds each, and in how many worlds."""
    lines = [
        "| fault | simulation | refuted claim | refuted assumption |",
        "|---|---|---|---|",
    ]
    for name, fault in FAULTS.items():
        own = [row for row in rows if row.fault == name]
        words = {True: [], False: []}
        for row in own:
            claim = row.test.startswith("profile: ")
            label = row.test.removeprefix("profile: ")
            words[claim].append(f"{label} ({row.worlds})")
        cells = (", ".join(words[claim]) or "-" for claim in (True, False))
        lines.append(f"| {name} | {fault.setting} | {' | '.join(cells)} |")
    return lines


def text(
    counts: dict[str, collections.Counter],
    rows,
    seeds: int,
    worlds: int,
    about,
    seconds,
) -> list[str]:
    """Returns the page as Markdown."""
    false = sum(map(bool, counts.values()))
    missed = [name for name in FAULTS if name not in {row.fault for row in rows}]
    only = [
        name
        for name in FAULTS
        if name not in missed
        and not any(r.fault == name and r.test.startswith("profile") for r in rows)
    ]
    return [
        "# Audits of privacy profiles",
        "",
        "Prepared private simulations run in worlds with and without one record, and "
        "audits test what they claim: delta for every epsilon, white noise, and how "
        "often a record takes part.",
        "",
        f"Without faults, {seeds} audits of {worlds} + {worlds} worlds at level "
        f"{LEVEL:g} of each of {len(counts)} simulations raise "
        f"{sum(sum(c.values()) for c in counts.values())} alarms, in {false} of them.",
        "",
        f"Of {len(FAULTS)} faults, {len(FAULTS) - len(missed)} are found. Numbers in "
        "parentheses are the fewest worlds of each kind, of "
        f"{', '.join(map(str, SIZES))}, in which a test finds the fault. "
        f"Found by a refuted assumption alone: {', '.join(only) or 'none'}. "
        f"Not found: {', '.join(missed) or 'none'}.",
        "",
        *table(rows),
        "",
        f"`{about['command']}`, {seconds:.0f} seconds, "
        f"{about['cores']} cores of {about['cpu']}, jax {about['jax']}.",
        "",
    ]


def main(
    seeds: int = 300, worlds: int = 250, output: Path = Path("results/privacy")
) -> None:
    """Runs all audits; writes profile_audit.csv and profile_audit.md.

    Args:
      seeds: Audits of every simulation without faults.
      worlds: Worlds of each kind in one of them.
      output: Directory of the results.
    """
    began = time.perf_counter()
    rows = []
    for name, fault in FAULTS.items():
        for test, count in findings_of(fault, 0, SIZES[-1]).items():
            rows.append(Row(name, fault.setting, test, count))
            print(*rows[-1], flush=True)
    counts = {}
    for name, make in HONEST.items():
        counts[name] = honest(make, seeds, worlds)
        print(name, dict(counts[name]) or "no alarm", flush=True)
    about = machine("experiments.studies.audit_profile")
    seconds = time.perf_counter() - began
    output.mkdir(parents=True, exist_ok=True)
    with (output / "profile_audit.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)
    lines = text(counts, rows, seeds, worlds, about, seconds)
    (output / "profile_audit.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)

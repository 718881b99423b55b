"""Results in Markdown: seconds a round, and Newton-Schulz beside optax's.

python -m benchmarks table RESULTS.jsonl [MORE.jsonl ...]
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import PEERS
from benchmarks.works import WORKS

OURS = "fedjax_muon"
FEDAVG = (OURS, *(peer.label for peer in PEERS.values()))
OTHERS = {"fedmuon": "FedMuon", "local_adamw": "Local AdamW"}


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The rows of results. Raises `ValueError` for a file that is not there."""
    rows = []
    for path in paths:
        if not path.is_file():
            raise ValueError(f"no file {path}")
        rows += [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if "work" in row]


def markdown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table for the works that were played and one for the kernel, if they were."""
    played = [row for row in rows if "wall_seconds" in row]
    tables = (
        rounds([row for row in played if row["work"] in WORKS]),
        kernels([row for row in played if row["work"] == "newton_schulz"]),
    )
    lines: list[str] = []
    for table in filter(None, tables):
        lines += [*([""] if lines else []), *table]
    return lines


def rounds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """FedAvg by all contenders that have a time, the least in bold, then the library's
    other algorithms; medians of wall seconds."""
    if not rows:
        return []
    seconds = {
        (row["work"], row["contender"], row["algorithm"]): row["wall_seconds"]
        for row in rows
    }
    works = [name for name in WORKS if any(key[0] == name for key in seconds)]
    peers = [c for c in FEDAVG if any(key[1:] == (c, "fedavg") for key in seconds)]
    others = [a for a in OTHERS if any(key[1:] == (OURS, a) for key in seconds)]
    heads = [*peers, *(OTHERS[algorithm] for algorithm in others)]
    lines = [
        f"| a round of | {' | '.join(heads)} |",
        "|---|" + "---:|" * len(heads),
    ]
    for name in works:
        fedavg = [seconds.get((name, peer, "fedavg")) for peer in peers]
        least = min(value for value in fedavg if value is not None)
        cells = [number(v, bold=v == least) for v in fedavg]
        cells += [number(seconds.get((name, OURS, a)), bold=False) for a in others]
        (played, *_) = (row for row in rows if row["work"] == name)
        lines.append(f"| {about(played)} | {' | '.join(cells)} |")
    return lines


def kernels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Medians of five Newton-Schulz steps, in milliseconds; for all matrices of a model
    together, how often that is the time of its products alone at the machine's rate."""
    if not rows:
        return []
    cases: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        cases.setdefault(row["case"], {})[row["contender"]] = row
    lines = [
        "| five Newton-Schulz steps, ms | fedjax_muon | optax | times the products |",
        "|---|---:|---:|---:|",
    ]
    for case, found in cases.items():
        own, other = (found.get(name) for name in (OURS, "optax"))
        cells = [f"{1e3 * r['wall_seconds']:.3g}" if r else "-" for r in (own, other)]
        times = "-" if own is None else own.get("times_that", "-")
        lines.append(f"| {case} | {' | '.join(cells)} | {times} |")
    return lines


def about(row: Mapping[str, Any]) -> str:
    """A work, and what it is less than the whole."""
    text = WORKS[row["work"]].about
    if row["whole"]:
        return text
    return text + " (here {cohort} of {clients} clients, {steps} steps)".format(**row)


def number(seconds: float | None, *, bold: bool) -> str:
    """Three digits; nothing for what has no time."""
    if seconds is None:
        return "-"
    text = f"{seconds:.3g}"
    return f"**{text}**" if bold else text


def main(given: Sequence[str]) -> None:
    """The command `table`."""
    parser = argparse.ArgumentParser("python -m benchmarks table", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    print("\n".join(markdown(read(parser.parse_args(given).results))))

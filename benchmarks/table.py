"""Seconds a round in one Markdown table, a line for each work.

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
    """FedAvg by all contenders that have a time, the least in bold, then the library's
    other algorithms; medians of wall seconds."""
    seconds = {
        (row["work"], row["contender"], row["algorithm"]): row["wall_seconds"]
        for row in rows
        if "wall_seconds" in row and row["work"] in WORKS
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

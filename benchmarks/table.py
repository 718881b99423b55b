"""Results in Markdown: seconds per round, Newton-Schulz, convolutions, and a GPT.

python -m benchmarks table RESULTS.jsonl [MORE.jsonl ...]
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import PEERS
from benchmarks.workloads import WORKLOADS
from fedjax_muon.runs.intervals import half_width

OURS = "fedjax_muon"
FEDAVG = (OURS, *(peer.label for peer in PEERS.values()))
IDLE = 0.5  # cores that other processes may keep busy on a machine that counts as idle
BASE = "PyTorch loop"  # that the library is compared with, round by round
ALGORITHMS = {"fedavg": "FedAvg", "fedmuon": "FedMuon"}
ALGORITHMS |= {"fedmuon_blocks": "FedMuon, blocks", "local_adamw": "Local AdamW"}


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Returns the rows of results.

    Raises:
      ValueError: If a file does not exist.
    """
    rows = []
    for path in paths:
        if not path.is_file():
            raise ValueError(f"no file {path}")
        rows += [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if "workload" in row]


def markdown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns tables of those workloads that have run."""
    finished = [row for row in rows if "wall_seconds" in row]
    races = [row for row in finished if row["workload"] in WORKLOADS]
    tables = (
        *(make(races) for make in (rounds, costs, ratios)),
        kernels([row for row in finished if row["workload"] == "newton_schulz"]),
        forms([row for row in finished if row["workload"] == "convolutions"]),
        tokens([row for row in finished if row["workload"] == "gpt_step"]),
    )
    lines: list[str] = []
    for table in filter(None, tables):
        lines += [*([""] if lines else []), *table]
    return lines


def rounds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a table of median wall seconds of FedAvg, the least in bold.

    A workload says so if other processes used the machine.
    """
    own = [row for row in rows if row["algorithm"] == "fedavg"]
    seconds = {(row["workload"], row["contender"]): row["wall_seconds"] for row in own}
    peers = [c for c in FEDAVG if any(key[1] == c for key in seconds)]
    lines = headed("FedAvg, seconds per round", peers)
    for name, first in first_of(own).items():
        values = [seconds.get((name, peer)) for peer in peers]
        least = min(value for value in values if value is not None)
        cells = [number(value, bold=value == least) for value in values]
        busy = max(row.get("load", 0.0) for row in rows if row["workload"] == name)
        note = f" (not idle: load {busy:.1f})" if busy > IDLE else ""
        lines.append(f"| {about(first)}{note} | {' | '.join(cells)} |")
    return lines if own else []


def costs(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a table of the library's median wall seconds, by algorithm."""
    own = [row for row in rows if row["contender"] == OURS]
    seconds = {(row["workload"], row["algorithm"]): row["wall_seconds"] for row in own}
    known = [a for a in ALGORITHMS if any(key[1] == a for key in seconds)]
    lines = headed("fedjax_muon, seconds per round", [ALGORITHMS[a] for a in known])
    for name, first in first_of(own).items():
        cells = [number(seconds.get((name, a)), bold=False) for a in known]
        lines.append(f"| {about(first)} | {' | '.join(cells)} |")
    return lines if len(known) > 1 else []


def headed(first: str, others: Sequence[str]) -> list[str]:
    """The first two lines of a table whose columns but one are numbers."""
    return [f"| {first} | {' | '.join(others)} |", "|---|" + "---:|" * len(others)]


def first_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The first row of every workload, in the order of `WORKLOADS`."""
    found = {row["workload"]: row for row in reversed(rows)}
    return {name: found[name] for name in WORKLOADS if name in found}


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a table of the library's times divided by those of the PyTorch loop.

    They are geometric means over rounds that were measured one after the other, and
    their 95% intervals.
    """
    walls = {
        (row["workload"], row["contender"]): np.log(row["walls"])
        for row in rows
        if row["algorithm"] == "fedavg" and len(row.get("walls", ())) > 1
    }
    compared = [key for key in walls if (key[0], BASE) in walls]
    own = dict.fromkeys(name for _, name in compared if name.split(",")[0] == OURS)
    if not own:
        return []
    lines = headed(f"time divided by the {BASE}'s", list(own))
    for name in dict.fromkeys(workload for workload, _ in compared):
        cells = []
        for contender in own:
            pairs = walls[name, contender] - walls[name, BASE]
            width = half_width(pairs)
            low, mean, high = np.exp(pairs.mean() + width * np.array([-1, 0, 1]))
            cells.append(f"{mean:.2f} ({low:.2f} to {high:.2f})")
        (first, *_) = (row for row in rows if row["workload"] == name)
        lines.append(f"| {about(first)} | {' | '.join(cells)} |")
    return lines


def kernels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a table of median milliseconds of five Newton-Schulz steps.

    For all matrices of a model together, the last column divides this time by that of
    the products alone at the machine's rate.
    """
    if not rows:
        return []
    cases: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        cases.setdefault(row["case"], {})[row["contender"]] = row
    heads = (OURS, "bfloat16", "optax", "ratio to products")
    lines = headed("five Newton-Schulz steps, ms", heads)
    for case, found in cases.items():
        every = [found.get(name) for name in (OURS, f"{OURS}, bfloat16", "optax")]
        cells = [f"{1e3 * r['wall_seconds']:.3g}" if r else "-" for r in every]
        times = "-" if every[0] is None else every[0].get("times_that", "-")
        lines.append(f"| {case} | {' | '.join(cells)} | {times} |")
    return lines


def forms(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a table of median milliseconds of a convolution and its gradients.

    The chosen form is bold.
    """
    if not rows:
        return []
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        ms = f"{1e3 * row['wall_seconds'] / row['times']:.3g}"
        text = f"**{ms}**" if row["chosen"] else ms
        column = f"{row['form']}, jax {row['jax']}"
        cells.setdefault(row["case"], {})[column] = text
    heads = dict.fromkeys(column for found in cells.values() for column in found)
    lines = headed("convolution and gradients, ms", list(heads))
    for case, found in cells.items():
        values = " | ".join(found.get(head, "-") for head in heads)
        lines.append(f"| {case} | {values} |")
    return lines


def tokens(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a table of the most tokens per second of a core in a local step."""
    if not rows:
        return []
    rates = [f"{row['tokens_per_second']:,}" for row in rows]
    return [
        *headed("tokens per second", [row["contender"] for row in rows]),
        f"| GPT of {rows[0]['parameters']:,} parameters | {' | '.join(rates)} |",
    ]


def about(row: Mapping[str, Any]) -> str:
    """Describes a workload, and its sizes where they are reduced."""
    text = WORKLOADS[row["workload"]].about
    if row["whole"]:
        return text
    return text + " (here {cohort} of {clients} clients, {steps} steps)".format(**row)


def number(seconds: float | None, *, bold: bool) -> str:
    """Formats seconds with three digits; `-` if there is no time."""
    if seconds is None:
        return "-"
    text = f"{seconds:.3g}"
    return f"**{text}**" if bold else text


def main(given: Sequence[str]) -> None:
    """Runs the command `table`."""
    parser = argparse.ArgumentParser("python -m benchmarks table", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    print("\n".join(markdown(read(parser.parse_args(given).results))))

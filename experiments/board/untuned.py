"""Rows without a search: one rate for all tracks, chosen on two of them.

RULES.md has the rules, in a section whose digest these rows have.
"""

import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.board import lines as kept, protocol
from experiments.board.candidates import CANDIDATES
from experiments.board.protocol import Line, Runs
from experiments.board.row import Row
from experiments.board.rows import LATE, ROWS, RULES as AGGREGATIONS
from experiments.board.tracks import TRACKS, Track
from fedjax_muon.problems import Problem
from fedjax_muon.runs.search import following

PLACE = "untuned"  # the directory of the rows, beside those with a search
SECTION, NEXT = "## Rows without a search", "\n## "
# the digest of the section -> that of the section before the bar in bits was added
MARKS = {"a0ef415b705bb1e0": "33ce6bfaf2ec2e19"}
HOME = ("digits", "fashion")  # the tracks that choose the rates
# rows by other names -> the methods on the tracks that choose
METHODS: Mapping[str, str] = {
    "fedavg_tokens": "fedavg_adam",
    "fedmuon_tokens": "fedmuon",
    "muloco_tokens": "muloco",
    "fedasync": "fedavg",
    **{
        f"{name}_{how}": name
        for name in ("fedavg", "fedavg_adam", "fedmuon")
        for how in (*LATE, *AGGREGATIONS)
    },
    **{
        row: row.removesuffix(end)
        for row in CANDIDATES
        for end in ("_tokens", "_waiting", "_trimmed_mean")
        if row.endswith(end)
    },
}
EVERY = {**ROWS, **CANDIDATES}


def rules() -> str:
    """The digest of the section of the rules."""
    text = kept.RULES.read_text(encoding="utf-8").partition(SECTION)[2]
    digest = hashlib.sha256(text.partition(NEXT)[0].encode()).hexdigest()[:16]
    return MARKS.get(digest, digest)


def method_of(row: str) -> str:
    """The method of a row of any track."""
    return METHODS.get(row, row)


def searched(row: str) -> str:
    """The row with a search that one without is compared with: itself, or FedMuon."""
    method = method_of(row)
    return row.replace(method, "fedmuon") if method in CANDIDATES else row


def losses(lines: list[Line], track: Track) -> dict[float, float]:
    """How far trials of a row are from its best one, in points, by their rates.

    Only trials whose other option is where the search begins. Fiftieths of a bit count
    as points.
    """
    found: dict[float, list[float]] = {}
    space = lines[0]["space"]
    for line in lines:
        hyper = line.get("hyper", {})
        begins = all(hyper.get(name) == space[name] for name in space if name != "lr")
        if line["stage"] == protocol.TRIAL and begins:
            score = track.worst if line["diverged"] else line["validation"]
            found.setdefault(hyper["lr"], []).append(score)
    means = {rate: float(np.mean(found[rate])) for rate in sorted(found)}
    best = track.better(means.values())
    return {rate: track.points(best - mean) for rate, mean in means.items()}


@functools.cache
def rates(place: Path) -> dict[str, float]:
    """The rate of every method with trials on both tracks that choose.

    Of the rates that are tried on both, a factor of 3 apart, the one with the least
    mean loss; of equal ones the lowest.
    """
    found = {}
    for name, row in EVERY.items():
        if not set(HOME) <= set(row.tracks):
            continue
        where = place / PLACE if name in CANDIDATES else place
        runs = [kept.lines_of(where / f"{home}.jsonl", name) for home in HOME]
        if not all(any(x["stage"] == protocol.TRIAL for x in lines) for lines in runs):
            continue
        there = [
            losses(lines, TRACKS[home]) for home, lines in zip(HOME, runs, strict=True)
        ]
        start = row.space["lr"]
        coarse = [float(f"{start * 3.0**step:.3g}") for step in range(-9, 10)]
        tried = [rate for rate in coarse if all(rate in each for each in there)]
        found[name] = min(tried, key=lambda rate: sum(each[rate] for each in there))
    return found


def rows_of(track: str, place: Path) -> list[str]:
    """The rows of a track whose methods have a rate."""
    known = rates(place)
    return [
        name
        for name, row in EVERY.items()
        if track in row.tracks and (method_of(name) in known)
    ]


def runnable(track: str, place: Path) -> list[str]:
    """The rows that can run: those with a rate, and candidates that get theirs."""
    new = CANDIDATES if track in HOME else ()
    names = [*rows_of(track, place), *new]
    names = [name for name in dict.fromkeys(names) if track in EVERY[name].tracks]
    if not names:
        raise ValueError(
            f"no method of {track} has a rate without a search; those that have one "
            f"are tried on {' and '.join(HOME)}"
        )
    return names


def asked(
    lines: list[Line], name: str, row: Row, track: str, rate: float | None
) -> list[tuple[str, dict[str, float], int]]:
    """What a row lacks: stages, options and seeds.

    A candidate has the first three trials of a search on the tracks that choose.
    """
    space, todo = TRACKS[track].space(row), list[tuple[str, dict[str, float], int]]()
    if name in CANDIDATES and track in HOME:
        for point in following({}, len(space), 3):
            for seed in protocol.TUNING_SEEDS:
                todo.append((protocol.TRIAL, point.values(space), seed))
    if rate is not None:
        for seed in range(TRACKS[track].seeds):
            todo.append((protocol.FINAL, {**space, "lr": rate}, seed))
    done = {protocol.key_of(line) for line in lines}
    return [one for one in todo if (one[0], *one[1].values(), one[2]) not in done]


def runs_of(
    place: Path, name: str, row: Row, track: str, problem: Problem
) -> Iterator[Line]:
    """Appends the runs that a row lacks; yields them as they are finished.

    Raises:
      ValueError: If the file has the row by other rules or at another rate.
    """
    path = place / PLACE / f"{track}.jsonl"
    path.parent.mkdir(exist_ok=True)
    rate = rates(place).get(method_of(name))
    lines = kept.lines_of(path, name)
    if not lines:
        first = kept.about(name, row, TRACKS[track], problem) | {"rules": rules()}
        lines.append(kept.append(path, first))
    known: list[tuple[str, Any, Any]] = [("rules", lines[0]["rules"], rules())]
    known += [("rate", line["hyper"]["lr"], rate) for line in kept.finals(lines)]
    for key, before, now in known:
        if before != now:
            raise ValueError(
                f"{path} has {name} with {key} {before}, now {now}; delete its lines"
            )
    if todo := asked(lines, name, row, track, rate):
        runs = Runs(name, row, TRACKS[track], problem)
        for stage, values, seed in todo:
            train = runs.trial if stage == protocol.TRIAL else runs.final
            yield kept.append_once(path, train(values, seed))

"""Rows without a search: one rate for all tracks, chosen on two of them.

RULES.md has the rules, in a section whose digest these rows have.
"""

import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from experiments.board import lines as kept, protocol
from experiments.board.protocol import Line, Runs
from experiments.board.row import Row
from experiments.board.rows import LATE, ROWS, RULES as AGGREGATIONS
from experiments.board.tracks import TRACKS, Track
from experiments.machine import cpu_model
from fedjax_muon.problems import Problem
from fedjax_muon.versions import of_computing

PLACE = "untuned"  # the directory of the rows, beside those with a search
SECTION, NEXT = "## Rows without a search", "\n## "
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
}


def rules() -> str:
    """The digest of the section of the rules."""
    text = kept.RULES.read_text(encoding="utf-8").partition(SECTION)[2]
    return hashlib.sha256(text.partition(NEXT)[0].encode()).hexdigest()[:16]


def method_of(row: str) -> str:
    """The method of a row of any track."""
    return METHODS.get(row, row)


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
    for name in ROWS:
        if not set(HOME) <= set(ROWS[name].tracks):
            continue
        there = [
            losses(kept.lines_of(place / f"{home}.jsonl", name), TRACKS[home])
            for home in HOME
        ]
        start = ROWS[name].space["lr"]
        coarse = [float(f"{start * 3.0**step:.3g}") for step in range(-9, 10)]
        tried = [rate for rate in coarse if all(rate in each for each in there)]
        found[name] = min(tried, key=lambda rate: sum(each[rate] for each in there))
    return found


def rows_of(track: str, place: Path) -> list[str]:
    """The rows of a track whose methods have a rate."""
    known = rates(place)
    return [n for n in ROWS if track in ROWS[n].tracks and method_of(n) in known]


def finish(
    place: Path, name: str, row: Row, track: str, problem: Problem
) -> Iterator[Line]:
    """Appends the runs that a row lacks; yields them as they are finished.

    Raises:
      ValueError: If the file has the row by other rules or at other values.
    """
    path = place / PLACE / f"{track}.jsonl"
    path.parent.mkdir(exist_ok=True)
    each = TRACKS[track]
    values = {**each.space(row), "lr": rates(place)[method_of(name)]}
    lines = kept.lines_of(path, name)
    if not lines:
        about = {"row": name, "stage": kept.ABOUT, "label": row.label, "values": values}
        about |= {"rules": rules(), "processor": cpu_model()}
        lines.append(kept.append(path, about | {"versions": of_computing()}))
    for key, now in {"values": values, "rules": rules()}.items():
        if lines[0][key] != now:
            raise ValueError(
                f"{path} has {name} with {key} {lines[0][key]}, now {now}; "
                "delete its lines"
            )
    done = {line["seed"] for line in kept.finals(lines)}
    if missing := [seed for seed in range(each.seeds) if seed not in done]:
        runs = Runs(name, row, each, problem)
        for seed in missing:
            yield kept.append(path, runs.final(values, seed))

"""Starts the processes that are measured, lets them take turns, and makes rows of it.

Every contender is a process of its own, so that threads, imports and memory of one do
not disturb another; while one plays a round, the others wait.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers import PEERS
from benchmarks.works import SIZES, WORKS

Row = dict[str, Any]
ROOT = Path(__file__).parents[1]


class Limits(NamedTuple):
    """What a contender may use."""

    devices: int  # on a CPU: as many cores, of one thread each
    repeats: int


class ContenderError(RuntimeError):
    """A contender said that, or ended without an answer."""


def environment(threads: bool, devices: int) -> dict[str, str]:
    """For a contender: JAX with that many CPU devices, of one thread each unless
    `threads`; memory of a GPU is not reserved, as others need it."""
    flags = os.environ.get("XLA_FLAGS", "")
    if not threads:
        flags += " --xla_cpu_multi_thread_eigen=false"
    return os.environ | {
        "XLA_FLAGS": flags,
        "JAX_NUM_CPU_DEVICES": str(devices),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))
        ),
    }


class Contender:
    """A process that plays rounds; see `benchmarks.turns`."""

    def __init__(self, told: Row, *, devices: int, threads: bool = False):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.contender", json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(threads, devices),
        )

    def answer(self) -> Row | None:
        """The next one, `None` at the end. Raises `ContenderError` for an error."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            if self._process.wait():
                raise ContenderError(f"ended with status {self._process.returncode}")
            return None
        answer = json.loads(line)
        if "error" in answer:
            raise ContenderError(answer["error"])
        return answer

    def ask(self) -> Row:
        """One round, and what it took."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its last answer says why
            self._process.stdin.write("round\n")
            self._process.stdin.flush()
        if (answer := self.answer()) is None:
            raise ContenderError("ended before its last round")
        return answer

    def last(self) -> Row:
        """What it knows after all rounds."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.answer() or {}

    def end(self) -> None:
        """Stops it, whatever it does."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream and stream.close()


def answers(told: Row, devices: int) -> Iterator[Row]:
    """All that a process says which is asked nothing."""
    contender = Contender(told, devices=devices)
    try:
        while (answer := contender.answer()) is not None:
            yield answer
    finally:
        contender.end()


def missing(peer: str) -> list[str]:
    """The modules that a peer needs and that are not there."""
    return [m for m in PEERS[peer].needs if importlib.util.find_spec(m) is None]


def versions(peers: Sequence[str]) -> dict[str, str]:
    """What is installed of the peers' packages."""
    found = {}
    for package in {p for peer in peers for p in PEERS[peer].packages}:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


class Lane(NamedTuple):
    """A contender with all its algorithms, and what they have taken so far."""

    label: str
    algorithms: tuple[str, ...]
    contender: Contender
    taken: list[list[Row]]  # for every algorithm, a row a round


def _lanes(told: Row, algorithms, peers: Sequence[str], limits: Limits):
    """Starts all that can be, and says what cannot."""
    own = told | {
        "contender": "library",
        "algorithms": list(algorithms),
        "devices": limits.devices,
    }
    lanes, absent = [], []
    if algorithms:
        contender = Contender(own, devices=limits.devices)
        taken: list[list[Row]] = [[] for _ in algorithms]
        lanes.append(Lane("fedjax_muon", tuple(algorithms), contender, taken))
    for peer in peers:
        label = PEERS[peer].label
        if lacking := missing(peer):
            error = f"not installed: {', '.join(lacking)}"
            absent.append({"contender": label, "algorithm": "fedavg", "error": error})
            continue
        how = {"cores": limits.devices, "rounds": limits.repeats + 1}
        theirs = told | {"contender": f"peers.{peer}"} | how
        # one device with all threads: they know no others
        contender = Contender(theirs, devices=1, threads=limits.devices > 1)
        lanes.append(Lane(label, ("fedavg",), contender, [[]]))
    return lanes, absent


def summary(taken: Sequence[Row]) -> Row:
    """Of the rounds of one algorithm: the first, and the medians of the others."""
    first, *others = taken
    row = {"first_call_seconds": round(first["wall"], 3), "repeats": len(others)}
    for kind in ("wall", "cpu"):
        times = [one[kind] for one in others]
        row[f"{kind}_seconds"] = round(statistics.median(times), 5)
        row[f"{kind}_seconds_min"] = round(min(times), 5)
    return row


def race(
    name: str,
    sizes: dict[str, Any],
    *,
    algorithms: Sequence[str],
    peers: Sequence[str],
    weights: Path,
    limits: Limits,
) -> Iterator[Row]:
    """Plays a work's rounds in turns, `limits.repeats` after the first, and yields a
    row for every contender and algorithm."""
    work = WORKS[name]._replace(**sizes)
    told = {"do": "round", "work": name, "sizes": sizes, "weights": str(weights)}
    lanes, absent = _lanes(told, algorithms, peers, limits)
    about = {"work": name} | {size: getattr(work, size) for size in SIZES}
    about |= {"whole": work == WORKS[name], "devices": limits.devices}
    yield from (about | row for row in absent)
    failed: dict[str, str] = {}
    try:
        for _ in range(limits.repeats + 1):
            for lane in lanes:
                if lane.label in failed:
                    continue
                try:
                    for taken in lane.taken:
                        taken.append(lane.contender.ask())
                except ContenderError as error:
                    failed[lane.label] = str(error)
        for lane in lanes:
            yield from (about | row for row in _rows(lane, failed))
    finally:
        for lane in lanes:
            lane.contender.end()


def _rows(lane: Lane, failed: dict[str, str]) -> Iterator[Row]:
    last: Row = {}
    if lane.label not in failed:
        try:
            last = lane.contender.last()
        except ContenderError as error:
            failed[lane.label] = str(error)
    losses = last.pop("losses", [])
    for i, algorithm in enumerate(lane.algorithms):
        row: Row = {"contender": lane.label, "algorithm": algorithm}
        if lane.label in failed:
            yield row | {"error": failed[lane.label]}
        else:
            yield row | summary(lane.taken[i]) | last | {"loss": round(losses[i], 4)}

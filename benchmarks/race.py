"""The processes that are measured, their turns, and the rows of results.

Every contender is a process of its own, so that its threads, imports and memory do not
affect the others. While one runs a round, the others wait.
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
from benchmarks.workloads import SIZES, WORKLOADS

Row = dict[str, Any]
ROOT = Path(__file__).parents[1]


class Limits(NamedTuple):
    """The resources of a contender."""

    devices: int  # on a CPU, as many cores of one thread each
    repeats: int
    also: tuple[str, str] | None = None  # an interpreter, and its version of JAX


class ContenderError(RuntimeError):
    """A contender reported an error, or ended without an answer."""


def environment(threads: bool, devices: int) -> dict[str, str]:
    """Returns the environment variables of a contender.

    JAX has that many CPU devices, of one thread each unless `threads`. GPU memory is
    not preallocated, because other contenders need it.
    """
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
    """A process that runs rounds; see `benchmarks.turns`."""

    def __init__(
        self,
        request: Row,
        *,
        devices: int,
        threads: bool = False,
        python: str = sys.executable,
    ):
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.contender", json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(threads, devices),
        )

    def answer(self) -> Row | None:
        """Returns the next answer, `None` at the end.

        Raises:
          ContenderError: If the contender reports an error or fails.
        """
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

    def run_round(self) -> Row:
        """Runs one round and returns its times."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its last answer has the reason
            self._process.stdin.write("round\n")
            self._process.stdin.flush()
        if (answer := self.answer()) is None:
            raise ContenderError("ended before its last round")
        return answer

    def last(self) -> Row:
        """Returns the losses and the peak memory after all rounds."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.answer() or {}

    def end(self) -> None:
        """Stops the process at once."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream and stream.close()


def answers(request: Row, devices: int) -> Iterator[Row]:
    """Yields all answers of a process that runs no rounds."""
    contender = Contender(request, devices=devices)
    try:
        while (answer := contender.answer()) is not None:
            yield answer
    finally:
        contender.end()


def missing(peer: str) -> list[str]:
    """Returns the modules that a peer needs and that are not installed."""
    return [m for m in PEERS[peer].needs if importlib.util.find_spec(m) is None]


def versions(peers: Sequence[str]) -> dict[str, str]:
    """Returns the versions of the peers' packages that are installed."""
    found = {}
    for package in {p for peer in peers for p in PEERS[peer].packages}:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def jax_of(python: str) -> str:
    """Returns the version of JAX that an interpreter imports.

    Raises:
      ValueError: If it is not an interpreter, or cannot import JAX.
    """
    command = [python, "-c", "import jax; print(jax.__version__)"]
    try:
        return subprocess.check_output(command, text=True, stderr=subprocess.PIPE)[:-1]
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"--also {python}: it does not import jax ({error})") from None


class Lane(NamedTuple):
    """A contender with all its algorithms, and their times so far."""

    label: str
    algorithms: tuple[str, ...]
    contender: Contender
    times: list[list[Row]]  # for every algorithm, one row per round


def _lanes(request: Row, algorithms, peers: Sequence[str], limits: Limits):
    """Starts the contenders that are installed; returns them and rows of the others."""
    own = request | {
        "contender": "library",
        "algorithms": list(algorithms),
        "devices": limits.devices,
    }
    lanes, absent = [], []

    def start(label: str, names: Sequence[str], request: Row, **how: Any) -> None:
        contender = Contender(request, **how)
        lanes.append(Lane(label, tuple(names), contender, [[] for _ in names]))

    if algorithms:
        start("fedjax_muon", algorithms, own, devices=limits.devices)
        if limits.also and "fedavg" in algorithms:
            python, version = limits.also
            label, own = f"fedjax_muon, jax {version}", own | {"algorithms": ["fedavg"]}
            start(label, ["fedavg"], own, devices=limits.devices, python=python)
    for peer in peers:
        label = PEERS[peer].label
        if lacking := missing(peer):
            error = f"not installed: {', '.join(lacking)}"
            absent.append({"contender": label, "algorithm": "fedavg", "error": error})
            continue
        how = {"cores": limits.devices, "rounds": limits.repeats + 1}
        theirs = request | {"contender": f"peers.{peer}"} | how
        # one device with all threads: peers use one device only
        alone = {"devices": 1, "threads": limits.devices > 1}
        start(label, ("fedavg",), theirs, **alone)
        if limits.also and peer == "handwritten":
            python, version = limits.also
            label = f"{label}, jax {version}"
            start(label, ("fedavg",), theirs, python=python, **alone)
    return lanes, absent


def summary(rounds: Sequence[Row]) -> Row:
    """Returns the time of the first round, and medians and minima of the others.

    `walls` are the wall seconds of the others, in order. Contenders take turns, so
    their rounds of one number follow each other. `load` is the number of cores that
    other processes kept busy meanwhile.
    """
    first, *others = rounds
    row: Row = {"first_call_seconds": round(first["wall"], 3), "repeats": len(others)}
    for kind in ("wall", "cpu"):
        times = [one[kind] for one in others]
        row[f"{kind}_seconds"] = round(statistics.median(times), 5)
        row[f"{kind}_seconds_min"] = round(min(times), 5)
    row["walls"] = [round(one["wall"], 5) for one in others]
    used = sum(max(0.0, one["busy"] - one["cpu"]) for one in others)
    row["load"] = round(used / sum(one["wall"] for one in others), 2)  # by others
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
    """Runs a workload's rounds in turns, `limits.repeats` of them after the first.

    Yields a row for every contender and algorithm.
    """
    workload = WORKLOADS[name]._replace(**sizes)
    request = {"do": "round", "workload": name, "sizes": sizes, "weights": str(weights)}
    lanes, absent = _lanes(request, algorithms, peers, limits)
    about = {"workload": name} | {size: getattr(workload, size) for size in SIZES}
    about |= {"whole": workload == WORKLOADS[name], "devices": limits.devices}
    yield from (about | row for row in absent)
    failed: dict[str, str] = {}
    try:
        for _ in range(limits.repeats + 1):
            for lane in lanes:
                if lane.label in failed:
                    continue
                try:
                    for rounds in lane.times:
                        rounds.append(lane.contender.run_round())
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
            yield row | summary(lane.times[i]) | last | {"loss": round(losses[i], 4)}

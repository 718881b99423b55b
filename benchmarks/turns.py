"""How contenders take turns: each is a process that plays one round when it is told to
and answers with what the round took.

A line on standard input asks for a round, its end for the last answers. Answers are
JSON lines on what was standard output; anything else that is printed goes to standard
error.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import IO

PROC = Path("/proc")


def family(root: int) -> list[int]:
    """A process and all that descend from it; itself alone where nothing tells."""
    children: dict[int, list[int]] = {}
    for path in PROC.glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended in the meantime
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def descendants_seconds() -> float:
    """Processor time of this process's descendants, those that ended included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    for pid in family(os.getpid())[1:]:
        try:
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def peak_megabytes() -> float:
    """The most memory that this process had, and each of its descendants."""
    total = 0
    for pid in family(os.getpid()):
        try:
            lines = (PROC / str(pid) / "status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if "VmHWM" in line)
    return (total or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024


class Turns:
    """The contender's end. `start` waits for its turn, `stop` answers."""

    def __init__(self, asked: IO[str], answers: IO[str]):
        self._asked, self._answers = asked, answers
        self._began = 0.0, 0.0, 0.0

    def start(self) -> bool:
        """Waits until a round is asked for; False: none will be any more."""
        if not self._asked.readline().strip():
            return False
        others = descendants_seconds()  # first: looking takes time too
        self._began = time.perf_counter(), time.process_time(), others
        return True

    def stop(self) -> None:
        """The round has been played, to its last number."""
        now = time.perf_counter(), time.process_time(), descendants_seconds()
        wall, own, others = (
            end - start for end, start in zip(now, self._began, strict=True)
        )
        self.say(wall=wall, cpu=own + others)

    def finish(self, losses: list[float], device_bytes: int | None = None) -> None:
        """What is known after the last round: a loss for every algorithm."""
        peak = {"peak_mb": round(peak_megabytes())}
        if device_bytes is not None:
            peak["device_peak_mb"] = round(device_bytes / 2**20)
        self.say(losses=losses, **peak)

    def say(self, **answer) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)


def on_standard_streams() -> Turns:
    """Keeps standard output for answers: what prints from now on goes to the other."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return Turns(sys.stdin, answers)

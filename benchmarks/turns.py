"""Turns of contenders: each is a process that runs one round on request.

A line on standard input requests a round, and the end of input the final answers. The
answers, such as the times of a round, are JSON lines on the original standard output.
Anything else that is printed goes to standard error.
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
    """Returns a process and its descendants; without /proc, the process alone."""
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
    """Returns the CPU time of this process's descendants, ended ones included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    for pid in family(os.getpid())[1:]:
        try:
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def busy_seconds() -> float:
    """Returns the CPU time of all processes of this machine; 0 without /proc."""
    if not (PROC / "stat").exists():
        return 0.0
    fields = (PROC / "stat").read_text().partition("\n")[0].split()[1:]
    user, nice, system, _, _, irq, softirq, *_ = map(int, fields)  # not idle, iowait
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def peak_megabytes() -> float:
    """Returns the sum of the peak memory of this process and of its descendants."""
    total = 0
    for pid in family(os.getpid()):
        try:
            lines = (PROC / str(pid) / "status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if "VmHWM" in line)
    return (total or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024


class Turns:
    """The contender's side: `start` waits for a request, `stop` answers it."""

    def __init__(self, requests: IO[str], answers: IO[str]):
        self._requests, self._answers = requests, answers
        self._began = 0.0, 0.0, 0.0, 0.0

    def start(self) -> bool:
        """Waits until a round is requested; returns False after the last one."""
        if not self._requests.readline().strip():
            return False
        others = descendants_seconds()  # first, because reading it takes time too
        busy = busy_seconds()
        self._began = time.perf_counter(), time.process_time(), others, busy
        return True

    def stop(self) -> None:
        """Answers with the times of the round that has just ended.

        `busy` is the CPU time of all processes meanwhile. What it exceeds `cpu` by was
        used by others.
        """
        clocks = time.perf_counter(), time.process_time()
        now = *clocks, descendants_seconds(), busy_seconds()
        wall, own, others, busy = (
            end - start for end, start in zip(now, self._began, strict=True)
        )
        self.send(wall=wall, cpu=own + others, busy=busy)

    def finish(self, losses: list[float], device_bytes: int | None = None) -> None:
        """Sends the losses of all algorithms and the peak memory after all rounds."""
        peak = {"peak_mb": round(peak_megabytes())}
        if device_bytes is not None:
            peak["device_peak_mb"] = round(device_bytes / 2**20)
        self.send(losses=losses, **peak)

    def send(self, **answer) -> None:
        """Sends one answer."""
        print(json.dumps(answer), file=self._answers, flush=True)


def on_standard_streams() -> Turns:
    """Reserves standard output for answers; other output goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return Turns(sys.stdin, answers)

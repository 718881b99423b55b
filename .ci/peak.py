"""Samples the memory of a process and of all that it started: peak.py PID FILE

Keeps the largest sum so far in FILE, in GB, until it is ended. Memory that processes
share counts once.
"""

import contextlib
import sys
import time
from collections import defaultdict
from pathlib import Path

PROCESSES = Path("/proc")


def children() -> dict[int, list[int]]:
    """The processes that every process has started."""
    found = defaultdict(list)
    for status in PROCESSES.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parent = status.read_text().rpartition(")")[2].split()[1]
            found[int(parent)].append(int(status.parent.name))
    return found


def memory(process: int) -> int:
    """Kilobytes of a process, with its part of what it shares; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in (PROCESSES / f"{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def total(root: int) -> int:
    """Kilobytes of a process and of all below it."""
    started, waiting, kilobytes = children(), [root], 0
    while waiting:
        process = waiting.pop()
        kilobytes += memory(process)
        waiting += started[process]
    return kilobytes


root, file = int(sys.argv[1]), Path(sys.argv[2])
peak = 0
while True:
    peak = max(peak, total(root))
    file.write_text(f"{peak / 2**20:.1f}")
    time.sleep(3)  # reading the maps of large processes takes time

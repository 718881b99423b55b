"""Memory of the machine or the container that a process runs on."""

from collections.abc import Iterator
from pathlib import Path

import psutil


def memory_bytes(root: Path = Path("/")) -> int:
    """Finds the number of bytes of memory that this process may use.

    Args:
      root: Directory with `proc` and `sys`, in which control groups are listed.

    Returns:
      The memory of the machine, or the smallest limit of the process's control groups,
      such as those of a container.
    """
    return min([psutil.virtual_memory().total, *container_limits(root)])


def container_limits(root: Path = Path("/")) -> Iterator[int]:
    """Finds the memory limits of this process's control groups (versions 1 and 2).

    Args:
      root: Directory with `proc` and `sys`, in which control groups are listed.

    Yields:
      Limits in bytes; none if there are no control groups or they have no limit.
    """
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2, possibly together with version 1
            for top in (mounted, mounted / "unified"):
                yield from _limits(top, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits(mounted / "memory", path, "memory.limit_in_bytes")


def _limits(top: Path, path: str, name: str) -> Iterator[int]:
    """Yields the limits of a group and its parents.

    A container may see only its own group, at the top.
    """
    group = top
    for part in ("", *Path(path.lstrip("/")).parts):
        group /= part
        try:
            limit = (group / name).read_text().strip()
        except OSError:
            continue
        if limit.isdigit():  # "max" is no limit
            yield int(limit)

"""Memory of the machine that a process runs on, or of the container that it runs in."""

from collections.abc import Iterator
from pathlib import Path

import psutil


def memory_bytes(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may use.

    Args:
      root: Directory that has `proc` and `sys`, where there are control groups.

    Returns:
      The memory of the machine, or the smallest limit of the control groups that the
      process belongs to, as those of a container.
    """
    return min([psutil.virtual_memory().total, *container_limits(root)])


def container_limits(root: Path = Path("/")) -> Iterator[int]:
    """Memory limits of this process's control groups (versions 1 and 2), in bytes.

    There are none where the operating system has no control groups, or none is limited.
    """
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2, maybe beside version 1
            for top in (mounted, mounted / "unified"):
                yield from _limits(top, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits(mounted / "memory", path, "memory.limit_in_bytes")


def _limits(top: Path, path: str, name: str) -> Iterator[int]:
    """Limits of a group and of all above it. A container may see its own group alone,
    at the top."""
    group = top
    for part in ("", *Path(path.lstrip("/")).parts):
        group /= part
        try:
            limit = (group / name).read_text().strip()
        except OSError:
            continue
        if limit.isdigit():  # "max" is no limit
            yield int(limit)

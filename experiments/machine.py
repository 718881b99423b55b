"""The machine of a run, next to its numbers.

Benchmarks describe theirs in `benchmarks.machine`. Neither imports the other, so that
one may be removed or changed alone.
"""

import os
import platform
import shlex
import sys
from pathlib import Path

import jax


def cpu_model() -> str:
    """Returns the processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor()


def machine(module: str) -> dict[str, object]:
    """Returns the context of a run: processor, backend, versions, command."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "backend": jax.default_backend(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
    }

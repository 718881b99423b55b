"""The machine of a benchmark, and a limit of one core and one thread."""

import os
import platform
import shlex
import sys
from pathlib import Path

import jax
import optax


def one_thread() -> None:
    """Binds this process to one core and XLA to one thread; call it before JAX runs."""
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
    )
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def cpu_model() -> str:
    """Returns the processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor()


def machine(module: str) -> dict[str, object]:
    """Returns the context of a measurement: processor, backend, versions, command."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "optax": optax.__version__,
        "python": platform.python_version(),
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
    }

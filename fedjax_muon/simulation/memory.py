"""Whether a simulation fits in memory, by what XLA says of its compiled programs."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_muon.core import tree
from fedjax_muon.engine.programs import promoting
from fedjax_muon.engine.sharding import Devices
from fedjax_muon.simulation.simulation import Simulation

# On a CPU the interpreter, JAX, its compiler and the figures use the same memory:
# 573 MB at the end of a small run.
PROCESS = 600_000_000
EXHAUSTED = "RESOURCE_EXHAUSTED"  # a compiler's error if a program can't fit


class UnknownMemoryError(Exception):
    """The memory of a device or a program is unknown; the message says why."""


class Memory(NamedTuple):
    """Bytes on each device."""

    state: int  # server state, and the device's part of the client states
    # with the arrays of the task, such as frozen weights, and the hyperparameters
    examples: int
    work: int  # temporary values, results and code of the largest program

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(self)


def held_by(simulation: Simulation) -> Memory:
    """Computes the memory of the state, which is not allocated, and of the examples."""
    state = simulation.like
    divided = tree.nbytes(state.divided)
    own = divided // max(1, len(simulation.settings.devices))
    held = jax.tree.leaves((simulation.data, simulation.run))
    examples = sum({id(x): _on_one_device(x) for x in held}.values())
    if simulation.source is not None:  # those of evaluations, and of two rounds
        scored, shaped = simulation.scored[0].x, simulation.shaped(0, state)[0].x
        examples += tree.nbytes((scored, shaped, shaped))
    return Memory(tree.nbytes(state) - divided + own, examples, 0)


@promoting
def memory_of(simulation: Simulation) -> Memory | None:
    """Computes the memory that a simulation needs.

    Its programs are compiled, and used again when it runs. None if the compiler finds
    that a device has too little memory for one of them.
    """
    (data, partition), run = simulation.scored, simulation.run
    held, state = held_by(simulation), simulation.like
    rounds = simulation.compiled.rounds.trace(*simulation.shaped(0, state), 1)
    # whatever the devices are, one of them evaluates
    scored = data, partition, run.client_tests, state.params
    score = simulation.compiled.score.trace(*jax.eval_shape(lambda *x: x, *scored))
    programs = (simulation.traced_begin, rounds, score)
    try:
        needs = [work_of(one.lower().compile()) for one in programs]
    except jax.errors.JaxRuntimeError as error:
        if EXHAUSTED in str(error):
            return None
        raise
    needs[0] -= held.state  # the result of `begin`
    return held._replace(work=max(needs))


def work_of(compiled: jax.stages.Compiled) -> int:
    """The bytes that a program needs besides its arguments, by its compiler."""
    memory = compiled.memory_analysis()
    if memory is None:
        raise UnknownMemoryError("the compiler does not say how much memory it needs")
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.temp_size_in_bytes + memory.generated_code_size_in_bytes + results


def _on_one_device(x: Any) -> int:
    return x.addressable_data(0).nbytes if isinstance(x, jax.Array) else x.nbytes


def check_memory(simulation: Simulation) -> None:
    """Raises `ValueError` if a simulation does not fit in the memory of its devices.

    It warns, and checks nothing, if the memory is unknown.
    """
    devices = simulation.settings.devices
    try:
        limit = limit_of(devices)
        need = memory_of(simulation)
    except UnknownMemoryError as error:
        warnings.warn(f"memory not checked: {error}", stacklevel=2)
        return
    if need is not None and need.total <= limit:
        return
    each = " on each device" if len(devices) > 1 else ""
    needs = f"more memory{each} than {bytes_text(limit)}"
    if need is not None:
        sizes = ", ".join(f"{k} {bytes_text(v)}" for k, v in need._asdict().items())
        needs = (
            f"{bytes_text(need.total)} of memory{each}, of {bytes_text(limit)} "
            f"({sizes})"
        )
    raise ValueError(
        f"this plan needs {needs}; take plan mapped, more devices, or fewer examples, "
        "clients, batch examples or parameters"
    )


def bytes_text(count: float) -> str:
    """A number of bytes, such as "1.5 GB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


# ------------------------------------------------------------- memory of devices


def limit_of(devices: Devices = ()) -> int:
    """Finds the bytes of memory of each device of this process, the least of all.

    Devices of a CPU share its memory, and the process itself needs a part of it.
    """
    process = jax.process_index()
    local = [device for device in devices if device.process_index == process]
    local = local or jax.local_devices()[:1]
    return min(_limit(device, len(local)) for device in local)


def _limit(device: jax.Device, sharing: int) -> int:
    if device.platform == "cpu":
        return max(0, memory_bytes() - PROCESS) // sharing
    try:
        return device.memory_stats()["bytes_limit"]
    except (jax.errors.JaxRuntimeError, KeyError, TypeError) as error:
        raise UnknownMemoryError(
            f"{device.device_kind} does not say how much memory it has"
        ) from error


def memory_bytes(root: Path = Path("/")) -> int:
    """The memory of this machine, or the smallest limit of the process's containers."""
    if not hasattr(os, "sysconf"):  # on Windows
        raise UnknownMemoryError("this system does not say how much memory it has")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *container_limits(root)])


def container_limits(root: Path = Path("/")) -> Iterator[int]:
    """Finds the memory limits of this process's control groups (versions 1 and 2)."""
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
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
    """The limits of a group and its parents.

    A container may see only its own group, at the top.
    """
    group = top
    for part in ("", *Path(path.lstrip("/")).parts):
        group /= part
        try:
            limit = (group / name).read_text("utf-8").strip()
        except OSError:
            continue
        if limit.isdigit():  # "max" is no limit
            yield int(limit)

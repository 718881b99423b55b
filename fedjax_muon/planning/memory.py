"""Whether a simulation fits in memory, by what XLA says of its compiled programs."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import psutil

from fedjax_muon.core import tree
from fedjax_muon.engine.plans import Plan, smaller_plans, vmapped
from fedjax_muon.engine.programs import promoting
from fedjax_muon.engine.sharding import Devices
from fedjax_muon.simulation.federated import with_plan
from fedjax_muon.simulation.rounds import Setup
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
    state, _ = _begin(simulation).out_info
    divided = tree.nbytes(state.divided)
    own = divided // max(1, len(simulation.setup.devices))
    held = (simulation.inputs, simulation.clients, simulation.test)
    examples = {id(x): _on_one_device(x) for x in jax.tree.leaves(held)}
    return Memory(tree.nbytes(state) - divided + own, sum(examples.values()), 0)


def _begin(simulation: Simulation) -> jax.stages.Traced:
    created = jax.eval_shape(simulation.programs.create, jax.random.key(0))
    return simulation.programs.begin.trace(
        simulation.inputs, created, simulation.clients
    )


@promoting
def memory_of(simulation: Simulation) -> Memory | None:
    """Computes the memory that a simulation needs.

    Its programs are compiled, and used again when it runs. None if the compiler finds
    that a device has too little memory for one of them.
    """
    setup, programs = simulation.setup, simulation.programs
    inputs, clients = simulation.inputs, simulation.clients
    begin, held = _begin(simulation), held_by(simulation)
    state, _ = begin.out_info
    rounds = programs.rounds.trace(inputs, state, clients, 1)
    scored = [inputs.task, state.params, clients, simulation.test]
    if isinstance(setup, Setup):  # clients may have tests of their own
        scored.append(simulation.own_tests)
    # whatever the devices are, one of them evaluates
    score = programs.score.trace(*jax.eval_shape(lambda *shapes: shapes, *scored))
    try:
        begun = _work(begin) - held.state  # which is its result
        work = max(begun, _work(rounds), _work(score))
    except jax.errors.JaxRuntimeError as error:
        if EXHAUSTED in str(error):
            return None
        raise
    return held._replace(work=work)


def _work(program: jax.stages.Traced) -> int:
    """The bytes that a program needs besides its arguments, by its compiler."""
    memory = program.lower().compile().memory_analysis()
    if memory is None:
        raise UnknownMemoryError("the compiler does not say how much memory it needs")
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.temp_size_in_bytes + memory.generated_code_size_in_bytes + results


def _on_one_device(x: Any) -> int:
    return x.addressable_data(0).nbytes if isinstance(x, jax.Array) else x.nbytes


def plans_of(setup: Any, devices: int) -> list[tuple[str, Plan]]:
    """The plans of a cohort by decreasing memory; none for agents without a server."""
    if not isinstance(setup, Setup):
        return []
    clients_of_device = -(-setup.cohort_size // max(1, devices))
    return [("vmapped", vmapped), *smaller_plans(clients_of_device)]


def check_memory(simulation: Simulation) -> None:
    """Raises `ValueError` if a simulation does not fit in the memory of its devices.

    It warns, and checks nothing, if the memory is unknown.
    """
    devices = simulation.setup.devices
    try:
        limit = limit_of(devices)
        need = memory_of(simulation)
        if need is not None and need.total <= limit:
            return
        advice = _advice(simulation, need, limit)
    except UnknownMemoryError as error:
        warnings.warn(f"memory not checked: {error}", stacklevel=2)
        return
    each = " on each device" if len(devices) > 1 else ""
    needs = f"{bytes_text(need.total)} of" if need else "more"
    than = ", of" if need else " than"
    raise ValueError(
        f"this plan needs {needs} memory{each}{than} {bytes_text(limit)}; {advice}"
    )


def _advice(simulation: Simulation, need: Memory | None, limit: int) -> str:
    """Names a plan that fits in `limit` bytes, or another remedy."""
    setup = simulation.setup
    for name, plan in plans_of(setup, len(setup.devices))[1:]:
        need = memory_of(with_plan(simulation, plan))
        if need is not None and need.total <= limit:
            return f"{name} needs {bytes_text(need.total)}"
    if need is None:
        return "take smaller batches or a smaller model"
    # `need` is now that of the last plan, `mapped`
    large = max(need._fields, key=need._asdict().__getitem__)
    total, most = bytes_text(need.total), bytes_text(max(need))
    known = f"even mapped needs {total}, of which {most} are "
    if large == "examples":
        splits = setup.split_examples
        remedy = "more devices" if splits else "more devices and split_examples"
        return f"{known}examples: take fewer, or {remedy}"
    if large == "state":
        return f"{known}the state: take more devices, fewer clients or a smaller model"
    return f"{known}for the work: take smaller batches or a smaller model"


def bytes_text(count: float) -> str:
    """A number of bytes, such as "1.5 GB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


# ------------------------------------------------------------- memory of devices


def limit_of(devices: Devices = ()) -> int:
    """Finds the bytes of memory of each device of this process, the least of all.

    Devices of a CPU share its memory, of which the process itself needs a part.
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
    return min([psutil.virtual_memory().total, *container_limits(root)])


def container_limits(root: Path = Path("/")) -> Iterator[int]:
    """Finds the memory limits of this process's control groups (versions 1 and 2)."""
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
    """The limits of a group and its parents.

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

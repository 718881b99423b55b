"""Check that a simulation fits in memory, before its first round is compiled."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import psutil

from fedjax_muon.core import tree
from fedjax_muon.engine.plans import Plan, smaller_plans, vmapped
from fedjax_muon.engine.sharding import Devices
from fedjax_muon.planning.memory import UnknownMemoryError, peak_bytes
from fedjax_muon.simulation.federated import with_plan
from fedjax_muon.simulation.rounds import Setup
from fedjax_muon.simulation.simulation import Simulation

# XLA was measured to need 0.8 to 1.5 times the `peak_bytes` of temporary values.
ALLOWANCE = 1.1
# On a CPU the interpreter, JAX, its compiler and the figures use the same memory:
# 573 MB at the end of a small run.
PROCESS = 600_000_000
EXHAUSTED = "RESOURCE_EXHAUSTED"  # a compiler's error if a program can't fit


class Memory(NamedTuple):
    """Bytes on each device."""

    state: int  # server state, and the device's part of the client states
    # with the arrays of the task, such as frozen weights, and the hyper-parameters
    examples: int
    work: int  # temporary values, at the peak of a round or an evaluation

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(self)


def memory_of(simulation: Simulation, *, compiled: bool = False) -> Memory:
    """Computes the memory that a simulation needs; temporary values are estimated.

    Its programs are traced, and the traces are used again when it runs. The state is
    not allocated.

    Args:
      compiled: Whether to compile the program of rounds, which is used again too, and
        to take the compiler's number for its temporary values.
    """
    setup, programs = simulation.setup, simulation.programs
    inputs, clients = simulation.inputs, simulation.clients
    created = jax.eval_shape(programs.create, jax.random.key(0))
    begin = programs.begin.trace(inputs, created, clients)
    state, _ = begin.out_info
    divided = tree.nbytes(state.divided)
    held = tree.nbytes(state) - divided + divided // max(1, len(setup.devices))
    rounds = programs.rounds.trace(inputs, state, clients, 1)
    count = lambda tree: len(jax.tree.leaves(tree))
    donated = lambda state: [False] * count(inputs) + [True] * count(state)
    begun = peak_bytes(begin.jaxpr, donated(created)) - held
    score = programs.score.trace(
        setup.task, state.params, clients, simulation.test
    ).jaxpr
    work = round(ALLOWANCE * max(begun, peak_bytes(score)))
    if compiled:
        work = max(work, _compiled_work(rounds))
    else:
        estimate = peak_bytes(rounds.jaxpr, donated(state)) - held
        work = max(work, round(ALLOWANCE * estimate))
    arrays = jax.tree.leaves((inputs, clients, simulation.test))
    examples = sum({id(x): _on_one_device(x) for x in arrays}.values())
    return Memory(held, examples, work)


def _compiled_work(rounds: jax.stages.Traced) -> int:
    """The bytes of temporary values and of code, according to the compiler."""
    memory = rounds.lower().compile().memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.temp_size_in_bytes + memory.generated_code_size_in_bytes + results


def _on_one_device(x: Any) -> int:
    return x.addressable_data(0).nbytes if isinstance(x, jax.Array) else x.nbytes


def need_of(simulation: Simulation) -> int | None:
    """The bytes that a simulation needs on each device: on accelerators by compiling.

    None if the compiler finds that they are too many.
    """
    cpus = (*simulation.setup.devices, *jax.devices())[0].platform == "cpu"
    try:
        return memory_of(simulation, compiled=not cpus).total
    except jax.errors.JaxRuntimeError as error:
        if EXHAUSTED in str(error):
            return None
        raise


def plans_of(setup: Any, devices: int) -> list[tuple[str, Plan]]:
    """The plans of a cohort by decreasing memory; none for agents without a server."""
    if not isinstance(setup, Setup):
        return []
    clients_of_device = -(-setup.cohort_size // max(1, devices))
    return [("vmapped", vmapped), *smaller_plans(clients_of_device)]


def check_memory(simulation: Simulation) -> None:
    """Raises `ValueError` if a simulation does not fit in the memory of its devices.

    On accelerators the program of rounds is compiled, and the compiler's numbers count.
    On CPUs nothing is compiled, and estimates count.
    It warns, and checks nothing, if the memory is unknown.
    """
    devices = simulation.setup.devices
    try:
        limit = limit_of(devices)
        need = need_of(simulation)
        if need is not None and need <= limit:
            return
        advice = _advice(simulation, limit)
    except UnknownMemoryError as error:
        warnings.warn(f"memory not checked: {error}", stacklevel=2)
        return
    each = " on each device" if len(devices) > 1 else ""
    needs = f"about {bytes_text(need)} of" if need else "more"
    than = ", of" if need else " than"
    raise ValueError(
        f"this plan needs {needs} memory{each}{than} {bytes_text(limit)}; {advice}"
    )


def _advice(simulation: Simulation, limit: int) -> str:
    """Names a plan that fits in `limit` bytes, or another remedy."""
    setup = simulation.setup
    for name, plan in plans_of(setup, len(setup.devices))[1:]:
        need = memory_of(with_plan(simulation, plan))
        if need.total <= limit:
            return f"{name} needs about {bytes_text(need.total)}"
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

    Raises:
      UnknownMemoryError: If an accelerator does not report its memory.
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

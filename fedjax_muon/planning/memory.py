"""Whether a simulation fits in memory, estimated before its rounds are compiled.

Every value takes memory from the operation that computes it to the last one that reads
it. The estimate is the peak of their sum. XLA frees values after their last use and
overwrites them where it can, and so does the estimate. Other optimizations of XLA are
unknown before compilation: fusion takes less memory, and another order of independent
operations can take more.

Traced programs have an internal format of JAX, which changes between versions. The
estimate of a program that this module cannot read is unknown (`UnknownMemoryError`).
"""

import dataclasses
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import jax
import psutil
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from fedjax_muon.core import tree
from fedjax_muon.engine.plans import Plan, smaller_plans, vmapped
from fedjax_muon.engine.sharding import Devices
from fedjax_muon.simulation.federated import with_plan
from fedjax_muon.simulation.rounds import Setup
from fedjax_muon.simulation.simulation import Simulation

# The programs of these operations run once, as if they were inlined.
INLINED = frozenset(
    """jit pjit closed_call remat remat2 checkpoint custom_jvp_call
    custom_vjp_call shard_map""".split()  # noqa: SIM905 - a list of words
)
# These copy their operands into the layout of their kernels.
PACKED = frozenset({"conv_general_dilated", "dot_general"})
# Their results may overwrite an operand that is not read again.
IN_PLACE = frozenset(
    """abs add add_any and atan2 bitcast_convert_type cbrt ceil clamp
    convert_element_type copy cos div dynamic_update_slice eq erf erf_inv exp exp2
    expand_dims expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min
    mul ne neg not or pow psum reduce_precision rem reshape round rsqrt scatter
    scatter-add select_n shift_left shift_right_arithmetic shift_right_logical sign sin
    sqrt square squeeze stop_gradient sub tan tanh xor""".split()  # noqa: SIM905 - a list of words
)
# The programs of these operations combine scalars, which take no memory.
SCALAR = frozenset(
    """reduce reduce_window scatter scatter-add scatter-mul scatter-sub scatter_max
    scatter_min select_and_scatter""".split()  # noqa: SIM905 - a list of words
)


class UnknownMemoryError(Exception):
    """The memory of a program is unknown; the message states the reason."""


def peak_bytes(program: ClosedJaxpr, donated: Iterable[bool] = ()) -> int:
    """Estimates the peak memory of a program, without its arguments.

    Inside `jax.shard_map` it is that of one device.

    Args:
      donated: Whether each of the first arguments is donated. Donated arguments are
        included in the estimate, and their memory may be reused.
    """
    try:
        return _peak(program.jaxpr, donated)
    except UnknownMemoryError:
        raise
    except Exception as error:  # the internal format of programs has no guarantees
        raise UnknownMemoryError(
            f"jax {jax.__version__} describes programs in an unknown form "
            f"({type(error).__name__}: {error})"
        ) from error


@dataclasses.dataclass(eq=False)
class _Value:
    nbytes: int


Values = Set[_Value | None]


class _Step(NamedTuple):
    """One operation of a program with inlined calls; literals are None."""

    eqn: JaxprEqn
    operands: list[_Value | None]
    results: list[_Value]

    @property
    def name(self) -> str:
        return self.eqn.primitive.name


def _nbytes(aval: Any) -> int:
    dtype = getattr(aval, "dtype", None)  # tokens have none
    return 0 if dtype is None else aval.size * dtype.itemsize


def _value(var: Any) -> _Value:
    return _Value(_nbytes(var.aval))


def programs_in(value: Any) -> list[Jaxpr]:
    """Lists the programs in the parameters of an operation."""
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, Jaxpr):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return [program for one in value for program in programs_in(one)]
    return []


def _inlined(
    jaxpr: Jaxpr, arguments: Sequence[_Value | None]
) -> tuple[list[_Step], list[_Value | None]]:
    """Lists the steps of a program in order, and the values that it returns."""
    values_of: dict[Any, _Value | None] = dict(
        zip(jaxpr.invars, arguments, strict=True)
    )
    values_of |= {var: _value(var) for var in jaxpr.constvars}
    read = lambda x: None if isinstance(x, Literal) else values_of[x]
    steps: list[_Step] = []
    for eqn in jaxpr.eqns:
        values = [read(x) for x in eqn.invars]
        if eqn.primitive.name in INLINED:
            (program,) = programs_in(eqn.params)
            for value, part in zip(values, program.invars, strict=True):
                if value is not None:  # inside shard_map, a device's part of it
                    value.nbytes = _nbytes(part.aval)
            more, returned = _inlined(program, values)
            steps += more
            values_of |= dict(zip(eqn.outvars, returned, strict=True))
        else:
            results = [_value(var) for var in eqn.outvars]
            steps.append(_Step(eqn, values, results))
            values_of |= dict(zip(eqn.outvars, results, strict=True))
    return steps, [read(x) for x in jaxpr.outvars]


def _total(values: Iterable[_Value | None]) -> int:
    return sum(value.nbytes for value in values if value is not None)


def _peak(jaxpr: Jaxpr, owned: Iterable[bool]) -> int:
    """Computes the peak memory of a program's values and of the arguments it owns."""
    arguments = [_value(var) for var in jaxpr.invars]
    steps, returned = _inlined(jaxpr, arguments)
    last = {x: i for i, step in enumerate(steps) for x in step.operands}
    last |= dict.fromkeys(returned, len(steps))
    ending: defaultdict[int, list[_Value | None]] = defaultdict(list)
    for value, number in last.items():
        ending[number].append(value)
    freed = {x for x, is_owned in zip(arguments, owned, strict=False) if is_owned}
    live = peak = _total(freed)
    for number, step in enumerate(steps):
        freed |= set(step.results)
        dying = {x for x in ending[number] if x in freed}
        dying |= {x for x in step.results if x not in last}
        peak = max(peak, live + _during(step, dying))
        live += _total(step.results) - _total(dying)
    # Returned values that the program does not own have to be copied.
    return max(peak, live + _total({x for x in returned if x} - freed))


def _during(step: _Step, dying: Values) -> int:
    """Computes the memory that a step adds while it runs.

    Dying values are not read again; they are freed after the step.
    """
    results, eqn = _total(step.results), step.eqn
    if step.name == "scan":
        (body,) = programs_in(eqn.params)
        constants, carried = _constants_and_carry(eqn, body)
        stacked = _total(step.results[carried:])
        return stacked + _loop(body, step.operands, constants, carried, dying)
    if step.name == "while":
        constants, body = eqn.params["body_nconsts"], eqn.params["body_jaxpr"].jaxpr
        operands = step.operands[eqn.params["cond_nconsts"] :]
        return _loop(body, operands, constants, len(operands) - constants, dying)
    if step.name == "cond":
        return max(
            _branch(program, step.operands, dying)
            for program in programs_in(eqn.params)
        )
    if step.name not in SCALAR and programs_in(eqn.params):
        raise UnknownMemoryError(f"the operation {step.name} is unknown")
    if step.name in PACKED:
        return results + _total(step.operands)
    if step.name in IN_PLACE:
        return max(0, results - _total(dying))
    return results


def _constants_and_carry(eqn: JaxprEqn, body: Jaxpr) -> tuple[int, int]:
    """Counts the arguments of a scan that are constants, and those that are its carry.

    The parameters that count them differ between versions of JAX, but shapes identify
    them: arrays that are scanned or stacked have one more axis outside the body.
    """
    alike = lambda outer, inner: sum(
        x.aval.ndim == y.aval.ndim for x, y in zip(outer, inner, strict=True)
    )
    carried = alike(eqn.outvars, body.outvars)
    return alike(eqn.invars, body.invars) - carried, carried


def _loop(
    body: Jaxpr,
    operands: Sequence[_Value | None],
    constants: int,
    carried: int,
    dying: Values,
) -> int:
    """Computes the memory of a loop, which owns its carry.

    The carry is copied unless it dies.
    """
    owned = [i >= constants for i in range(len(body.invars))]
    carry = {x for x in operands[constants : constants + carried] if x in dying}
    return _peak(body, owned) - _total(carry)


def _branch(program: Jaxpr, operands: Sequence[_Value | None], dying: Values) -> int:
    """Computes the memory of a branch, which owns operands that are not read again."""
    passed = operands[len(operands) - len(program.invars) :]
    owned = [x in dying and x not in passed[:i] for i, x in enumerate(passed)]
    dies = {x for x, is_owned in zip(passed, owned, strict=True) if is_owned}
    return _peak(program, owned) - _total(dies)


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

"""Compilation of rounds for accelerators that this machine does not have.

    compiled = compile_for(simulation, "v5e:4x4")
    print(compiled.memory, compiled.collectives)

A TPU's compiler needs no TPU, only its library, of the extra `tpu-aot`.
Nothing is placed on the devices, which do not exist here; only shapes are used.
"""

import math
import operator
import os
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.sharding import SingleDeviceSharding
from rich.table import Table

from fedjax_muon import no_tpu
from fedjax_muon.engine.plans import Plan, vmapped
from fedjax_muon.engine.programs import promoting
from fedjax_muon.engine.sharding import SHARDED
from fedjax_muon.planning.memory import EXHAUSTED, bytes_text
from fedjax_muon.simulation.rounds import Setup
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.versions import check_installed


class Chip(NamedTuple):
    """Published figures of a chip: https://cloud.google.com/tpu/docs."""

    memory: float  # bytes
    flops: float  # operations per second in bfloat16, at most
    bandwidth: float  # bytes per second of its memory


CHIPS = {
    "v4": Chip(32 * 2**30, 275e12, 1228e9),
    "v5e": Chip(16 * 2**30, 197e12, 819e9),
    "v5p": Chip(95 * 2**30, 459e12, 2765e9),
    "v6e": Chip(32 * 2**30, 918e12, 1640e9),
}
HOST = 4  # chips of a host, in a square
# A compiler looks for the TPU of this machine unless it is told of another one. It also
# locks that TPU by a file in /tmp, which is not needed where there is none.
NO_TPU = {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", **no_tpu.NO_TPU}
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
ITEM_BITS = {"pred": 8, "bf16": 16}  # others end with their number of bits


class Memory(NamedTuple):
    """Bytes on each device while a round runs."""

    arguments: int  # state, examples and hyperparameters
    results: int  # without what overwrites arguments
    work: int  # temporary values
    code: int

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(self)


class Collective(NamedTuple):
    """Communication of one kind in the compiled program of a round."""

    kind: str  # "all-reduce", ...
    operations: int  # in the program
    nbytes: int  # of their results on each device
    in_loops: int  # operations inside the loops of a round, such as local training


class Products(NamedTuple):
    """Totals over all products of a program."""

    flops: float = 0.0  # two for each multiplication
    # Of operands and results, each read or written once for every product. Element-wise
    # operations are not counted: compilers fuse most of them with products.
    nbytes: float = 0.0


class Compiled(NamedTuple):
    """A round compiled for a topology, and what the compiler reports about it."""

    topology: str
    devices: int
    chip: Chip
    memory: Memory
    products: Products  # of each device in a round
    collectives: tuple[Collective, ...]
    seconds: float  # of compilation
    text: str  # the compiled program

    @property
    def fits(self) -> bool:
        """Whether a round fits in the memory of a chip."""
        return self.memory.total <= self.chip.memory

    @property
    def least_seconds(self) -> float:
        """Seconds of a round at the chip's published peaks, products alone."""
        flops, nbytes = self.products
        return max(flops / self.chip.flops, nbytes / self.chip.bandwidth)


@promoting
def compile_for(
    simulation: Simulation, topology: str, *, plan: Plan | None = None
) -> Compiled:
    """Compiles a round for TPUs that you do not need to have.

    Args:
      topology: Chips by kind and arrangement, such as "v5e:2x2" or "v5e:16x16"; all of
        them are used. "v5e:1x1" is one chip.
      plan: Execution plan for a cohort; by default `vmapped`, the default on
        accelerators. Agents of a decentralized simulation have no plan.
    """
    devices, setup = topology_devices(topology), simulation.setup
    if isinstance(setup, Setup) and setup.split_examples and len(devices) == 1:
        raise ValueError(
            f"{topology} is one chip, and split_examples needs several; choose a "
            "larger topology, or leave out split_examples"
        )
    traced = _traced(simulation, devices, plan or vmapped)
    began = time.perf_counter()
    try:
        compiled = _compiled(traced)
    except jax.errors.JaxRuntimeError as error:
        if EXHAUSTED not in str(error):
            raise
        reason = str(error).splitlines()[0].partition(": ")[2].rstrip(".")
        raise ValueError(
            f"this plan does not fit: {reason}; take plan mapped, more chips, smaller "
            "batches or a smaller model"
        ) from None
    seconds = time.perf_counter() - began
    text, analysis = compiled.as_text(), compiled.memory_analysis()
    return Compiled(
        topology=topology,
        devices=len(devices),
        chip=CHIPS[topology.partition(":")[0]],
        memory=Memory(
            analysis.argument_size_in_bytes,
            analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
            analysis.temp_size_in_bytes,
            analysis.generated_code_size_in_bytes,
        ),
        products=products_of(traced.jaxpr, "tpu"),
        collectives=collectives_of(text),
        seconds=seconds,
        text=text,
    )


def topology_devices(topology: str) -> tuple[jax.Device, ...]:
    """Lists the devices of a topology, with which programs can be compiled."""
    kind, _, sizes = topology.partition(":")
    if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+){1,2}", sizes):
        known = ", ".join(f"{name}:2x2" for name in CHIPS)
        raise ValueError(
            f"unknown topology {topology!r}; choose one such as {known}, ..."
        )
    check_installed("libtpu", "compiling for TPUs")
    # Imported here, since only this function needs it.
    from jax.experimental import topologies

    alone = math.prod(map(int, sizes.split("x"))) < HOST
    options = {"chips_per_host_bounds": [1, 1, 1]} if alone else {}
    if jax.default_backend() != "tpu":
        for name, value in NO_TPU.items():
            os.environ.setdefault(name, value)
    try:
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=topology, **options
        )
    except Exception as error:  # the plugin raises several kinds
        reason = str(error).splitlines()[0][:200]
        if "lockfile" in reason:
            raise ValueError(
                "another process has locked the TPU compiler with "
                "/tmp/libtpu_lockfile; end it, or set ALLOW_MULTIPLE_LIBTPU_LOAD=1"
            ) from error
        raise ValueError(
            f"unknown topology {topology!r} ({reason}); sizes are 1x1, or multiples of "
            "2 such as 2x2, 4x4 and 16x16"
        ) from error
    return tuple(described.devices)


def _traced(simulation: Simulation, devices: Sequence[Any], plan: Plan) -> Any:
    """The program of a round for other devices, by shapes alone."""
    several = tuple(devices) if len(devices) > 1 else ()
    setup = simulation.setup._replace(devices=several)
    if isinstance(setup, Setup):  # agents have no plan
        setup = setup._replace(plan=plan)
    runner = simulation.runner
    programs = runner.programs(setup)
    alone = SingleDeviceSharding(devices[0])
    shardings = (alone, alone, alone)
    if several:
        shardings = runner.shardings(setup, simulation.clients)
    clients = _placed(simulation.clients, shardings[2], len(devices))
    created = jax.eval_shape(programs.create, jax.random.key(0))
    begun = programs.begin.trace(simulation.inputs, created, clients).out_info[0]
    inputs, state = map(_placed, (simulation.inputs, begun), shardings)
    count = jax.ShapeDtypeStruct((), jnp.int32)
    return programs.rounds.trace(inputs, state, clients, count)


def _compiled(traced: jax.stages.Traced) -> Any:
    """Keeps programs out of JAX's cache on disk, which can't read them without TPUs."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, math.inf)
    try:
        return traced.lower().compile()
    finally:
        jax.config.update(name, before)


def _placed(arrays: Any, shardings: Any, parts: int = 1) -> Any:
    """Shapes with shardings, a prefix; divided examples are padded for equal parts."""

    def shape(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        divided = getattr(sharding, "spec", None) == SHARDED
        rows = [-(-x.shape[0] // parts) * parts, *x.shape[1:]] if divided else x.shape
        return jax.ShapeDtypeStruct(tuple(rows), x.dtype, sharding=sharding)

    return jax.tree.map(
        lambda sharding, part: jax.tree.map(lambda x: shape(x, sharding), part),
        shardings,
        arrays,
    )


def collectives_of(text: str) -> tuple[Collective, ...]:
    """Counts the communication of each kind in a compiled program, as XLA prints it."""
    kinds = "|".join(COLLECTIVES)
    totals: dict[str, Collective] = {}
    for line in text.splitlines():
        match = re.search(rf"= (\(?[^=]*?) ({kinds})(-start)?\(", line)
        if match is None:
            continue
        result, kind, start = match.groups()
        # the asynchronous form of others than a reduction also returns its operand
        both = start and kind != "all-reduce"
        nbytes = _nbytes(result) // (2 if both else 1)
        name = re.search(r'op_name="([^"]*)"', line)
        loops = name[1].count("while/body") if name else 0  # the first is over rounds
        _, *before = totals.get(kind, Collective(kind, 0, 0, 0))
        one = (1, nbytes, int(loops > 1))
        totals[kind] = Collective(kind, *map(operator.add, before, one))
    return tuple(totals.values())


def _nbytes(shapes: str) -> int:
    """The bytes of arrays such as "f32[10,2]{1,0}"."""
    total = 0
    for dtype, sizes in re.findall(r"([a-z]+\d*)\[([\d,]*)\]", shapes):
        bits = ITEM_BITS.get(dtype) or int(re.sub(r"\D", "", dtype) or 0)
        total += math.prod(map(int, filter(None, sizes.split(",")))) * bits // 8
    return total


def table(compiled: Compiled) -> Table:
    """A table of a compiled round, for the terminal."""
    chips = f"{compiled.devices} chip{'s' * (compiled.devices > 1)}"
    title = f"a round on {compiled.topology}, {chips}"
    rows = Table(title=title, show_header=False)
    memory, chip = compiled.memory, compiled.chip
    verdict = "fits" if compiled.fits else "does not fit"
    rows.add_row(
        "memory of a chip",
        f"{bytes_text(memory.total)} of {bytes_text(chip.memory)}: {verdict}",
    )
    for name, value in memory._asdict().items():
        rows.add_row(f"  {name}", bytes_text(value))
    flops, nbytes = compiled.products
    rows.add_row(
        "products on a chip",
        f"{flops:.3g} operations, {bytes_text(nbytes)}: at least "
        f"{compiled.least_seconds:.2g} s",
    )
    for kind, operations, nbytes, in_loops in compiled.collectives:
        inner = f", {in_loops} in its loops" if in_loops else ""
        rows.add_row(kind, f"{operations}, {bytes_text(nbytes)} on a chip{inner}")
    if not compiled.collectives:
        rows.add_row("communication", "none")
    rows.add_row("compilation", f"{compiled.seconds:.1f} s")
    return rows


# ------------------------------------------------------------- products of a program
# A compiler's own count takes the body of every loop once. Here the body of a scan
# counts as often as it runs; that of a loop whose length is unknown, such as the one
# over rounds, counts once.


def products_of(program: ClosedJaxpr, platform: str) -> Products:
    """Counts the floating-point operations of products, and the bytes they need.

    Inside `jax.shard_map` they are those of one device.

    Example:
      >>> a = jnp.ones((2, 3))
      >>> products_of(jax.make_jaxpr(jnp.dot)(a, a.T), "tpu")
      Products(flops=24.0, nbytes=64.0)
    """
    return _products(program.jaxpr, platform)


def _products(jaxpr: Jaxpr, platform: str) -> Products:
    return _total(_of_operation(eqn, platform) for eqn in jaxpr.eqns)


def _total(several: Iterable[Products]) -> Products:
    return Products(*map(sum, zip(Products(), *several, strict=True)))


def _of_operation(eqn: JaxprEqn, platform: str) -> Products:
    name = eqn.primitive.name
    if name == "dot_general":
        return Products(_dot_flops(eqn), _traffic(eqn))
    if name == "conv_general_dilated":
        return Products(_convolution_flops(eqn), _traffic(eqn))
    inner = [_products(program, platform) for program in programs_in(eqn.params)]
    if name == "cond":
        return _of_branches(inner, eqn.params.get("branches_platforms"), platform)
    times = eqn.params["length"] if name == "scan" else 1
    flops, nbytes = _total(inner)
    return Products(times * flops, times * nbytes)


def _of_branches(
    inner: Sequence[Products],
    platforms: Sequence[Sequence[str] | None] | None,
    platform: str,
) -> Products:
    """The branch of a platform, or the longest one where values choose it."""
    if platforms is None:
        return max(inner)
    pairs = zip(platforms, inner, strict=True)
    return next(one for names, one in pairs if names is None or platform in names)


def programs_in(value: Any) -> list[Jaxpr]:
    """The programs in the parameters of an operation."""
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, Jaxpr):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return [program for one in value for program in programs_in(one)]
    return []


def _dot_flops(eqn: JaxprEqn) -> float:
    (left, _), _ = eqn.params["dimension_numbers"]
    shape = _shape(eqn.invars[0])
    summed = math.prod(shape[axis] for axis in left)
    return 2.0 * summed * math.prod(_shape(eqn.outvars[0]))


def _convolution_flops(eqn: JaxprEqn) -> float:
    numbers = eqn.params["dimension_numbers"]
    kernel = _shape(eqn.invars[1])
    out_channels = kernel[numbers.rhs_spec[0]]
    per_output = math.prod(kernel) // out_channels
    return 2.0 * per_output * math.prod(_shape(eqn.outvars[0]))


def _traffic(eqn: JaxprEqn) -> float:
    avals: list[Any] = [value.aval for value in (*eqn.invars, *eqn.outvars)]
    return float(sum(aval.size * aval.dtype.itemsize for aval in avals))


def _shape(value: Any) -> tuple[int, ...]:
    return value.aval.shape

"""Compilation of rounds for TPUs that this machine does not have, by shapes alone.

compiled = compile_for(simulation, "v5e:4x4")
print(report(compiled, "v5e:4x4"))
"""

import math
import os
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from fedjax_muon import startup
from fedjax_muon.decentralized import simulation as decentralized
from fedjax_muon.engine.plans import Plan, vmapped
from fedjax_muon.engine.programs import promoting
from fedjax_muon.engine.sharding import SHARDED
from fedjax_muon.simulation import federated
from fedjax_muon.simulation.memory import EXHAUSTED, bytes_text, work_of
from fedjax_muon.simulation.program import compiled
from fedjax_muon.simulation.rounds import Setup
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.versions import check_installed

# bytes of memory of a chip: https://cloud.google.com/tpu/docs
CHIPS = {"v4": 32 * 2**30, "v5e": 16 * 2**30, "v5p": 95 * 2**30, "v6e": 32 * 2**30}
ALLOWED = (
    f"give a chip ({', '.join(CHIPS)}) and a size of 1x1 or multiples of 2, such as "
    "v5e:4x4"
)
# The compiler locks the TPU of this machine, which is not needed where there is none.
NO_TPU = {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", **startup.NO_TPU}


@promoting
def compile_for(
    simulation: Simulation, topology: str, *, plan: Plan | None = None
) -> jax.stages.Compiled:
    """Compiles a round for TPUs that you do not need to have.

    It needs their compiler, the extra `tpu-aot`. The program's `memory_analysis` and
    `cost_analysis` are of one chip; the latter counts the body of each loop once.

    Args:
      topology: Chips by kind and arrangement, such as "v5e:2x2" or "v5e:16x16"; all of
        them are used. "v5e:1x1" is one chip.
      plan: Execution plan for a cohort; by default `vmapped`, the default on
        accelerators. Agents of a decentralized simulation have no plan.

    Example:
      >>> program = fm.compile_for(simulation, "v5e:2x2")  # doctest: +SKIP
    """
    devices, setup = topology_devices(topology), simulation.settings
    if isinstance(setup, Setup) and setup.split_examples and len(devices) == 1:
        raise ValueError(
            f"{topology} is one chip, but split_examples needs several; choose a "
            "larger topology, or leave out split_examples"
        )
    lowered = _traced(simulation, devices, plan or vmapped).lower()
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, math.inf)  # a cache of such programs can't be read here
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if EXHAUSTED not in str(error):
            raise
        reason = str(error).splitlines()[0].partition(": ")[2].rstrip(".")
        raise ValueError(
            f"this plan does not fit: {reason}; take plan mapped, more chips, smaller "
            "batches or a smaller model"
        ) from None
    finally:
        jax.config.update(name, before)


def report(compiled: jax.stages.Compiled, topology: str) -> str:
    """Says whether a round fits in the memory of a chip."""
    memory = memory_of(compiled)
    chip = CHIPS[topology.partition(":")[0]]
    fits = "fits" if memory <= chip else "does not fit"
    return f"memory of a chip: {bytes_text(memory)} of {bytes_text(chip)}, {fits}"


def memory_of(compiled: jax.stages.Compiled) -> int:
    """The bytes that each device needs while a round runs."""
    sizes: Any = compiled.memory_analysis()
    return sizes.argument_size_in_bytes + work_of(compiled)


def topology_devices(topology: str) -> tuple[jax.Device, ...]:
    """Lists the devices of a topology, with which programs can be compiled."""
    kind, _, sizes = topology.partition(":")
    if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+){1,2}", sizes):
        raise ValueError(f"unknown topology {topology!r}; {ALLOWED}")
    check_installed("libtpu", "compiling for TPUs")
    from jax.experimental import topologies  # nothing else needs it

    alone = math.prod(map(int, sizes.split("x"))) < 4  # chips of a host, in a square
    options = {"chips_per_host_bounds": [1, 1, 1]} if alone else {}
    if jax.default_backend() != "tpu":
        for name, value in NO_TPU.items():
            os.environ.setdefault(name, value)
    try:
        found = topologies.get_topology_desc(topology, "tpu", **options)
    except Exception as error:  # the plugin raises several kinds
        reason = str(error).splitlines()[0][:200]
        raise ValueError(
            f"unknown topology {topology!r} ({reason}); {ALLOWED}"
        ) from error
    return tuple(found.devices)


def _traced(simulation: Simulation, devices: Sequence[Any], plan: Plan) -> Any:
    """The program of a round for other devices, by shapes alone."""
    settings = simulation.settings._replace(
        devices=tuple(devices) if len(devices) > 1 else ()
    )
    if isinstance(settings, Setup):
        program = federated.program_of(settings._replace(plan=plan))
    else:  # agents have no plan
        program = decentralized.program_of(settings)
    alone = (SingleDeviceSharding(devices[0]),) * 3
    of_data, of_runs, of_states = program.shardings or alone
    given = simulation.data, simulation.run, jax.random.key(0)
    created = jax.eval_shape(program.create, *given)
    data, run, created = simulation.shaped(0, created)
    data, programs = _placed(data, of_data, len(devices)), compiled(program)
    begun = programs.begin.trace(data, run, created).out_info[0]
    run, state = _placed(run, of_runs), _placed(begun, of_states)
    count = jax.ShapeDtypeStruct((), jnp.int32)
    return programs.rounds.trace(data, run, state, count)


def _placed(arrays: Any, shardings: Any, shares: int = 1) -> Any:
    """Shapes with shardings, a prefix; divided examples are padded for equal shares."""

    def shape(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        rows = x.shape
        if getattr(sharding, "spec", None) == SHARDED:
            rows = (-(-rows[0] // shares) * shares, *rows[1:])
        return jax.ShapeDtypeStruct(rows, x.dtype, sharding=sharding)

    place = lambda sharding, part: jax.tree.map(lambda x: shape(x, sharding), part)
    return jax.tree.map(place, shardings, arrays)

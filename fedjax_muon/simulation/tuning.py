"""Choice of an execution plan by measurement, on the devices of this machine.

    tuned = tune(simulation)
    state = tuned.simulation.init(jax.random.key(0))

All plans compute the same round up to rounding. Which of them is the fastest depends on
the model, the cohort and the device. So does the form of its convolutions, or the type
of its products; simulations that differ in these are candidates of one call.
"""

import dataclasses
import math
import time
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import check_count
from fedjax_muon.engine.plans import smaller_plans, vmapped
from fedjax_muon.engine.processes import broadcast_from_first
from fedjax_muon.simulation.federated import program_of
from fedjax_muon.simulation.memory import UnknownMemoryError, limit_of, memory_of
from fedjax_muon.simulation.program import compiled
from fedjax_muon.simulation.rounds import Setup
from fedjax_muon.simulation.simulation import Simulation


class Tuned(NamedTuple):
    """A simulation with its fastest plan, and what was measured."""

    simulation: Simulation
    plan: str  # name of the fastest candidate
    seconds: Mapping[str, float]  # of a round by candidate; infinite if it doesn't fit


def tune(
    simulation: Simulation | Mapping[str, Simulation],
    *,
    seconds: float = 0.2,
    repeats: int = 3,
) -> Tuned:
    """Finds the fastest plan of a federated simulation on its devices.

    The candidates are `vmapped`, `chunked` with halves, quarters, ... of a device's
    clients, and `mapped`. Each is compiled, and runs rounds on a state that is
    discarded. Plans that do not fit in memory are left out.

    Args:
      simulation: From `federate`; or several of them by name, which are compared with
        one another. Then "NAME, PLAN" is the name of a candidate.
      seconds: Least duration of one measurement, which has at least one round.
      repeats: Number of measurements of each plan; the fastest one counts.

    Example:
      >>> simulation = fm.tune(simulation, seconds=0.01, repeats=1).simulation
    """
    check_count("repeats", repeats)
    candidates = candidates_of(simulation)
    measured = {
        name: _measured(each, seconds, repeats) for name, each in candidates.items()
    }
    best = min(measured, key=measured.__getitem__)
    if math.isinf(measured[best]):
        raise ValueError(
            "no plan fits in memory; use fewer clients, or a smaller model or batch "
            "size"
        )
    return Tuned(candidates[best], best, measured)


def candidates_of(
    simulation: Simulation | Mapping[str, Simulation],
) -> dict[str, Simulation]:
    """The candidates of `tune`, those of each simulation by decreasing memory."""
    several = simulation if isinstance(simulation, Mapping) else {"": simulation}
    candidates = {}
    for name, one in several.items():
        if not isinstance(one.settings, Setup):
            raise ValueError(
                "agents of a decentralized simulation have no plan to tune"
            )
        clients = -(-one.settings.cohort.size // max(1, len(one.settings.devices)))
        plans = [("vmapped", vmapped), *smaller_plans(clients)]
        for plan_name, plan in plans:
            title = f"{name}, {plan_name}" if name else plan_name
            program = program_of(one.settings._replace(plan=plan))
            candidates[title] = dataclasses.replace(
                one, program=program, compiled=compiled(program)
            )
    return candidates


def _measured(simulation: Simulation, seconds: float, repeats: int) -> float:
    """Seconds of a round, the same number in all processes."""
    if not _fits(simulation):
        return math.inf
    state = simulation.init(jax.random.key(0), drop_nonfinite=True)

    # The program itself: a private simulation refuses more rounds than are accounted
    # for, and of these rounds nothing but their time is kept.
    run = partial(simulation.advance, simulation.run)

    def timed(rounds: int) -> float:
        copy = jax.block_until_ready(jax.tree.map(jnp.copy, state))  # it is donated
        began = time.perf_counter()
        jax.block_until_ready(run(copy, rounds))
        return (time.perf_counter() - began) / rounds

    timed(1)  # compiles
    rounds = int(broadcast_from_first(max(1, math.ceil(seconds / timed(1)))))
    return broadcast_from_first(min(timed(rounds) for _ in range(repeats)))


def _fits(simulation: Simulation) -> bool:
    try:
        need = memory_of(simulation)
        limit = limit_of(simulation.settings.devices)
        return need is not None and need.total <= limit
    except UnknownMemoryError:
        return True  # a program that does not fit stops with JAX's own error

"""Choice of an execution plan by measurement, on the devices of this machine.

    tuned = tune(simulation)
    state = tuned.simulation.init(jax.random.key(0))

All plans compute the same round up to rounding. Which of them is the fastest depends on
the model, the cohort and the device. So does the form of its convolutions, or the type
of its products; simulations that differ in these are candidates of one call.
"""

import hashlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.engine.plans import Plan, smaller_plans, vmapped
from fedjax_muon.engine.processes import broadcast_from_first
from fedjax_muon.simulation.arguments import check_count
from fedjax_muon.simulation.federated import with_plan
from fedjax_muon.simulation.memory import UnknownMemoryError
from fedjax_muon.simulation.memory_check import limit_of, need_of
from fedjax_muon.simulation.simulation import Simulation


class Tuned(NamedTuple):
    """A simulation with its fastest plan, and what was measured."""

    simulation: Simulation
    plan: str  # name of the fastest candidate
    seconds: Mapping[str, float]  # of a round by candidate; infinite if it doesn't fit


class Signature(NamedTuple):
    """What the time of a round depends on, besides the plan."""

    device: str  # kind and number of devices
    program: str  # hash of the program of rounds, and of the version of JAX


def tune(
    simulation: Simulation | Mapping[str, Simulation],
    *,
    seconds: float = 0.2,
    repeats: int = 3,
    measured: Mapping[str, float] | None = None,
) -> Tuned:
    """Finds the fastest plan of a federated simulation on its devices.

    The candidates are `vmapped`, `chunked` with halves, quarters, ... of a device's
    clients, and `mapped`. Each is compiled, and runs rounds of a state that is thrown
    away. Plans that do not fit in memory are left out.

    Args:
      simulation: From `federate`; or several of them by name, which are compared with
        one another. Then "NAME, PLAN" is the name of a candidate.
      seconds: Of one measurement, at least; it has at least one round.
      repeats: Measurements of a plan, of which the fastest counts.
      measured: Seconds of a round by plan, from an earlier call: nothing is measured.

    Returns:
      The simulation with the fastest plan, and the seconds of all plans.
    """
    check_count("repeats", repeats)
    candidates = dict(candidates_of(simulation))
    if measured is None:
        measured = {
            name: _measured(one, seconds, repeats) for name, one in candidates.items()
        }
    if set(measured) != set(candidates):
        raise ValueError(
            f"measured must have the plans {', '.join(candidates)}; got "
            f"{', '.join(measured)}"
        )
    best = min(measured, key=measured.__getitem__)
    if math.isinf(measured[best]):
        raise ValueError("no plan fits in memory; take fewer clients or smaller ones")
    return Tuned(candidates[best], best, dict(measured))


def candidates_of(
    simulation: Simulation | Mapping[str, Simulation],
) -> Iterator[tuple[str, Simulation]]:
    """Lists the candidates among which `tune` chooses.

    Args:
      simulation: As for `tune`.

    Yields:
      Names and simulations, those of each given one by decreasing memory.
    """
    if not isinstance(simulation, Mapping):
        for plan_name, plan in plans_of(simulation):
            yield plan_name, with_plan(simulation, plan)
        return
    for name, one in simulation.items():
        for plan_name, plan in plans_of(one):
            yield f"{name}, {plan_name}", with_plan(one, plan)


def plans_of(simulation: Simulation) -> Iterator[tuple[str, Plan]]:
    """Lists the plans of a simulation, by decreasing memory.

    Yields:
      Names and plans.
    """
    setup = simulation.setup
    if not hasattr(setup, "plan"):
        raise ValueError("agents of a decentralized simulation have no plan to tune")
    yield "vmapped", vmapped
    yield from smaller_plans(-(-setup.cohort_size // max(1, len(setup.devices))))


def signature_of(simulation: Simulation) -> Signature:
    """Identifies what the time of a round depends on, besides the plan.

    Returns:
      The devices, and a hash of the program.
    """
    devices = simulation.setup.devices or jax.devices()[:1]
    one = with_plan(simulation, vmapped)  # whatever the plan is
    created = jax.eval_shape(one.programs.create, jax.random.key(0))
    size = one.max_client_size
    begun = one.programs.begin.trace(one.inputs, created, one.clients, size)
    given = one.inputs, begun.out_info[0], one.clients, 1, size
    text = one.programs.rounds.lower(*given).as_text()
    program = hashlib.sha256(f"{jax.__version__} {text}".encode()).hexdigest()[:16]
    return Signature(f"{len(devices)} x {devices[0].device_kind}", program)


def _measured(simulation: Simulation, seconds: float, repeats: int) -> float:
    """Seconds of a round, the same number in all processes."""
    if not _fits(simulation):
        return math.inf
    state = simulation.init(jax.random.key(0), drop_nonfinite=True)

    # The program itself: a private simulation refuses more rounds than are accounted
    # for, and of these rounds nothing but their time is kept.
    run = simulation.programs.rounds
    inputs, clients = simulation.inputs, simulation.clients

    def timed(rounds: int) -> float:
        given = jax.block_until_ready(jax.tree.map(jnp.copy, state))  # it is donated
        began = time.perf_counter()
        size = simulation.max_client_size
        jax.block_until_ready(run(inputs, given, clients, rounds, size))
        return (time.perf_counter() - began) / rounds

    timed(1)  # compiles
    rounds = int(broadcast_from_first(max(1, math.ceil(seconds / timed(1)))))
    return broadcast_from_first(min(timed(rounds) for _ in range(repeats)))


def _fits(simulation: Simulation) -> bool:
    try:
        need = need_of(simulation)
        return need is not None and need <= limit_of(simulation.setup.devices)
    except UnknownMemoryError:
        return True  # a program that does not fit stops with JAX's own error

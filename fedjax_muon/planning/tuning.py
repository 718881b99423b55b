"""Choice of an execution plan by measurement, on the devices of this machine.

    tuned = tune(simulation)
    state = tuned.simulation.init(jax.random.key(0))

All plans compute the same round up to rounding. Which of them is the fastest depends on
the model, the cohort and the device. So does the form of its convolutions, or the type
of its products; simulations that differ in these are candidates of one call.
"""

import hashlib
import json
import math
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import platformdirs
import pydantic
from rich.console import Console

from fedjax_muon.core import atomic_files, check_count
from fedjax_muon.engine.plans import vmapped
from fedjax_muon.engine.processes import broadcast_from_first, is_first
from fedjax_muon.planning.memory import (
    UnknownMemoryError,
    limit_of,
    memory_of,
    plans_of,
)
from fedjax_muon.simulation.federated import with_plan
from fedjax_muon.simulation.simulation import Simulation

Seconds = dict[str, pydantic.PositiveFloat | None]  # by plan; None: it doesn't fit
Record = dict[str, dict[str, Seconds]]  # by program and device
RECORD: pydantic.TypeAdapter[Record] = pydantic.TypeAdapter(Record)


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
    clients, and `mapped`. Each is compiled, and runs rounds on a state that is
    discarded. Plans that do not fit in memory are left out.

    Args:
      simulation: From `federate`; or several of them by name, which are compared with
        one another. Then "NAME, PLAN" is the name of a candidate.
      seconds: Least duration of one measurement, which has at least one round.
      repeats: Number of measurements of each plan; the fastest one counts.
      measured: Seconds per round by plan, from an earlier call. If given, nothing is
        measured.
    """
    check_count("repeats", repeats)
    candidates = candidates_of(simulation)
    if measured is None:
        measured = {
            name: _measured(each, seconds, repeats) for name, each in candidates.items()
        }
    if set(measured) != set(candidates):
        raise ValueError(
            f"measured must have the plans {', '.join(candidates)}; got "
            f"{', '.join(measured)}"
        )
    best = min(measured, key=measured.__getitem__)
    if math.isinf(measured[best]):
        raise ValueError(
            "no plan fits in memory; use fewer clients, or a smaller model or batch "
            "size"
        )
    return Tuned(candidates[best], best, dict(measured))


def candidates_of(
    simulation: Simulation | Mapping[str, Simulation],
) -> dict[str, Simulation]:
    """The candidates of `tune`, those of each simulation by decreasing memory."""
    several = simulation if isinstance(simulation, Mapping) else {"": simulation}
    candidates = {}
    for name, one in several.items():
        plans = plans_of(one.setup, len(one.setup.devices))
        if not plans:
            raise ValueError(
                "agents of a decentralized simulation have no plan to tune"
            )
        for plan_name, plan in plans:
            title = f"{name}, {plan_name}" if name else plan_name
            candidates[title] = with_plan(one, plan)
    return candidates


def signature_of(simulation: Simulation) -> Signature:
    """Identifies the devices and the program of a simulation, whatever its plan is."""
    devices = simulation.setup.devices or jax.devices()[:1]
    one = with_plan(simulation, vmapped)
    created = jax.eval_shape(one.programs.create, jax.random.key(0))
    begun = one.programs.begin.trace(one.inputs, created, one.clients)
    arguments = one.inputs, begun.out_info[0], one.clients, 1
    text = one.programs.rounds.lower(*arguments).as_text()
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
        copy = jax.block_until_ready(jax.tree.map(jnp.copy, state))  # it is donated
        began = time.perf_counter()
        jax.block_until_ready(run(inputs, copy, clients, rounds))
        return (time.perf_counter() - began) / rounds

    timed(1)  # compiles
    rounds = int(broadcast_from_first(max(1, math.ceil(seconds / timed(1)))))
    return broadcast_from_first(min(timed(rounds) for _ in range(repeats)))


def _fits(simulation: Simulation) -> bool:
    try:
        need = memory_of(simulation)
        limit = limit_of(simulation.setup.devices)
        return need is not None and need.total <= limit
    except UnknownMemoryError:
        return True  # a program that does not fit stops with JAX's own error


# ------------------------------------------ seconds that were measured before


def tune_once(
    simulation: Simulation | Mapping[str, Simulation], console: Console
) -> Tuned:
    """Calls `tune`, or takes the seconds that an earlier call measured on this device.

    They are kept in a file of this user, that of `record_path`.
    """
    candidates = candidates_of(simulation)
    signature = signature_of(next(iter(candidates.values())))
    record = read_record(record_path()) if is_first() else {}
    on_devices = record.get(signature.program, {})
    known = _shared(on_devices.get(signature.device, {}), candidates)
    if on_devices and signature.device not in on_devices:
        known_on = ", ".join(on_devices)
        console.print(f"plans were measured on {known_on}; now on {signature.device}")
    tuned = tune(simulation, measured=known)
    if known is None and is_first():
        _write(record_path(), record, signature, tuned.seconds)
    return tuned


def record_path() -> Path:
    """The file of measured seconds of this user, which need not exist."""
    return platformdirs.user_cache_path("fedjax_muon") / "plans.json"


def read_record(path: Path) -> Record:
    """Reads a record; one that is damaged counts as empty, with a warning."""
    if not path.exists():
        return {}
    try:
        return RECORD.validate_json(path.read_text())
    except (OSError, ValueError) as error:
        warnings.warn(f"plans are measured again: {path}: {error}", stacklevel=2)
        return {}


def _shared(
    seconds: Mapping[str, float | None], candidates: Iterable[str]
) -> dict[str, float] | None:
    """The first process's seconds of all plans, in all processes; None if unknown."""
    shared = {}
    for name in candidates:
        value = seconds.get(name, math.nan)
        shared[name] = broadcast_from_first(math.inf if value is None else value)
    return None if any(map(math.isnan, shared.values())) else shared


def _write(
    path: Path, record: Record, signature: Signature, seconds: Mapping[str, float]
) -> None:
    finite = {n: None if math.isinf(s) else s for n, s in seconds.items()}
    record.setdefault(signature.program, {})[signature.device] = finite
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, json.dumps(record, indent=1))
    except OSError as error:  # the plan is known; only the next run measures again
        warnings.warn(f"the measured plans are not kept: {error}", stacklevel=2)

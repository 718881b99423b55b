"""How the methods of a track are simulated: with a server, privately, or on a ring."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import fedjax_muon as fm
from experiments.studies.client_privacy import CLIENTS, DELTA, EXPECTED, ROOM
from fedjax_muon.core import Algorithm, Hyper, recorded
from fedjax_muon.data import Dataset
from fedjax_muon.decentralized import topology
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.privacy import Poisson
from fedjax_muon.privacy.client_mechanism import private_clients
from fedjax_muon.privacy.client_privacy import client_spec, keeps_states
from fedjax_muon.privacy.guarantees import PrivacySpec, calibrated
from fedjax_muon.simulation import Simulation
from fedjax_muon.simulation.cohorts import Sampled
from fedjax_muon.simulation.sweeps import Cell, Outcome, run_cells

STEP_SECONDS, BYTE_SECONDS, SPREAD = 0.01, 1e-6, 1.0  # of the virtual clock
EPSILON = 8.0  # of a client, at DELTA
CLIP_NORM = 1.0  # where the cells of a sweep have none


class Problem(NamedTuple):
    """What clients train on, and what scores them."""

    task: fm.Task
    data: Dataset  # without the examples of `held`
    held: tuple[Any, Any]  # for validation
    parts: Callable[[int], Sequence[np.ndarray]]  # seed -> ids by client
    minimax: fm.Task | None = None  # the task of minimax methods


def federated(
    algorithm: Any,
    task: fm.Task,
    problem: Problem,
    seed: int,
    rounds: int,
    *,
    cohort: int | Sampled,
    **sizes: Any,
) -> Simulation:
    """A method with a server, on the clients of a seed."""
    del rounds
    clock = fm.clocks.lognormal(
        SPREAD, STEP_SECONDS, BYTE_SECONDS, key=jax.random.key(0)
    )
    parts = problem.parts(seed)
    members = cohort if isinstance(cohort, Sampled) else fm.sampled(cohort)
    in_time = dataclasses.replace(members, clock=clock)
    return fm.federate(algorithm, task, problem.data, parts, cohort=in_time, **sizes)


@recorded
def noisy(
    algorithm: Algorithm, *, clip_norm: Hyper = CLIP_NORM, noise_multiplier: float
) -> Algorithm:
    """A method with private clients, whose clip norm a sweep can vary."""
    return private_clients(
        algorithm,
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        clients=CLIENTS,
        cohort=EXPECTED,
    )


@functools.cache
def guarded(rounds: int, prologue: bool, states: bool) -> PrivacySpec:
    """What a method releases, with the least noise for EPSILON."""
    room = CLIENTS if states else ROOM  # clients with states need room for all
    spec = client_spec(
        Poisson(CLIENTS, EXPECTED, room),
        rounds=rounds,
        noise_multiplier=1.0,
        delta=DELTA,
        prologue=prologue,
        private_states=states,
    )
    return calibrated(spec, EPSILON)


def spec_of(algorithm: Algorithm, task: fm.Task, rounds: int) -> PrivacySpec:
    """What a method releases here, with its noise."""
    params = jax.eval_shape(task.init, jax.random.key(0))
    return guarded(rounds, bool(algorithm.prologue), keeps_states(algorithm, params))


def private(
    algorithm: Any,
    task: fm.Task,
    problem: Problem,
    seed: int,
    rounds: int,
    *,
    cohort: int,
    **sizes: Any,
) -> Simulation:
    """The same with private clients in Poisson cohorts, and noise from the seed."""
    spec = spec_of(algorithm, task, rounds)
    (release,) = spec.releases.values()
    made: Any = noisy(algorithm, noise_multiplier=release.noise.multiplier)
    drawn = fm.poisson(cohort, spec.sampling.max_batch)
    return federated(made, task, problem, seed, rounds, cohort=drawn, **sizes)


def on_a_ring(
    algorithm: Any,
    task: fm.Task,
    problem: Problem,
    seed: int,
    rounds: int,
    **sizes: Any,
) -> Simulation:
    """A method without a server, on a ring of agents."""
    del rounds
    parts = problem.parts(seed)
    # exact diffusion needs eigenvalues above -1/3, the smallest one without the mean
    weights = (np.eye(len(parts)) + topology.metropolis(topology.ring(len(parts)))) / 2
    return decentralize(algorithm, task, problem.data, parts, weights=weights, **sizes)


def swept(simulation: Simulation, cells: Sequence[Cell], **how: Any) -> list[Outcome]:
    """The outcomes of runs, in one program."""
    return [one for group in run_cells(simulation, cells, **how) for one in group]

"""Rounds of a simulated federation: cohorts, batches, and the engine's rounds.

Functions of a `Setup`, of a `State` and of the clients' examples; `simulation` compiles
them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon import engine
from fedjax_muon.core import Algorithm, Objective, streams, with_numbers
from fedjax_muon.engine.plans import Plan
from fedjax_muon.engine.sharding import Devices, sharded_gather
from fedjax_muon.simulation.batching import (
    Clients,
    Sampler,
    batch_of,
    draw_rows,
    objective_of,
)
from fedjax_muon.simulation.cohorts import Cohorts
from fedjax_muon.tasks.classification import Task

Weighting = Callable[[jax.Array], jax.Array]  # sizes of clients [S] -> weights [S]


class State(NamedTuple):
    """All that training needs to go on; donated to every call that trains."""

    training: engine.State
    key: jax.Array  # the same in every round

    @property
    def params(self):
        """The server's current parameters."""
        return self.training.server.params

    @property
    def round(self) -> int:
        """Rounds completed."""
        return int(self.training.index)


class Metrics(NamedTuple):
    """What went wrong in some rounds: messages left out because not finite."""

    lost: jax.Array  # int32 [N], how many of each client's
    lost_round: jax.Array  # int32 [N], the round of the first, -1 if none


class Setup(NamedTuple):
    """What is simulated, but for the data."""

    algorithm: Algorithm
    task: Task
    num_clients: int
    cohort_size: int
    local_steps: int
    batch_size: int
    plan: Plan
    sampler: Sampler
    weighting: Weighting
    dropout: float
    cohorts: Cohorts
    devices: Devices
    split_examples: bool


class Inputs(NamedTuple):
    """What compiled programs are given besides states and examples.

    What a task holds, and the hyper-parameters, are arguments of programs and no
    constants in them.
    """

    task: Task
    numbers: dict[str, Any]  # hyper-parameters by name
    mixer: Any = None  # how agents' messages are mixed, where there is no server


def of_inputs(run: Callable, setup) -> Callable:
    """`run(setup, ...)` as a function `(inputs, ...)`, to be compiled."""

    @functools.wraps(run)
    def given_inputs(inputs, *rest):
        algorithm = with_numbers(setup.algorithm, inputs.numbers)
        return run(setup._replace(task=inputs.task, algorithm=algorithm), *rest)

    return given_inputs


def objective_and_sampler(
    setup: Setup, clients: Clients, steps: int, max_client_size: int
) -> tuple[Objective, engine.Draw]:
    """What local steps minimize, and how what they scan is drawn."""
    draw = draw_rows(clients, setup.sampler, steps, setup.batch_size, max_client_size)
    if not setup.split_examples:
        return objective_of(setup.task, clients), draw
    fetch = lambda client, key: batch_of(clients, draw(client, key), sharded_gather)
    return objective_of(setup.task), fetch


def init_state(setup: Setup, key: jax.Array) -> State:
    """The state before the prologue."""
    init_key, key = jax.random.split(key)
    training = engine.init(
        setup.algorithm,
        setup.task.init(init_key),
        setup.num_clients,
        max(1, len(setup.devices)),
        project=objective_of(setup.task).project,
    )
    return State(training, key)


def run_prologue(setup: Setup, state: State, clients: Clients, max_client_size: int):
    """The state before round 0, and whose messages were received."""
    training, key = state
    if not setup.algorithm.prologue:
        return state, jnp.ones(setup.num_clients, bool)
    objective, draw = objective_and_sampler(setup, clients, 1, max_client_size)
    run = engine.make_prologue(
        setup.algorithm, objective, setup.num_clients, setup.plan, draw
    )
    all_clients = jnp.arange(setup.num_clients, dtype=jnp.int32)
    weights = setup.weighting(clients.size)
    engine_key = jax.random.fold_in(key, streams.ENGINE)
    training, received = run(training, all_clients, all_clients, weights, engine_key)
    return State(training, key), received


def _round(setup: Setup, state: State, clients: Clients, max_client_size: int):
    training, key = state
    stream = lambda number: jax.random.fold_in(key, number)
    in_round = lambda number: jax.random.fold_in(stream(number), training.index)
    cohort, joins = setup.cohorts(
        in_round(streams.COHORT), setup.num_clients, setup.cohort_size
    )
    answers = joins & jax.random.bernoulli(
        in_round(streams.DROPOUT), 1 - setup.dropout, cohort.shape
    )
    weights = jnp.where(answers, setup.weighting(clients.size[cohort]), 0)
    objective, draw = objective_and_sampler(
        setup, clients, setup.local_steps, max_client_size
    )
    run = engine.make_round(
        setup.algorithm, objective, setup.num_clients, setup.plan, draw
    )
    training, received = run(training, cohort, cohort, weights, stream(streams.ENGINE))
    return State(training, key), cohort, answers & ~received


def run_rounds(
    setup: Setup, state: State, clients: Clients, count, max_client_size: int
):
    """Runs `count` rounds, a number that may be traced."""

    def body(_, carry):
        state, metrics = carry
        index = state.training.index
        state, cohort, silent = _round(setup, state, clients, max_client_size)
        first = metrics.lost_round[cohort]
        first = jnp.where(silent & (first < 0), index, first)
        lost = metrics.lost.at[cohort].add(silent)
        return state, Metrics(lost, metrics.lost_round.at[cohort].set(first))

    nothing = jnp.zeros(setup.num_clients, jnp.int32)
    none = Metrics(nothing, jnp.full_like(nothing, -1))
    return jax.lax.fori_loop(0, count, body, (state, none))

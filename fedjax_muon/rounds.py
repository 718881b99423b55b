"""Rounds of a simulated federation: cohorts sampled, batches drawn, an engine's round.

Functions of a `Setup`, of a `State` and of the clients' examples; `simulation` compiles
them.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon import engine
from fedjax_muon.batching import Clients, Sampler, batch_of, draw_rows, on
from fedjax_muon.cohorts import Cohorts
from fedjax_muon.core import Algorithm, GradFn
from fedjax_muon.plans import Plan
from fedjax_muon.sharding import Devices, taken
from fedjax_muon.tasks import Task

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
        """Rounds played."""
        return int(self.training.index)


class Metrics(NamedTuple):
    """What went wrong in some rounds: messages left out because not finite."""

    lost: jax.Array  # int32 [N], how many of each client's
    lost_round: jax.Array  # int32 [N], the round of the first, -1 if none


class Setup(NamedTuple):
    """What is simulated, but for the data."""

    algorithm: Callable[[GradFn], Algorithm]
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


def of_task(play: Callable, setup) -> Callable:
    """`play(setup, ...)` as a function `(task, ...)`, to be compiled: what the setup's
    task holds becomes an argument of the program, and no constant in it."""

    @functools.wraps(play)
    def given_task(task, *given):
        return play(setup._replace(task=task), *given)

    return given_task


def work(setup: Setup, clients: Clients, steps: int, longest: int):
    """The gradient that local steps take, and how what they scan is drawn."""
    draw = draw_rows(clients, setup.sampler, steps, setup.batch_size, longest)
    if not setup.split_examples:
        return on(clients, setup.task.grad), draw
    fetch = lambda client, key: batch_of(clients, draw(client, key), taken)
    return setup.task.grad, fetch


def untrained(setup: Setup, key: jax.Array) -> State:
    """The state before the prologue."""
    init_key, key = jax.random.split(key)
    algorithm = setup.algorithm(setup.task.grad)
    params = setup.task.init(init_key)
    parts = max(1, len(setup.devices))
    return State(engine.init(algorithm, params, setup.num_clients, parts), key)


def play_prologue(setup: Setup, state: State, clients: Clients, longest: int):
    """The state before round 0, and which clients were heard."""
    training, key = state
    grad_fn, draw = work(setup, clients, 1, longest)
    algorithm = setup.algorithm(grad_fn)
    if not algorithm.prologue:
        return state, jnp.ones(setup.num_clients, bool)
    play = engine.make_prologue(algorithm, setup.num_clients, setup.plan, draw)
    everyone = jnp.arange(setup.num_clients, dtype=jnp.int32)
    weights = setup.weighting(clients.size)
    engine_key = jax.random.fold_in(key, 0)
    training, heard = play(training, everyone, everyone, weights, engine_key)
    return State(training, key), heard


def _round(setup: Setup, state: State, clients: Clients, longest: int):
    training, key = state
    engine_key, cohort_key, dropout_key = (jax.random.fold_in(key, i) for i in range(3))
    cohort, joins = setup.cohorts(
        jax.random.fold_in(cohort_key, training.index),
        setup.num_clients,
        setup.cohort_size,
    )
    answers = joins & jax.random.bernoulli(
        jax.random.fold_in(dropout_key, training.index),
        1 - setup.dropout,
        cohort.shape,
    )
    weights = jnp.where(answers, setup.weighting(clients.size[cohort]), 0)
    grad_fn, draw = work(setup, clients, setup.local_steps, longest)
    algorithm = setup.algorithm(grad_fn)
    play = engine.make_round(algorithm, setup.num_clients, setup.plan, draw)
    training, heard = play(training, cohort, cohort, weights, engine_key)
    return State(training, key), cohort, answers & ~heard


def play_rounds(setup: Setup, state: State, clients: Clients, count, longest: int):
    """Plays `count` rounds, which may be traced."""

    def body(_, carry):
        state, metrics = carry
        index = state.training.index
        state, cohort, silent = _round(setup, state, clients, longest)
        first = metrics.lost_round[cohort]
        first = jnp.where(silent & (first < 0), index, first)
        lost = metrics.lost.at[cohort].add(silent)
        return state, Metrics(lost, metrics.lost_round.at[cohort].set(first))

    nothing = jnp.zeros(setup.num_clients, jnp.int32)
    none = Metrics(nothing, jnp.full_like(nothing, -1))
    return jax.lax.fori_loop(0, count, body, (state, none))

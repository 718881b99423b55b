"""Rounds of a simulated federation: cohorts, batches, and the engine's rounds.

They are functions of a `Setup`, a `State` and the clients' examples, which `federated`
compiles.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon import engine
from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Objective,
    Params,
    streams,
    with_numbers,
)
from fedjax_muon.engine.plans import Plan, chunked, vmapped
from fedjax_muon.engine.sharding import Devices, sharded, sharded_gather
from fedjax_muon.simulation.arguments import check_rule_kinds, check_rules
from fedjax_muon.simulation.batching import (
    Clients,
    Partition,
    Sampler,
    batch_of,
    draw_rows,
    objective_of,
)
from fedjax_muon.simulation.cohorts import Cohort, Members
from fedjax_muon.simulation.host_states import OF_COHORT
from fedjax_muon.simulation.initial import draw_params
from fedjax_muon.simulation.participation import Work, uniform
from fedjax_muon.tasks.task import Task
from fedjax_muon.wrappers import secure_sums
from fedjax_muon.wrappers.personalization import params_of_clients

Weighting = Callable[[jax.Array], jax.Array]  # sizes of clients [S] -> weights [S]


class State(NamedTuple):
    """The complete state of training; it is donated to every call that trains."""

    training: engine.State
    key: jax.Array  # the same in every round

    @property
    def params(self) -> Params:
        """The server's current parameters."""
        return self.training.server.params

    @property
    def round(self) -> int:
        """The number of completed rounds."""
        return int(self.training.index)

    @property
    def divided(self) -> Any:
        """What is divided among the devices."""
        return self.training.client_states


class Metrics(NamedTuple):
    """Messages of some rounds that were left out because they were not finite."""

    lost: jax.Array  # int32 [N], number of each client's lost messages
    lost_round: jax.Array  # int32 [N], round of the first lost message, or -1


class Setup(NamedTuple):
    """Settings of a simulation, without its data."""

    algorithm: Algorithm
    task: Task
    num_clients: int
    cohort: Cohort
    work: Work
    batch_size: int
    plan: Plan
    sampler: Sampler
    weighting: Weighting
    devices: Devices
    split_examples: bool
    privacy: Any = None  # the mechanism of a private simulation
    timing: Any = None  # traced; see `cohorts.Timing.inputs`
    host_states: bool = False  # whether programs get `CohortStates`

    def check_sizes(self, sizes: list[int]) -> None:
        """Clients may have any number of examples."""


def check_setup(setup: Setup) -> None:
    """Raises `ValueError` for settings that do not fit together."""
    cohort, number = setup.cohort, setup.num_clients
    if cohort.size > number:
        raise ValueError(
            f"cohort must lie between 1 and the number of clients, {number}, got "
            f"{cohort.size}"
        )
    if setup.split_examples and not setup.devices:
        raise ValueError("split_examples needs several devices")
    algorithm = setup.algorithm
    check_rule_kinds(algorithm)
    params = jax.eval_shape(setup.task.init, jax.random.key(0))
    cohort.check(algorithm, params, number)
    state = jax.eval_shape(partial(init_state, setup), jax.random.key(0))  # may raise
    check_rules(algorithm, getattr(state.params, "params", state.params))  # trained
    full = cohort.size == number and not cohort.dropout
    if algorithm.full_participation and not full:
        raise ValueError(
            "this algorithm is defined for full participation only; use a cohort of "
            f"all {number} clients and no dropout"
        )
    clients, size = algorithm.cohort_spec or (number, cohort.size)
    built_for = clients, cohort.size if size is None else size
    if built_for != (number, cohort.size):
        raise ValueError(
            f"this algorithm was made for (clients, cohort) {built_for}, got "
            f"{(number, cohort.size)}"
        )
    first = cohort.prologue or number
    engine.check_stacks(algorithm, first, cohort.size)  # may raise
    secure_sums.check_clients(algorithm, first, cohort.size)
    if algorithm.uniform_weights and setup.weighting is not uniform:
        raise ValueError(
            "this algorithm has control variates or bounds each client's part, both of "
            "which need uniform weights; use weighting=uniform"
        )


def traced(
    setup: Setup, task: Task, numbers: Mapping[str, Any], timing: Any = None
) -> Setup:
    """A setup whose arrays are arguments of compiled programs, and not constants."""
    algorithm = with_numbers(setup.algorithm, numbers)
    return setup._replace(algorithm=algorithm, task=task, timing=timing)


def _plan(setup: Setup, *, prologue: bool = False) -> Plan:
    """Makes the plan of a cohort, which is divided among the devices.

    The prologue's cohort may be all clients, who need more memory than those of a
    round. So `vmapped` runs as many of them in parallel as in a round.
    """
    plan = setup.plan
    if prologue and plan is vmapped:
        plan = chunked(-(-setup.cohort.size // max(1, len(setup.devices))))
    if setup.host_states:
        plan = partial(plan, store=OF_COHORT)
    return sharded(plan, setup.num_clients) if setup.devices else plan


def objective_and_sampler(
    setup: Setup, clients: Clients, *, prologue: bool = False
) -> tuple[Objective, engine.Draw]:
    """Makes the objective of local steps, and the function that draws their batches.

    That function is `(client id, key) -> batches`. There are batches for the largest
    number of steps of any client; in the prologue, one for each.
    """
    bound = setup.work.bound(clients.max_size, setup.batch_size)
    steps = 1 if prologue else bound
    draw = draw_rows(clients, setup.sampler, steps, setup.batch_size)
    if not setup.split_examples:
        return objective_of(setup.task, clients), draw
    fetch = lambda client, key: batch_of(clients, draw(client, key), sharded_gather)
    return objective_of(setup.task), fetch


def steps_of(setup: Setup, clients: Clients) -> engine.Steps | None:
    """Makes the function `(client id, key of its batches) -> number of local steps`.

    None if all clients take the same number.
    """
    count = setup.work.steps
    if count is None:
        return None
    return lambda client, key: count(
        client, clients.size[client], setup.batch_size, key
    )


def init_state(
    setup: Setup,
    key: jax.Array,
    run_key: jax.Array | None = None,
    params: Params | None = None,
) -> State:
    """Makes the state before the prologue.

    Args:
      run_key: Typed key of everything but the initial parameters, by default from
        `key`; a private run has its own.
      params: Initial parameters; by default, the task draws them.
    """
    init_key, key = jax.random.split(key)
    training = engine.init(
        setup.cohort.executed(setup.algorithm),
        draw_params(setup.task.init, init_key) if params is None else params,
        1 if setup.host_states else setup.num_clients,
        max(1, len(setup.devices)),
        project=objective_of(setup.task).project,
    )
    return State(training, key if run_key is None else run_key)


def run_prologue(
    setup: Setup, state: State, clients: Clients
) -> tuple[State, jax.Array]:
    """Runs the prologue of the algorithm, if it has one.

    Returns:
      The state before round 0, and whether no client's message was lost, bool [N].
    """
    training, key = state
    if not setup.algorithm.prologue:
        return state, jnp.ones(setup.num_clients, bool)
    objective, draw = objective_and_sampler(setup, clients, prologue=True)
    plan = _plan(setup, prologue=True)
    algorithm = setup.cohort.executed(setup.algorithm)
    run = engine.make_prologue(algorithm, objective, setup.num_clients, plan, draw)
    ids, asked = setup.cohort.asked(key, setup.num_clients)
    weights = jnp.where(asked, setup.weighting(clients.size[ids]), 0)
    engine_key = jax.random.fold_in(key, streams.ENGINE)
    training, received = run(training, ids, ids, weights, engine_key)
    whose = jnp.ones(setup.num_clients, bool).at[ids].set(received | ~asked)
    return State(training, key), whose


def _members(
    setup: Setup, state: State, clients: Clients
) -> tuple[Members, jax.Array, jax.Array]:
    """Finds who takes part in the next round, their weights and the engine's key."""
    at = setup.timing, state.key, state.training.index, setup.num_clients
    members = setup.cohort.members(*at)
    weights = setup.weighting(clients.size[members.ids])
    key = jax.random.fold_in(state.key, streams.ENGINE)
    return members, jnp.where(members.present, weights, 0), key


def drawn(
    setup: Setup, key: jax.Array, index: jax.Array | None, partition: Partition
) -> tuple[jax.Array, jax.Array]:
    """Finds what a round reads, from keys alone.

    Args:
      key: Typed key of the run's state.
      index: Number of the round; None for the prologue.

    Returns:
      Its cohort, int32 [S], and the positions of the examples that each client draws,
      among its own, int32 [S, K, B], with -1 for padding.
    """
    number, first = setup.num_clients, len(setup.algorithm.prologue)
    if index is None:  # nobody, without a prologue
        ids = setup.cohort.asked(key, number)[0][: number * first]
    else:
        ids = setup.cohort.members(setup.timing, key, index, number).ids
    at, first = (jnp.int32(0), 0) if index is None else (index, first)
    engine_key = jax.random.fold_in(key, streams.ENGINE)
    keys = engine.exchange_keys(engine_key, at, first, first, ids, number)
    order = jnp.arange(partition.max_size, dtype=jnp.int32)  # positions, not ids
    start = jnp.zeros_like(partition.start)
    own = dataclasses.replace(partition, order=order, start=start)
    clients = Clients(order, order, own)
    _, draw = objective_and_sampler(setup, clients, prologue=index is None)
    return ids, jax.vmap(draw)(ids, keys.draws).ids


def _round(
    setup: Setup, state: State, clients: Clients
) -> tuple[State, jax.Array, jax.Array]:
    """Runs a round; returns the state, the cohort, and whose messages were lost."""
    (ids, present, starts), weights, key = _members(setup, state, clients)
    objective, draw = objective_and_sampler(setup, clients)
    run = engine.make_round(
        setup.cohort.executed(setup.algorithm),
        objective,
        setup.num_clients,
        _plan(setup),
        draw,
        steps_of(setup, clients),
    )
    training, received = run(state.training, ids, ids, weights, key, starts)
    return State(training, state.key), ids, present & ~received


def run_rounds(
    setup: Setup, state: State, clients: Clients, count: int | jax.Array
) -> tuple[State, Metrics]:
    """Runs `count` rounds, a number that may be traced."""

    def body(_: jax.Array, carry: tuple[State, Metrics]) -> tuple[State, Metrics]:
        state, metrics = carry
        index = state.training.index
        state, cohort, is_lost = _round(setup, state, clients)
        first = metrics.lost_round[cohort]
        first = jnp.where(is_lost & (first < 0), index, first)
        lost = metrics.lost.at[cohort].add(is_lost)
        return state, Metrics(lost, metrics.lost_round.at[cohort].set(first))

    zeros = jnp.zeros(setup.num_clients, jnp.int32)
    metrics = Metrics(zeros, jnp.full_like(zeros, -1))
    return jax.lax.fori_loop(0, count, body, (state, metrics))


@jax.jit
def joined(first: Metrics, then: Metrics) -> Metrics:
    """The metrics of some rounds and of those that followed."""
    known = first.lost_round >= 0
    rounds = jnp.where(known, first.lost_round, then.lost_round)
    return Metrics(first.lost + then.lost, rounds)


class _Loss(NamedTuple):
    """Server state of the exchange that averages losses."""

    params: Params
    loss: jax.Array  # [], NaN without a client


def cohort_loss(setup: Setup, state: State, clients: Clients) -> jax.Array:
    """Computes the mean loss, before they train, of the clients of the next round.

    Each evaluates its first batch. This is a round whose only messages are losses, with
    the cohort, batches and weights of the round that follows.
    """
    read = (lambda rows: rows) if setup.split_examples else partial(batch_of, clients)

    def client(
        objective: Objective, broadcast: _Loss, before: Any, batches: Any, round: Any
    ) -> tuple[jax.Array, Any]:
        del objective, round
        own = params_of_clients(
            broadcast.params, jax.tree.map(lambda x: x[None], before)
        )
        params = broadcast.params if own is None else jax.tree.map(lambda x: x[0], own)
        batch = read(jax.tree.map(lambda x: x[0], batches))
        losses = setup.task.evaluate(params, batch.x, batch.y)["loss"]
        count = jnp.maximum(batch.weight.sum(), 1)
        return jnp.where(batch.weight > 0, losses, 0).sum() / count, before

    exchange = Exchange(
        broadcast=lambda server, round: server,
        client=client,
        server=lambda server, mean, round: server._replace(loss=mean),
    )
    (ids, _, _), weights, key = _members(setup, state, clients)
    objective, draw = objective_and_sampler(setup, clients)
    algorithm = setup.algorithm._replace(exchanges=(exchange,))
    plan = _plan(setup)
    run = engine.make_round(algorithm, objective, setup.num_clients, plan, draw)
    server = _Loss(state.params, jnp.full((), jnp.nan, weights.dtype))
    training = state.training._replace(server=server)
    return run(training, ids, ids, weights, key)[0].server.loss

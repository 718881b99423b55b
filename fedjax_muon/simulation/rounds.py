"""Rounds of a simulated federation: cohorts, batches, and the engine's rounds.

They are functions of a `Setup`, a `State` and the clients' examples, which `federated`
compiles.
"""

import functools
import os
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
from fedjax_muon.simulation.arrivals import Arrivals, answered
from fedjax_muon.simulation.asynchronous import asynchronous, check_suits
from fedjax_muon.simulation.batching import (
    Clients,
    Sampler,
    batch_of,
    draw_rows,
    objective_of,
)
from fedjax_muon.simulation.clocks import Clock
from fedjax_muon.simulation.participation import Cohorts, Work, uniform
from fedjax_muon.tasks.task import Task
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
    cohort_size: int
    work: Work
    batch_size: int
    plan: Plan
    sampler: Sampler
    weighting: Weighting
    dropout: float
    cohorts: Cohorts
    devices: Devices
    split_examples: bool
    privacy: Any = None  # the mechanism of a private simulation
    clock: Clock | None = None
    deadline: float | None = None  # seconds
    arrivals: Arrivals | None = None
    timing: Any = None  # traced; see `timing.Timing.inputs`

    def check_sizes(self, sizes: list[int]) -> None:
        """Clients may have any number of examples."""


def check_setup(setup: Setup) -> None:
    """Raises `ValueError` for settings that do not fit together."""
    if not 1 <= setup.cohort_size <= setup.num_clients:
        raise ValueError(
            f"cohort_size must lie between 1 and the {setup.num_clients} clients there "
            f"are, got {setup.cohort_size}"
        )
    if not 0 <= setup.dropout < 1:
        raise ValueError(f"dropout must lie in [0, 1), got {setup.dropout}")
    if setup.split_examples and not setup.devices:
        raise ValueError("split_examples needs several devices to divide them over")
    algorithm = setup.algorithm
    check_rule_kinds(algorithm)
    if setup.arrivals is not None:
        params = jax.eval_shape(setup.task.init, jax.random.key(0))
        check_suits(algorithm, setup.arrivals, params, setup.num_clients)
    state = jax.eval_shape(partial(init_state, setup), jax.random.key(0))  # may raise
    check_rules(algorithm, state.params)
    full = setup.cohort_size == setup.num_clients and not setup.dropout
    if algorithm.full_participation and not full:
        raise ValueError(
            "this algorithm is defined for full participation only; use a cohort_size "
            f"of all {setup.num_clients} clients and no dropout"
        )
    sizes = (setup.num_clients, setup.cohort_size)
    if algorithm.cohort_spec not in (None, sizes):
        raise ValueError(
            "this algorithm was made for (clients, cohort_size) "
            f"{algorithm.cohort_spec}, got {sizes}"
        )
    if setup.arrivals is None:
        draw = partial(cohort_of, setup)  # may reject the sizes
        jax.eval_shape(draw, jax.random.key(0), jnp.int32(0))
    engine.check_stacks(algorithm, setup.num_clients, setup.cohort_size)  # likewise
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

    The prologue's cohort is all clients, who need more memory than those of a round.
    So `vmapped` runs as many of them in parallel as in a round.
    """
    plan = setup.plan
    if prologue and plan is vmapped:
        plan = chunked(-(-setup.cohort_size // max(1, len(setup.devices))))
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


def _drawn_params(init: Callable[[jax.Array], Params], key: jax.Array) -> Params:
    """The initial parameters; compiled, since single operations take seconds.

    They are drawn once. So on a CPU, they are compiled with fewer optimizations, which
    takes a quarter of the time and leaves the values as they are. JAX allows that
    outside of other compiled functions only. A level in `XLA_FLAGS` stays.
    """
    alone = not isinstance(key, jax.core.Tracer)
    on_cpu = alone and {device.platform for device in key.devices()} == {"cpu"}
    (option,) = _QUICKLY
    if on_cpu and option not in os.environ.get("XLA_FLAGS", ""):
        return _call_quickly(init, key)
    return _call(init, key)


def _called(init: Callable[[jax.Array], Params], key: jax.Array) -> Params:
    return init(key)


_QUICKLY = {"xla_backend_optimization_level": 1}
_call = jax.jit(_called)
_call_quickly = jax.jit(_called, compiler_options=_QUICKLY)


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
        _executed(setup),
        _drawn_params(setup.task.init, init_key) if params is None else params,
        setup.num_clients,
        max(1, len(setup.devices)),
        project=objective_of(setup.task).project,
    )
    return State(training, key if run_key is None else run_key)


def _executed(setup: Setup) -> Algorithm:
    """The algorithm that the engine executes."""
    if setup.arrivals is None:
        return setup.algorithm
    return asynchronous(setup.algorithm, setup.arrivals)


def run_prologue(
    setup: Setup, state: State, clients: Clients
) -> tuple[State, jax.Array]:
    """Runs the prologue of the algorithm, if it has one.

    Returns:
      The state before round 0, and whether each client's message was received,
      bool [N].
    """
    training, key = state
    if not setup.algorithm.prologue:
        return state, jnp.ones(setup.num_clients, bool)
    objective, draw = objective_and_sampler(setup, clients, prologue=True)
    plan = _plan(setup, prologue=True)
    run = engine.make_prologue(
        _executed(setup), objective, setup.num_clients, plan, draw
    )
    all_clients = jnp.arange(setup.num_clients, dtype=jnp.int32)
    asked = answered(setup.arrivals, setup.num_clients)
    weights = jnp.where(asked, setup.weighting(clients.size), 0)
    engine_key = jax.random.fold_in(key, streams.ENGINE)
    training, received = run(training, all_clients, all_clients, weights, engine_key)
    return State(training, key), received | ~asked


def cohort_of(
    setup: Setup, key: jax.Array, index: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draws the ids of a round's clients, and which of them take part.

    Where privacy needs it, the clients are divided into groups that take turns, in
    order; clients that fill no group never take part.
    """
    private = setup.privacy is not None
    groups = setup.privacy.cycle(setup.num_clients) if private else 1
    size = setup.num_clients // groups
    cohort, joins = setup.cohorts(key, size, setup.cohort_size)
    return (cohort + index % groups * size if groups > 1 else cohort), joins


def drawn_cohort(
    setup: Setup, key: jax.Array, index: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws the cohort of a synchronous round: ids, who joins, and who stays in it."""
    in_round = lambda number: jax.random.fold_in(jax.random.fold_in(key, number), index)
    cohort, joins = cohort_of(setup, in_round(streams.COHORT), index)
    stays = jax.random.bernoulli(
        in_round(streams.DROPOUT), 1 - setup.dropout, cohort.shape
    )
    return cohort, joins, joins & stays


@functools.partial(jax.jit, static_argnums=0)
def answers(
    draw: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]],
    key: jax.Array,
    in_time: jax.Array,
    rounds: int | jax.Array,
) -> jax.Array:
    """Counts the messages of the first rounds.

    Args:
      draw: `drawn_cohort` of a setup.
      in_time: Whether each client makes the deadline, bool [N].
    """

    def body(index: jax.Array, count: jax.Array) -> jax.Array:
        cohort, _, present = draw(key, index)
        return count + (present & in_time[cohort]).sum(dtype=count.dtype)

    return jax.lax.fori_loop(0, rounds, body, jnp.int32(0))


class Members(NamedTuple):
    """The members of a round."""

    cohort: jax.Array  # int32 [S], ids
    present: jax.Array  # bool [S]
    weights: jax.Array  # float [S], 0 for absent ones
    key: jax.Array  # typed key of the engine
    starts: jax.Array | None = None  # int32 [S], the steps that they started in


def _members(setup: Setup, state: State, clients: Clients) -> Members:
    """Finds who takes part in the next round."""
    index, starts = state.training.index, None
    if setup.arrivals is not None:
        row = index - setup.timing.first
        cohort, starts = setup.timing.clients[row], setup.timing.starts[row]
        present = starts >= 0
    else:
        cohort, _, present = drawn_cohort(setup, state.key, index)
        if setup.deadline is not None:
            present &= setup.timing[cohort]
    weights = jnp.where(present, setup.weighting(clients.size[cohort]), 0)
    key = jax.random.fold_in(state.key, streams.ENGINE)
    return Members(cohort, present, weights, key, starts)


def _round(
    setup: Setup, state: State, clients: Clients
) -> tuple[State, jax.Array, jax.Array]:
    """Runs a round; returns the state, the cohort, and whose messages were lost."""
    cohort, present, weights, key, starts = _members(setup, state, clients)
    objective, draw = objective_and_sampler(setup, clients)
    run = engine.make_round(
        _executed(setup),
        objective,
        setup.num_clients,
        _plan(setup),
        draw,
        steps_of(setup, clients),
    )
    training, received = run(state.training, cohort, cohort, weights, key, starts)
    return State(training, state.key), cohort, present & ~received


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
    cohort, _, weights, key, _ = _members(setup, state, clients)
    objective, draw = objective_and_sampler(setup, clients)
    algorithm = setup.algorithm._replace(exchanges=(exchange,))
    plan = _plan(setup)
    run = engine.make_round(algorithm, objective, setup.num_clients, plan, draw)
    server = _Loss(state.params, jnp.full((), jnp.nan, weights.dtype))
    training = state.training._replace(server=server)
    return run(training, cohort, cohort, weights, key)[0].server.loss

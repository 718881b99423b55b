"""Federated training of a task on divided data: compiled once, all on the device.

    simulation = simulate(algorithm, task, dataset, parts, cohort_size=8, ...)
    state = simulation.init(jax.random.key(0))
    state, metrics = simulation.train_round(state)

`training.run` goes on from here to the end.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon import engine, plans
from fedjax_muon.batching import (
    Clients,
    Sampler,
    batch_of,
    clients_of,
    draw_rows,
    longest_of,
    on,
    shuffled_epochs,
)
from fedjax_muon.cohorts import Cohorts, fixed_cohort
from fedjax_muon.core import Algorithm, GradFn
from fedjax_muon.data import Dataset
from fedjax_muon.evaluation import Evaluation, evaluate
from fedjax_muon.plans import Plan
from fedjax_muon.sharding import (
    SAME,
    SPLIT,
    Devices,
    across,
    placed,
    sharded,
    shardings,
    taken,
)
from fedjax_muon.tasks import Task

Weighting = Callable[[jax.Array], jax.Array]  # sizes of clients [S] -> weights [S]


def uniform(sizes: jax.Array) -> jax.Array:
    """Every client counts the same, as in the papers."""
    return jnp.ones(sizes.shape, jnp.float32)


def by_examples(sizes: jax.Array) -> jax.Array:
    """Every client counts as many times as it has examples, as in FedAvg's paper."""
    return sizes.astype(jnp.float32)


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


class NonFiniteError(ArithmeticError):
    """A client sent a message, or kept a state, with a NaN or an infinity."""

    def __init__(self, round: int, clients: list[int]):
        who = ", ".join(map(str, clients[:5])) + (", ..." if len(clients) > 5 else "")
        super().__init__(
            f"round {round}: not a finite message from client {who}; lower the "
            "learning rate, or leave such messages out of the mean (drop_nonfinite)"
        )


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


class _Programs(NamedTuple):
    create: Callable
    begin: jax.stages.Wrapped
    rounds: jax.stages.Wrapped
    score: jax.stages.Wrapped


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A prepared simulation: compiled programs, and the data that they are given."""

    setup: Setup
    clients: Clients
    test: tuple[jax.Array, jax.Array]
    programs: _Programs
    longest: int  # bounds the size of every client

    def init(self, key: jax.Array) -> State:
        """The state before round 0, the algorithm's prologue played.

        Raises `NonFiniteError` if a client's part in the prologue is not finite.
        """
        state, heard = self.programs.begin(
            self.programs.create(key), self.clients, self.longest
        )
        if not np.all(heard):
            raise NonFiniteError(0, np.flatnonzero(~np.asarray(heard)).tolist())
        return state

    def train_round(self, state: State) -> tuple[State, Metrics]:
        """Plays one round; the given state is donated."""
        return self.train_rounds(state, 1)

    def train_rounds(self, state: State, count: int) -> tuple[State, Metrics]:
        """Plays `count` rounds in one call of one program, whatever their number."""
        return self.programs.rounds(state, self.clients, count, self.longest)

    def evaluate(self, state: State) -> Evaluation:
        """Scores the server's parameters on test and training examples."""
        given = state.params, self.clients, self.test
        if self.setup.devices and not self.setup.split_examples:
            # on one device, which has all of it, rather than the same on every one
            given = jax.tree.map(lambda x: x.addressable_data(0), given)
        return self.programs.score(*given)

    @functools.cached_property
    def _traffic(self) -> tuple[engine.Traffic, engine.Traffic]:
        """Of the prologue and of a round, per client."""
        setup = self.setup._replace(split_examples=False)
        grad_fn, draw = _work(setup, self.clients, setup.local_steps, self.longest)
        algorithm = setup.algorithm(grad_fn)
        params = jax.eval_shape(setup.task.init, jax.random.key(0))
        batches = jax.eval_shape(draw, jnp.int32(0), jax.random.key(0))
        count = lambda parts: engine.traffic(parts, algorithm, params, batches)
        return count(algorithm.prologue), count(algorithm.exchanges)

    def bytes_after(self, rounds: int) -> engine.Traffic:
        """Bytes that all clients together received and sent until now.

        Every sampled client counts, whether or not it answered; where cohorts vary,
        as many as are expected.
        """
        everyone, sampled = self.setup.num_clients, rounds * self.setup.cohort_size
        total = lambda first, each: everyone * first + sampled * each
        return engine.Traffic(*map(total, *self._traffic))

    def repartition(self, parts: Sequence[np.ndarray]) -> "Simulation":
        """The same simulation on other clients, with the programs compiled so far.

        They serve again if the sizes of the data are the same. Raises `ValueError` for
        another number of clients, or as `simulate` does.
        """
        if len(parts) != self.setup.num_clients:
            raise ValueError(
                f"this simulation has {self.setup.num_clients} clients, got "
                f"{len(parts)} parts"
            )
        clients = clients_of(self.clients.x, self.clients.y, parts)
        clients = _placed(self.setup, clients)
        return dataclasses.replace(self, clients=clients, longest=longest_of(parts))

    def with_plan(self, plan: Plan) -> "Simulation":
        """The same simulation by another plan; its programs are compiled anew."""
        plan = sharded(plan) if self.setup.devices else plan
        setup = self.setup._replace(plan=plan)
        return dataclasses.replace(self, setup=setup, programs=_programs(setup))


def simulate(
    algorithm: Callable[[GradFn], Algorithm],
    task: Task,
    dataset: Dataset,
    parts: Sequence[np.ndarray],
    *,
    cohort_size: int,
    local_steps: int,
    batch_size: int,
    plan: Plan | None = None,
    sampler: Sampler = shuffled_epochs,
    weighting: Weighting = uniform,
    dropout: float = 0.0,
    cohorts: Cohorts = fixed_cohort,
    devices: Devices = (),
    split_examples: bool = False,
) -> Simulation:
    """Prepares federated training; nothing is compiled yet.

    `fitting.check_memory` says whether it will fit into memory, or which plan would.

    Args:
      algorithm: an algorithm's factory but for its gradient, as
        `partial(fedavg, lr=0.1)` or `algorithms.ALL["fedavg"]`.
      task: what is trained.
      dataset: training and test examples.
      parts: for every client, the ids of its training examples.
      cohort_size: S, how many clients are sampled each round, without replacement;
        how many are expected where `cohorts` says so.
      local_steps: K, batches that each of them works through.
      batch_size: examples in a batch.
      plan: how a cohort is executed; by default as measured best on this backend.
      sampler: how a client's batches are drawn from its examples.
      weighting: weights of the mean over clients.
      dropout: probability that a sampled client does not answer.
      cohorts: how clients are sampled, `fixed_cohort` or `poisson_cohorts(room)`.
      devices: who divide a cohort, and the states of all clients, among them; `plan`
        is what each does with its part. By default one, where JAX puts things. Those
        of several processes are `jax.devices()`, after `jax.distributed.initialize`;
        all processes then make the same calls.
      split_examples: divide the examples too, in place of a copy on every device.
        Batches travel to the device that plays a client, before its local training.

    Raises `ValueError` for sizes out of range, clients without examples, sizes and
    weights that the algorithm refuses, and parameters that it does.
    """
    plan = plan or plans.default_plan()
    setup = Setup(
        algorithm=algorithm,
        task=task,
        num_clients=len(parts),
        cohort_size=cohort_size,
        local_steps=local_steps,
        batch_size=batch_size,
        plan=sharded(plan) if devices else plan,
        sampler=sampler,
        weighting=weighting,
        dropout=dropout,
        cohorts=cohorts,
        devices=tuple(devices),
        split_examples=split_examples,
    )
    _check(setup)

    clients = clients_of(dataset.x_train, dataset.y_train, parts)
    clients = _placed(setup, clients)
    test = jnp.asarray(dataset.x_test), jnp.asarray(dataset.y_test)
    test = placed(test, setup.devices, SAME) if devices else test
    return Simulation(setup, clients, test, _programs(setup), longest_of(parts))


def _programs(setup: Setup) -> _Programs:
    def begin(state, clients, longest):
        play = partial(play_prologue, setup, longest=longest)
        return _spread(setup, play)(state, clients)

    def rounds(state, clients, count, longest):
        play = partial(play_rounds, setup, longest=longest)
        return _spread(setup, play, SAME)(state, clients, count)

    return _Programs(
        create=partial(_create, setup),
        begin=jax.jit(begin, donate_argnums=0, static_argnums=2),
        rounds=jax.jit(rounds, donate_argnums=0, static_argnums=3),
        score=jax.jit(partial(evaluate, setup.task)),
    )


def _check(setup: Setup) -> None:
    if not 1 <= setup.cohort_size <= setup.num_clients:
        raise ValueError(
            f"cohort_size must lie between 1 and the {setup.num_clients} clients there "
            f"are, got {setup.cohort_size}"
        )
    if setup.local_steps < 1:
        raise ValueError(f"local_steps must be at least 1, got {setup.local_steps}")
    if setup.batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {setup.batch_size}")
    if not 0 <= setup.dropout < 1:
        raise ValueError(f"dropout must lie in [0, 1), got {setup.dropout}")
    if setup.split_examples and not setup.devices:
        raise ValueError("split_examples needs several devices to divide them over")
    algorithm = setup.algorithm(setup.task.grad)
    jax.eval_shape(partial(untrained, setup), jax.random.key(0))  # may refuse params
    full = setup.cohort_size == setup.num_clients and not setup.dropout
    if algorithm.everyone and not full:
        raise ValueError(
            "this algorithm is defined for full participation only; use a cohort_size "
            f"of all {setup.num_clients} clients and no dropout"
        )
    sizes = (setup.num_clients, setup.cohort_size)
    if algorithm.made_for not in (None, sizes):
        raise ValueError(
            "this algorithm was made for (clients, cohort_size) "
            f"{algorithm.made_for}, got {sizes}"
        )
    draw = lambda key: setup.cohorts(key, *sizes)
    jax.eval_shape(draw, jax.random.key(0))  # may refuse the sizes
    if algorithm.uniform and setup.weighting is not uniform:
        raise ValueError(
            "this algorithm has control variates, whose mean only uniform weights "
            "keep, or bounds every client's part; use weighting=uniform"
        )


def _work(setup: Setup, clients: Clients, steps: int, longest: int):
    """The gradient that local steps take, and how what they scan is drawn."""
    draw = draw_rows(clients, setup.sampler, steps, setup.batch_size, longest)
    if not setup.split_examples:
        return on(clients, setup.task.grad), draw
    fetch = lambda client, key: batch_of(clients, draw(client, key), taken)
    return setup.task.grad, fetch


STATE = State(engine.State(SAME, SAME, SPLIT), SAME)  # what lies where


def _lie(setup: Setup) -> Clients:
    return Clients(SPLIT if setup.split_examples else SAME, *[SAME] * 5)


def _placed(setup: Setup, clients: Clients) -> Clients:
    """The examples on all devices, if there are several."""
    if not setup.devices:
        return clients
    if setup.split_examples:
        missing = -len(clients.x) % len(setup.devices)
        last = jnp.repeat(clients.x[-1:], missing, 0)  # never drawn
        clients = clients._replace(x=jnp.concatenate([clients.x, last]))
    return placed(clients, setup.devices, _lie(setup))


def _spread(setup: Setup, play: Callable, *more):
    """`play(state, clients, ...) -> (state, ...)`, on all devices together."""
    if not setup.devices:
        return play
    return across(setup.devices, play, (STATE, _lie(setup), *more), (STATE, SAME))


def _create(setup: Setup, key: jax.Array) -> State:
    """The state before the prologue, made where it is to lie."""
    if not setup.devices:
        return untrained(setup, key)
    make = jax.jit(
        partial(untrained, setup), out_shardings=shardings(setup.devices, STATE)
    )
    return make(key)


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
    grad_fn, draw = _work(setup, clients, 1, longest)
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
    grad_fn, draw = _work(setup, clients, setup.local_steps, longest)
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

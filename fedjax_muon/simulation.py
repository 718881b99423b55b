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
    clients_of,
    longest_of,
    shuffled_epochs,
)
from fedjax_muon.cohorts import Cohorts, fixed_cohort
from fedjax_muon.core import Algorithm, GradFn
from fedjax_muon.data import Dataset
from fedjax_muon.evaluation import Evaluation, evaluate
from fedjax_muon.plans import Plan
from fedjax_muon.rounds import (
    Metrics,
    Setup,
    State,
    Weighting,
    of_task,
    play_prologue,
    play_rounds,
    untrained,
    work,
)
from fedjax_muon.sharding import (
    SAME,
    SPLIT,
    Devices,
    across,
    placed,
    replicated,
    sharded,
    shardings,
)
from fedjax_muon.tasks import Task, as_argument


def uniform(sizes: jax.Array) -> jax.Array:
    """Every client counts the same, as in the papers."""
    return jnp.ones(sizes.shape, jnp.float32)


def by_examples(sizes: jax.Array) -> jax.Array:
    """Every client counts as many times as it has examples, as in FedAvg's paper."""
    return sizes.astype(jnp.float32)


class NonFiniteError(ArithmeticError):
    """A client sent a message, or kept a state, with a NaN or an infinity."""

    def __init__(self, round: int, clients: list[int]):
        who = ", ".join(map(str, clients[:5])) + (", ..." if len(clients) > 5 else "")
        super().__init__(
            f"round {round}: not a finite message from client {who}; lower the "
            "learning rate, or leave such messages out of the mean (drop_nonfinite)"
        )


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
            self.setup.task, self.programs.create(key), self.clients, self.longest
        )
        if not np.all(heard):
            raise NonFiniteError(0, np.flatnonzero(~np.asarray(heard)).tolist())
        return state

    def train_round(self, state: State) -> tuple[State, Metrics]:
        """Plays one round; the given state is donated."""
        return self.train_rounds(state, 1)

    def train_rounds(self, state: State, count: int) -> tuple[State, Metrics]:
        """Plays `count` rounds in one call of one program, whatever their number."""
        task = self.setup.task
        return self.programs.rounds(task, state, self.clients, count, self.longest)

    def evaluate(self, state: State) -> Evaluation:
        """Scores the server's parameters on test and training examples."""
        given = self.setup.task, state.params, self.clients, self.test
        if self.setup.devices and not self.setup.split_examples:
            # on one device, which has all of it, rather than the same on every one
            given = jax.tree.map(lambda x: x.addressable_data(0), given)
        return self.programs.score(*given)

    @functools.cached_property
    def _traffic(self) -> tuple[engine.Traffic, engine.Traffic]:
        """Of the prologue and of a round, per client."""
        setup = self.setup._replace(split_examples=False)
        grad_fn, draw = work(setup, self.clients, setup.local_steps, self.longest)
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
    clients = clients_of(dataset.x_train, dataset.y_train, parts)
    plan = plan or plans.default_plan()
    setup = Setup(
        algorithm=algorithm,
        task=as_argument(task),
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

    clients = _placed(setup, clients)
    test = jnp.asarray(dataset.x_test), jnp.asarray(dataset.y_test)
    programs = _programs(setup)
    if devices:
        test = replicated(test, devices)
        setup = setup._replace(task=replicated(setup.task, devices))
    return Simulation(setup, clients, test, programs, longest_of(parts))


def _programs(setup: Setup) -> _Programs:
    def begin(task, state, clients, longest):
        play = of_task(partial(play_prologue, longest=longest), setup)
        return _spread(setup, play)(task, state, clients)

    def rounds(task, state, clients, count, longest):
        play = of_task(partial(play_rounds, longest=longest), setup)
        return _spread(setup, play, SAME)(task, state, clients, count)

    return _Programs(
        create=partial(_create, setup),
        begin=jax.jit(begin, donate_argnums=1, static_argnums=3),
        rounds=jax.jit(rounds, donate_argnums=1, static_argnums=4),
        score=jax.jit(evaluate),
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
    """`play(task, state, clients, ...) -> (state, ...)`, on all devices together."""
    if not setup.devices:
        return play
    given = (SAME, STATE, _lie(setup), *more)
    return across(setup.devices, play, given, (STATE, SAME))


def _create(setup: Setup, key: jax.Array) -> State:
    """The state before the prologue, made where it is to lie."""
    if not setup.devices:
        return untrained(setup, key)
    where = shardings(setup.devices, STATE)
    return jax.jit(of_task(untrained, setup), out_shardings=where)(setup.task, key)

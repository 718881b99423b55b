"""Decentralized training of a task on divided data: as `simulation`, without a server.

    simulation = decentralize(algorithm, task, dataset, parts, weights=W, batch_size=20)
    state = simulation.init(jax.random.key(0))
    state, rows = training.run(simulation, state, rounds=1000)

`training.run` serves both: a round is one iteration of all agents, t = 0 is part of
`init`, and what is evaluated are the agents' mean parameters.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_muon import gossip_engine, tree
from fedjax_muon.batching import (
    Clients,
    Sampler,
    always,
    clients_of,
    draw_rows,
    longest_of,
    on,
    shuffled_epochs,
)
from fedjax_muon.core import GradFn
from fedjax_muon.data import Dataset
from fedjax_muon.engine import Traffic
from fedjax_muon.evaluation import Evaluation, evaluate
from fedjax_muon.gossip import Gossip
from fedjax_muon.gossip_engine import Mixer
from fedjax_muon.simulation import Metrics
from fedjax_muon.tasks import Task
from fedjax_muon.topology import check_mixing


class State(NamedTuple):
    """All that training needs to go on; donated to every call that trains."""

    training: gossip_engine.State
    key: jax.Array  # the same in every iteration

    @property
    def params(self):
        """The agents' parameters, leaves [agents, ...]."""
        return self.training.nodes.params

    @property
    def round(self) -> int:
        """Iterations since t = 0."""
        return int(self.training.index) - 1


class Setup(NamedTuple):
    """What is simulated, but for the data."""

    algorithm: Callable[[GradFn], Gossip]
    task: Task
    mixer: Mixer
    agents: int
    links: float  # directed, of an iteration
    batch_size: int
    first_size: int
    sampler: Callable[[jax.Array], Sampler]  # of iteration t


class Programs(NamedTuple):
    """Compiled when they are first used."""

    begin: Callable
    rounds: Callable
    score: Callable


@dataclasses.dataclass(frozen=True)
class DecentralizedSimulation:
    """A prepared simulation: compiled programs, and the data that they are given."""

    setup: Setup
    clients: Clients
    test: tuple[jax.Array, jax.Array]
    programs: Programs
    longest: int  # bounds the number of examples of every agent

    def init(self, key: jax.Array) -> State:
        """The state after t = 0."""
        return self.programs.begin(self.clients, key)

    def train_rounds(self, state: State, count: int) -> tuple[State, Metrics]:
        """Plays `count` iterations in one call of one program; donates the state."""
        return self.programs.rounds(state, self.clients, count)

    def evaluate(self, state: State) -> "Decentralized":
        """Scores the agents' mean parameters on test and training examples."""
        return self.programs.score(state.params, self.clients, self.test)

    @functools.cached_property
    def _traffic(self) -> gossip_engine.Traffic:
        """Over every link."""
        setup = self.setup
        algorithm = setup.algorithm(on(self.clients, setup.task.grad))
        params = jax.eval_shape(setup.task.init, jax.random.key(0))
        batch = lambda first: jax.eval_shape(
            partial(_one_batch, setup, self.clients, self.longest, first, 0),
            jnp.int32(0),
            jax.random.key(0),
        )
        return gossip_engine.traffic(algorithm, params, batch(True), batch(False))

    def bytes_after(self, rounds: int) -> Traffic:
        """Bytes that all agents together received and sent until now."""
        sent = self._traffic
        total = round(self.setup.links * (sent.first + rounds * sent.later))
        return Traffic(total, total)


class Decentralized(NamedTuple):
    """What is known of the agents' mean parameters, see `evaluation.Evaluation`, and
    of how far the agents are apart."""

    train_loss: jax.Array
    train_accuracy: jax.Array
    test_loss: jax.Array
    test_accuracy: jax.Array
    client_accuracy_std: jax.Array
    train_auc: jax.Array | None
    test_auc: jax.Array | None
    consensus: jax.Array  # root of the mean over agents of ||x_i - mean x||^2


def decentralize(
    algorithm: Callable[[GradFn], Gossip],
    task: Task,
    dataset: Dataset,
    parts: Sequence[np.ndarray],
    *,
    weights: np.ndarray,
    batch_size: int,
    first_size: int | None = None,
    sampler: Callable[[jax.Array], Sampler] = always(shuffled_epochs),
    mixer: Callable[[np.ndarray], Mixer] = gossip_engine.dense,
) -> DecentralizedSimulation:
    """Prepares decentralized training; nothing is compiled yet.

    Args:
      algorithm: an algorithm's factory but for its gradient, as
        `partial(decentralized.ALL["dm_hsgd"], lr=0.1)`.
      task: what is trained.
      dataset: training and test examples.
      parts: for every agent, the ids of its training examples.
      weights: mixing matrix [m, m], or [T, m, m] for one that changes with time; see
        `topology`.
      batch_size: examples in a batch, expected ones if the sampler is random in that.
      first_size: of the batch at t = 0; the same by default.
      sampler: how an agent's batches are drawn from its examples at iteration t, as
        `batching.always(poisson(64))` or `batching.cyclic`.
      mixer: how weights are multiplied by, `gossip_engine.dense` or `sparse`.

    Raises `ValueError` for what the algorithm or the task refuses, weights that do not
    mix (`topology.check_mixing`) or are of another number of agents, agents without
    examples, and batches larger than an agent's data.
    """
    matrices = np.atleast_3d(np.asarray(weights, float).T).T  # [T, m, m]
    check_mixing(weights)
    agents, first_size = len(parts), first_size or batch_size
    if matrices.shape[1] != agents:
        raise ValueError(
            f"weights are those of {matrices.shape[1]} agents, but there are {agents}"
        )
    clients = clients_of(dataset.x_train, dataset.y_train, parts)
    least = min(map(len, parts))
    for name, size in (("batch_size", batch_size), ("first_size", first_size)):
        if not 1 <= size <= least:
            raise ValueError(
                f"{name} must lie between 1 and the {least} examples of the agent that "
                f"has fewest, got {size}"
            )
    off_diagonal = ~np.eye(agents, dtype=bool)
    setup = Setup(
        algorithm=algorithm,
        task=task,
        mixer=mixer(weights),
        agents=agents,
        links=float((matrices[:, off_diagonal] != 0).sum(1).mean()),
        batch_size=batch_size,
        first_size=first_size,
        sampler=sampler,
    )
    longest = longest_of(parts)
    begin = partial(_begin, setup, longest)
    jax.eval_shape(begin, clients, jax.random.key(0))  # refuses what does not fit
    programs = Programs(
        begin=jax.jit(begin),
        rounds=jax.jit(partial(_rounds, setup, longest), donate_argnums=0),
        score=jax.jit(partial(_score, task)),
    )
    test = jnp.asarray(dataset.x_test), jnp.asarray(dataset.y_test)
    return DecentralizedSimulation(setup, clients, test, programs, longest)


def _one_batch(setup: Setup, clients: Clients, longest: int, first, index, agent, key):
    size = setup.first_size if first else setup.batch_size
    draw = draw_rows(clients, setup.sampler(index), 1, size, longest)
    return jax.tree.map(lambda row: row[0], draw(agent, key))


def _batches(setup: Setup, clients: Clients, longest: int, first: bool, key, index):
    agents = jnp.arange(setup.agents, dtype=jnp.int32)
    keys = jax.random.split(jax.random.fold_in(key, index), setup.agents)
    one = partial(_one_batch, setup, clients, longest, first, index)
    return jax.vmap(one)(agents, keys)


def _made(setup: Setup, clients: Clients):
    algorithm = setup.algorithm(on(clients, setup.task.grad))
    return gossip_engine.make(algorithm, setup.mixer, setup.agents)


def _keys(key):
    """Of batches, and of what agents do with them."""
    return jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)


def _begin(setup: Setup, longest: int, clients: Clients, key) -> State:
    init_key, key = jax.random.split(key)
    batch_key, agent_key = _keys(key)
    start, _ = _made(setup, clients)
    batches = _batches(setup, clients, longest, True, batch_key, 0)
    return State(start(setup.task.init(init_key), batches, agent_key), key)


def _rounds(setup: Setup, longest: int, state: State, clients: Clients, count):
    batch_key, agent_key = _keys(state.key)
    _, step = _made(setup, clients)

    def body(_, carry):
        training, metrics = carry
        index = training.index
        batches = _batches(setup, clients, longest, False, batch_key, index)
        training = step(training, batches, agent_key)
        silent = ~jax.vmap(tree.all_finite)(training.nodes.params)
        first = jnp.where(silent & (metrics.lost_round < 0), index, metrics.lost_round)
        return training, Metrics(metrics.lost + silent, first)

    nothing = jnp.zeros(setup.agents, jnp.int32)
    none = Metrics(nothing, jnp.full_like(nothing, -1))
    training, metrics = jax.lax.fori_loop(0, count, body, (state.training, none))
    return State(training, state.key), metrics


def _score(task: Task, params, clients: Clients, test) -> Decentralized:
    mean = jax.tree.map(lambda x: x.mean(0), params)
    found: Evaluation = evaluate(task, mean, clients, test)
    apart = lambda x: optax.tree.norm(tree.sub(x, mean), squared=True)
    consensus = jnp.sqrt(jax.vmap(apart)(params).mean())
    return Decentralized(**found._asdict(), consensus=consensus)

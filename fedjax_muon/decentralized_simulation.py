"""Decentralized training of a task on divided data: as `simulation`, without a server.

    simulation = decentralize(algorithm, task, dataset, parts, weights=W, batch_size=20)
    state = simulation.init(jax.random.key(0))
    state, rows = training.run(simulation, state, rounds=1000)

`training.run` serves both: a round is one iteration of all agents, t = 0 is part of
`init`, and what is evaluated are the agents' mean parameters.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
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
from fedjax_muon.data import Dataset
from fedjax_muon.engine import Traffic
from fedjax_muon.evaluation import Evaluation, evaluate
from fedjax_muon.gossip import Gossip
from fedjax_muon.gossip_engine import Mixer
from fedjax_muon.rounds import Metrics, of_task
from fedjax_muon.tasks import Task, as_argument
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
    """What is simulated: what simulations that share programs have in common."""

    algorithm: Callable[..., Gossip]
    task: Task
    mixing: Callable[[np.ndarray], Mixer]
    agents: int
    batch_size: int
    first_size: int
    sampler: Callable[[jax.Array], Sampler]  # of iteration t
    devices: tuple[jax.Device, ...] = ()  # that the agents are divided among


class Given(NamedTuple):
    """What the programs are given, and may differ between simulations."""

    clients: Clients
    mixer: Mixer
    hyper: dict[str, jax.Array]


class Programs(NamedTuple):
    """Compiled when they are first used."""

    begin: Callable
    rounds: Callable
    score: Callable


@dataclasses.dataclass(frozen=True)
class DecentralizedSimulation:
    """A prepared simulation: compiled programs, and the data that they are given."""

    setup: Setup
    given: Given
    links: float  # directed, of an iteration
    test: tuple[jax.Array, jax.Array]
    programs: Programs
    longest: int  # bounds the number of examples of every agent

    def init(self, key: jax.Array) -> State:
        """The state after t = 0."""
        return self.programs.begin(self.setup.task, self.given, key, self.longest)

    def train_rounds(self, state: State, count: int) -> tuple[State, Metrics]:
        """Plays `count` iterations in one call of one program; donates the state."""
        task = self.setup.task
        return self.programs.rounds(task, state, self.given, count, self.longest)

    def evaluate(self, state: State) -> "Decentralized":
        """Scores the agents' mean parameters on test and training examples."""
        task, clients = self.setup.task, self.given.clients
        return self.programs.score(task, state.params, clients, self.test)

    @functools.cached_property
    def _traffic(self) -> gossip_engine.Traffic:
        """Over every link."""
        setup, clients = self.setup, self.given.clients
        grad = on(clients, setup.task.grad)
        algorithm = setup.algorithm(grad, **self.given.hyper)
        params = jax.eval_shape(setup.task.init, jax.random.key(0))
        batch = lambda first: jax.eval_shape(
            partial(_one_batch, setup, clients, self.longest, first, 0),
            jnp.int32(0),
            jax.random.key(0),
        )
        return gossip_engine.traffic(algorithm, params, batch(True), batch(False))

    def bytes_after(self, rounds: int) -> Traffic:
        """Bytes that all agents together received and sent until now."""
        sent = self._traffic
        total = round(self.links * (sent.first + rounds * sent.later))
        return Traffic(total, total)

    def vary(
        self,
        *,
        parts: Sequence[np.ndarray] | None = None,
        weights: np.ndarray | None = None,
        hyper: Mapping[str, float] | None = None,
    ) -> "DecentralizedSimulation":
        """The same with other data of agents, weights or hyper-parameters, and the
        programs compiled so far, which serve again where all sizes are the same.

        What is not given stays; `hyper` must have the names that `decentralize` was
        given. Raises `ValueError` as `decentralize` does.
        """
        clients, mixer, numbers = self.given
        links, longest = self.links, self.longest
        if parts is not None:
            clients = _agents(self.setup, clients.x, clients.y, parts)
            longest = longest_of(parts)
        if weights is not None:
            mixer, links = _mixed(self.setup, weights)
        if hyper is not None:
            if set(hyper) != set(numbers):
                raise ValueError(
                    f"hyper must name {sorted(numbers)}, got {sorted(hyper)}"
                )
            numbers = _numbers(self.setup, hyper)
        given = _placed(self.setup, Given(clients, mixer, numbers))
        return dataclasses.replace(self, given=given, links=links, longest=longest)


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
    test_mcc: jax.Array | None
    consensus: jax.Array  # root of the mean over agents of ||x_i - mean x||^2


def decentralize(
    algorithm: Callable[..., Gossip],
    task: Task,
    dataset: Dataset,
    parts: Sequence[np.ndarray],
    *,
    weights: np.ndarray,
    batch_size: int,
    first_size: int | None = None,
    sampler: Callable[[jax.Array], Sampler] = always(shuffled_epochs),
    mixer: Callable[[np.ndarray], Mixer] = gossip_engine.dense,
    hyper: Mapping[str, float] = MappingProxyType({}),
    devices: Sequence[jax.Device] = (),
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
      mixer: how weights are multiplied by, `gossip_engine.dense`, `sparse` or
        `shifted`.
      hyper: more arguments of `algorithm`, numbers that `vary` can change without
        compiling anew, as {"noise": 0.5}.
      devices: where the agents are, in equal parts and order; by default all are on
        JAX's default device. Every device has all examples.

    Raises `ValueError` for what the algorithm or the task refuses, weights that do not
    mix (`topology.check_mixing`) or are of another number of agents, agents without
    examples, batches larger than an agent's data, and devices that do not divide the
    agents.
    """
    setup = Setup(
        algorithm=algorithm,
        task=as_argument(task),
        mixing=mixer,
        agents=len(parts),
        batch_size=batch_size,
        first_size=batch_size if first_size is None else first_size,
        sampler=sampler,
        devices=tuple(devices),
    )
    mixed, links = _mixed(setup, weights)
    clients = _agents(setup, dataset.x_train, dataset.y_train, parts)
    given = Given(clients, mixed, _numbers(setup, hyper))
    longest = longest_of(parts)
    # refuses what does not fit
    jax.eval_shape(partial(_begin, setup, longest=longest), given, jax.random.key(0))
    split, same = gossip_engine.placements(setup.devices)
    state = State(gossip_engine.State(same, split), same)
    programs = Programs(
        begin=jax.jit(of_task(_begin, setup), static_argnums=3, out_shardings=state),
        rounds=jax.jit(
            of_task(_rounds, setup),
            donate_argnums=1,
            static_argnums=4,
            out_shardings=(state, same),
        ),
        score=jax.jit(_score),
    )
    test = jnp.asarray(dataset.x_test), jnp.asarray(dataset.y_test)
    task, given, test = _placed(setup, (setup.task, given, test))
    setup = setup._replace(task=task)
    return DecentralizedSimulation(setup, given, links, test, programs, longest)


def _placed(setup: Setup, what):
    """The same on every device that was given."""
    _, same = gossip_engine.placements(setup.devices)
    return what if same is None else jax.device_put(what, same)


def _mixed(setup: Setup, weights) -> tuple[Mixer, float]:
    """How weights are multiplied by, and how many links an iteration uses."""
    check_mixing(weights)
    matrices = np.atleast_3d(np.asarray(weights, float).T).T  # [T, m, m]
    if matrices.shape[1] != setup.agents:
        raise ValueError(
            f"weights are those of {matrices.shape[1]} agents, but there are "
            f"{setup.agents}"
        )
    off_diagonal = ~np.eye(setup.agents, dtype=bool)
    links = float((matrices[:, off_diagonal] != 0).sum(1).mean())
    return setup.mixing(weights), links


def _agents(setup: Setup, x, y, parts) -> Clients:
    """The agents' examples, on the device."""
    if len(parts) != setup.agents:
        raise ValueError(f"there are {setup.agents} agents, got {len(parts)} parts")
    clients = clients_of(x, y, parts)
    least = min(map(len, parts))
    sizes = {"batch_size": setup.batch_size, "first_size": setup.first_size}
    for name, size in sizes.items():
        if not 1 <= size <= least:
            raise ValueError(
                f"{name} must lie between 1 and the {least} examples of the agent that "
                f"has fewest, got {size}"
            )
    return clients


def _numbers(setup: Setup, hyper: Mapping[str, float]) -> dict[str, jax.Array]:
    """Hyper-parameters as arrays, if the algorithm takes them."""
    setup.algorithm(setup.task.grad, **hyper)
    return {name: jnp.asarray(value, float) for name, value in hyper.items()}


def _one_batch(setup: Setup, clients: Clients, longest: int, first, index, agent, key):
    size = setup.first_size if first else setup.batch_size
    draw = draw_rows(clients, setup.sampler(index), 1, size, longest)
    return jax.tree.map(lambda row: row[0], draw(agent, key))


def _batches(setup: Setup, clients: Clients, longest: int, first: bool, key, index):
    agents = jnp.arange(setup.agents, dtype=jnp.int32)
    keys = jax.random.split(jax.random.fold_in(key, index), setup.agents)
    one = partial(_one_batch, setup, clients, longest, first, index)
    return jax.vmap(one)(agents, keys)


def _made(setup: Setup, given: Given):
    def build(held):
        given, task = held
        grad = on(given.clients, task.grad)
        return setup.algorithm(grad, **given.hyper), given.mixer

    held = given, setup.task
    return gossip_engine.make_from(build, held, setup.agents, setup.devices)


def _keys(key):
    """Of batches, and of what agents do with them."""
    return jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)


def _begin(setup: Setup, given: Given, key, longest: int) -> State:
    init_key, key = jax.random.split(key)
    batch_key, agent_key = _keys(key)
    start, _ = _made(setup, given)
    batches = _batches(setup, given.clients, longest, True, batch_key, 0)
    return State(start(setup.task.init(init_key), batches, agent_key), key)


def _rounds(setup: Setup, state: State, given: Given, count, longest: int):
    batch_key, agent_key = _keys(state.key)
    _, step = _made(setup, given)

    def body(_, carry):
        training, metrics = carry
        index = training.index
        batches = _batches(setup, given.clients, longest, False, batch_key, index)
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

"""Iterations of a decentralized simulation: batches, and the engine's steps.

They are functions of a `GossipSetup`, a `State` and the agents' examples, which
`simulation` compiles.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_muon.core import Params, streams, tree, with_numbers
from fedjax_muon.decentralized import engine as gossip_engine
from fedjax_muon.decentralized.agent_privacy import AgentPrivacy
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.mixing import Mixer
from fedjax_muon.simulation.batching import Clients, Sampler, draw_rows, objective_of
from fedjax_muon.simulation.evaluation import Evaluation, evaluate
from fedjax_muon.simulation.rounds import Inputs, Metrics, bound_key
from fedjax_muon.tasks.task import Task


class State(NamedTuple):
    """The complete state of training; it is donated to every call that trains."""

    training: gossip_engine.State
    key: jax.Array  # the same in every iteration

    @property
    def params(self) -> Params:
        """The agents' parameters, leaves [m, ...]."""
        return self.training.agents.params

    @property
    def round(self) -> int:
        """The number of iterations after t = 0."""
        return int(self.training.index) - 1

    @property
    def divided(self) -> Any:
        """What is divided among the devices."""
        return self.training.agents


class GossipSetup(NamedTuple):
    """Settings of a simulation, without its data."""

    algorithm: Gossip
    task: Task
    mixing: Callable[[np.ndarray], Mixer]  # weights -> mixer
    agents: int
    batch_size: int
    first_size: int  # of the batch at t = 0
    sampler: Callable[[jax.Array], Sampler]  # t -> sampler
    devices: tuple[jax.Device, ...] = ()  # that the agents are divided among
    privacy: AgentPrivacy | None = None


def one_batch(
    setup: GossipSetup,
    clients: Clients,
    first: bool,
    index: Any,
    agent: jax.Array,
    key: jax.Array,
) -> Any:
    """Draws the ids of one agent's batch at t, which may be traced."""
    size = setup.first_size if first else setup.batch_size
    draw = draw_rows(clients, setup.sampler(index), 1, size)
    return jax.tree.map(lambda row: row[0], draw(agent, key))


def batches(
    setup: GossipSetup,
    clients: Clients,
    first: bool,
    key: jax.Array,
    index: Any,
) -> Any:
    """Draws the batches of all agents as `one_batch` does, leaves [m, ...]."""
    agents = jnp.arange(setup.agents, dtype=jnp.int32)
    keys = jax.random.split(jax.random.fold_in(key, index), setup.agents)
    one = partial(one_batch, setup, clients, first, index)
    return jax.vmap(one)(agents, keys)


def step_functions(
    setup: GossipSetup, inputs: Inputs, clients: Clients
) -> tuple[gossip_engine.Start, gossip_engine.Step]:
    """Makes `start` and `step` of `engine.make` for the algorithm."""

    def build(shared):
        inputs, clients = shared
        algorithm = with_numbers(setup.algorithm, inputs.numbers)
        return algorithm, objective_of(inputs.task, clients), inputs.mixer

    shared = inputs, clients
    return gossip_engine.make_from(build, shared, setup.agents, setup.devices)


def keys_of(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Derives the keys of batches, and of agents' iterations, from that of a run."""
    fold = partial(jax.random.fold_in, key)
    return fold(streams.BATCHES), fold(streams.ITERATIONS)


def created(key: jax.Array, run_key: jax.Array | None = None) -> Any:
    """Makes the keys of the initial parameters, and of the run, for `begin_run`."""
    init_key, rest = jax.random.split(key)
    return init_key, rest if run_key is None else run_key


def begin_run(
    setup: GossipSetup,
    inputs: Inputs,
    keys: tuple[jax.Array, jax.Array],
    clients: Clients,
) -> State:
    """Runs iteration 0, with keys from `created`."""
    init_key, key = keys
    batch_key, agent_key = keys_of(key)
    start, _ = step_functions(setup, inputs, clients)
    drawn = batches(setup, clients, True, batch_key, 0)
    return State(start(inputs.task.init(init_key), drawn, agent_key), key)


def run_rounds(
    setup: GossipSetup,
    inputs: Inputs,
    state: State,
    clients: Clients,
    count: jax.Array,
) -> tuple[State, Metrics]:
    """Runs `count` iterations, a number that may be traced."""
    batch_key, agent_key = keys_of(bound_key(state.key, inputs.mark))
    _, step = step_functions(setup, inputs, clients)

    def body(_, carry):
        training, metrics = carry
        index = training.index
        drawn = batches(setup, clients, False, batch_key, index)
        training = step(training, drawn, agent_key)
        lost = ~jax.vmap(tree.all_finite)(training.agents.params)
        first = jnp.where(lost & (metrics.lost_round < 0), index, metrics.lost_round)
        return training, Metrics(metrics.lost + lost, first)

    zeros = jnp.zeros(setup.agents, jnp.int32)
    metrics = Metrics(zeros, jnp.full_like(zeros, -1))
    training, metrics = jax.lax.fori_loop(0, count, body, (state.training, metrics))
    return State(training, state.key), metrics


def score_mean(task: Task, params: Params, clients: Clients, test: Any) -> Evaluation:
    """Evaluates the agents' mean parameters.

    "consensus" is the root of the mean over agents of ||x_i - mean x||^2.
    """
    mean = jax.tree.map(lambda x: x.mean(0), params)
    distance = lambda x: optax.tree.norm(tree.sub(x, mean), squared=True)
    consensus = jnp.sqrt(jax.vmap(distance)(params).mean())
    return {**evaluate(task, mean, clients, test), "consensus": consensus}

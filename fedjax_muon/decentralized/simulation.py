"""Decentralized training of a task on divided data, without a server.

    simulation = decentralize(algorithm, task, dataset, parts, weights=W, batch_size=20)
    state = simulation.init(jax.random.key(0))
    state, history = training.train(simulation, state, rounds=1000)

Federated and decentralized simulations have the same methods. Here a round is one
iteration of all agents, t = 0 is part of `init`, and the agents' mean parameters are
evaluated.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_muon.core import Params, streams, tree, with_numbers
from fedjax_muon.data import Dataset
from fedjax_muon.decentralized import engine as gossip_engine
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.mixing import Mixer, dense
from fedjax_muon.decentralized.topology import check_mixing
from fedjax_muon.engine.round import Traffic
from fedjax_muon.simulation.arguments import (
    check_algorithm,
    check_dataset,
    check_functions,
    check_parts,
    check_task,
)
from fedjax_muon.simulation.batching import (
    Clients,
    Sampler,
    always,
    clients_of,
    draw_rows,
    max_client_size_of,
    objective_of,
    shuffled_epochs,
)
from fedjax_muon.simulation.evaluation import Evaluation, evaluate
from fedjax_muon.simulation.rounds import Inputs, Metrics
from fedjax_muon.simulation.rule_check import check_rules
from fedjax_muon.simulation.simulation import Programs, Runner, Simulation, inputs_of
from fedjax_muon.tasks.task import Task, as_argument


class State(NamedTuple):
    """The complete state of training; it is donated to every call that trains."""

    training: gossip_engine.State
    key: jax.Array  # the same in every iteration

    @property
    def params(self) -> Params:
        """The agents' parameters, leaves [m, ...]."""
        return self.training.nodes.params

    @property
    def round(self) -> int:
        """The number of iterations after t = 0."""
        return int(self.training.index) - 1


class Setup(NamedTuple):
    """Settings of a simulation, without its data."""

    algorithm: Gossip
    task: Task
    mixing: Callable[[np.ndarray], Mixer]  # weights -> mixer
    agents: int
    batch_size: int
    first_size: int  # of the batch at t = 0
    sampler: Callable[[jax.Array], Sampler]  # t -> sampler
    devices: tuple[jax.Device, ...] = ()  # that the agents are divided among


def decentralize(
    algorithm: Gossip,
    task: Task,
    dataset: Dataset,
    parts: Sequence[np.ndarray],
    *,
    weights: np.ndarray,
    batch_size: int,
    first_size: int | None = None,
    sampler: Callable[[jax.Array], Sampler] = always(shuffled_epochs),
    mixer: Callable[[np.ndarray], Mixer] = dense,
    devices: Sequence[jax.Device] = (),
) -> Simulation:
    """Prepares decentralized training; nothing is compiled yet.

    Args:
      algorithm: The algorithm, such as `decentralized.dm_hsgd(lr=0.1)`.
      task: A model and its loss.
      dataset: Training and test examples.
      parts: For every agent, the ids of its training examples.
      weights: Mixing matrix [m, m] of m agents, or [T, m, m] for a sequence that
        repeats; see `topology`.
      batch_size: Examples in a batch; with a sampler whose batches vary in size, the
        expected number.
      first_size: Examples in the batch at t = 0; `batch_size` by default.
      sampler: Function of t that returns how an agent's batches are drawn from its
        examples, such as `batching.always(poisson(64))` or `batching.cyclic`.
      mixer: How messages are multiplied by the weights: `dense`, `sparse` or `shifted`
        of `decentralized`.
      devices: Devices that the agents are divided among, in order and in equal parts;
        by default, JAX's default device. Every device has all examples.

    Returns:
      A simulation; its programs are compiled when they are first used.

    Raises:
      TypeError: If an argument is of another type.
      ValueError: If the data set has faults, the algorithm rejects the parameters, the
        task rejects the examples, `topology.check_mixing` rejects the weights or they
        are those of another number of agents, an agent has fewer examples than a
        batch, or the agents cannot be divided equally among the devices.

    Example:
      >>> weights = topology.metropolis(topology.ring(4))
      >>> simulation = decentralize(
      ...     decentralized.dsgd(lr=0.1),
      ...     task,
      ...     digits,
      ...     clients,
      ...     weights=weights,
      ...     batch_size=32,
      ... )
    """
    check_algorithm(algorithm, Gossip, "federate")
    check_task(task)
    dataset, parts = check_dataset(dataset), check_parts(parts)
    check_functions({"sampler": sampler, "mixer": mixer})
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
    max_client_size = max_client_size_of(parts)
    inputs = inputs_of(algorithm, setup.task, mixed)
    # raises if sizes or parameters do not fit
    begin = partial(_begin, setup, max_client_size=max_client_size)
    jax.eval_shape(begin, inputs, jax.random.key(0), clients)
    check_rules(algorithm, jax.eval_shape(task.init, jax.random.key(0)))
    test = jnp.asarray(dataset.x_test), jnp.asarray(dataset.y_test)
    inputs, clients, test = _placed(setup, (inputs, clients, test))
    return Simulation(
        runner=RUNNER,
        setup=setup,
        inputs=inputs,
        clients=clients,
        test=test,
        programs=_programs(setup),
        max_client_size=max_client_size,
        links=links,
    )


def _programs(setup: Setup) -> Programs:
    def begin(inputs, key, clients, max_client_size):
        state = _begin(setup, inputs, key, clients, max_client_size)
        return state, jnp.ones(setup.agents, bool)

    def rounds(inputs, state, clients, count, max_client_size):
        return _rounds(setup, inputs, state, clients, count, max_client_size)

    sharded, replicated = gossip_engine.placements(setup.devices)
    where = State(gossip_engine.State(replicated, sharded), replicated)
    return Programs(
        create=lambda key: key,
        begin=jax.jit(begin, static_argnums=3, out_shardings=(where, replicated)),
        rounds=jax.jit(
            rounds,
            donate_argnums=1,
            static_argnums=4,
            out_shardings=(where, replicated),
        ),
        score=jax.jit(_score),
    )


def _placed(setup: Setup, arrays: Any) -> Any:
    """Copies arrays to every device of the simulation."""
    _, replicated = gossip_engine.placements(setup.devices)
    return arrays if replicated is None else jax.device_put(arrays, replicated)


def _place(setup: Setup, x: Any, y: Any, parts: Sequence[np.ndarray]) -> Clients:
    return _placed(setup, _agents(setup, x, y, parts))


def _mix(setup: Setup, weights: np.ndarray) -> tuple[Mixer, float]:
    mixer, links = _mixed(setup, weights)
    return _placed(setup, mixer), links


def _evaluate(simulation: Simulation, state: State) -> Evaluation:
    """Evaluates the agents' mean parameters."""
    task = simulation.inputs.task
    return simulation.programs.score(
        task, state.params, simulation.clients, simulation.test
    )


def _traffic(simulation: Simulation) -> tuple[Traffic, Traffic]:
    """Bytes over all links at t = 0, and at a later t."""
    setup, clients = simulation.setup, simulation.clients
    objective = objective_of(setup.task, clients)
    params = jax.eval_shape(setup.task.init, jax.random.key(0))
    size = simulation.max_client_size
    batch = lambda first: jax.eval_shape(
        partial(_one_batch, setup, clients, size, first, 0),
        jnp.int32(0),
        jax.random.key(0),
    )
    sent = gossip_engine.traffic(
        setup.algorithm, objective, params, batch(True), batch(False)
    )
    first, later = simulation.links * sent.first, simulation.links * sent.later
    return Traffic(first, first), Traffic(later, later)


RUNNER = Runner(_place, _mix, _evaluate, _traffic, lambda state: state.training.nodes)


def _mixed(setup: Setup, weights: Any) -> tuple[Mixer, float]:
    """The mixer, and the mean number of links that an iteration uses."""
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


def _agents(setup: Setup, x: Any, y: Any, parts: Sequence[np.ndarray]) -> Clients:
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


def _one_batch(
    setup: Setup,
    clients: Clients,
    max_client_size: int,
    first: bool,
    index: Any,
    agent: jax.Array,
    key: jax.Array,
) -> Any:
    """The batch of one agent at iteration `index`, as ids of examples."""
    size = setup.first_size if first else setup.batch_size
    draw = draw_rows(clients, setup.sampler(index), 1, size, max_client_size)
    return jax.tree.map(lambda row: row[0], draw(agent, key))


def _batches(
    setup: Setup,
    clients: Clients,
    max_client_size: int,
    first: bool,
    key: jax.Array,
    index: Any,
) -> Any:
    """The batches of all agents, leaves [m, ...]."""
    agents = jnp.arange(setup.agents, dtype=jnp.int32)
    keys = jax.random.split(jax.random.fold_in(key, index), setup.agents)
    one = partial(_one_batch, setup, clients, max_client_size, first, index)
    return jax.vmap(one)(agents, keys)


def _step_functions(
    setup: Setup, inputs: Inputs, clients: Clients
) -> tuple[gossip_engine.Start, gossip_engine.Step]:
    def build(shared):
        inputs, clients = shared
        algorithm = with_numbers(setup.algorithm, inputs.numbers)
        return algorithm, objective_of(inputs.task, clients), inputs.mixer

    shared = inputs, clients
    return gossip_engine.make_from(build, shared, setup.agents, setup.devices)


def _keys(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys of batches, and of the agents' iterations."""
    fold = partial(jax.random.fold_in, key)
    return fold(streams.BATCHES), fold(streams.ITERATIONS)


def _begin(
    setup: Setup,
    inputs: Inputs,
    key: jax.Array,
    clients: Clients,
    max_client_size: int,
) -> State:
    init_key, key = jax.random.split(key)
    batch_key, agent_key = _keys(key)
    start, _ = _step_functions(setup, inputs, clients)
    batches = _batches(setup, clients, max_client_size, True, batch_key, 0)
    return State(start(inputs.task.init(init_key), batches, agent_key), key)


def _rounds(
    setup: Setup,
    inputs: Inputs,
    state: State,
    clients: Clients,
    count: jax.Array,
    max_client_size: int,
) -> tuple[State, Metrics]:
    batch_key, agent_key = _keys(state.key)
    _, step = _step_functions(setup, inputs, clients)

    def body(_, carry):
        training, metrics = carry
        index = training.index
        batches = _batches(setup, clients, max_client_size, False, batch_key, index)
        training = step(training, batches, agent_key)
        lost = ~jax.vmap(tree.all_finite)(training.nodes.params)
        first = jnp.where(lost & (metrics.lost_round < 0), index, metrics.lost_round)
        return training, Metrics(metrics.lost + lost, first)

    zeros = jnp.zeros(setup.agents, jnp.int32)
    metrics = Metrics(zeros, jnp.full_like(zeros, -1))
    training, metrics = jax.lax.fori_loop(0, count, body, (state.training, metrics))
    return State(training, state.key), metrics


def _score(task: Task, params: Params, clients: Clients, test: Any) -> Evaluation:
    """Metrics of the agents' mean parameters, and the consensus error.

    "consensus" is the root of the mean over agents of ||x_i - mean x||^2.
    """
    mean = jax.tree.map(lambda x: x.mean(0), params)
    distance = lambda x: optax.tree.norm(tree.sub(x, mean), squared=True)
    consensus = jnp.sqrt(jax.vmap(distance)(params).mean())
    return {**evaluate(task, mean, clients, test), "consensus": consensus}

"""Decentralized training of a task on divided data, without a server.

    simulation = decentralize(algorithm, task, dataset, parts, weights=W, batch_size=20)
    state = simulation.init(jax.random.key(0))
    state, history = training.train(simulation, state, rounds=1000)

Federated and decentralized simulations have the same methods. Here a round is one
iteration of all agents, t = 0 is part of `init`, and the agents' mean parameters are
evaluated.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_muon.core import Params, check_count, streams, tree, with_numbers
from fedjax_muon.data import Dataset
from fedjax_muon.decentralized import engine as gossip_engine
from fedjax_muon.decentralized.agent_privacy import AgentPrivacy
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.mixing import Mixer, dense
from fedjax_muon.decentralized.topology import check_mixing
from fedjax_muon.engine.programs import promoting
from fedjax_muon.engine.round import Traffic
from fedjax_muon.privacy.guarantees import Guarantee, check_left_out
from fedjax_muon.simulation.arguments import (
    Parts,
    check_algorithm,
    check_dataset,
    check_distinct,
    check_functions,
    check_parts,
    check_rule_kinds,
    check_rules,
    check_task,
)
from fedjax_muon.simulation.batching import (
    Clients,
    Sampler,
    always,
    clients_of,
    draw_rows,
    objective_of,
    shuffled_epochs,
)
from fedjax_muon.simulation.evaluation import Evaluation, evaluate
from fedjax_muon.simulation.rounds import Inputs, Metrics
from fedjax_muon.simulation.simulation import Programs, Runner, Simulation, inputs_of
from fedjax_muon.tasks.task import Task, as_argument


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
    setup: GossipSetup, clients: Clients, first: bool, key: jax.Array, index: Any
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


def created(
    inputs: Inputs,
    key: jax.Array,
    run_key: jax.Array | None = None,
    params: Params | None = None,
) -> Any:
    """Makes what `begin_run` starts from: the key of the initial parameters, or these,
    and the key of the run."""
    del inputs
    init_key, rest = jax.random.split(key)
    start = init_key if params is None else params
    return start, rest if run_key is None else run_key


def begin_run(
    setup: GossipSetup,
    inputs: Inputs,
    created: tuple[Any, jax.Array],
    clients: Clients,
) -> State:
    """Runs iteration 0; see `created`."""
    params, key = created
    if _is_key(params):
        params = inputs.task.init(params)
    batch_key, agent_key = keys_of(key)
    start, _ = step_functions(setup, inputs, clients)
    drawn = batches(setup, clients, True, batch_key, 0)
    return State(start(params, drawn, agent_key), key)


def _is_key(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def run_rounds(
    setup: GossipSetup, inputs: Inputs, state: State, clients: Clients, count: jax.Array
) -> tuple[State, Metrics]:
    """Runs `count` iterations, a number that may be traced."""
    batch_key, agent_key = keys_of(
        state.key if inputs.run_key is None else inputs.run_key
    )
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


@promoting
def decentralize(
    algorithm: Gossip,
    task: Task,
    dataset: Dataset,
    parts: Parts,
    *,
    weights: np.ndarray,
    batch_size: int | None = None,
    first_size: int | None = None,
    sampler: Callable[[jax.Array], Sampler] | None = None,
    mixer: Callable[[np.ndarray], Mixer] = dense,
    devices: Sequence[jax.Device] = (),
    privacy: AgentPrivacy | None = None,
) -> Simulation:
    """Prepares decentralized training; programs are compiled when they are first used.

    Args:
      weights: Mixing matrix [m, m] of m agents, or [T, m, m] for a sequence that
        repeats; see `topology`.
      batch_size: Examples in a batch; with a sampler whose batches vary in size, the
        expected number.
      first_size: Examples in the batch at t = 0; `batch_size` by default.
      sampler: Function of t that returns how an agent's batches are drawn from its
        examples, such as `batching.cyclic`; `batching.always(shuffled_epochs)` by
        default.
      mixer: How messages are multiplied by the weights: `dense`, `sparse` or `shifted`
        of `decentralized`.
      devices: Devices that the agents are divided among, in order and in equal parts;
        by default, JAX's default device. Every device has all examples.
      privacy: Makes the run private. It decides `batch_size`, `first_size`, `sampler`
        and the algorithm's estimator, which must be left out. The guarantee is the
        simulation's `guarantee`.
    """
    check_algorithm(algorithm, Gossip, "federate")
    check_task(task)
    dataset, parts = check_dataset(dataset), check_parts(parts)
    guarantee, noise = None, {}
    if privacy is not None:
        decided = {"batch_size": batch_size, "first_size": first_size}
        check_left_out({**decided, "sampler": sampler})
        guarantee, scale = privacy.calibrated(list(map(len, parts)))
        algorithm, noise = privacy.applied(algorithm, 1.0), {"noise_scale": scale}
        batch_size = privacy.mechanism.batch_size
        sampler = privacy.sampler
    if batch_size is None:
        raise TypeError("decentralize needs batch_size, or privacy, which decides it")
    sampler = sampler or always(shuffled_epochs)
    check_functions({"sampler": sampler, "mixer": mixer})
    setup = GossipSetup(
        algorithm=algorithm,
        task=as_argument(task),
        mixing=mixer,
        agents=len(parts),
        batch_size=batch_size,
        first_size=batch_size if first_size is None else first_size,
        sampler=sampler,
        devices=tuple(devices),
        privacy=privacy,
    )
    mixed, links = _mix(setup, weights)
    clients = _place(setup, dataset.x_train, dataset.y_train, parts)
    inputs = inputs_of(algorithm, setup.task, mixed, noise)
    check_rule_kinds(algorithm)
    # raises if sizes or parameters do not fit
    keys = created(inputs, jax.random.key(0))
    jax.eval_shape(partial(begin_run, setup), inputs, keys, clients)
    check_rules(algorithm, jax.eval_shape(task.init, jax.random.key(0)))
    test = jnp.asarray(dataset.x_test), jnp.asarray(dataset.y_test)
    inputs, test = _placed(setup, (inputs, test))
    return Simulation(
        runner=RUNNER,
        setup=setup,
        inputs=inputs,
        clients=clients,
        test=test,
        programs=_programs(setup),
        links=links,
        guarantee=guarantee,
    )


def _programs(setup: GossipSetup) -> Programs:
    def begin(inputs, keys, clients):
        state = begin_run(setup, inputs, keys, clients)
        return state, jnp.ones(setup.agents, bool)

    def rounds(inputs, state, clients, count):
        return run_rounds(setup, inputs, state, clients, count)

    replicated, where, _ = _shardings(setup)
    return Programs(
        create=created,
        begin=jax.jit(begin, out_shardings=(where, replicated)),
        rounds=jax.jit(rounds, donate_argnums=1, out_shardings=(where, replicated)),
        score=jax.jit(score_mean),
    )


def _shardings(setup: GossipSetup) -> tuple[Any, Any, Any]:
    """Shardings of inputs, states and clients, None on JAX's default device."""
    sharded, replicated = gossip_engine.placements(setup.devices)
    state = State(gossip_engine.State(replicated, sharded), replicated)
    return replicated, state, replicated


def _placed(setup: GossipSetup, arrays: Any) -> Any:
    _, replicated = gossip_engine.placements(setup.devices)
    return arrays if replicated is None else jax.device_put(arrays, replicated)


def _mix(setup: GossipSetup, weights: Any) -> tuple[Mixer, float]:
    """The mixer, and the mean number of links that an iteration uses."""
    check_mixing(weights)
    matrices = np.atleast_3d(np.asarray(weights, float).T).T  # [T, m, m]
    if matrices.shape[1] != setup.agents:
        raise ValueError(
            f"the weights are for {matrices.shape[1]} agents, but there are "
            f"{setup.agents}"
        )
    off_diagonal = ~np.eye(setup.agents, dtype=bool)
    links = float((matrices[:, off_diagonal] != 0).sum(1).mean())
    return _placed(setup, setup.mixing(weights)), links


def _place(setup: GossipSetup, x: Any, y: Any, parts: Sequence[np.ndarray]) -> Clients:
    if len(parts) != setup.agents:
        raise ValueError(f"there are {setup.agents} agents, got {len(parts)} parts")
    if setup.privacy is not None:
        check_distinct(parts)
    clients = clients_of(x, y, parts)
    least = min(map(len, parts))
    sizes = {"batch_size": setup.batch_size, "first_size": setup.first_size}
    for name, size in sizes.items():
        check_count(name, size, 1, least, limit="the examples of the smallest agent")
    return _placed(setup, clients)


def _evaluate(simulation: Simulation, state: State) -> Evaluation:
    task = simulation.inputs.task
    return simulation.programs.score(
        task, state.params, simulation.clients, simulation.test
    )


def _traffic(simulation: Simulation) -> tuple[Traffic, Traffic]:
    """Bytes over all links at t = 0, and at a later t."""
    setup, clients = simulation.setup, simulation.clients
    objective = objective_of(setup.task, clients)
    params = jax.eval_shape(setup.task.init, jax.random.key(0))
    batch = lambda first: jax.eval_shape(
        partial(one_batch, setup, clients, first, 0), jnp.int32(0), jax.random.key(0)
    )
    sent = gossip_engine.traffic(
        setup.algorithm, objective, params, batch(True), batch(False)
    )
    first, later = simulation.links * sent.first, simulation.links * sent.later
    return Traffic(first, first), Traffic(later, later)


def _calibrate(
    setup: GossipSetup, privacy: AgentPrivacy | None, sizes: Sequence[int]
) -> tuple[GossipSetup, Guarantee, dict[str, Any]]:
    """The setup with other noise, its guarantee, and the noise as a hyperparameter."""
    old = setup.privacy
    privacy = privacy or old
    assert privacy is not None  # the simulation is private
    noise = ("rounds", "delta", "epsilon", "noise_scale", "insecure_fixed_noise")
    free = {name: getattr(privacy, name) for name in (*noise, PUBLISHED)}
    if old is None or dataclasses.replace(old, **free) != privacy:
        raise ValueError(
            "a simulation can vary the rounds and the noise of its privacy only; make "
            "another simulation with decentralize"
        )
    guarantee, scale = privacy.calibrated(sizes)
    return setup._replace(privacy=privacy), guarantee, {"noise_scale": scale}


RUNNER = Runner(
    place=_place,
    evaluate=_evaluate,
    traffic=_traffic,
    programs=_programs,
    shardings=lambda setup, clients: _shardings(setup),
    mix=_mix,
    calibrate=_calibrate,
)
PUBLISHED = "publish_training_metrics"

"""Decentralized training of a task on divided data, without a server.

    simulation = decentralize(algorithm, task, dataset, parts, weights=W, batch_size=20)
    state = simulation.init(jax.random.key(0))
    state, history = training.run(simulation, state, rounds=1000)

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

from fedjax_muon.core import Objective, Params, check_count, streams, tree, with_numbers
from fedjax_muon.core.hyperparameters import plain_numbers
from fedjax_muon.core.variables import refuse_statistics
from fedjax_muon.data import Dataset
from fedjax_muon.decentralized import engine as gossip_engine
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.mixing import Mixer, dense
from fedjax_muon.decentralized.private import PrivateAgents, private
from fedjax_muon.decentralized.private_methods import ExamplePrivacy
from fedjax_muon.decentralized.topology import check_mixing
from fedjax_muon.engine.programs import promoting
from fedjax_muon.engine.round import Traffic
from fedjax_muon.privacy.guarantees import check_left_out
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
    on_device,
)
from fedjax_muon.simulation.batching import (
    Clients,
    Partition,
    Sampler,
    always,
    clients_of,
    draw_rows,
    objective_of,
    shuffled_epochs,
)
from fedjax_muon.simulation.evaluation import ClientTests, Evaluation, evaluate
from fedjax_muon.simulation.meter import Meter
from fedjax_muon.simulation.program import (
    Data,
    Program,
    Run,
    clients as clients_of_run,
    compiled,
    numbers,
)
from fedjax_muon.simulation.rounds import Metrics
from fedjax_muon.simulation.simulation import Simulation, checked
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
    privacy: ExamplePrivacy | None = None

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Raises `ValueError` if an agent has fewer examples than a batch."""
        batches = {"batch_size": self.batch_size, "first_size": self.first_size}
        limit = "the examples of the smallest agent"
        for name, size in batches.items():
            check_count(name, size, 1, min(sizes), limit=limit)


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
    setup: GossipSetup, data: Data, run: Run
) -> tuple[gossip_engine.Start, gossip_engine.Step]:
    """Makes `start` and `step` of `engine.make` for the algorithm."""

    def build(shared: tuple[Data, Run]) -> tuple[Gossip, Objective, Mixer]:
        data, run = shared
        algorithm = with_numbers(setup.algorithm, run.numbers)
        return algorithm, objective_of(data.task, clients_of_run(data, run)), run.mixer

    return gossip_engine.make_from(build, (data, run), setup.agents, setup.devices)


def keys_of(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Derives the keys of batches, and of agents' iterations, from that of a run."""
    fold = partial(jax.random.fold_in, key)
    return fold(streams.BATCHES), fold(streams.ITERATIONS)


def created(
    data: Data,
    run: Run,
    key: jax.Array,
    run_key: jax.Array | None = None,
    params: Params | None = None,
) -> Any:
    """Makes what `begin_run` starts from: the key of the initial parameters, or these,
    and the key of the run."""
    del data, run
    init_key, rest = jax.random.split(key)
    start = init_key if params is None else params
    return start, rest if run_key is None else run_key


def begin_run(
    setup: GossipSetup, data: Data, run: Run, created: tuple[Any, jax.Array]
) -> tuple[State, jax.Array]:
    """Runs iteration 0; see `created`."""
    params, key = created
    if _is_key(params):
        params = data.task.init(params)
    batch_key, agent_key = keys_of(key)
    start, _ = step_functions(setup, data, run)
    drawn = batches(setup, clients_of_run(data, run), True, batch_key, 0)
    state = State(start(params, drawn, agent_key), key)
    return state, jnp.ones(setup.agents, bool)


def _is_key(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def run_rounds(
    setup: GossipSetup, data: Data, run: Run, state: State, count: jax.Array
) -> tuple[State, Metrics]:
    """Runs `count` iterations, a number that may be traced."""
    batch_key, agent_key = keys_of(state.key if run.key is None else run.key)
    _, step = step_functions(setup, data, run)
    clients = clients_of_run(data, run)

    def body(_: Any, carry: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
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


def score_mean(
    data: Data, partition: Partition, client_tests: ClientTests | None, params: Params
) -> Evaluation:
    """Evaluates the agents' mean parameters.

    "consensus" is the root of the mean over agents of ||x_i - mean x||^2.
    """
    del client_tests  # agents have none
    mean = jax.tree.map(lambda x: x.mean(0), params)
    distance = lambda x: optax.tree.norm(tree.sub(x, mean), squared=True)
    consensus = jnp.sqrt(jax.vmap(distance)(params).mean())
    clients = Clients(data.x, data.y, partition)
    tests = data.test, None, data.validation
    return {**evaluate(data.task, mean, clients, *tests), "consensus": consensus}


@promoting
@plain_numbers
def decentralize(
    algorithm: Gossip | PrivateAgents,
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
    privacy: ExamplePrivacy | None = None,
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
        from `decentralized`.
      devices: Devices that the agents are divided among, in order and in equal parts;
        by default, JAX's default device. Every device has all examples.
      privacy: What a private method, such as `decentralized.dpmixsgd()`, promises. It
        decides `first_size` and `sampler`, which must be left out. The guarantee is the
        simulation's `guarantee`.

    Example:
      >>> topology = fm.topology
      >>> weights = topology.metropolis(topology.ring(4))
      >>> method = fm.decentralized.dsgd(lr=0.1)
      >>> agents = fm.decentralize(
      ...     method, task, digits, clients, weights=weights, batch_size=8
      ... )
    """
    check_algorithm(algorithm, Gossip | PrivateAgents, "federate")
    check_task(task)
    params = jax.eval_shape(task.init, jax.random.key(0))
    refuse_statistics(params, "agents without a server, who mix parameters alone")
    dataset, parts = check_dataset(dataset), check_parts(parts)
    if batch_size is None:
        raise TypeError("decentralize needs batch_size, such as batch_size=20")
    guarantee, noise = None, {}
    if isinstance(algorithm, PrivateAgents):
        if privacy is None:
            raise ValueError(
                f"{algorithm!r} is a private method; give it privacy, an ExamplePrivacy"
            )
        check_left_out({"first_size": first_size, "sampler": sampler})
        sizes = [*map(len, parts)]
        bound = privacy.bound(algorithm, batch_size, min(sizes))
        guarantee, scale = bound.calibrated(sizes)
        noise, sampler = {"noise_scale": scale}, bound.sampler
        algorithm = private(algorithm, bound.mechanism, 1.0)
    elif privacy is not None:
        recipe = algorithm.recipe
        name = recipe.function.__name__ if recipe else "an algorithm without a recipe"
        raise ValueError(
            f"privacy is for private methods, such as decentralized.dp_sgda(), and "
            f"those that decentralized.PrivateAgents makes, got {name}"
        )
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
    if privacy is not None:
        check_distinct(parts)
    setup.check_sizes(list(map(len, parts)))
    mixed, links = _mix(setup, weights)
    clients = clients_of(dataset.x_train, dataset.y_train, parts)
    test = on_device(dataset.x_test), on_device(dataset.y_test)
    data = Data(setup.task, clients.x, clients.y, test)
    run = Run(numbers(algorithm, **noise), clients.partition, mixer=mixed)
    check_rule_kinds(algorithm)
    program = program_of(setup)
    # raises if sizes or parameters do not fit
    keys = created(data, run, jax.random.key(0))
    jax.eval_shape(program.begin, data, run, keys)
    check_rules(algorithm, jax.eval_shape(task.init, jax.random.key(0)))
    if program.shardings is not None:
        data = jax.device_put(data, program.shardings[0])
    run = program.placed(run)
    known: Any = {"links": links, "private": guarantee is not None}
    meter = Meter.of(program, data, run, **known)
    return checked(Simulation(program, compiled(program), data, run, meter, guarantee))


def program_of(setup: GossipSetup) -> Program:
    """Makes the functions of a decentralized simulation."""
    sharded, everywhere = gossip_engine.placements(setup.devices)
    states = State(gossip_engine.State(everywhere, sharded), everywhere)
    return Program(
        settings=setup,
        create=created,
        begin=partial(begin_run, setup),
        rounds=partial(run_rounds, setup),
        score=score_mean,
        traffic=partial(_traffic, setup),
        donates=False,
        shardings=(everywhere, everywhere, states) if setup.devices else None,
        mix=partial(_mix, setup),
    )


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
    return setup.mixing(weights), links


def _traffic(setup: GossipSetup, data: Data, run: Run) -> tuple[Traffic, Traffic]:
    """Bytes over one link at t = 0, and at a later t."""
    clients = clients_of_run(data, run)
    objective = objective_of(setup.task, clients)
    params = jax.eval_shape(setup.task.init, jax.random.key(0))
    batch = lambda first: jax.eval_shape(
        partial(one_batch, setup, clients, first, 0), jnp.int32(0), jax.random.key(0)
    )
    sent = gossip_engine.traffic(
        setup.algorithm, objective, params, batch(True), batch(False)
    )
    return Traffic(sent.first, sent.first), Traffic(sent.later, sent.later)

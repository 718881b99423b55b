"""Federated training of a task on divided data: compiled once, all on the device.

    simulation = federate(algorithm, task, dataset, parts, cohort_size=8, ...)
    state = simulation.init(jax.random.key(0))
    state, metrics = simulation.train_round(state)

`training.train` goes on from here to the end.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon import engine
from fedjax_muon.core import Algorithm
from fedjax_muon.data import Dataset
from fedjax_muon.engine import plans
from fedjax_muon.engine.plans import Plan
from fedjax_muon.engine.sharding import (
    REPLICATED,
    SHARDED,
    Devices,
    across,
    placed,
    replicated,
    sharded,
    shardings,
)
from fedjax_muon.simulation.batching import (
    Clients,
    Sampler,
    clients_of,
    max_client_size_of,
    shuffled_epochs,
)
from fedjax_muon.simulation.cohorts import Cohorts, fixed_cohort
from fedjax_muon.simulation.evaluation import Evaluation, evaluate
from fedjax_muon.simulation.rounds import (
    Setup,
    State,
    Weighting,
    init_state,
    objective_and_sampler,
    of_inputs,
    run_prologue,
    run_rounds,
)
from fedjax_muon.simulation.rule_check import check_rules
from fedjax_muon.simulation.simulation import (
    Programs,
    Runner,
    Simulation,
    inputs_of,
)
from fedjax_muon.tasks.classification import Task, as_argument


def uniform(sizes: jax.Array) -> jax.Array:
    """Every client counts the same, as in the papers."""
    return jnp.ones(sizes.shape, jnp.float32)


def by_examples(sizes: jax.Array) -> jax.Array:
    """Every client counts as many times as it has examples, as in FedAvg's paper."""
    return sizes.astype(jnp.float32)


def federate(
    algorithm: Algorithm,
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

    `memory_check.check_memory` says whether it will fit into memory, or which plan
    would.

    Args:
      algorithm: What is run, such as `fedavg(lr=0.1)`.
      task: What is trained: a model and its loss.
      dataset: Training and test examples.
      parts: For every client, the ids of its training examples.
      cohort_size: S, how many clients are sampled each round, without replacement;
        with `poisson_cohorts`, how many are expected.
      local_steps: K, how many batches each of them works through.
      batch_size: Examples in a batch.
      plan: How a cohort is executed; by default, the plan that was measured to be
        fastest on this backend.
      sampler: How a client's batches are drawn from its examples.
      weighting: Function of the clients' sizes that returns their weights in the mean.
      dropout: Probability in [0, 1) that a sampled client does not answer.
      cohorts: How clients are sampled, `fixed_cohort` or `poisson_cohorts(room)`.
      devices: Devices that a cohort and the states of all clients are divided among;
        `plan` is how each executes its part. By default, JAX's default device. With
        several processes, pass `jax.devices()` after `jax.distributed.initialize`;
        all processes must then make the same calls.
      split_examples: Whether the examples are divided among the devices too, instead
        of copied to each. Batches then travel to the device that runs a client, before
        its local training.

    Returns:
      A simulation; its programs are compiled when they are first used.

    Raises:
      ValueError: If a size is out of range, a client has no examples, or the algorithm
        refuses the sizes, the weights or the parameters.

    Example:
      >>> simulation = federate(
      ...     fedavg(lr=0.1),
      ...     task,
      ...     digits,
      ...     clients,
      ...     cohort_size=2,
      ...     local_steps=5,
      ...     batch_size=32,
      ... )
    """
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
    clients = _place(setup, dataset.x_train, dataset.y_train, parts)
    _check(setup)
    test = jnp.asarray(dataset.x_test), jnp.asarray(dataset.y_test)
    if devices:
        test = replicated(test, devices)
        setup = setup._replace(task=replicated(setup.task, devices))
    return Simulation(
        runner=RUNNER,
        setup=setup,
        inputs=inputs_of(algorithm, setup.task),
        clients=clients,
        test=test,
        programs=_programs(setup),
        max_client_size=max_client_size_of(parts),
    )


def with_plan(simulation: Simulation, plan: Plan) -> Simulation:
    """The same federated simulation by another plan; programs are compiled anew."""
    plan = sharded(plan) if simulation.setup.devices else plan
    setup = simulation.setup._replace(plan=plan)
    return dataclasses.replace(simulation, setup=setup, programs=_programs(setup))


def _programs(setup: Setup) -> Programs:
    def begin(inputs, state, clients, max_client_size):
        run = of_inputs(partial(run_prologue, max_client_size=max_client_size), setup)
        return _spread(setup, run)(inputs, state, clients)

    def rounds(inputs, state, clients, count, max_client_size):
        run = of_inputs(partial(run_rounds, max_client_size=max_client_size), setup)
        return _spread(setup, run, REPLICATED)(inputs, state, clients, count)

    return Programs(
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
    algorithm = setup.algorithm
    state = jax.eval_shape(partial(init_state, setup), jax.random.key(0))  # may refuse
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
    draw = lambda key: setup.cohorts(key, *sizes)
    jax.eval_shape(draw, jax.random.key(0))  # may refuse the sizes
    if algorithm.uniform_weights and setup.weighting is not uniform:
        raise ValueError(
            "this algorithm has control variates, whose mean only uniform weights "
            "keep, or bounds every client's part; use weighting=uniform"
        )


STATE = State(
    engine.State(REPLICATED, REPLICATED, SHARDED), REPLICATED
)  # what lies where


def client_specs(setup: Setup) -> Clients:
    return Clients(SHARDED if setup.split_examples else REPLICATED, *[REPLICATED] * 5)


def _place(setup: Setup, x, y, parts: Sequence[np.ndarray]) -> Clients:
    """The clients' examples, on all devices if there are several."""
    clients = clients_of(x, y, parts)
    if not setup.devices:
        return clients
    if setup.split_examples:
        missing = -len(clients.x) % len(setup.devices)
        last = jnp.repeat(clients.x[-1:], missing, 0)  # never drawn
        clients = clients._replace(x=jnp.concatenate([clients.x, last]))
    return placed(clients, setup.devices, client_specs(setup))


def _mix(setup: Setup, weights: np.ndarray):
    raise ValueError("a simulation with a server has no mixing weights")


def _evaluate(simulation: Simulation, state: State) -> Evaluation:
    """Scores the server's parameters."""
    setup = simulation.setup
    given = simulation.inputs.task, state.params, simulation.clients, simulation.test
    if setup.devices and not setup.split_examples:
        # on one device, which has all of it, rather than the same on every one
        given = jax.tree.map(lambda x: x.addressable_data(0), given)
    return simulation.programs.score(*given)


def _traffic(simulation: Simulation) -> tuple[engine.Traffic, engine.Traffic]:
    """Of all clients before round 0, and of the sampled ones in a round."""
    setup = simulation.setup._replace(split_examples=False)
    objective, draw = objective_and_sampler(
        setup, simulation.clients, setup.local_steps, simulation.max_client_size
    )
    algorithm = setup.algorithm
    params = jax.eval_shape(setup.task.init, jax.random.key(0))
    batches = jax.eval_shape(draw, jnp.int32(0), jax.random.key(0))

    def total(exchanges, clients: int) -> engine.Traffic:
        one = engine.traffic(exchanges, algorithm, objective, params, batches)
        return engine.Traffic(clients * one.down, clients * one.up)

    return (
        total(algorithm.prologue, setup.num_clients),
        total(algorithm.exchanges, setup.cohort_size),
    )


RUNNER = Runner(_place, _mix, _evaluate, _traffic)


def _spread(setup: Setup, run: Callable, *more):
    """`run(inputs, state, clients, ...) -> (state, ...)`, on all devices together."""
    if not setup.devices:
        return run
    given = (REPLICATED, STATE, client_specs(setup), *more)
    return across(setup.devices, run, given, (STATE, REPLICATED))


def _create(setup: Setup, key: jax.Array) -> State:
    """The state before the prologue, made where it is to lie."""
    if not setup.devices:
        return init_state(setup, key)
    where = shardings(setup.devices, STATE)
    return jax.jit(of_inputs(init_state, setup), out_shardings=where)(
        inputs_of(setup.algorithm, setup.task), key
    )

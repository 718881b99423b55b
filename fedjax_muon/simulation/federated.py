"""Federated training of a task on divided data, compiled once for the device.

    simulation = federate(algorithm, task, dataset, parts, cohort_size=8, ...)
    state = simulation.init(jax.random.key(0))
    state, metrics = simulation.train_round(state)

`training.train` then runs and evaluates the other rounds.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon import engine
from fedjax_muon.clocks import Clock
from fedjax_muon.core import Algorithm, Exchange, Params, check_count
from fedjax_muon.data import Dataset
from fedjax_muon.engine import plans
from fedjax_muon.engine.plans import Plan
from fedjax_muon.engine.programs import promoting
from fedjax_muon.engine.sharding import (
    REPLICATED,
    SHARDED,
    Devices,
    across,
    placed,
    replicated,
    shardings,
)
from fedjax_muon.privacy.client_privacy import ClientPrivacy
from fedjax_muon.privacy.guarantees import check_left_out
from fedjax_muon.simulation import own_accuracy
from fedjax_muon.simulation.arguments import (
    Parts,
    check_algorithm,
    check_dataset,
    check_functions,
    check_parts,
    check_task,
)
from fedjax_muon.simulation.arrivals import Arrivals, size_of
from fedjax_muon.simulation.batching import (
    Clients,
    Sampler,
    clients_of,
    shuffled_epochs,
)
from fedjax_muon.simulation.evaluation import Evaluation, evaluate, own_tests_of
from fedjax_muon.simulation.participation import (
    Cohorts,
    Epochs,
    participation,
    uniform,
    work_of,
)
from fedjax_muon.simulation.rounds import (
    Inputs,
    Metrics,
    Setup,
    State,
    Weighting,
    check_setup,
    cohort_loss,
    drawn_cohort,
    init_state,
    objective_and_sampler,
    run_prologue,
    run_rounds,
    with_inputs,
)
from fedjax_muon.simulation.simulation import Programs, Runner, Simulation, inputs_of
from fedjax_muon.simulation.timing import away_of, blank_inputs, on_time, timed
from fedjax_muon.tasks.task import Task, as_argument


@promoting
def federate(
    algorithm: Algorithm,
    task: Task,
    dataset: Dataset,
    parts: Parts,
    *,
    cohort_size: int | None = None,
    local_steps: int | Sequence[int] | None = None,
    local_epochs: Epochs | None = None,
    batch_size: int,
    plan: Plan | None = None,
    sampler: Sampler = shuffled_epochs,
    weighting: Weighting = uniform,
    dropout: float = 0.0,
    cohorts: Cohorts | None = None,
    devices: Devices = (),
    split_examples: bool = False,
    privacy: ClientPrivacy | None = None,
    test_parts: Sequence[np.ndarray] | None = None,
    clock: Clock | None = None,
    deadline: float | None = None,
    arrivals: Arrivals | None = None,
) -> Simulation:
    """Prepares federated training; programs are compiled when they are first used.

    `memory.check_memory` tells whether it fits in memory.

    Args:
      algorithm: The algorithm to run, such as `fedavg(lr=0.1)`.
      task: A model and its loss.
      dataset: Training and test examples.
      parts: For every client, the ids of its training examples: a list of them, or a
        dictionary {client: ids}.
      cohort_size: S, the number of clients in a round, sampled without replacement;
        with `poisson_cohorts`, the expected number.
      local_steps: K, the number of batches that each of them trains on; or a number for
        every client, in the order of their ids.
      local_epochs: Instead of `local_steps`: E, for floor(E n / batch_size) local steps
        of a client with n examples, at least 1; or (low, high), from which E is drawn
        for each client and round.
      batch_size: Examples in a batch.
      plan: Execution plan for a cohort; by default, the plan that was measured to be
        fastest on this backend.
      sampler: Function that draws a client's batches from its examples.
      weighting: Function of the clients' sizes that returns their weights in the mean.
      dropout: Probability in [0, 1) that a sampled client drops out, independently.
      cohorts: Sampling of clients, `poisson_cohorts(room)` or, by default,
        `fixed_cohort`.
      devices: Devices that a cohort and the states of all clients are divided among;
        each executes its part by `plan`. By default, JAX's default device. With
        several processes, pass `jax.devices()` after `jax.distributed.initialize`;
        all processes must then make the same calls.
      split_examples: Whether the examples are divided among the devices too, instead
        of copied to each. Batches are then sent to the device that runs a client before
        its local training.
      privacy: Makes the run private. It decides `cohort_size` and `cohorts`, which must
        be left out, and clips and noises what clients send. The guarantee is the
        simulation's `guarantee`.
      test_parts: For every client, the ids of its test examples, possibly none, such as
        `data.client_tests.like(parts, ...)`. Evaluations then describe the clients'
        accuracies on them.
      clock: Speeds of the clients, such as `fm.clocks.lognormal(1.0, key=key)`. Records
        then have `virtual_seconds`: a round lasts as long as its slowest member.
      deadline: Seconds of the clock after which a synchronous round ends. Members that
        are slower take no part; the server waits for them until the deadline.
      arrivals: Makes the rounds asynchronous, such as `fm.buffered(50, 10)`: a round is
        a step of the server. It decides `cohort_size`, which must be left out. A
        client's job is lost with the probability `dropout`; then it is free again.
        `fm.replayed` repeats the order of a deployed run.

    Raises:
      ImportError: If a private run is asked for, and dp-accounting is not installed.
    """
    check_algorithm(algorithm, Algorithm, "decentralize")
    check_task(task)
    dataset, parts = check_dataset(dataset), check_parts(parts)
    plan = plan or plans.default_plan()
    if privacy is not None:
        check_left_out({"dropout": dropout or None})
    clock = timed(clock, deadline, arrivals, privacy, local_epochs)
    cohort_size = size_of(arrivals, cohort_size, cohorts)
    algorithm, cohort_size, cohorts, guarantee = participation(
        algorithm, task, len(parts), cohort_size, cohorts, privacy
    )
    work = work_of(local_steps, local_epochs, len(parts))
    if privacy is not None and work.steps is not None:
        raise ValueError(
            "privacy does not cover clients that take different numbers of local "
            "steps, whose mean depends on who takes part; give one local_steps"
        )
    for name, size in {"cohort_size": cohort_size, "batch_size": batch_size}.items():
        check_count(name, size)
    functions = {"plan": plan, "sampler": sampler, "weighting": weighting}
    check_functions({**functions, "cohorts": cohorts})
    setup = Setup(
        algorithm=algorithm,
        task=as_argument(task),
        num_clients=len(parts),
        cohort_size=cohort_size,
        work=work,
        batch_size=batch_size,
        plan=plan,
        sampler=sampler,
        weighting=weighting,
        dropout=dropout,
        cohorts=cohorts,
        devices=tuple(devices),
        split_examples=split_examples,
        privacy=privacy,
        clock=clock,
        deadline=deadline,
        arrivals=arrivals,
    )
    clients = _place(setup, dataset.x_train, dataset.y_train, parts)
    check_setup(setup)
    test = jnp.asarray(dataset.x_test), jnp.asarray(dataset.y_test)
    own_tests = None
    if test_parts is not None:
        own_tests = own_tests_of(test_parts, len(parts), len(dataset.x_test))
    if devices:
        test, own_tests = replicated((test, own_tests), devices)
        setup = setup._replace(task=replicated(setup.task, devices))
    simulation = Simulation(
        runner=RUNNER,
        setup=setup,
        inputs=inputs_of(algorithm, setup.task)._replace(timing=blank_inputs(setup)),
        clients=clients,
        test=test,
        programs=_programs(setup),
        guarantee=guarantee,
        own_tests=own_tests,
    )
    if clock is not None:
        on_time(setup, simulation.durations)  # these may raise
        away_of(setup)
    return simulation


def with_plan(simulation: Simulation, plan: Plan) -> Simulation:
    """Changes the plan of a federated simulation, whose programs are compiled again."""
    setup = simulation.setup._replace(plan=plan)
    return dataclasses.replace(simulation, setup=setup, programs=_programs(setup))


def with_task(simulation: Simulation, task: Task) -> Simulation:
    """Changes the task of a federated simulation, whose programs are compiled again.

    Examples and clients stay as they are; nothing is copied.

    Args:
      task: A task for the same examples, such as one whose model computes in bfloat16.
    """
    check_task(task)
    setup = simulation.setup
    held = as_argument(task)
    setup = setup._replace(
        task=replicated(held, setup.devices) if setup.devices else held
    )
    check_setup(setup)
    inputs = simulation.inputs._replace(task=setup.task)
    return dataclasses.replace(
        simulation, setup=setup, inputs=inputs, programs=_programs(setup)
    )


def _programs(setup: Setup) -> Programs:
    def begin(
        inputs: Inputs, state: State, clients: Clients
    ) -> tuple[State, jax.Array]:
        run = _on_devices(setup, with_inputs(run_prologue, setup), clients)
        return run(inputs, state, clients)

    def rounds(
        inputs: Inputs, state: State, clients: Clients, count: int
    ) -> tuple[State, Metrics]:
        run = _on_devices(setup, with_inputs(run_rounds, setup), clients, REPLICATED)
        if inputs.run_key is not None:
            state = state._replace(key=inputs.run_key)
        return run(inputs, state, clients, count)

    def loss(inputs: Inputs, state: State, clients: Clients) -> jax.Array:
        run = with_inputs(cohort_loss, setup)
        if setup.devices:
            specs = (REPLICATED, STATE, client_specs(setup, clients))
            run = across(setup.devices, run, specs, REPLICATED)
        return run(inputs, state, clients)

    return Programs(
        create=partial(_create, setup),
        begin=jax.jit(begin, donate_argnums=1),
        rounds=jax.jit(rounds, donate_argnums=1),
        score=jax.jit(evaluate),
        draw=partial(drawn_cohort, setup),
        loss=jax.jit(loss),
        own=own_accuracy.program(setup),
    )


# Specs of a state on several devices, as of `engine.sharding`.
STATE = State(engine.State(REPLICATED, REPLICATED, SHARDED), REPLICATED)


def client_specs(setup: Setup, clients: Clients) -> Clients:
    """The specs of the clients' examples on several devices."""
    specs = jax.tree.map(lambda _: REPLICATED, clients)
    examples = SHARDED if setup.split_examples else REPLICATED
    return dataclasses.replace(specs, x=examples)


def _place(setup: Setup, x: Any, y: Any, parts: Sequence[np.ndarray]) -> Clients:
    """Puts the clients' examples on the devices."""
    clients = clients_of(x, y, parts)
    if not setup.devices:
        return clients
    if setup.split_examples:
        missing = -len(clients.x) % len(setup.devices)
        last = jnp.repeat(clients.x[-1:], missing, 0)  # never drawn
        x = jnp.concatenate([clients.x, last])
        clients = dataclasses.replace(clients, x=x)
    return placed(clients, setup.devices, client_specs(setup, clients))


def _evaluate(simulation: Simulation, state: State) -> Evaluation:
    """Scores the server's parameters."""
    setup = simulation.setup
    arguments: tuple[Any, ...] = (simulation.inputs.task, state.params)
    arguments += (simulation.clients, simulation.test, simulation.own_tests)
    if setup.devices and not setup.split_examples:
        # On one device, since every device has the same arrays.
        arguments = jax.tree.map(lambda x: x.addressable_data(0), arguments)
    scores = simulation.programs.score(*arguments)
    return scores | own_accuracy.metrics(simulation, state)


def _traffic(simulation: Simulation) -> tuple[engine.Traffic, engine.Traffic]:
    """Counts the bytes of all clients before round 0, and of a cohort in a round."""
    setup = simulation.setup._replace(split_examples=False)
    objective, draw = objective_and_sampler(setup, simulation.clients)
    algorithm = setup.algorithm
    params = jax.eval_shape(setup.task.init, jax.random.key(0))
    batches = jax.eval_shape(draw, jnp.int32(0), jax.random.key(0))

    def total(exchanges: Sequence[Exchange], clients: int) -> engine.Traffic:
        one = engine.traffic(exchanges, algorithm, objective, params, batches)
        return engine.Traffic(clients * one.down, clients * one.up)

    return (
        total(algorithm.prologue, setup.num_clients),
        total(algorithm.exchanges, setup.cohort_size),
    )


RUNNER = Runner(
    place=_place,
    evaluate=_evaluate,
    traffic=_traffic,
    programs=_programs,
    shardings=lambda setup, clients: shardings(
        setup.devices, (REPLICATED, STATE, client_specs(setup, clients))
    ),
)


def _on_devices(
    setup: Setup, run: Callable[..., Any], clients: Clients, *more_specs: Any
) -> Callable[..., Any]:
    """Runs `run(inputs, state, clients, ...) -> (state, ...)` on all devices."""
    if not setup.devices:
        return run
    specs = (REPLICATED, STATE, client_specs(setup, clients), *more_specs)
    return across(setup.devices, run, specs, (STATE, REPLICATED))


def _create(
    setup: Setup,
    inputs: Inputs,
    key: jax.Array,
    run_key: jax.Array | None = None,
    params: Params | None = None,
) -> State:
    """Makes the state before the prologue on its devices."""
    create = with_inputs(init_state, setup)
    if not setup.devices:
        return create(inputs, key, run_key, params)
    where = shardings(setup.devices, STATE)
    return jax.jit(create, out_shardings=where)(
        inputs_of(setup.algorithm, setup.task), key, run_key, params
    )

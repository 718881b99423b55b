"""Federated training of a task on divided data, compiled once for the device.

    simulation = federate(algorithm, task, dataset, parts, cohort=8, ...)
    state = simulation.init(jax.random.key(0))
    state, metrics = simulation.train_round(state)

`training.run` then runs and evaluates the other rounds.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon import engine
from fedjax_muon.core import Algorithm, Exchange, Params, check_count
from fedjax_muon.core.hyperparameters import plain_numbers
from fedjax_muon.data import Dataset
from fedjax_muon.data.dataset import OnDisk
from fedjax_muon.engine import Traffic, plans
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
from fedjax_muon.simulation.arguments import (
    Parts,
    check_algorithm,
    check_dataset,
    check_functions,
    check_parts,
    check_task,
    on_device,
)
from fedjax_muon.simulation.arrivals import Buffered
from fedjax_muon.simulation.batching import (
    Clients,
    Partition,
    Sampler,
    clients_of,
    partition_of,
    shuffled_epochs,
)
from fedjax_muon.simulation.cohorts import Cohort, needs_key
from fedjax_muon.simulation.evaluation import (
    ClientTests,
    Evaluation,
    client_tests_of,
    evaluate,
)
from fedjax_muon.simulation.meter import Meter
from fedjax_muon.simulation.participation import (
    Epochs,
    participation,
    uniform,
    work_of,
)
from fedjax_muon.simulation.program import (
    Data,
    Program,
    Run,
    clients as clients_of_run,
    compiled,
    numbers,
)
from fedjax_muon.simulation.reading import FromDisk
from fedjax_muon.simulation.rounds import (
    Metrics,
    Setup,
    State,
    Weighting,
    check_setup,
    cohort_loss,
    drawn,
    init_state,
    objective_and_sampler,
    run_prologue,
    run_rounds,
    traced,
)
from fedjax_muon.simulation.simulation import Simulation, checked
from fedjax_muon.tasks.task import Task, as_argument


@promoting
@plain_numbers
def federate(
    algorithm: Algorithm,
    task: Task,
    dataset: Dataset,
    parts: Parts,
    *,
    cohort: int | Cohort | None = None,
    local_steps: int | Sequence[int] | None = None,
    local_epochs: Epochs | None = None,
    batch_size: int,
    plan: Plan | None = None,
    sampler: Sampler = shuffled_epochs,
    weighting: Weighting = uniform,
    devices: Devices = (),
    split_examples: bool = False,
    privacy: ClientPrivacy | None = None,
    own_norms: bool = False,
    test_parts: Sequence[np.ndarray] | None = None,
) -> Simulation:
    """Prepares federated training; programs are compiled when they are first used.

    `memory.check_memory` tells whether it fits in memory.

    Args:
      algorithm: The algorithm to run, such as `fedavg(lr=0.1)`.
      task: A model and its loss.
      dataset: Training and test examples.
      parts: For every client, the ids of its training examples: a list of them, or a
        dictionary {client: ids}.
      cohort: Who takes part in a round: S, a number of clients that are sampled without
        replacement; or `sampled`, `poisson`, `timed` with a clock, or, for asynchronous
        rounds, `buffered`, `fedasync` or `replayed`.
      local_steps: K, the number of batches that a client trains on in a round; or a
        number for every client, in the order of their ids.
      local_epochs: Instead of `local_steps`: E, for floor(E n / batch_size) local steps
        of a client with n examples, at least 1; or (low, high), from which E is drawn
        for each client and round.
      batch_size: Examples in a batch.
      plan: Execution plan for a cohort; by default `mapped` on CPUs and `vmapped` on
        accelerators. `fm.tune` measures them.
      sampler: Function that draws a client's batches from its examples.
      weighting: Function of the clients' sizes that returns their weights in the mean.
      devices: Devices that a cohort and the states of all clients are divided among;
        each executes its part by `plan`. By default, JAX's default device. With
        several processes, pass `jax.devices()` after `jax.distributed.initialize`;
        all processes must then make the same calls.
      split_examples: Whether the examples are divided among the devices too, instead
        of copied to each. Batches are then sent to the device that runs a client before
        its local training.
      privacy: Makes the run private. It decides `cohort`, which must be left out, and
        clips what clients send, and adds noise. The guarantee is the simulation's
        `guarantee`.
      own_norms: Whether clients keep their BatchNorm layers, parameters and running
        statistics, and send none of them, as in FedBN (arXiv:2102.07623). By
        default, the server averages both with the weights of the clients.
      test_parts: For every client, the ids of its test examples, possibly none, such as
        `data.client_tests.like(parts, ...)`. Evaluations then describe the clients'
        accuracies on them.

    Raises:
      ImportError: If a private run is asked for, and dp-accounting is not installed.

    Example:
      >>> sizes = {"cohort": 2, "local_steps": 1, "batch_size": 8}
      >>> simulation = fm.federate(fm.fedmuon(lr=0.01), task, digits, clients, **sizes)
      >>> simulation
      Simulation of fedmuon(lr=0.01, momentum=0.9, synced=True):
        4 clients with 359 to 360 training examples, batches of 8, 360 for testing
    """
    check_algorithm(algorithm, Algorithm, "decentralize")
    check_task(task)
    dataset, parts = check_dataset(dataset), check_parts(parts)
    plan = plan or plans.default_plan()
    algorithm, members, guarantee = participation(
        algorithm, task, len(parts), cohort, privacy, own_norms
    )
    work = work_of(local_steps, local_epochs, len(parts))
    if privacy is not None and work.steps is not None:
        raise ValueError(
            "privacy does not cover clients that take different numbers of local "
            "steps, whose mean depends on who takes part; give one local_steps"
        )
    _check_clock(members, local_epochs)
    check_count("batch_size", batch_size)
    check_functions({"plan": plan, "sampler": sampler, "weighting": weighting})
    setup = Setup(
        algorithm=algorithm,
        task=as_argument(task),
        num_clients=len(parts),
        cohort=members,
        work=work,
        batch_size=batch_size,
        plan=plan,
        sampler=sampler,
        weighting=weighting,
        devices=tuple(devices),
        split_examples=split_examples,
        privacy=privacy,
    )
    x, y = dataset.x_train, dataset.y_train
    source = FromDisk(x, y) if isinstance(x, OnDisk) else None
    if source is None:
        clients = clients_of(x, y, parts)
    else:
        _check_on_disk(setup)
        setup = setup._replace(host_states=_has_states(setup))
        shapes = jnp.zeros((1, *x.shape[1:]), x.dtype), jnp.zeros(1, jnp.int32)
        clients = Clients(*shapes, partition_of(y, parts))
    check_setup(setup)
    test = on_device(dataset.x_test), on_device(dataset.y_test)
    data = Data(setup.task, clients.x, clients.y, test)
    run = Run(numbers(algorithm), clients.partition, timing=members.blank(len(parts)))
    if test_parts is not None:
        tests = client_tests_of(test_parts, len(parts), len(dataset.x_test))
        run = run._replace(client_tests=tests)
    if devices:
        data = _divided(setup, data)
        setup = setup._replace(task=data.task)
    program = program_of(setup)
    run = program.placed(run)
    meter = Meter.of(program, data, run, private=guarantee is not None)
    made = program, compiled(program), data, run, meter, guarantee
    simulation = Simulation(*made, source)
    return checked(simulation)  # may raise


def _check_on_disk(setup: Setup) -> None:
    """Raises `ValueError` for rounds whose examples are not known before them."""
    late = isinstance(setup.cohort, Buffered) and "asynchronous rounds"
    unfit = late or (setup.devices and "devices") or (setup.privacy and "privacy")
    if unfit:
        raise ValueError(
            f"examples that stay on disk do not work with {unfit}; leave it out, or "
            "read them into memory with data.from_npz"
        )


def _has_states(setup: Setup) -> bool:
    """Whether clients keep arrays between rounds that the host can hold."""
    params = jax.eval_shape(setup.task.init, jax.random.key(0))
    leaves = jax.tree.leaves(jax.eval_shape(setup.algorithm.init_client, params))
    is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return bool(leaves) and not any(map(is_key, leaves))


def _check_clock(cohort: Cohort, local_epochs: Epochs | None) -> None:
    """Raises `ValueError` for times that would not be known before a run."""
    if needs_key(cohort.clock):
        raise ValueError(
            "the clock has no key; give it one, such as key=jax.random.key(0)"
        )
    if cohort.clock is None or not isinstance(local_epochs, tuple | list):
        return
    if len({*local_epochs}) > 1:
        raise ValueError(
            f"a clock needs a number of local steps known in advance, got "
            f"local_epochs={tuple(local_epochs)}; give one number"
        )


def program_of(setup: Setup) -> Program:
    """Makes the functions of a federated simulation."""

    def at(data: Data, run: Run) -> tuple[Setup, Clients]:
        given = traced(setup, data.task, run.numbers, run.timing)
        return given, clients_of_run(data, run)

    def here(function: Callable[..., Any], result: Any, *more_specs: Any) -> Any:
        """Runs a function of (data, run, state, ...) on all devices."""
        specs = (data_specs(setup), REPLICATED, STATE, *more_specs)
        devices = setup.devices
        return across(devices, function, specs, result) if devices else function

    def create(
        data: Data, run: Run, key: jax.Array, run_key: Any = None, params: Any = None
    ) -> State:
        def make(task: Task, numbers: Any, *rest: Any) -> State:
            return init_state(traced(setup, task, numbers), *rest)

        if setup.devices:
            where = shardings(setup.devices, STATE)
            make = jax.jit(make, out_shardings=where)
        return make(data.task, run.numbers, key, run_key, params)

    def begin(data: Data, run: Run, state: State) -> tuple[State, jax.Array]:
        given, clients = at(data, run)
        return run_prologue(given, state, clients)

    def rounds(data: Data, run: Run, state: State, count: Any) -> tuple[State, Metrics]:
        given, clients = at(data, run)
        if run.key is not None:
            state = state._replace(key=run.key)
        return run_rounds(given, state, clients, count)

    def loss(data: Data, run: Run, state: State) -> jax.Array:
        given, clients = at(data, run)
        return cohort_loss(given, state, clients)

    def draws(run: Run, key: jax.Array, index: Any) -> tuple[jax.Array, jax.Array]:
        return drawn(setup._replace(timing=run.timing), key, index, run.partition)

    specs = (data_specs(setup), REPLICATED, STATE)
    return Program(
        settings=setup,
        create=create,
        begin=here(begin, (STATE, REPLICATED)),
        rounds=here(rounds, (STATE, REPLICATED), REPLICATED),
        score=score,
        traffic=partial(_traffic, setup),
        shardings=shardings(setup.devices, specs) if setup.devices else None,
        loss=here(loss, REPLICATED),
        drawn=draws,
    )


# Specs of a state on several devices, as of `engine.sharding`.
STATE = State(engine.State(REPLICATED, REPLICATED, SHARDED), REPLICATED)


def data_specs(setup: Setup) -> Data:
    """The specs of the data on several devices."""
    examples = SHARDED if setup.split_examples else REPLICATED
    return Data(REPLICATED, examples, REPLICATED, REPLICATED, REPLICATED)


def _divided(setup: Setup, data: Data) -> Data:
    """Puts the data on the devices."""
    if not setup.split_examples:
        return replicated(data, setup.devices)
    missing = -len(data.x) % len(setup.devices)
    last = jnp.repeat(data.x[-1:], missing, 0)  # never drawn
    data = data._replace(x=jnp.concatenate([data.x, last]))
    return placed(data, setup.devices, data_specs(setup))


def score(
    data: Data, partition: Partition, client_tests: ClientTests | None, params: Params
) -> Evaluation:
    """Evaluates the server's parameters."""
    clients = Clients(data.x, data.y, partition)
    tests = data.test, client_tests, data.validation
    return evaluate(data.task, params, clients, *tests)


def _traffic(setup: Setup, data: Data, run: Run) -> tuple[Traffic, Traffic]:
    """Counts the bytes of all clients before round 0, and of a cohort in a round."""
    setup = setup._replace(split_examples=False)
    objective, draw = objective_and_sampler(setup, clients_of_run(data, run))
    algorithm = setup.algorithm
    params = jax.eval_shape(setup.task.init, jax.random.key(0))
    batches = jax.eval_shape(draw, jnp.int32(0), jax.random.key(0))

    def total(exchanges: Sequence[Exchange], clients: int) -> Traffic:
        one = engine.traffic(exchanges, algorithm, objective, params, batches)
        return Traffic(clients * one.down, clients * one.up)

    return (
        total(algorithm.prologue, setup.cohort.prologue or setup.num_clients),
        total(algorithm.exchanges, setup.cohort.size),
    )

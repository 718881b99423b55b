"""A simulation's program: pure functions of data, of a run, and of its state.

`federate` and `decentralize` each make one. Nothing that runs it knows which of them
did. A sweep maps the same functions over stacked runs and states.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedjax_muon.core import numbers_of
from fedjax_muon.core.recipe import as_arrays
from fedjax_muon.engine import Traffic
from fedjax_muon.simulation.batching import Clients, Partition
from fedjax_muon.simulation.evaluation import ClientTests, Evaluation, Examples
from fedjax_muon.tasks.task import Task


class Data(NamedTuple):
    """What all runs of a program share."""

    task: Task  # as an argument; see `tasks.task.as_argument`
    x: jax.Array  # [n, ...], training examples
    y: jax.Array  # [n]
    test: Examples
    validation: Examples | None = None  # that no client has
    ids: jax.Array | None = None  # int32 [n], see `Clients`


class Run(NamedTuple):
    """What differs between runs of one program: arrays, which a sweep stacks."""

    numbers: dict[str, Any]  # hyperparameters by name
    partition: Partition
    client_tests: ClientTests | None = None  # clients' own test examples
    mixer: Any = None  # of agents' messages
    timing: Any = None  # who arrives in time, or when
    # typed key of the next rounds of a private run, in place of the state's
    key: jax.Array | None = None


class Program(NamedTuple):
    """Pure functions, which are not compiled."""

    settings: Any  # what the functions are made of, without arrays
    # (data, run, key, key of the run or None, parameters or None) -> state before
    # `begin`
    create: Callable[..., Any]
    # (data, run, state) -> state before round 0, whether each client's message was
    # received
    begin: Callable[[Data, Run, Any], tuple[Any, jax.Array]]
    # (data, run, state, count) -> state, `Metrics`
    rounds: Callable[[Data, Run, Any, Any], tuple[Any, Any]]
    # (data, partition, own tests, parameters) -> metrics by name
    score: Callable[[Data, Partition, ClientTests | None, Any], Evaluation]
    # (data, run) -> bytes of all clients, or over one link, before round 0 and in a
    # round
    traffic: Callable[[Data, Run], tuple[Traffic, Traffic]]
    # whether what `create` returns is nobody else's, so that `begin` may overwrite it
    donates: bool = True
    # of data, runs and states, as prefixes; None on JAX's default device
    shardings: tuple[Any, Any, Any] | None = None
    # of agents: weights -> their mixer, and the number of directed links in a round
    mix: Callable[[Any], tuple[Any, float]] | None = None
    # with a server: (data, run, state) -> loss of the next round's cohort
    loss: Callable[[Data, Run, Any], jax.Array] | None = None
    # with a server: (run, key of the state, number of a round or None for the prologue)
    # -> ids of its cohort, positions of the examples that it reads
    drawn: Callable[[Run, jax.Array, Any], tuple[jax.Array, jax.Array]] | None = None

    def placed(self, run: Run) -> Run:
        """Puts the arrays of a run on the program's devices."""
        return run if self.shardings is None else jax.device_put(run, self.shardings[1])


class Compiled(NamedTuple):
    """The functions of a program, which are compiled when they are first used."""

    begin: jax.stages.Wrapped
    rounds: jax.stages.Wrapped
    score: jax.stages.Wrapped
    loss: jax.stages.Wrapped | None
    drawn: Any  # as `loss`


def compiled(program: Program) -> Compiled:
    """Compiles a program. States that are trained are donated."""
    # `across` fixes the shardings of a server's results; those of agents are given here
    results: Any = None
    if program.shardings is not None and not program.donates:
        _, everywhere, states = program.shardings
        results = states, everywhere
    given = (2,) if program.donates else ()
    return Compiled(
        jax.jit(program.begin, donate_argnums=given, out_shardings=results),
        jax.jit(program.rounds, donate_argnums=2, out_shardings=results),
        jax.jit(program.score),
        program.loss and jax.jit(program.loss),
        program.drawn and jax.jit(program.drawn),
    )


def clients(data: Data, run: Run) -> Clients:
    """The clients of a run, with their examples."""
    return Clients(data.x, data.y, run.partition, data.ids)


def numbers(algorithm: Any, **decided: Any) -> dict[str, Any]:
    """Hyperparameters of an algorithm, as arrays.

    Args:
      decided: What privacy decides, in place of the algorithm.
    """
    return as_arrays(numbers_of(algorithm) | decided)

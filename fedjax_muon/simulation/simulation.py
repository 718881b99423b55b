"""A prepared simulation, with a server or without one: what users hold and call.

`federated.federate` and `decentralized.decentralize` prepare one. They differ in a
`Runner`, which says how rounds run, are evaluated, and counted.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_muon.core import numbers_of, with_numbers
from fedjax_muon.core.recipe import as_arrays
from fedjax_muon.engine import Traffic
from fedjax_muon.simulation.batching import Clients, max_client_size_of
from fedjax_muon.simulation.rounds import Inputs, Metrics


class NonFiniteError(ArithmeticError):
    """A client sent a message, or kept a state, with a NaN or an infinity."""

    def __init__(self, round: int, clients: list[int]):
        who = ", ".join(map(str, clients[:5])) + (", ..." if len(clients) > 5 else "")
        super().__init__(
            f"round {round}: not a finite message from client {who}; lower the "
            "learning rate, or leave such messages out of the mean (drop_nonfinite)"
        )


class NonFiniteLossError(NonFiniteError):
    """The training loss became NaN, though all messages were finite."""

    def __init__(self, round: int):
        ArithmeticError.__init__(
            self, f"round {round}: the training loss is NaN; lower the learning rate"
        )


class Programs(NamedTuple):
    """Compiled when they are first used; `inputs` are `Inputs`."""

    create: Callable  # key -> state before `begin`
    begin: jax.stages.Wrapped  # (inputs, state, clients, max_client_size)
    # -> (state before round 0, whose messages were received)
    rounds: jax.stages.Wrapped  # (inputs, state, clients, count, max_client_size)
    # -> (state, metrics)
    score: jax.stages.Wrapped  # (task, params, clients, test) -> scores


class Runner(NamedTuple):
    """How the rounds of one kind of simulation run."""

    # (setup, x, y, parts) -> clients, where they are to lie
    place: Callable[[Any, Any, Any, Sequence[np.ndarray]], Clients]
    # (setup, weights) -> (mixer, links); refuses where there is a server
    mix: Callable[[Any, np.ndarray], tuple[Any, float]]
    evaluate: Callable[["Simulation", Any], Any]  # (simulation, state) -> scores
    # simulation -> bytes before round 0, and of a round, of all clients together
    traffic: Callable[["Simulation"], tuple[Traffic, Traffic]]


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A prepared simulation: compiled programs, and the data that they are given."""

    runner: Runner
    setup: Any  # what is simulated, but for the data
    inputs: Inputs
    clients: Clients
    test: tuple[jax.Array, jax.Array]
    programs: Programs
    max_client_size: int  # bounds the size of every client
    links: float = 0.0  # directed, of an iteration without a server

    def init(self, key: jax.Array) -> Any:
        """The state before round 0.

        Args:
          key: A typed key, from which everything random of a run comes.

        Returns:
          The state; it has `params` and `round`.

        Raises:
          NonFiniteError: If a message of the prologue is not finite.
        """
        state, received = self.programs.begin(
            self.inputs,
            self.programs.create(key),
            self.clients,
            self.max_client_size,
        )
        if not np.all(received):
            raise NonFiniteError(0, np.flatnonzero(~np.asarray(received)).tolist())
        return state

    def train_round(self, state: Any) -> tuple[Any, Metrics]:
        """Runs one round; the given state is donated."""
        return self.train_rounds(state, 1)

    def train_rounds(self, state: Any, count: int) -> tuple[Any, Metrics]:
        """Runs `count` rounds in one call of one program, whatever their number."""
        return self.programs.rounds(
            self.inputs, state, self.clients, count, self.max_client_size
        )

    def evaluate(self, state: Any) -> Any:
        """Scores the parameters of a state on test and training examples."""
        return self.runner.evaluate(self, state)

    def bytes_after(self, rounds: int) -> Traffic:
        """Bytes that all clients together received and sent in `rounds` rounds.

        Every sampled client counts, whether or not it answered; where cohorts vary, as
        many as are expected.
        """
        first, later = self._traffic
        return Traffic(
            *(round(a + rounds * b) for a, b in zip(first, later, strict=True))
        )

    @functools.cached_property
    def _traffic(self) -> tuple[Traffic, Traffic]:
        """Before round 0, and of a round; messages are traced once for both."""
        return self.runner.traffic(self)

    def vary(
        self,
        *,
        parts: Sequence[np.ndarray] | None = None,
        hyper: Mapping[str, Any] | None = None,
        weights: np.ndarray | None = None,
    ) -> "Simulation":
        """The same simulation with other data, hyper-parameters or mixing weights.

        Programs that are compiled serve again if all sizes are the same.

        Args:
          parts: For every client, the ids of its training examples.
          hyper: Numbers, by the names of the algorithm's hyper-parameters; those that
            are not named stay.
          weights: Mixing matrix, where there is no server.

        Returns:
          The new simulation.

        Raises:
          ValueError: For another number of clients, and as when it was prepared.
        """
        inputs, changes = self.inputs, dict[str, Any]()
        if parts is not None:
            if len(parts) != len(self.clients.size):
                raise ValueError(
                    f"this simulation has {len(self.clients.size)} clients, got "
                    f"{len(parts)} parts"
                )
            changes["clients"] = self.runner.place(
                self.setup, self.clients.x, self.clients.y, parts
            )
            changes["max_client_size"] = max_client_size_of(parts)
        if hyper is not None:
            with_numbers(self.setup.algorithm, hyper)  # may refuse
            inputs = inputs._replace(numbers={**inputs.numbers, **as_arrays(hyper)})
        if weights is not None:
            mixer, changes["links"] = self.runner.mix(self.setup, weights)
            inputs = inputs._replace(mixer=mixer)
        return dataclasses.replace(self, inputs=inputs, **changes)


def inputs_of(algorithm: Any, task: Any, mixer: Any = None) -> Inputs:
    """What the programs of a simulation are given besides states and examples."""
    return Inputs(task, as_arrays(numbers_of(algorithm)), mixer)

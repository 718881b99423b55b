"""Prepared simulations, federated or decentralized.

`federated.federate` and `decentralized.decentralize` prepare them. They differ in their
`Runner`, which places examples, evaluates parameters and counts bytes. Only a
simulation with a server has an execution plan, which is part of its `rounds.Setup`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Params, check_count, numbers_of, with_numbers
from fedjax_muon.core.recipe import as_arrays
from fedjax_muon.engine import Traffic
from fedjax_muon.engine.processes import words_from_first
from fedjax_muon.engine.programs import promoting
from fedjax_muon.privacy.guarantees import Guarantee
from fedjax_muon.simulation.arguments import (
    Parts,
    check_key,
    check_not_donated,
    check_params,
    check_parts,
    check_state,
)
from fedjax_muon.simulation.batching import Clients
from fedjax_muon.simulation.evaluation import OwnTests, own_tests_of
from fedjax_muon.simulation.last_state import LastState
from fedjax_muon.simulation.rounds import Inputs, Metrics, answers
from fedjax_muon.simulation.timing import Timing, durations_of, on_time, timing_of

NOISE = ("noise_scale", "noise_multiplier")  # hyperparameters that privacy decides
TIMINGS = 16  # runs whose times are kept, since they are computed from round 0 on


class NonFiniteError(ArithmeticError):
    """A client's message, or its new state, has a NaN or an infinity."""

    def __init__(self, round: int, clients: list[int]):
        self.round = round
        ids = ", ".join(map(str, clients[:5])) + (", ..." if len(clients) > 5 else "")
        super().__init__(
            f"round {round}: not a finite message from client {ids}; lower the "
            "learning rate, or leave such messages out of the mean (drop_nonfinite)"
        )


class NonFiniteLossError(NonFiniteError):
    """The training loss became NaN, though all messages were finite."""

    def __init__(self, round: int):
        self.round = round
        ArithmeticError.__init__(
            self, f"round {round}: the training loss is NaN; lower the learning rate"
        )


class Programs(NamedTuple):
    """Programs, which are compiled when they are first used; `inputs` are `Inputs`."""

    # (inputs, key, key of the run or None, parameters or None) -> state before `begin`
    create: Callable[..., Any]
    begin: jax.stages.Wrapped  # (inputs, state, clients)
    # -> (state before round 0, whether each client's message was received)
    rounds: jax.stages.Wrapped  # (inputs, state, clients, count)
    # -> (state, metrics)
    # (task, params, clients, test, own_tests) -> scores
    score: jax.stages.Wrapped
    # of a federated simulation:
    draw: Any = None  # `drawn_cohort` of its setup
    loss: Any = None  # (inputs, state, clients) -> the cohort's loss
    own: Any = None  # see `own_accuracy`


class Runner(NamedTuple):
    """Functions that differ between federated and decentralized simulations."""

    # (setup, x, y, parts) -> clients, on their devices
    place: Callable[[Any, Any, Any, Sequence[np.ndarray]], Clients]
    evaluate: Callable[["Simulation", Any], Any]  # (simulation, state) -> scores
    # simulation -> bytes of all clients before round 0, and in a round
    traffic: Callable[["Simulation"], tuple[Traffic, Traffic]]
    programs: Callable[[Any], Programs]  # setup -> programs, which are not compiled yet
    # (setup with devices, clients) -> shardings of inputs, states and clients, as
    # prefixes
    shardings: Callable[[Any, Clients], tuple[Any, Any, Any]]
    # (setup, weights) -> (mixer, links); None with a server, which mixes nothing
    mix: Callable[[Any, np.ndarray], tuple[Any, float]] | None = None
    # (setup, privacy or None, sizes) -> (setup, guarantee, numbers) of other noise or
    # sizes; None with a server, whose guarantee depends on neither
    calibrate: (
        Callable[[Any, Any, Sequence[int]], tuple[Any, Guarantee, dict]] | None
    ) = None


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A prepared simulation: compiled programs, and their data."""

    runner: Runner
    setup: Any  # settings, without the data
    inputs: Inputs
    clients: Clients
    test: tuple[jax.Array, jax.Array]
    programs: Programs
    links: float = 0.0  # number of directed links in a decentralized iteration
    guarantee: Guarantee | None = None  # of a private simulation
    own_tests: OwnTests | None = None  # if clients have test examples of their own
    # that a private simulation trains from; every variation has its own
    _last_state: LastState = dataclasses.field(
        default_factory=LastState, init=False, repr=False, compare=False
    )

    def __repr__(self) -> str:
        sizes, setup = np.asarray(self.clients.size), self.setup
        private = "" if self.guarantee is None else ", private"
        return (
            f"Simulation of {setup.algorithm}{private}:\n"
            f"  {len(sizes)} clients with {sizes.min()} to {sizes.max()} training "
            f"examples, batches of {setup.batch_size}, {len(self.test[1])} for testing"
        )

    @promoting
    def init(
        self,
        key: jax.Array,
        *,
        params: Params | None = None,
        drop_nonfinite: bool = False,
    ) -> Any:
        """Makes the state before round 0, which has `params` and `round`.

        In a private simulation it begins a run. Its noise, batches and cohorts come
        from the operating system, anew in every call. The guarantee holds for each run
        alone, so the costs of several add up.

        Args:
          key: Typed key, from which all random numbers of a run are derived; in a
            private simulation, the initial parameters alone.
          params: Parameters to start from, such as those of another run; by default,
            the task draws them.
          drop_nonfinite: Whether messages of the prologue that are not finite are left
            out of the mean, instead of raising an error.

        Raises:
          NonFiniteError: If a message of the prologue is not finite.

        Example:
          >>> state = simulation.init(jax.random.key(0))
          >>> warm = other.init(jax.random.key(0), params=state.params)
        """
        check_key(key)
        if params is not None:
            params = check_params(params, self._params)
        run_key = fresh_key(self.guarantee)
        created = self.programs.create(self.inputs, key, run_key, params)
        state, received = self.programs.begin(self.inputs, created, self.clients)
        if not drop_nonfinite and not np.all(received):
            raise NonFiniteError(0, np.flatnonzero(~np.asarray(received)).tolist())
        return state if run_key is None else self._owned(state)

    def _owned(self, state: Any) -> Any:
        """Marks a state as the one that a private simulation trains from.

        The noise that it was made with is left out: nothing that you hold has it.
        Resuming a run directory needs this; elsewhere, `init` and `train_rounds` do it.
        """
        if not self._has_secret_noise:
            return state
        state = state._replace(key=fresh_key(self.guarantee))
        self._last_state.keep(state)
        return state

    @property
    def _has_secret_noise(self) -> bool:
        return self.guarantee is not None and not self.guarantee.fixed_noise

    def train_round(self, state: Any) -> tuple[Any, Metrics]:
        """Runs one round, as `train_rounds`."""
        return self.train_rounds(state, 1)

    @promoting
    def train_rounds(self, state: Any, count: int) -> tuple[Any, Metrics]:
        """Runs `count` rounds in one call; all counts share one compiled program.

        A private simulation takes only the state that it made last, and only once: the
        noise of every call is new, so a second call from the same state would be a
        second release.

        Args:
          state: From `init` or a previous round; it is donated.

        Returns:
          The new state, and `Metrics` of messages that were not finite.
        """
        check_count("count", count, 0)
        self._check_state(state)
        inputs = self._timed(state, count)
        if self.guarantee is not None:
            self.guarantee.check_rounds(state.round, count)
        if not self._has_secret_noise:
            return self.programs.rounds(inputs, state, self.clients, count)
        self._last_state.take(state)
        inputs = inputs._replace(run_key=fresh_key(self.guarantee))
        state, metrics = self.programs.rounds(inputs, state, self.clients, count)
        return self._owned(state), metrics

    @promoting
    def cohort_loss(self, state: Any) -> jax.Array:
        """Computes the training loss of the clients that the next round samples.

        It is the weighted mean, over these clients, of the loss on the first batch that
        each will train on, at the parameters that it starts from. That takes one
        forward pass per client, and is compiled only if you call it: `train_round`
        itself needs gradients alone. `evaluate` returns the loss over the training
        examples of all clients instead.

        Args:
          state: A state of a federated simulation, which is not donated.

        Returns:
          A float array [], NaN if all these clients drop out.

        Example:
          >>> losses = []
          >>> for _ in range(3):
          ...     losses.append(simulation.cohort_loss(state))
          ...     state, metrics = simulation.train_round(state)
        """
        self._check_state(state)
        if self.programs.loss is None:
            raise ValueError(
                "a decentralized simulation has no cohorts; evaluate(state) returns "
                "train_loss"
            )
        if self.guarantee is not None:
            raise ValueError("a private simulation does not publish training losses")
        if self.setup.arrivals is not None:
            raise ValueError(
                "clients of asynchronous rounds start from different parameters; "
                "evaluate(state) returns train_loss"
            )
        return self.programs.loss(self._timed(state, 1), state, self.clients)

    @promoting
    def evaluate(self, state: Any) -> Any:
        """Evaluates the parameters of a state, which is not donated.

        Returns:
          Metrics of test and training examples by name, arrays []. A private simulation
          returns only metrics of the test set and of the parameters, unless its privacy
          publishes training metrics.
        """
        self._check_state(state)
        scores = self.runner.evaluate(self, state)
        return scores if self.guarantee is None else self.guarantee.published(scores)

    def _check_state(self, state: Any) -> None:
        if not hasattr(state, "training"):
            raise TypeError(
                "state must come from init or from an earlier round of a simulation, "
                f"got {type(state).__name__}"
            )
        check_not_donated(state)
        check_state(state, self.like)

    @functools.cached_property
    def like(self) -> Any:
        """The shapes and dtypes of its states, in their structure."""
        create, key = self.programs.create, jax.random.key(0)
        keys = jax.eval_shape(create, self.inputs, key)
        return self.programs.begin.trace(self.inputs, keys, self.clients).out_info[0]

    @functools.cached_property
    def _params(self) -> Any:
        """Shapes of the parameters that the task makes."""
        return jax.eval_shape(self.setup.task.init, jax.random.key(0))

    @promoting
    def bytes_after(self, rounds: int, answered: int | None = None) -> Traffic:
        """Counts the bytes that all clients together received and sent.

        Sampled clients receive even if they do not answer. If cohorts vary in size, the
        expected number of clients counts.

        Args:
          rounds: Number of rounds since the beginning, the prologue included.
          answered: Number of answers in these rounds, from `answered`; by default, all
            that were sampled have sent theirs.
        """
        if rounds < 0:
            raise ValueError(f"rounds must be at least 0, got {rounds}")
        first, later = self._traffic
        down, up = (a + rounds * b for a, b in zip(first, later, strict=True))
        if answered is not None:
            up = first.up + answered * later.up / self.setup.cohort_size
        return Traffic(round(down), round(up))

    @promoting
    def answered(self, key: jax.Array, rounds: int) -> int | None:
        """Counts the clients that answered in the first rounds, one for each message.

        Args:
          key: The key of the run's state.

        Returns:
          None where all that are sampled answer, and in a private simulation, which
          keeps to itself who took part.
        """
        setup = self.setup
        silent = getattr(setup, "dropout", 0) or getattr(setup, "deadline", None)
        if not silent or self.guarantee is not None or setup.arrivals is not None:
            return None
        in_time = np.ones(setup.num_clients, bool)
        if setup.deadline is not None:
            in_time = np.asarray(on_time(setup, self.durations))
        return int(answers(self.programs.draw, key, jnp.asarray(in_time), rounds))

    def virtual_seconds(self, state: Any) -> float | None:
        """The time of a state by the simulation's clock; None without a clock."""
        timing = self.timing(state.key)
        return None if timing is None else timing.seconds(state.round)

    def _timed(self, state: Any, count: int) -> Inputs:
        """The inputs of the next `count` rounds."""
        timing = self.timing(state.key)
        if timing is None:
            return self.inputs
        return self.inputs._replace(timing=timing.inputs(state.round, count))

    @promoting
    def timing(self, key: jax.Array) -> Timing | None:
        """The times of a run by the key of its state; None without a clock."""
        if getattr(self.setup, "clock", None) is None:
            return None
        name = np.asarray(jax.random.key_data(key)).tobytes()
        if name not in self._timings:
            if len(self._timings) == TIMINGS:
                self._timings.pop(next(iter(self._timings)))
            kept, draw = jnp.copy(key), self.programs.draw  # states are donated
            self._timings[name] = timing_of(self.setup, self.durations, kept, draw)
        return self._timings[name]

    @functools.cached_property
    def _timings(self) -> dict[bytes, Timing]:
        """Times of the last runs by their keys."""
        return {}

    @functools.cached_property
    def durations(self) -> np.ndarray:
        """Seconds of a job of every client by the clock, float64 [N]."""
        nbytes = sum(self._traffic[1]) / self.setup.cohort_size
        return durations_of(self.setup.clock, self.setup, self.clients, nbytes)

    @functools.cached_property
    def _traffic(self) -> tuple[Traffic, Traffic]:
        """Bytes before round 0, and in a round; messages are traced only once."""
        return self.runner.traffic(self)

    @promoting
    def vary(
        self,
        *,
        parts: Parts | None = None,
        test_parts: Sequence[np.ndarray] | None = None,
        hyper: Mapping[str, Any] | None = None,
        weights: np.ndarray | None = None,
        privacy: Any = None,
    ) -> "Simulation":
        """Changes the data, hyperparameters or mixing weights of a simulation.

        The compiled programs are used again if all sizes are the same. The noise and
        the guarantee of a private simulation are derived anew.

        Args:
          parts: For every client, the ids of its training examples.
          test_parts: For every client, the ids of its test examples.
          hyper: Numbers, by the names of the algorithm's hyperparameters; the others
            stay unchanged.
          weights: Mixing matrix of a decentralized simulation.
          privacy: Mechanism of a private simulation, with other noise or rounds.
        """
        inputs, changes = self.inputs, dict[str, Any]()
        if parts is not None:
            parts = check_parts(parts)
            if len(parts) != len(self.clients.size):
                raise ValueError(
                    f"this simulation has {len(self.clients.size)} clients, got "
                    f"{len(parts)} parts"
                )
            changes["clients"] = self.runner.place(
                self.setup, self.clients.x, self.clients.y, parts
            )
        if test_parts is not None:
            count = len(self.test[1])
            changes["own_tests"] = own_tests_of(
                test_parts, len(self.clients.size), count
            )
        calibrate = self.runner.calibrate
        if privacy is not None and self.guarantee is None:
            raise ValueError("this simulation is not private; make one that is")
        if privacy is not None and calibrate is None:
            raise ValueError(
                "the privacy of a federated simulation can't be varied; make another "
                "simulation with federate"
            )
        private = self.guarantee is not None and (privacy, parts) != (None, None)
        if private and calibrate is not None:
            sizes = np.asarray(changes.get("clients", self.clients).size).tolist()
            derived = calibrate(self.setup, privacy, sizes)
            changes["setup"], changes["guarantee"], noise = derived
            inputs = inputs._replace(numbers={**inputs.numbers, **as_arrays(noise)})
        if hyper is not None:
            self._check_free(hyper)
            with_numbers(self.setup.algorithm, hyper)  # may raise
            inputs = inputs._replace(numbers={**inputs.numbers, **as_arrays(hyper)})
        if weights is not None:
            if self.runner.mix is None:
                raise ValueError("a simulation with a server has no mixing weights")
            mixer, changes["links"] = self.runner.mix(self.setup, weights)
            inputs = inputs._replace(mixer=mixer)
        return dataclasses.replace(self, inputs=inputs, **changes)

    def _check_free(self, hyper: Mapping[str, Any]) -> None:
        for name in hyper:
            if self.guarantee is not None and name in NOISE:
                raise ValueError(
                    f"privacy decides {name}; vary(privacy=...) changes the noise"
                )


def fresh_key(guarantee: Guarantee | None) -> jax.Array | None:
    """A key from the operating system, the same in all processes; None without secret
    noise."""
    words = None if guarantee is None else guarantee.run_words()
    if words is None:
        return None
    shared = jnp.asarray(words_from_first(words))
    return jax.random.wrap_key_data(shared, impl="threefry2x32")


def inputs_of(
    algorithm: Any, task: Any, mixer: Any = None, noise: Mapping[str, Any] | None = None
) -> Inputs:
    """Makes the `Inputs` of a simulation's programs.

    Args:
      noise: Hyperparameters that privacy decides, in place of the algorithm's.
    """
    return Inputs(task, as_arrays(numbers_of(algorithm) | dict(noise or {})), mixer)

"""Prepared simulations, federated or decentralized.

`federated.federate` and `decentralized.decentralize` prepare them. They differ in their
`Program`.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Params, check_count, with_numbers
from fedjax_muon.core.recipe import as_arrays
from fedjax_muon.engine import Traffic
from fedjax_muon.engine.processes import words_from_first
from fedjax_muon.engine.programs import promoting
from fedjax_muon.privacy.guarantees import Guarantee
from fedjax_muon.simulation import client_evaluation
from fedjax_muon.simulation.arguments import (
    Parts,
    check_key,
    check_not_donated,
    check_params,
    check_parts,
    check_state,
    check_untraced,
)
from fedjax_muon.simulation.arrivals import Buffered
from fedjax_muon.simulation.batching import Clients, partition_of
from fedjax_muon.simulation.cohorts import Cohort, Timing
from fedjax_muon.simulation.evaluation import client_tests_of
from fedjax_muon.simulation.last_state import LastState
from fedjax_muon.simulation.participation import durations_of
from fedjax_muon.simulation.program import Compiled, Data, Program, Run, clients
from fedjax_muon.simulation.rounds import Metrics

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


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A prepared simulation: a program, its data, and the arrays of one run."""

    program: Program
    compiled: Compiled
    data: Data
    run: Run
    links: float = 1.0  # that each message of `program.traffic` travels, in a round
    guarantee: Guarantee | None = None  # of a private simulation
    # that a private simulation trains from
    _last_state: LastState = dataclasses.field(
        default_factory=LastState, init=False, repr=False, compare=False
    )

    @property
    def settings(self) -> Any:
        """What its program is made of, without arrays."""
        return self.program.settings

    @property
    def clients(self) -> Clients:
        """The clients with their training examples."""
        return clients(self.data, self.run)

    def __repr__(self) -> str:
        sizes, setup = np.asarray(self.clients.size), self.settings
        tested = len(self.data.test[1])
        private = "" if self.guarantee is None else ", private"
        return (
            f"Simulation of {setup.algorithm}{private}:\n"
            f"  {len(sizes)} clients with {sizes.min()} to {sizes.max()} training "
            f"examples, batches of {setup.batch_size}, {tested} for testing"
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
        created = self.program.create(self.data, self.run, key, run_key, params)
        if run_key is not None:
            check_untraced(created)
        state, received = self.compiled.begin(self.data, self.run, created)
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
        run = self.timed(state.key, state.round, count)
        if self.guarantee is not None:
            self.guarantee.check_rounds(state.round, count)
        if not self._has_secret_noise:
            return self.compiled.rounds(self.data, run, state, count)
        self._last_state.take(state)
        run = run._replace(key=fresh_key(self.guarantee))
        state, metrics = self.compiled.rounds(self.data, run, state, count)
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
        if self.compiled.loss is None:
            raise ValueError(
                "a decentralized simulation has no cohorts; evaluate(state) returns "
                "train_loss"
            )
        if self.guarantee is not None:
            raise ValueError("a private simulation does not publish training losses")
        if isinstance(self._cohort, Buffered):
            raise ValueError(
                "clients of asynchronous rounds start from different parameters; "
                "evaluate(state) returns train_loss"
            )
        run = self.timed(state.key, state.round, 1)
        return self.compiled.loss(self.data, run, state)

    @promoting
    def evaluate(self, state: Any) -> Any:
        """Evaluates the parameters of a state, which is not donated.

        Returns:
          Metrics of test and training examples by name, arrays []. A private simulation
          returns only metrics of the test set and of the parameters, unless its privacy
          publishes training metrics.
        """
        self._check_state(state)
        arguments: tuple[Any, ...] = (self.data, self.run.partition)
        arguments += (self.run.client_tests, state.params)
        copied = lambda x: isinstance(x, jax.Array) and x.is_fully_replicated
        if self.settings.devices and all(map(copied, jax.tree.leaves(arguments))):
            # On one device, since every device has the same arrays.
            arguments = jax.tree.map(lambda x: x.addressable_data(0), arguments)
        scores = self.compiled.score(*arguments)
        if self.guarantee is not None:
            return self.guarantee.published(scores)
        return scores | client_evaluation.metrics(
            self.settings, self.data, self.run, state
        )

    @promoting
    def client_accuracies(
        self,
        state: Any,
        *,
        steps: int = 0,
        lr: float = 0.1,
        key: jax.Array | None = None,
    ) -> np.ndarray:
        """Evaluates every client of a federation on its own test examples.

        A client's parameters are the server's, with its own leaves by `keep_own` or its
        own model by `ditto`.

        Args:
          steps: Number of steps of gradient descent that each client first takes on its
            training examples, with the simulation's sampler and batch size.
          key: Typed key of these steps; needed if there are any.

        Returns:
          Accuracies [N], NaN for clients without test examples.

        Example:
          >>> tested = simulation.at(test_parts=[np.arange(9)] * len(clients))
          >>> before = tested.client_accuracies(state)
          >>> after = tested.client_accuracies(state, steps=5, key=jax.random.key(0))
        """
        check_count("steps", steps, 0)
        if steps and key is None:
            raise TypeError("local steps need a key, such as key=jax.random.key(0)")
        if key is not None:
            check_key(key)
        self._check_client_tests()
        arrays = self.data, self.run, state
        return client_evaluation.accuracies(self.settings, *arrays, steps, lr, key)

    def client_scores(self, state: Any) -> dict[str, np.ndarray]:
        """Scores every client on its test examples, with the parameters of the server.

        Returns:
          Columns [N] by name: "train_examples", "test_examples", "test_accuracy" and
          "test_loss", which are NaN for clients without test examples;
          "personal_accuracy" too, if clients keep parameters.
        """
        self._check_client_tests()
        return client_evaluation.client_scores(
            self.settings, self.data, self.run, state
        )

    def _check_client_tests(self) -> None:
        if self.run.client_tests is None:
            raise ValueError(
                "clients have no test examples of their own; give federate test_parts"
            )
        if self.guarantee is not None:
            raise ValueError(
                "a private simulation does not publish the accuracies of single clients"
            )

    def _check_state(self, state: Any) -> None:
        if not hasattr(state, "training"):
            raise TypeError(
                "state must come from init or from an earlier round of a simulation, "
                f"got {type(state).__name__}"
            )
        check_untraced(state)
        check_not_donated(state)
        check_state(state, self.like)

    @functools.cached_property
    def like(self) -> Any:
        """The shapes and dtypes of its states, in their structure."""
        return self.traced_begin.out_info[0]

    @functools.cached_property
    def traced_begin(self) -> jax.stages.Traced:
        """The program that makes the first state, traced."""
        create, arrays = self.program.create, (self.data, self.run)
        created = jax.eval_shape(create, *arrays, jax.random.key(0))
        return self.compiled.begin.trace(*arrays, created)

    @functools.cached_property
    def _params(self) -> Any:
        """Shapes of the parameters that the task makes."""
        return jax.eval_shape(self.data.task.init, jax.random.key(0))

    @promoting
    def bytes_after(
        self, rounds: int, answered: int | None = None, jobs: int | None = None
    ) -> Traffic:
        """Counts the bytes that all clients together received and sent.

        Clients receive even if they do not answer. If cohorts vary in size, the
        expected number of clients counts.

        Args:
          rounds: Number of rounds since the beginning, the prologue included.
          answered: Number of answers in these rounds, from `answered`; by default, all
            that were sampled have sent theirs.
          jobs: Number of clients that were sent a model in them, from `jobs`; by
            default, all that were sampled.
        """
        if rounds < 0:
            raise ValueError(f"rounds must be at least 0, got {rounds}")
        first, later = self._traffic
        down, up = (a + rounds * b for a, b in zip(first, later, strict=True))
        if answered is not None:
            up = first.up + answered * later.up / self.settings.cohort.size
        if jobs is not None:
            down = first.down + jobs * later.down / self.settings.cohort.size
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
        if self._cohort is None or self.guarantee is not None:
            return None
        timing, number = self.timing(key), self.settings.num_clients
        return self._cohort.answered(timing, key, rounds, number)

    @promoting
    def jobs(self, key: jax.Array, rounds: int) -> int | None:
        """Counts the clients that were sent a model in the first rounds, once for each.

        In asynchronous rounds, some of them are lost, or stopped and sent a newer one.

        Args:
          key: The key of the run's state.

        Returns:
          None where these are the sampled ones.
        """
        timing = self.timing(key)
        return None if self._cohort is None else self._cohort.jobs(timing, rounds)

    @property
    def _cohort(self) -> Cohort | None:
        """Who takes part in a round; None of agents, who all do."""
        return getattr(self.settings, "cohort", None)

    def tokens_after(
        self, rounds: int, answered: int | None = None, jobs: int | None = None
    ) -> int | None:
        """Counts the tokens that clients trained on; None of other tasks.

        Args:
          rounds: Number of rounds since the beginning, without the prologue.
          answered: As in `bytes_after`.
          jobs: As in `bytes_after`; in asynchronous rounds, all of them count.
        """
        setup, cohort = self.settings, self._cohort
        if cohort is None or "perplexity" not in self.data.task.metrics:
            return None
        if setup.work.steps is not None:  # clients take different numbers of steps
            return None
        if jobs is None:
            jobs = rounds * cohort.size if answered is None else answered
        steps = setup.work.bound(self.clients.max_size, setup.batch_size)
        return jobs * steps * setup.batch_size * (self.data.x.shape[1] - 1)

    def virtual_seconds(self, state: Any) -> float | None:
        """The time of a state by the simulation's clock; None without a clock."""
        timing = self.timing(state.key)
        return None if timing is None else timing.seconds(state.round)

    def timed(self, key: jax.Array, first: int, count: int) -> Run:
        """The run with the times of `count` rounds, by the key of its state."""
        timing = self.timing(key)
        if timing is None:
            return self.run
        return self.run._replace(timing=timing.inputs(first, count))

    @promoting
    def timing(self, key: jax.Array) -> Timing | None:
        """The times of a run by the key of its state; None without a clock."""
        cohort = self._cohort
        if cohort is None or self.durations is None:
            return None
        name = np.asarray(jax.random.key_data(key)).tobytes()
        if name not in self._timings:
            if len(self._timings) == TIMINGS:
                self._timings.pop(next(iter(self._timings)))
            kept = jnp.copy(key)  # states are donated
            self._timings[name] = cohort.timing(self.durations, kept)
        return self._timings[name]

    @functools.cached_property
    def _timings(self) -> dict[bytes, Timing]:
        """Times of the last runs by their keys."""
        return {}

    @functools.cached_property
    def durations(self) -> np.ndarray | None:
        """Seconds of a job of every client, float64 [N]; None without a clock."""
        setup, cohort = self.settings, self._cohort
        speeds = None if cohort is None else cohort.speeds(setup.num_clients)
        if cohort is None or speeds is None:
            return None
        nbytes = sum(self._traffic[1]) / cohort.size
        sizes = setup.work, setup.batch_size
        return durations_of(*sizes, self.clients, speeds, nbytes)

    @functools.cached_property
    def _traffic(self) -> tuple[Traffic, Traffic]:
        """Bytes before round 0, and in a round; messages are traced only once."""
        times = lambda sent: Traffic(self.links * sent.down, self.links * sent.up)
        first, later = self.program.traffic(self.data, self.run)
        return times(first), times(later)

    @promoting
    def at(
        self,
        hyper: Mapping[str, Any] | None = None,
        *,
        parts: Parts | None = None,
        test_parts: Sequence[np.ndarray] | None = None,
        weights: np.ndarray | None = None,
    ) -> "Simulation":
        """The same simulation with other hyperparameters, clients or mixing weights.

        Compiled programs are used again if all sizes are the same. A private simulation
        has to be made anew, since its guarantee depends on its run.

        Args:
          hyper: Numbers, by the names of the algorithm's hyperparameters; the others
            stay unchanged.
          parts: For every client, the ids of its training examples.
          test_parts: For every client, the ids of its test examples.
          weights: Mixing matrix of a decentralized simulation.

        Example:
          >>> faster = simulation.at({"lr": 0.3})
        """
        if self.guarantee is not None:
            raise ValueError(
                "the guarantee of a private simulation depends on its run; make "
                "another one, with federate or decentralize"
            )
        run, links, number = self.run, self.links, len(self.clients.size)
        if hyper is not None:
            with_numbers(self.settings.algorithm, hyper)  # may raise
            run = run._replace(numbers={**run.numbers, **as_arrays(hyper)})
        if parts is not None:
            parts = check_parts(parts)
            if len(parts) != number:
                raise ValueError(
                    f"this simulation has {number} clients, got {len(parts)} parts"
                )
            self.settings.check_sizes(list(map(len, parts)))
            run = run._replace(partition=partition_of(self.data.y, parts))
        if test_parts is not None:
            tests = client_tests_of(test_parts, number, len(self.data.test[1]))
            run = run._replace(client_tests=tests)
        if weights is not None:
            if self.program.mix is None:
                raise ValueError("a simulation with a server has no mixing weights")
            mixer, links = self.program.mix(weights)
            run = run._replace(mixer=mixer)
        run = self.program.placed(run)
        return dataclasses.replace(self, run=run, links=links)


@promoting
def checked(simulation: Simulation) -> Simulation:
    """Traces the prologue and a round, so that what can't run raises before training.

    The first call of each uses the trace again.
    """
    key, data, compiled = jax.random.key(0), simulation.data, simulation.compiled
    secret = key if simulation._has_secret_noise else None
    create = functools.partial(simulation.program.create, params=None)
    state = jax.eval_shape(create, data, simulation.run, key, secret)
    state, _ = jax.eval_shape(compiled.begin, data, simulation.run, state)
    run = simulation.timed(key, 0, 1)
    run = run if secret is None else run._replace(key=secret)
    jax.eval_shape(compiled.rounds, data, run, state, 1)
    return simulation


def fresh_key(guarantee: Guarantee | None) -> jax.Array | None:
    """A key from the operating system, the same in all processes; None without secret
    noise."""
    words = None if guarantee is None else guarantee.run_words()
    if words is None:
        return None
    shared = jnp.asarray(words_from_first(words))
    return jax.random.wrap_key_data(shared, impl="threefry2x32")

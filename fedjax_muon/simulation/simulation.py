"""Prepared simulations, federated or decentralized.

`federated.federate` and `decentralized.decentralize` prepare them. They differ in their
`Program`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Params, check_count, with_numbers
from fedjax_muon.core.recipe import as_arrays
from fedjax_muon.engine.processes import words_from_first
from fedjax_muon.engine.programs import promoting
from fedjax_muon.privacy.guarantees import Guarantee
from fedjax_muon.simulation import client_evaluation, host_states
from fedjax_muon.simulation.arguments import (
    Parts,
    check_key,
    check_not_donated,
    check_params,
    check_parts,
    check_state,
    check_untraced,
)
from fedjax_muon.simulation.batching import Clients, Partition, partition_of
from fedjax_muon.simulation.evaluation import client_tests_of
from fedjax_muon.simulation.last_state import LastState
from fedjax_muon.simulation.meter import Meter, end_at_start
from fedjax_muon.simulation.program import Compiled, Data, Program, Run, clients
from fedjax_muon.simulation.reading import Arrays, FromDisk
from fedjax_muon.simulation.rounds import Metrics, joined


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A prepared simulation: a program, its data, and the arrays of one run.

    Example:
      >>> simulation = fm.federate(
      ...     fm.fedavg(lr=0.1),
      ...     task,
      ...     digits,
      ...     clients,
      ...     cohort=2,
      ...     local_steps=1,
      ...     batch_size=8,
      ... )
      >>> state = simulation.init(jax.random.key(0))
      >>> state, metrics = simulation.train_round(state)
      >>> accuracy = simulation.evaluate(state)["test_accuracy"]
    """

    program: Program
    compiled: Compiled
    data: Data
    run: Run
    meter: Meter  # of bytes, tokens and virtual seconds
    guarantee: Guarantee | None = None  # of a private simulation
    source: FromDisk | None = None  # the training examples, if they stay on disk
    # what is read for the next round, by the run's key and the round
    _ahead: dict[Any, Future[tuple[Arrays, Any]]] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )
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
        # agents, which read nothing, have their key in another place
        begun = None if self.source is None else created.key
        arrays, cohort = self.reads(self.run, begun, None)()
        if self._has_host_states:
            first, number = created.divided, self.settings.num_clients
            created = with_states(created, host_states.of_all(first, number))
        begin = functools.partial(self.compiled.begin, *arrays)
        state, received = self.run_rows(begin, created, cohort)
        if not drop_nonfinite and (end := end_at_start(received)):
            raise end
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
        self.check_state(state)
        run = self.meter.timed(state.key, state.round, count)
        if self.guarantee is not None:
            self.guarantee.check_rounds(state.round, count)
        if not self._has_secret_noise:
            return self.advance(run, state, count)
        self._last_state.take(state)
        run = run._replace(key=fresh_key(self.guarantee))
        state, metrics = self.compiled.rounds(self.data, run, state, count)
        return self._owned(state), metrics

    def advance(self, run: Run, state: Any, count: int) -> tuple[Any, Metrics]:
        """Runs rounds, without the checks and the guarantee of `train_rounds`."""
        if self.source is None:
            return self.compiled.rounds(self.data, run, state, count)
        key, first = jnp.copy(state.key), state.round  # the state is donated
        name, several = np.asarray(jax.random.key_data(key)).tobytes(), []
        for index in range(first, first + max(1, count)):
            begun = self._ahead.pop((name, index), None)
            read = begun.result if begun else self.reads(run, key, index)
            arrays, cohort = read()
            self._ahead.clear()
            following = self.reads(run, key, index + 1)
            self._ahead[name, index + 1] = self._thread.submit(following)
            rounds = functools.partial(self._rounds, arrays, min(1, count))
            state, metrics = self.run_rows(rounds, state, cohort)
            several.append(jax.block_until_ready(metrics))  # else many rounds are held
        return state, functools.reduce(joined, several)

    def _rounds(self, arrays: Arrays, count: int, state: Any) -> tuple[Any, Metrics]:
        return self.compiled.rounds(*arrays, state, count)

    @property
    def _has_host_states(self) -> bool:
        return self.source is not None and self.settings.host_states

    def run_rows(
        self, program: Callable[[Any], tuple[Any, Any]], state: Any, cohort: Any
    ) -> tuple[Any, Any]:
        """Runs a program of a state with the states of a cohort alone, if the others
        stay on the host."""
        if not self._has_host_states:
            return program(state)
        states, rows = host_states.taken(state.divided, np.asarray(cohort))
        state, result = program(with_states(state, rows))
        return with_states(state, host_states.put_back(states, state.divided)), result

    def reads(
        self, run: Run, key: Any, index: int | None
    ) -> Callable[[], tuple[Arrays, Any]]:
        """Makes a function that reads the arguments of a round, or None the prologue,
        and says who is in its cohort, if they are read.

        Its examples are drawn now: in a thread, that would wait for a round that runs.
        """
        arrays, source = (self.data, run), self.source
        if source is None:
            return lambda: (arrays, None)
        drawn = self.compiled.drawn(run, key, index)
        return lambda: (source.read(arrays, drawn), drawn[0])

    def shaped(self, index: int | None, state: Any) -> tuple[Data, Run, Any]:
        """The arguments of a round, or None the prologue, of these shapes at least.

        Args:
          state: Shapes of a state, with those of the states of one client or more.
        """
        if self.source is None:
            return self.data, self.run, state
        given = self.run, jax.random.key(0), index
        drawn = jax.eval_shape(self.compiled.drawn, *given)
        if self._has_host_states:
            rows = host_states.shapes_of_all(state.divided, len(drawn[0]))
            state = with_states(state, host_states.CohortStates(drawn[0], rows))
        return *self.source.blank((self.data, self.run), drawn), state

    @functools.cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1)

    @functools.cached_property
    def scored(self) -> tuple[Data, Partition]:
        """What evaluations take."""
        if self.source is None:
            return self.data, self.run.partition
        return self.source.scored(self.data, self.run.partition)

    @promoting
    def evaluate(self, state: Any) -> Any:
        """Evaluates the parameters of a state, which is not donated.

        Returns:
          Metrics of test and training examples by name, arrays []. A private simulation
          returns only metrics of the test set and of the parameters, unless its privacy
          publishes training metrics.
        """
        self.check_state(state)
        arguments: tuple[Any, ...] = *self.scored, self.run.client_tests, state.params
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

    def check_state(self, state: Any) -> None:
        """Raises for what is not a state of this simulation."""
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
        state = self.traced_begin.out_info[0]
        if not self._has_host_states:
            return state
        some, number = state.divided.values, self.settings.num_clients
        return with_states(state, host_states.shapes_of_all(some, number))

    @functools.cached_property
    def traced_begin(self) -> jax.stages.Traced:
        """The program that makes the first state, traced."""
        created = jax.eval_shape(
            self.program.create, self.data, self.run, jax.random.key(0)
        )
        return self.compiled.begin.trace(*self.shaped(None, created))

    @functools.cached_property
    def _params(self) -> Any:
        """Shapes of the parameters that the task makes."""
        return jax.eval_shape(self.data.task.init, jax.random.key(0))

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
        run, links, number = self.run, self.meter.links, len(self.clients.size)
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
            y = self.data.y if self.source is None else self.source.y
            run = run._replace(partition=partition_of(y, parts))
        if test_parts is not None:
            tests = client_tests_of(test_parts, number, len(self.data.test[1]))
            run = run._replace(client_tests=tests)
        if weights is not None:
            if self.program.mix is None:
                raise ValueError("a simulation with a server has no mixing weights")
            mixer, links = self.program.mix(weights)
            run = run._replace(mixer=mixer)
        run = self.program.placed(run)
        meter = dataclasses.replace(self.meter, run=run, links=links)
        return dataclasses.replace(self, run=run, meter=meter)


@promoting
def checked(simulation: Simulation) -> Simulation:
    """Traces the prologue and a round, so that what can't run raises before training.

    The first call of each uses the trace again.
    """
    key, data, compiled = jax.random.key(0), simulation.data, simulation.compiled
    secret = key if simulation._has_secret_noise else None
    create = functools.partial(simulation.program.create, params=None)
    state = jax.eval_shape(create, data, simulation.run, key, secret)
    state, _ = jax.eval_shape(compiled.begin, *simulation.shaped(None, state))
    if simulation._has_host_states:
        state = with_states(state, state.divided.values)
    data, run, state = simulation.shaped(0, state)
    run = run._replace(timing=simulation.meter.timed(key, 0, 1).timing)
    run = run if secret is None else run._replace(key=secret)
    jax.eval_shape(compiled.rounds, data, run, state, 1)
    return simulation


def with_states(state: Any, states: Any) -> Any:
    """A state with other states of clients."""
    return state._replace(training=state.training._replace(client_states=states))


def fresh_key(guarantee: Guarantee | None) -> jax.Array | None:
    """A key from the operating system, the same in all processes; None without secret
    noise."""
    words = None if guarantee is None else guarantee.run_words()
    if words is None:
        return None
    shared = jnp.asarray(words_from_first(words))
    return jax.random.wrap_key_data(shared, impl="threefry2x32")

"""Audits of prepared private simulations, by what they release.

A simulation is made as for training, with the same `privacy`, but with records made for
the audit. Its own programs then run in thousands of worlds, with the record that is
attacked, the canary, and with a record without a gradient in its place:

    task = canary_task(lr=0.1, period=2)
    dataset, parts = canary_data(sizes=(8, 12, 16), owner=0)
    simulation = decentralize(gradient_tracking(lr=0.1), task, dataset, parts, ...)
    worlds = agent_worlds(simulation, owner=0, weights=weights, lr=0.1)
    findings = audited(worlds.record, *worlds.run_both(seed=0, count=2000))

Nothing is drawn, clipped or noised here, so that a mistake in the simulation is one of
the worlds too. The attack sees what agents send, or the state of the server.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from fedjax_muon.attacks import canary, correlated
from fedjax_muon.attacks.canary_task import CANARY, FREE, OTHERS
from fedjax_muon.privacy.guarantees import PrivacySpec
from fedjax_muon.privacy.releases import Correlated, Inside, Output
from fedjax_muon.privacy.sampling import Cyclic, Poisson
from fedjax_muon.simulation.simulation import Simulation

CHUNK = 4000  # worlds that run together


class Releases(NamedTuple):
    """What an attack sees in N worlds, in claimed standard deviations of the noise."""

    signal: np.ndarray  # [N, T], of the canary's owner in the canary's direction
    # [N, T], likewise in the direction of other records; [N, 0] if their parts overlap
    others: np.ndarray
    white: np.ndarray  # [N, d], everything that is noise alone without the canary


class Record(NamedTuple):
    """What the claim says of the canary."""

    spec: PrivacySpec
    pattern: np.ndarray  # [T], what it adds to `signal` when it takes part
    # among which its batches are drawn: of its owner, or of its group of them; of all
    # clients, if a client is the record
    examples: int
    phases: np.ndarray | None = None  # [phases, T], patterns of every place in a cycle


@dataclasses.dataclass(frozen=True)
class Worlds:
    """A simulation that is run many times, with and without the canary."""

    simulation: Simulation
    record: Record
    seen: Callable[[np.ndarray], Releases]  # of what `observe` returned
    program: Callable[..., Any]  # (inputs, clients, keys, run keys) -> observations
    absent: float = 0.0  # factor of the canary in worlds without it

    def run(self, keys: jax.Array, *, present: bool) -> Releases:
        """Runs one world for each key.

        Args:
          keys: Typed keys [N], as `Simulation.init` takes one; a world has its own run
            key, if the noise is not fixed.
          present: Whether the canary is there; else its gradient is zero, or its
            client counts as absent.

        Returns:
          What the attack sees.
        """
        clients = self.simulation.clients
        if not present:
            x = clients.x.at[:, 0].multiply(self.absent)
            clients = dataclasses.replace(clients, x=x)
        found = []
        for i in range(0, len(keys), CHUNK):
            some = keys[i : i + CHUNK]
            own = run_keys(self.simulation, len(some))
            # all chunks have the same size, for one compilation
            rows = np.arange(min(CHUNK, _room(len(keys)))) % len(some)
            given = some[rows], None if own is None else own[rows]
            out = self.program(self.simulation.inputs, clients, *given)
            found.append(np.asarray(out, np.float64)[: len(some)])
        return self.seen(np.concatenate(found))

    def run_both(self, seed: int, count: int) -> tuple[Releases, Releases]:
        """Runs worlds without and with the canary, with different keys.

        Args:
          seed: Number that all keys are made from.
          count: Number of worlds of each kind.

        Returns:
          What the attack sees without, and with the canary.
        """
        keys = jax.random.split(jax.random.key(seed), 2 * count)
        return (
            self.run(keys[:count], present=False),
            self.run(keys[count:], present=True),
        )


def _room(count: int) -> int:
    """A size of chunks that different numbers of worlds share."""
    return 1 << (count - 1).bit_length()


def run_keys(simulation: Simulation, count: int) -> jax.Array | None:
    """Draws the run keys of some worlds, as `Simulation.init` draws one.

    Args:
      simulation: A private simulation.
      count: Number of worlds.

    Returns:
      Typed keys [count]; None if the noise is fixed, and follows from the seed.
    """
    drawn: list[jax.Array | None] = []

    def create(key: jax.Array, run_key: jax.Array | None = None) -> None:
        drawn.append(run_key)

    begin = lambda *given: (None, np.ones(1, bool))
    programs = simulation.programs._replace(create=create, begin=cast(Any, begin))
    idle = dataclasses.replace(simulation, programs=programs)
    key = jax.random.key(0)
    for _ in range(count):
        idle.init(key)
    keys = [key for key in drawn if key is not None]
    return jnp.stack(keys) if keys else None


def world_program(
    simulation: Simulation, observe: Callable[[Any], jax.Array]
) -> Callable[..., Any]:
    """Compiles a whole run of a simulation, for many worlds at once.

    Args:
      simulation: A private simulation; it runs for all rounds of its guarantee.
      observe: State -> what is seen of it, one array.

    Returns:
      A function (inputs, clients, keys [N], run keys [N] or None) of what is seen of
      the states after `begin` and after every round, [N, rounds + 1, ...].
    """
    programs = simulation.programs
    assert simulation.guarantee is not None  # it is private
    rounds = simulation.guarantee.rounds

    def one(inputs: Any, clients: Any, key: jax.Array, run_key: Any) -> jax.Array:
        created = programs.create(key, run_key)
        state, _ = programs.begin(inputs, created, clients)

        def body(state: Any, _: Any) -> tuple[Any, jax.Array]:
            state, _ = programs.rounds(inputs, state, clients, 1)
            return state, observe(state)

        _, later = jax.lax.scan(body, state, length=rounds)
        return jnp.concatenate([observe(state)[None], later])

    def many(inputs: Any, clients: Any, keys: jax.Array, own: Any) -> jax.Array:
        axes = (None, None, 0, None if own is None else 0)
        return jax.vmap(one, in_axes=axes)(inputs, clients, keys, own)

    return jax.jit(many)


def flat(values: Any, lead: int) -> jax.Array:
    """Puts the leaves of a pytree in a row.

    Args:
      values: Leaves [m, ...], or without the leading axis.
      lead: Number of leading axes, 1 or 0.

    Returns:
      An array [m, d], or [d] without the leading axis.
    """
    leaves = [x.reshape((*x.shape[:lead], -1)) for x in jax.tree.leaves(values)]
    return jnp.concatenate(leaves, -1)


# ------------------------------------------------------------------------------ agents


def agent_worlds(
    simulation: Simulation, owner: int, weights: ArrayLike, lr: float
) -> Worlds:
    """Prepares the audit of one agent of a decentralized simulation.

    Args:
      simulation: From `decentralize`, with `privacy`, on `canary_task(lr, ...)` and
        `canary_data(sizes, owner)`.
      owner: The agent that has the canary.
      weights: The mixing matrix of the simulation, not singular.
      lr: Learning rate of the algorithm.

    Returns:
      Worlds, whose `run` returns what the attack sees.
    """
    assert simulation.guarantee is not None  # it is private
    spec = simulation.guarantee.spec
    examples = int(simulation.clients.size[owner])
    record = agent_record(spec, examples, simulation.guarantee.rounds + 1)

    def observe(state: Any) -> jax.Array:
        nodes = state.training.nodes
        return flat(nodes.estimate if hasattr(nodes, "estimate") else nodes.params, 1)

    begun = jax.eval_shape(lambda: _begun(simulation))
    tracking = hasattr(begun.training.nodes, "estimate")

    def seen(found: np.ndarray) -> Releases:
        if not tracking:  # parameters, [N, T, m, d], from zero
            start = np.zeros_like(found[:, :1])
            moved = np.moveaxis(np.concatenate([start, found], 1), -1, 1)
            found = canary.moves_from_params(moved, weights, lr)
            found = np.moveaxis(found, 1, -1)
        return _normalized(found, spec, owner)

    return Worlds(simulation, record, seen, world_program(simulation, observe))


def _begun(simulation: Simulation) -> Any:
    created = simulation.programs.create(jax.random.key(0), None)
    given = simulation.inputs, created, simulation.clients
    return simulation.programs.begin(*given)[0]


def agent_record(spec: PrivacySpec, examples: int, steps: int) -> Record:
    """Says what a canary adds to the releases of its agent.

    Args:
      spec: What agents release.
      examples: Number of the agent's examples.
      steps: Number of steps that are seen, t = 0 included.

    Returns:
      The claim; the sign of the canary's gradient is that of `canary_task` with the
      period `sign_period(spec, examples)`.
    """
    (release,) = spec.releases.values()
    changes = _changes(spec, steps)
    period, at = sign_period(spec, examples), np.arange(steps)

    def trace(joins: np.ndarray) -> np.ndarray:
        d = joins * changes
        if isinstance(release.noise, Correlated):
            return correlated.pattern(spec, joins)
        if isinstance(release.noise, Inside):
            return d / _deviations(spec, steps)
        return canary.storm_estimates(d, release.beta) / release.noise.sigma

    if not isinstance(spec.sampling, Cyclic):
        cycle = spec.sampling.cycle if isinstance(spec.sampling, Poisson) else 1
        signs = np.where(at % period == 0, 1.0, -1.0)
        return Record(spec, trace(signs), examples // cycle)
    phases = np.stack([trace(at % period == phase) for phase in range(period)])
    return Record(spec, phases[0], examples, phases)


def sign_period(spec: PrivacySpec, examples: int) -> int:
    """Returns the period of the sign that is the worst case for STORM.

    Args:
      spec: What agents release.
      examples: Number of the agent's examples.

    Returns:
      The length of a cycle; 2 if a record may be in consecutive batches.
    """
    cyclic = isinstance(spec.sampling, Cyclic)
    return max(2, examples // spec.sampling.batch) if cyclic else 2


def _changes(spec: PrivacySpec, steps: int) -> np.ndarray:
    """Largest changes of the innovations by one record in the batch, [T]."""
    (release,) = spec.releases.values()
    batch = spec.sampling.batch
    changes = np.full(steps, release.clip.sensitivity(release.beta, batch))
    changes[0] = release.clip.first_sensitivity(batch)
    return changes


def _deviations(spec: PrivacySpec, steps: int) -> np.ndarray:
    """Claimed standard deviations of white noise, [T]."""
    (release,) = spec.releases.values()
    if isinstance(release.noise, Output):
        return np.full(steps, release.noise.sigma)
    multipliers = np.full(steps, release.noise.step_multipliers()[1])
    multipliers[0] = release.noise.step_multipliers()[0]
    return multipliers * _changes(spec, steps)


def _normalized(estimates: np.ndarray, spec: PrivacySpec, owner: int) -> Releases:
    """What is seen of estimates [N, T, m, d], whitened as the claim says."""
    (release,) = spec.releases.values()
    directions = np.concatenate([CANARY[None], FREE])
    if isinstance(release.noise, Correlated):
        observed = correlated.whitened(estimates, spec)
        return Releases(
            correlated.seen(observed[:, :, owner] @ CANARY, spec),
            np.zeros((len(observed), 0)),
            (observed @ directions.T).reshape(len(observed), -1),
        )
    if isinstance(release.noise, Inside):
        across = np.moveaxis(estimates, 1, -1)
        estimates = np.moveaxis(canary.innovations(across, release.beta), -1, 1)
    unit = _deviations(spec, estimates.shape[1])
    observed = estimates / unit[:, None, None]
    return Releases(
        observed[:, :, owner] @ CANARY,
        observed[:, :, owner] @ OTHERS,
        (observed @ directions.T).reshape(len(observed), -1),
    )


def participation(record: Record, steps: int) -> float:
    """Returns the claimed probability that the canary takes part in a step.

    Args:
      record: The claim.
      steps: Number of steps that are seen; one alone may be a full first batch.

    Returns:
      A probability; 1 without sampling.
    """
    sampling = record.spec.sampling
    full = steps == 1 and sampling.first_batch is not None
    if full or not isinstance(sampling, Poisson):
        return 1.0
    return sampling.batch / record.examples


def chunks(releases: Releases, size: int) -> Iterator[Releases]:
    """Divides worlds into independent audits.

    Args:
      releases: Of N worlds.
      size: Worlds in each audit.

    Yields:
      Releases of `size` worlds, N // size times.
    """
    for i in range(0, len(releases.signal) - size + 1, size):
        yield Releases(*(values[i : i + size] for values in releases))

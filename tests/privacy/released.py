"""What an attack sees of private agents and clients, and what a canary adds to it.

An adversary who sees the parameters of all agents recovers what every agent sent. The
server of clients moves its parameters by the noisy mean of clipped messages; divided by
the clip norm of the round, by which the noise is scaled, the sum of messages has noise
of the same standard deviation in every round. With an `AdaptiveClip`, the change of the
clip norm also shows the noisy count of short messages. The canary changes it by half a
count, and so do all other clients that take part: in its audits they have no finite
messages, which count as absent, and neither has the canary in worlds without it.

Multiplied by C, correlated noise is independent. If sampling amplifies privacy, the
parts of a record in the releases do not overlap, and one number for each of its turns
is sufficient: the product with a column of C.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy import signal

from fedjax_muon.privacy.client_mechanism import AdaptiveClip
from fedjax_muon.privacy.correlated import Strategy
from fedjax_muon.privacy.guarantees import PrivacySpec
from fedjax_muon.privacy.releases import Correlated, Inside, Output
from fedjax_muon.privacy.sampling import Cyclic, Poisson
from fedjax_muon.simulation.simulation import Simulation
from tests.privacy.canaries import (
    CANARY,
    FREE,
    OTHERS,
    OVERFLOW,
    Record,
    Releases,
    Worlds,
    flat,
    world_program,
)


def agent_worlds(
    simulation: Simulation, owner: int, weights: ArrayLike, lr: float
) -> Worlds:
    """Prepares the audit of one agent of a decentralized simulation."""
    assert simulation.guarantee is not None  # it is private
    spec = simulation.guarantee.spec
    examples = int(simulation.clients.size[owner])
    record = agent_record(spec, examples, simulation.guarantee.rounds + 1)

    def observe(state: Any) -> jax.Array:
        agents = state.training.agents
        return flat(getattr(agents, "estimate", agents.params), 1)

    begun = simulation.like
    tracking = hasattr(begun.training.agents, "estimate")

    def seen(observed: np.ndarray) -> Releases:
        if not tracking:  # parameters, [N, T, m, d], from zero
            start = np.zeros_like(observed[:, :1])
            moved = np.moveaxis(np.concatenate([start, observed], 1), -1, 1)
            observed = moves(moved, weights, lr)
            observed = np.moveaxis(observed, 1, -1)
        return _of_agents(observed, spec, owner)

    return Worlds(simulation, record, seen, world_program(simulation, observe))


def moves(params: np.ndarray, weights: ArrayLike, lr: float) -> np.ndarray:
    """Recovers every agent's move u of x <- W (x - lr u), [..., T, m]."""
    unmixed = params[..., 1:, :] @ np.linalg.inv(weights).T
    return (params[..., :-1, :] - unmixed) / lr


def agent_record(spec: PrivacySpec, examples: int, steps: int) -> Record:
    """Says what a canary adds to the releases of its agent.

    The sign of its gradient is that of `canary_task` with `sign_period(...)`.
    """
    (release,) = spec.releases.values()
    changes = _changes(spec, steps)
    period, at = sign_period(spec, examples), np.arange(steps)

    def trace(joins: np.ndarray) -> np.ndarray:
        d = joins * changes
        if isinstance(release.noise, Correlated):
            return correlated_pattern(spec, joins)
        if isinstance(release.noise, Inside):
            return d / _deviations(spec, steps)
        return signal.lfilter([1.0], [1.0, release.beta - 1], d) / release.noise.sigma

    if not isinstance(spec.sampling, Cyclic):
        cycle = spec.sampling.cycle if isinstance(spec.sampling, Poisson) else 1
        signs = np.where(at % period == 0, 1.0, -1.0)
        return Record(spec, trace(signs), examples // cycle)
    phases = np.stack([trace(at % period == phase) for phase in range(period)])
    return Record(spec, phases[0], examples, phases)


def sign_period(spec: PrivacySpec, examples: int) -> int:
    """Returns the period of the sign that is the worst case for STORM.

    It is the length of a cycle, or 2 if a record may be in consecutive batches.
    """
    cyclic = isinstance(spec.sampling, Cyclic)
    return max(2, examples // spec.sampling.batch) if cyclic else 2


def _changes(spec: PrivacySpec, steps: int) -> np.ndarray:
    """Largest changes of the innovations by one record in the batch, [T]."""
    (release,) = spec.releases.values()
    batch = spec.sampling.batch
    changes = np.full(steps, release.clip.sensitivity(release.beta, batch))
    changes[0] = release.clip.sensitivity(1.0, batch)
    return changes


def _deviations(spec: PrivacySpec, steps: int) -> np.ndarray:
    """Claimed standard deviations of white noise, [T]."""
    (release,) = spec.releases.values()
    if isinstance(release.noise, Output):
        return np.full(steps, release.noise.sigma)
    multipliers = np.full(steps, release.noise.step_multipliers()[1])
    multipliers[0] = release.noise.step_multipliers()[0]
    return multipliers * _changes(spec, steps)


def _of_agents(estimates: np.ndarray, spec: PrivacySpec, owner: int) -> Releases:
    """What is seen of estimates [N, T, m, d], whitened as the claim says."""
    (release,) = spec.releases.values()
    directions = np.concatenate([CANARY[None], FREE])
    if isinstance(release.noise, Correlated):
        observed = whitened(estimates, spec)
        return Releases(
            of_turns(observed[:, :, owner] @ CANARY, spec),
            np.zeros((len(observed), 0)),
            (observed @ directions.T).reshape(len(observed), -1),
        )
    if isinstance(release.noise, Inside):
        across = np.moveaxis(estimates, 1, -1)
        estimates = np.moveaxis(
            signal.lfilter([1.0, release.beta - 1], [1.0], across), -1, 1
        )
    unit = _deviations(spec, estimates.shape[1])
    observed = estimates / unit[:, None, None]
    return Releases(
        observed[:, :, owner] @ CANARY,
        observed[:, :, owner] @ OTHERS,
        (observed @ directions.T).reshape(len(observed), -1),
    )


def client_worlds(simulation: Simulation) -> Worlds:
    """Prepares the audit of a client of a federated simulation.

    The record is a client with all its examples. If the algorithm has a prologue, what
    is seen is what the server makes public after it, and otherwise the parameters and
    an adaptive clip norm.
    """
    assert simulation.guarantee is not None  # it is private
    spec, setup = simulation.guarantee.spec, simulation.settings
    clip, prologue = setup.privacy.clip_norm, bool(setup.algorithm.prologue)
    adapted = clip if isinstance(clip, AdaptiveClip) else None
    size = setup.num_clients if prologue else setup.cohort.size
    record = client_record(spec, 1 if prologue else simulation.guarantee.rounds)

    def observe(state: Any) -> jax.Array:
        server = state.training.server
        seen = flat(server.inner.momentum if prologue else server.params, 0)
        return jnp.append(seen, 1.0 if adapted is None else server.kept.clip)

    def seen(observed: np.ndarray) -> Releases:
        values, norms = observed[..., :-1], observed[..., -1]
        # gradients after the prologue, and descents in rounds
        moved = values[:, :1] if prologue else -np.diff(values, axis=1)
        if adapted is None:
            return _of_clients(size * moved / clip, None, spec)
        sums = size * moved / norms[:, :-1, None]
        change = np.log(norms[:, 1:] / norms[:, :-1]) / -adapted.lr
        counts = size * (change + adapted.quantile - 0.5)
        return _of_clients(sums, (adapted, size, counts), spec)

    program = world_program(simulation, observe)
    absent = 0.0 if adapted is None else OVERFLOW
    return Worlds(simulation, record, seen, program, absent)


def client_record(spec: PrivacySpec, steps: int) -> Record:
    """Says what a canary adds to what is public; one step alone may be a prologue."""
    (release,) = spec.releases.values()
    n = spec.sampling.examples
    if isinstance(release.noise, Correlated):
        pattern = correlated_pattern(spec, np.ones(steps))
        cycle = spec.sampling.cycle if isinstance(spec.sampling, Poisson) else 1
        return Record(spec, pattern, n // cycle)
    return Record(spec, np.full(steps, 1 / _multiplier(spec)), n)


def _multiplier(spec: PrivacySpec) -> float:
    """The claimed multiplier of independent noise: of the prologue, if there is one."""
    (release,) = spec.releases.values()
    if isinstance(release.noise, Correlated):
        return release.noise.multiplier
    return release.noise.step_multipliers()[0]


def _of_clients(
    sums: np.ndarray,
    counted: tuple[AdaptiveClip, int, np.ndarray] | None,
    spec: PrivacySpec,
) -> Releases:
    """What is seen of sums over the clip norm [N, T, d], whitened as the claim says."""
    (release,) = spec.releases.values()
    z = _multiplier(spec)
    directions = [CANARY, OTHERS, *FREE]
    if counted is None:
        observed = sums @ np.stack(directions).T / z
        canary, others = np.eye(len(directions))[:2]
    else:
        clip, size, counts = counted
        noise = clip.noise(z, size)
        columns = sums @ np.stack(directions).T / noise.message
        observed = np.concatenate([columns, counts[..., None] / noise.below], -1)
        # by how much the canary moves every coordinate, over the norm of it, 1 / z
        canary, others = np.zeros((2, len(directions) + 1))
        canary[0], canary[-1] = z / noise.message, -z / (2 * noise.below)
        others[1] = 1.0
    if isinstance(release.noise, Correlated):
        observed = product(release.noise.strategy, observed)
        signal = of_turns(observed @ canary, spec)
        other = np.zeros((len(observed), 0))
    else:
        signal, other = observed @ canary, observed @ others
    white = np.delete(observed, 1, axis=-1).reshape(len(observed), -1)
    if counted is not None:
        other = np.zeros((len(observed), 0))  # there are none
    return Releases(signal, other, white)


def whitened(estimates: np.ndarray, spec: PrivacySpec) -> np.ndarray:
    """Multiplies [N, T, m, d] by C, in claimed standard deviations of the noise."""
    noise, sensitivity = _of(spec)
    return product(noise.strategy, estimates) / (noise.multiplier * sensitivity)


def product(strategy: Strategy, values: np.ndarray) -> np.ndarray:
    """Multiplies [N, T, ...] by C along the steps."""
    steps = values.shape[1]
    column = strategy.column(steps).reshape((1, steps) + (1,) * (values.ndim - 2))
    return signal.fftconvolve(values, column, axes=1)[:, :steps]


def of_turns(white: np.ndarray, spec: PrivacySpec) -> np.ndarray:
    """Returns what is sufficient for the canary, the first example of its owner."""
    columns = _columns(spec, white.shape[1])
    return white if columns is None else white @ columns.T


def correlated_pattern(spec: PrivacySpec, joins: np.ndarray) -> np.ndarray:
    """Returns what the canary adds to `of_turns`, in claimed standard deviations."""
    noise, _ = _of(spec)
    steps = len(joins)
    column = noise.strategy.column(steps)
    if not isinstance(spec.sampling, Poisson):
        return np.convolve(joins, column)[:steps] / noise.multiplier
    turns = np.arange(0, steps, spec.sampling.cycle)
    norms = np.array([np.linalg.norm(column[: steps - t]) for t in turns])
    return joins[turns] * norms / noise.multiplier


def _columns(spec: PrivacySpec, steps: int) -> np.ndarray | None:
    """Columns of C for the turns of the first group, of norm 1, [turns, T]."""
    if not isinstance(spec.sampling, Poisson):
        return None
    noise, _ = _of(spec)
    column = noise.strategy.column(steps)
    at = np.arange(0, steps, spec.sampling.cycle)
    columns = np.array([np.concatenate([np.zeros(t), column[: steps - t]]) for t in at])
    return columns / np.linalg.norm(columns, axis=1, keepdims=True)


def _of(spec: PrivacySpec) -> tuple[Correlated, float]:
    (release,) = spec.releases.values()
    assert isinstance(release.noise, Correlated)  # the caller has checked it
    return release.noise, release.clip.sensitivity(release.beta, spec.sampling.batch)

"""Audits of the agents of a decentralized simulation, by what they send."""

from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from experiments.audits import correlated
from experiments.audits.records import CANARY, FREE, OTHERS
from experiments.audits.worlds import Record, Releases, Worlds, flat, world_program
from fedjax_muon import audits
from fedjax_muon.privacy.guarantees import PrivacySpec
from fedjax_muon.privacy.releases import Correlated, Inside, Output
from fedjax_muon.privacy.sampling import Cyclic, Poisson
from fedjax_muon.simulation.simulation import Simulation


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
    """
    assert simulation.guarantee is not None  # it is private
    spec = simulation.guarantee.spec
    examples = int(simulation.clients.size[owner])
    record = agent_record(spec, examples, simulation.guarantee.rounds + 1)

    def observe(state: Any) -> jax.Array:
        agents = state.training.agents
        return flat(getattr(agents, "estimate", agents.params), 1)

    begun = jax.eval_shape(lambda: _begun(simulation))
    tracking = hasattr(begun.training.agents, "estimate")

    def seen(observed: np.ndarray) -> Releases:
        if not tracking:  # parameters, [N, T, m, d], from zero
            start = np.zeros_like(observed[:, :1])
            moved = np.moveaxis(np.concatenate([start, observed], 1), -1, 1)
            observed = audits.moves_from_params(moved, weights, lr)
            observed = np.moveaxis(observed, 1, -1)
        return _normalized(observed, spec, owner)

    return Worlds(simulation, record, seen, world_program(simulation, observe))


def _begun(simulation: Simulation) -> Any:
    created = simulation.programs.create(jax.random.key(0), None)
    arguments = simulation.inputs, created, simulation.clients
    return simulation.programs.begin(*arguments)[0]


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
            return correlated.pattern(spec, joins)
        if isinstance(release.noise, Inside):
            return d / _deviations(spec, steps)
        return audits.storm_estimates(d, release.beta) / release.noise.sigma

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
        estimates = np.moveaxis(audits.innovations(across, release.beta), -1, 1)
    unit = _deviations(spec, estimates.shape[1])
    observed = estimates / unit[:, None, None]
    return Releases(
        observed[:, :, owner] @ CANARY,
        observed[:, :, owner] @ OTHERS,
        (observed @ directions.T).reshape(len(observed), -1),
    )

"""Audits of clients: what the server of a private federated simulation makes public.

A round moves the parameters by the noisy mean of clipped messages. Divided by the clip
norm of the round, by which the noise is scaled, the sum of messages has noise of the
same standard deviation in every round. With an `AdaptiveClip`, the change of the clip
norm also shows the noisy count of short messages. The canary changes it by half a
count, and so do all other clients that take part. In its audits they are therefore
without finite messages, which count as absent, and so is the canary in worlds without
it:

    dataset, parts = canary_data(sizes, owner=0, together=True, alone=True)
    simulation = federate(fedavg(lr=0.1), canary_task(lr=0.1), dataset, parts, ...)
    worlds = client_worlds(simulation)
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.audits import correlated
from experiments.audits.records import CANARY, FREE, OTHERS, OVERFLOW
from experiments.audits.worlds import Record, Releases, Worlds, flat, world_program
from fedjax_muon.privacy.client_mechanism import AdaptiveClip
from fedjax_muon.privacy.guarantees import PrivacySpec
from fedjax_muon.privacy.releases import Correlated
from fedjax_muon.privacy.sampling import Poisson
from fedjax_muon.simulation.simulation import Simulation


def client_worlds(simulation: Simulation) -> Worlds:
    """Prepares the audit of a client of a federated simulation.

    The record is a client with all its examples. If the algorithm has a prologue, what
    is seen is what the server makes public after it, and otherwise the parameters and
    an adaptive clip norm.

    Args:
      simulation: From `federate`, with `privacy`, on `canary_task(lr)` and
        `canary_data(sizes, owner, together=True)`, which is also `alone` if the clip
        norm is adaptive.
    """
    assert simulation.guarantee is not None  # it is private
    spec, setup = simulation.guarantee.spec, simulation.setup
    clip, prologue = setup.privacy.clip_norm, bool(setup.algorithm.prologue)
    adapted = clip if isinstance(clip, AdaptiveClip) else None
    if isinstance(clip, Mapping):
        raise ValueError(
            "clients are audited with one clip norm for whole messages, got "
            f"{clip!r}: use a number or an AdaptiveClip"
        )
    if adapted is not None and not _alone(simulation):
        raise ValueError(
            "with an AdaptiveClip, the canary is hidden among the counts of other "
            "clients: use canary_data(..., alone=True)"
        )
    size = setup.num_clients if prologue else setup.cohort_size
    record = client_record(spec, 1 if prologue else simulation.guarantee.rounds)

    def observe(state: Any) -> jax.Array:
        server = state.training.server
        seen = flat(server.momentum if prologue else server.params, 0)
        return jnp.append(seen, 1.0 if adapted is None else server.clip)

    def seen(observed: np.ndarray) -> Releases:
        values, norms = observed[..., :-1], observed[..., -1]
        # gradients after the prologue, and descents in rounds
        moves = values[:, :1] if prologue else -np.diff(values, axis=1)
        if adapted is None:
            return _normalized(size * moves / clip, None, spec)
        sums = size * moves / norms[:, :-1, None]
        change = np.log(norms[:, 1:] / norms[:, :-1]) / -adapted.lr
        counts = size * (change + adapted.quantile - 0.5)
        return _normalized(sums, (adapted, size, counts), spec)

    program = world_program(simulation, observe)
    absent = 0.0 if adapted is None else OVERFLOW
    return Worlds(simulation, record, seen, program, absent)


def client_record(spec: PrivacySpec, steps: int) -> Record:
    """Says what a canary adds to what is public; one step alone may be a prologue."""
    (release,) = spec.releases.values()
    n = spec.sampling.examples
    if isinstance(release.noise, Correlated):
        pattern = correlated.pattern(spec, np.ones(steps))
        cycle = spec.sampling.cycle if isinstance(spec.sampling, Poisson) else 1
        return Record(spec, pattern, n // cycle)
    return Record(spec, np.full(steps, 1 / _multiplier(spec)), n)


def _multiplier(spec: PrivacySpec) -> float:
    """The claimed multiplier of independent noise: of the prologue, if there is one."""
    (release,) = spec.releases.values()
    if isinstance(release.noise, Correlated):
        return release.noise.multiplier
    return release.noise.step_multipliers()[0]


def _alone(simulation: Simulation) -> bool:
    """Whether all examples but canaries have gradients that are not finite."""
    x = np.asarray(simulation.clients.x)
    return bool((x[x[:, 0] == 0, 1] == OVERFLOW).all())


def _normalized(
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
        observed = correlated.product(release.noise.strategy, observed)
        signal = correlated.seen(observed @ canary, spec)
        other = np.zeros((len(observed), 0))
    else:
        signal, other = observed @ canary, observed @ others
    white = np.delete(observed, 1, axis=-1).reshape(len(observed), -1)
    if counted is not None:
        other = np.zeros((len(observed), 0))  # there are none
    return Releases(signal, other, white)

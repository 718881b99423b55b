"""Faults of private training, planted in the package by a monkeypatch.

`FAULTS` has all of them by name. A fault belongs to a setting of `private_worlds` in
which an audit of a prepared simulation finds it, where possible of one that
`fedjax-muon train` trains.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.decentralized import (
    engine as gossip_engine,
    estimators,
    private,
    private_methods,
)
from fedjax_muon.decentralized.gossip import Estimator
from fedjax_muon.decentralized.private import PRIVATE, Mechanism
from fedjax_muon.decentralized.private_methods import Bound
from fedjax_muon.privacy import client_mechanism, client_privacy, clipping, gaussian
from fedjax_muon.privacy.client_mechanism import AdaptiveClip
from fedjax_muon.privacy.clipping import Each, clipped
from fedjax_muon.privacy.guarantees import Guarantee
from fedjax_muon.privacy.releases import Correlated, Inside, Output, Release
from fedjax_muon.simulation import participation
from fedjax_muon.simulation.batching import (
    always,
    poisson,
    shuffled_epochs,
    without_replacement,
)
from fedjax_muon.simulation.cohorts import Sampled, fixed_cohort


# ------------------------------------------------------------------------- noise faults
def less_noise(factor: float) -> Callable[[Any], None]:
    def plant(patch) -> None:
        plain = gaussian.add_normal
        scaled = lambda sigma: jax.tree.map(lambda s: factor * s, sigma)
        less = lambda key, sigma, g: plain(key, scaled(sigma), g)
        for module in (private, estimators, client_mechanism):
            patch.setattr(module, "add_normal", less)

    return plant


def of_new_gradients(patch) -> None:
    """Noise inside STORM for new gradients, without the old ones that it subtracts."""
    clip = PRIVATE["private_storm"].release(Mechanism(1.0, 0.2, 0.1, 2), 1.0).clip
    less_noise(0.1 * 1.0 / 2 / clip.sensitivity(0.1, 2))(patch)


def shared_by_agents(patch) -> None:
    def iteration(key, index, agent):
        own = jax.random.fold_in(jax.random.fold_in(key, index), agent)
        shared = jax.random.fold_in(key, index)
        return gossip_engine.Iteration(
            index, jax.random.split(own)[0], jax.random.split(shared)[1]
        )

    patch.setattr(gossip_engine, "_iteration", iteration)


def shared_by_variables(patch) -> None:
    plain = gaussian.add_normal

    def same(key, sigma, g):
        if jax.tree.structure(sigma) != jax.tree.structure(g):
            sigma = jax.tree.map(lambda _: sigma, g)
        return jax.tree.map(lambda s, x: plain(key, s, x), sigma, g)

    for module in (private, estimators):
        patch.setattr(module, "add_normal", same)


def used_again(patch) -> None:
    def iteration(key, index, agent):
        own = jax.random.fold_in(key, agent)
        return gossip_engine.Iteration(index, *jax.random.split(own))

    patch.setattr(gossip_engine, "_iteration", iteration)


def keyed_by_the_batch(patch) -> None:
    used_again(patch)
    plain = private.add_public_gradient

    def keyed(estimator):
        def with_key(iteration, batch):
            noise = jax.random.fold_in(iteration.noise, batch.ids.sum())
            return iteration._replace(noise=noise)

        return plain(
            Estimator(
                lambda o, x, b, i: estimator.start(o, x, b, with_key(i, b)),
                lambda o, m, x, b, i: estimator.update(o, m, x, b, with_key(i, b)),
            )
        )

    patch.setattr(private, "add_public_gradient", keyed)


def clean_start(patch) -> None:
    plain = private.add_public_gradient
    built = PRIVATE["dpmixsgd"].estimator

    def clean(estimator):
        silent = lambda o, x, b, i: built(
            Mechanism(1.0, 0.2, beta=0.1, batch_size=2), 0.0
        ).start(o, x, b, i)
        return plain(Estimator(silent, estimator.update))

    patch.setattr(private, "add_public_gradient", clean)


def from_the_seed(patch) -> None:
    patch.setattr(Guarantee, "run_words", lambda self: None)


# -------------------------------------------------------------------------- clip faults
def no_clip(patch) -> None:
    patch.setattr(clipping, "clipped", lambda clip_norm, g: g)


def twice_the_clip(patch) -> None:
    twice = lambda clip_norm, g: clipped(jax.tree.map(lambda c: 2 * c, clip_norm), g)
    patch.setattr(clipping, "clipped", twice)


def with_shares(clip, factor):
    """The same clip, but every share counts `factor` times."""
    scaled = lambda *given: jax.tree.map(lambda x: x * factor, clip.share(*given))
    return SimpleNamespace(share=scaled, sensitivity=clip.sensitivity)


def mean_clipped(patch) -> None:
    plain = private._innovation

    def innovation(clip, new, old, beta, size, multiplier, iteration):
        mean = lambda g: jax.tree.map(lambda x: x.sum(0, keepdims=True) / size, g)
        # the share of the mean counts as often as those of all examples
        scaled = with_shares(clip, size)
        return plain(scaled, mean(new), mean(old), beta, size, multiplier, iteration)

    patch.setattr(private, "_innovation", innovation)


def realised_size(patch) -> None:
    plain = private._innovation

    def innovation(clip, new, old, beta, size, multiplier, iteration):
        rows = sum(jnp.abs(x).sum(1) for x in jax.tree.leaves(new)) > 0
        scaled = with_shares(clip, size / jnp.maximum(rows.sum(), 1))
        return plain(scaled, new, old, beta, size, multiplier, iteration)

    patch.setattr(private, "_innovation", innovation)


# -------------------------------------------------------- sampling, accounting faults
def fixed_size(patch) -> None:
    patch.setattr(private_methods, "poisson", lambda room: without_replacement)


def reshuffled(patch) -> None:
    patch.setattr(private_methods, "cyclic", always(shuffled_epochs))


def groups_ignored(patch) -> None:
    ungrouped = lambda room, cycle: always(poisson(room))
    patch.setattr(private_methods, "cyclic_poisson", ungrouped)


def first_entry_of_a_column(patch) -> None:
    """Accounts for the part of a gradient in one release, not in those after it."""
    alone = lambda noise: 2 * (noise.multiplier / noise.strategy.column(1)[0],)
    patch.setattr(Correlated, "step_multipliers", alone)


def account_for(patch, change) -> None:
    plain = Bound._spec
    other = lambda self, examples: change(plain(self, examples), examples)
    patch.setattr(Bound, "_spec", other)


def one_release_less(patch) -> None:
    account_for(patch, lambda spec, _: replace(spec, steps=spec.steps - 1))


def largest_agent(patch) -> None:
    plain = Bound.calibrated
    alone = lambda self, sizes: plain(self, [max(sizes)])
    patch.setattr(Bound, "calibrated", alone)


def smaller_rate(patch) -> None:
    """Accounts for batches of half their size among the examples."""
    rarer = lambda sampling, examples: replace(sampling, examples=2 * examples)
    account_for(patch, lambda spec, n: replace(spec, sampling=rarer(spec.sampling, n)))


def memory_forgotten(patch) -> None:
    forgetful = lambda m, sigma: Release(Each(m.clip_norm), Output(sigma))
    row = PRIVATE["dpmixsgd"]._replace(release=forgetful)
    patch.setitem(PRIVATE, "dpmixsgd", row)


# ----------------------------------------------------------------------- client faults
def silent_prologue(patch) -> None:
    plain = client_privacy.private_clients

    none = {"prologue_noise_multiplier": 0.0}
    silent = lambda *given, **named: plain(*given, **named | none)
    patch.setattr(client_privacy, "private_clients", silent)


def clipped_after_the_mean(patch) -> None:
    plain = client_mechanism._private_exchange

    def late(exchange, number, phase, bound, *further):
        loose = bound._replace(added=lambda clip, message: message)
        made = plain(exchange, number, phase, loose, *further)

        def server(state, total, round):
            mean = jax.tree.map(lambda x: x / phase.size, total)
            whole = jax.tree.map(lambda x: x * phase.size, bound.added((), mean))
            return made.server(state, whole, round)

        return made._replace(server=server)

    patch.setattr(client_mechanism, "_private_exchange", late)


def fixed_cohorts(patch) -> None:
    patch.setattr(participation, "PoissonDraw", lambda room: fixed_cohort)


def clean_count(patch) -> None:
    plain = AdaptiveClip.noise
    silent = lambda clip, *given: plain(clip, *given)._replace(below=0.0)
    _in_the_mechanism(patch, silent)


def count_not_accounted(patch) -> None:
    """The sum has the noise of the whole round, as if the count cost nothing."""
    plain = AdaptiveClip.noise
    free = lambda clip, z, cohort: plain(clip, z, cohort)._replace(message=z)
    _in_the_mechanism(patch, free)


def _in_the_mechanism(patch, noise) -> None:
    """Replaces the noise of an adaptive clip norm where it is drawn, not in a claim."""
    plain = client_mechanism._adaptive

    def other(clip_norm, phase):
        given = noise(clip_norm, phase.noise_multiplier, phase.size)
        return plain(clip_norm, phase)._replace(sigma=lambda clip, sent: given)

    patch.setattr(client_mechanism, "_adaptive", other)


def noise_of_the_initial_norm(patch) -> None:
    plain = client_mechanism._adaptive

    def initial(clip_norm, phase):
        noise = clip_norm.noise(phase.noise_multiplier, phase.size)
        relative = lambda clip: noise.message * clip_norm.initial / clip
        sigma = lambda clip, sent: noise._replace(message=relative(clip))
        return plain(clip_norm, phase)._replace(sigma=sigma)

    patch.setattr(client_mechanism, "_adaptive", initial)


def cohorts_of_all_groups(patch) -> None:
    plain = Sampled.joined

    def ungrouped(members, *given):
        return plain(dataclasses.replace(members, groups=1), *given)

    patch.setattr(Sampled, "joined", ungrouped)


def later_releases_forgotten(patch) -> None:
    """Accounts for correlated noise as if it were independent."""

    def independent(self, changes, beta):
        return Inside(self.multiplier).transcript_multiplier(changes, beta)

    patch.setattr(Correlated, "transcript_multiplier", independent)


class Fault(NamedTuple):
    """A fault, and an audit that finds it."""

    plant: Callable[[Any], None]
    setting: str
    worlds: int = 2000  # of each kind
    # whether an event of the releases refutes the claimed profile; otherwise only what
    # accounting assumes of noise or participation is refuted
    profile: bool = True


SGDA, FTRL, MIX, STORM = (
    f"{name}, on a problem"
    for name in ("dp_sgda", "dp_ftrl", "dpmixsgd", "private_storm")
)
FAULTS = {
    "noise / 10": Fault(less_noise(0.1), SGDA),
    "counted for the mean of 4 agents": Fault(less_noise(4**-0.5), MIX),
    "noise of new gradients": Fault(of_new_gradients, STORM),
    "no clip": Fault(no_clip, MIX),
    "clip of the batch's mean": Fault(mean_clipped, MIX),
    "twice the clip": Fault(twice_the_clip, SGDA),
    "the realised batch size": Fault(realised_size, SGDA, profile=False),
    "one noise for all agents": Fault(shared_by_agents, MIX),
    "one noise for x and y": Fault(shared_by_variables, MIX),
    "one noise for all iterations": Fault(used_again, STORM),
    "noise keyed by the batch": Fault(keyed_by_the_batch, MIX),
    "clean at t = 0": Fault(clean_start, MIX),
    "one noise for two runs": Fault(from_the_seed, "two runs"),
    "batches of fixed size": Fault(fixed_size, "rare batches", profile=False),
    "batches of all groups": Fault(groups_ignored, FTRL, profile=False),
    "the first entry of a column": Fault(first_entry_of_a_column, "dp_ftrl"),
    "batches reshuffled": Fault(reshuffled, MIX, profile=False),
    "one release less": Fault(one_release_less, "short"),
    "the largest agent": Fault(largest_agent, "unequal agents"),
    "half the sampling rate": Fault(smaller_rate, SGDA),
    "memory forgotten": Fault(memory_forgotten, MIX),
    "a prologue without noise": Fault(silent_prologue, "prologue"),
    "clip after the mean": Fault(clipped_after_the_mean, "clients"),
    "cohorts of fixed size": Fault(fixed_cohorts, "clients", profile=False),
    "a count without noise": Fault(clean_count, "adaptive clip"),
    "a count without cost": Fault(count_not_accounted, "adaptive clip", profile=False),
    "noise of the initial norm": Fault(noise_of_the_initial_norm, "adaptive clip"),
    "cohorts of all groups": Fault(
        cohorts_of_all_groups, "clients in turn", profile=False
    ),
    "later releases forgotten": Fault(
        later_releases_forgotten, "all clients, buffered"
    ),
}

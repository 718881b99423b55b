"""Private methods, and mistakes in them that an audit should find.

The engine runs every method of `decentralized.private` on a ring of 4 agents, with
noise for one claimed epsilon. Agent 0 has canaries or not; the attack sees the
parameters of all agents and computes the releases of agent 0 from them. The mistakes
are:

- noise / 10: the standard deviation of the noise is ten times too small;
- no clip: gradients are not clipped;
- clean at t = 0: noise is added from t = 1 on;
- clip of the mean: the batch's mean is clipped instead of each gradient;
- reused key: every iteration draws its noise with the key of the first;
- memory forgotten: the noise ignores STORM's memory, which repeats a record or
  subtracts an old gradient, and so increases the sensitivity;
- counted for the mean: the noise is for an attack that sees the agents' mean only.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon import audits
from fedjax_muon.core import GradFn, Objective
from fedjax_muon.decentralized import dense, engine as gossip_engine, topology
from fedjax_muon.decentralized.gossip import Estimator, Gossip
from fedjax_muon.decentralized.private import (
    PRIVATE,
    Mechanism,
    calibrate,
    noise_scale_of,
)
from fedjax_muon.decentralized.tracking import gradient_tracking
from fedjax_muon.privacy import Cyclic, FullBatch, Inside, Poisson, Sampling

AGENTS, STEPS, LR, DELTA, CLAIM = 4, 40, 0.1, 1e-5, 3.0
MECHANISM = Mechanism(clip_norm=1.0, change_clip_norm=0.2, beta=0.1, batch_size=4)
HUGE = 100 * MECHANISM.clip_norm  # norm of a canary's gradient
WEIGHTS = topology.metropolis(topology.ring(AGENTS))
CHUNK = 2000  # worlds per batch


class Flaw(NamedTuple):
    """Deviations from the claimed mechanism; the default is the correct one."""

    noise: float = 1.0  # factor on the standard deviation of the noise
    first: float = 1.0  # another factor, at t = 0
    limit: float = 1.0  # factor on the clip norms
    mean: bool = False  # clips the mean of the batch
    stale: bool = False  # draws the noise of t = 0 again


class Case(NamedTuple):
    """A method and its sampling."""

    method: str
    sampling: Sampling

    @property
    def release(self):
        return PRIVATE[self.method].release(MECHANISM, 1.0)

    @property
    def inside(self) -> bool:
        return isinstance(self.release.noise, Inside)

    @property
    def probability(self) -> float:
        return MECHANISM.batch_size / self.sampling.examples


CASES = {
    "DPMixSGD (clipped), cyclic": Case("dpmixsgd", Cyclic(40, 4)),
    "DPMixSGD (noise inside), every batch": Case("dpmixsgd_inside", FullBatch(4)),
    "Private STORM (split), every batch": Case("private_storm", FullBatch(4)),
    "DP-SGDA, every batch": Case("dp_sgda", FullBatch(4)),
    "DPMixSGD (noise inside), Poisson 1/5": Case("dpmixsgd_inside", Poisson(20, 4)),
}


@functools.cache
def claimed_noise(case: Case) -> float:
    """Returns the noise that the library calibrates to the claim."""
    spec = calibrate(
        case.method, MECHANISM, CLAIM, case.sampling, steps=STEPS, delta=DELTA
    )
    return noise_scale_of(spec)


def flaws(case: Case) -> dict[str, Flaw]:
    """Returns the correct mechanism, and all mistakes that apply to the method."""
    found = {
        "correct": Flaw(),
        "noise / 10": Flaw(noise=0.1),
        "clean at t = 0": Flaw(first=0.0),
        "no clip": Flaw(limit=1e6),
        "clip of the mean": Flaw(mean=True),
        "reused key": Flaw(stale=True),
    }
    clip, beta, size = case.release.clip, case.release.beta, MECHANISM.batch_size
    if not case.inside:
        # without memory a record counts as often as it is sampled
        times = np.sqrt(np.count_nonzero(pattern(case)))
        alone = times * clip.sensitivity(beta, size) / np.linalg.norm(traces(case))
        found["memory forgotten"] = Flaw(noise=float(alone))
    elif beta < 1:
        # new gradients by their weight, without the old ones that are subtracted
        weight = 1.0 if case.method == "dpmixsgd_inside" else beta
        alone = weight * MECHANISM.clip_norm / size / clip.sensitivity(beta, size)
        found["memory forgotten"] = Flaw(noise=alone)
    found["counted for the mean"] = Flaw(noise=AGENTS**-0.5)
    return found


def pattern(case: Case) -> np.ndarray:
    """Returns the canary's weights if it participates as often as possible, [T]."""
    weights = np.zeros(STEPS)
    if isinstance(case.sampling, Cyclic):
        weights[:: case.sampling.separation] = 1.0
    else:
        weights[:] = (-1.0) ** np.arange(STEPS)  # in consecutive batches: see `Planted`
    return weights


def deviations(case: Case) -> np.ndarray:
    """Returns the claimed standard deviations, which are the units of `seen`, [T]."""
    noise = claimed_noise(case)
    if not case.inside:
        return np.full(STEPS, noise)
    return noise * sensitivities(case)


def sensitivities(case: Case) -> np.ndarray:
    """Returns how far the canary moves the new term of every step, [T]."""
    clip, size = case.release.clip, MECHANISM.batch_size
    found = np.full(STEPS, clip.sensitivity(case.release.beta, size))
    found[0] = clip.sensitivity(1.0, size)
    return found


def traces(case: Case) -> np.ndarray:
    """Returns the canary's contribution to `seen` if it follows `pattern`, [T]."""
    changes = pattern(case) * sensitivities(case)
    return (
        changes if case.inside else audits.storm_estimates(changes, case.release.beta)
    )


def _mean_first(estimator: Estimator, mean) -> Estimator:
    """Returns an estimator of the mean gradient in place of single gradients.

    The first row is the mean of the batch's gradients, and the others are zero.
    """

    def changed(objective: Objective) -> Objective:
        def gradients(params, batch, key):
            rows = objective.example_grad(params, batch, key)
            whole = rows.sum(0) / MECHANISM.batch_size
            return jnp.where(mean, jnp.zeros_like(rows).at[0].set(whole), rows)

        return objective._replace(example_grad=gradients)

    return Estimator(
        lambda objective, *rest: estimator.start(changed(objective), *rest),
        lambda objective, *rest: estimator.update(changed(objective), *rest),
    )


def _reusing(estimator: Estimator, stale) -> Estimator:
    """Returns an estimator that draws all noise with the key of t = 0."""

    def start(objective, params, batch, iteration):
        estimate, memory = estimator.start(objective, params, batch, iteration)
        return estimate, (memory, iteration.noise)

    def update(objective, memory, params, batch, iteration):
        memory, first = memory
        iteration = iteration._replace(noise=jnp.where(stale, first, iteration.noise))
        estimate, memory = estimator.update(objective, memory, params, batch, iteration)
        return estimate, (memory, first)

    return Estimator(start, update)


def build(method: str, flaw: Flaw, noise):
    """Returns the library's method with the flaw."""
    row = PRIVATE[method]
    size: Any = jnp.where(flaw.mean, 1.0, MECHANISM.batch_size)
    mechanism = dataclasses.replace(
        MECHANISM,
        clip_norm=flaw.limit * MECHANISM.clip_norm,
        change_clip_norm=flaw.limit * MECHANISM.change_clip_norm,
        batch_size=size,
    )
    noise = flaw.noise * noise
    if isinstance(row.release(MECHANISM, 1.0).noise, Inside):
        # the noise is a multiple of the sensitivity, which the flaw changes
        noise = noise / (flaw.limit * MECHANISM.batch_size / size)

    def estimator(mechanism, noise):
        begin = row.estimator(mechanism, flaw.first * noise)
        later = row.estimator(mechanism, noise)
        both = _mean_first(Estimator(begin.start, later.update), flaw.mean)
        return _reusing(both, flaw.stale)

    return row._replace(estimator=estimator).build(mechanism, noise, lr=LR)


def of_examples(example_grad: GradFn) -> Objective:
    """Returns the objective with these gradients of single examples."""
    mean = lambda *where: example_grad(*where).mean(0)
    return Objective(mean, example_grad=example_grad)


def trajectory(algorithm: Gossip, weights, key) -> jax.Array:
    """Returns the parameters of all agents in the canaries' directions, [T + 1, m, K].

    Each agent has three examples of 1/2 ||x - target||^2 in two other coordinates, and
    agent 0 the canaries by `weights` [T, K].
    """
    number = weights.shape[1]
    directions = jnp.eye(2 + number)[2:]
    targets = 1.0 + jnp.arange(AGENTS * 6.0).reshape(AGENTS, 3, 2)

    def example_grad(params, targets, key):
        del key
        rows = params[None, :2] - targets
        return jnp.concatenate([rows, jnp.zeros((3, number))], 1)

    objective = of_examples(audits.plant(example_grad, HUGE * directions))
    mixer = dense(WEIGHTS)
    start, step = gossip_engine.make(algorithm, objective, mixer, AGENTS)

    def batches(x, row):
        present = jnp.zeros((AGENTS, number)).at[0].set(row)
        return audits.Planted(targets, present, x)

    def body(state, row):
        x = state.agents.params
        return step(state, batches(x, row), key), x[:, 2:]

    x0 = jnp.zeros(2 + number)
    everywhere = jnp.broadcast_to(x0, (AGENTS, *x0.shape))
    state = start(x0, batches(everywhere, weights[0]), key)
    last, before = jax.lax.scan(body, state, weights[1:])
    ends = everywhere[None, :, 2:], last.agents.params[None, :, 2:]
    return jnp.concatenate([ends[0], before, ends[1]])


# with fewer optimizations it compiles in half the time and runs as fast
_COMPILED = {"xla_backend_optimization_level": 1}


@functools.partial(jax.jit, static_argnames="method", compiler_options=_COMPILED)
def worlds(method: str, flaw: Flaw, noise, weights, keys) -> jax.Array:
    """Returns trajectories [N, T + 1, m, K] for `weights` [N, T, K]."""
    algorithm = build(method, flaw, noise)
    one = lambda weights, key: trajectory(algorithm, weights, key)
    return jax.vmap(one)(weights, keys)


def released(method: str, x) -> np.ndarray:
    """Returns agent 0's releases, computed from the parameters of all agents.

    Parameters are [N, T + 1, m, K], and releases [N, K, T].
    """
    u = audits.moves_from_params(np.moveaxis(x, -1, 1), WEIGHTS, LR)
    if PRIVATE[method].base is gradient_tracking:
        u = audits.estimates_from_tracked(u, WEIGHTS)
    return u[..., 0]


def seen(case: Case, x) -> np.ndarray:
    """Returns the adversary's view of agent 0, in claimed standard deviations."""
    y = released(case.method, x)
    y = audits.innovations(y, case.release.beta) if case.inside else y
    return y / deviations(case)


def run(case: Case, flaw: Flaw, weights, seed: int) -> np.ndarray:
    """Returns `seen` [N, K, T] in worlds with the canaries' `weights` [N, T, K]."""
    noise = claimed_noise(case)
    keys = jax.random.split(jax.random.key(seed), len(weights))
    found = []
    for i in range(0, len(weights), CHUNK):
        part = jnp.asarray(weights[i : i + CHUNK], jnp.float32)
        x = worlds(case.method, flaw, noise, part, keys[i : i + CHUNK])
        found.append(seen(case, np.asarray(x)))
    return np.concatenate(found)

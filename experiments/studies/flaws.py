"""Private methods, and mistakes in them that an audit should find.

Every method of `decentralized.private` is run by the engine on a ring of 4 agents,
with noise for one claimed epsilon. Agent 0 has canaries or not; the attack sees the
parameters of all agents and finds what agent 0 told. The mistakes are wrong pieces put
together here:

- noise / 10;
- no clip;
- clean at t = 0: noise is added from t = 1 on;
- clip of the mean: what is clipped is the batch's mean, not each of its gradients;
- reused key: the noise of every iteration is drawn with the first's key;
- memory forgotten: the noise is for the sensitivity of gradients without STORM's
  memory, which repeats a record, or takes an old gradient off;
- counted for the mean: the noise is for an attack that sees the agents' mean only.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.attacks import canary
from fedjax_muon.core import GradFn, Objective
from fedjax_muon.decentralized import engine as gossip_engine
from fedjax_muon.decentralized import topology
from fedjax_muon.decentralized.gossip import Estimator, Gossip
from fedjax_muon.decentralized.private import PRIVATE, Mechanism, calibrate, noise_of
from fedjax_muon.decentralized.tracking import gradient_tracking
from fedjax_muon.privacy.report import Inside
from fedjax_muon.privacy.sampling import Cyclic, FullBatch, Poisson, Sampling

AGENTS, STEPS, LR, DELTA, CLAIM = 4, 40, 0.1, 1e-5, 3.0
MECHANISM = Mechanism(limit=1.0, change=0.2, beta=0.1, batch_size=4)
HUGE = 100 * MECHANISM.limit  # norm of a canary's gradient
WEIGHTS = topology.metropolis(topology.ring(AGENTS))
CHUNK = 2000  # worlds that are run together


class Flaw(NamedTuple):
    """What is done instead of what is claimed; a correct mechanism by default."""

    noise: float = 1.0  # factor on the standard deviation of the noise
    first: float = 1.0  # another factor, at t = 0
    limit: float = 1.0  # factor on the limits of the clip
    mean: bool = False  # clips the mean of the batch
    stale: bool = False  # draws the noise of t = 0 again


class Case(NamedTuple):
    """A method and the way its records take part."""

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
    """What the library says is enough for the claim."""
    spec = calibrate(
        case.method, MECHANISM, CLAIM, case.sampling, steps=STEPS, delta=DELTA
    )
    return noise_of(spec)


def flaws(case: Case) -> dict[str, Flaw]:
    """The correct mechanism, and all mistakes that the method leaves room for."""
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
        # without memory a record would count as often as it takes part
        times = np.sqrt(np.count_nonzero(pattern(case)))
        alone = times * clip.sensitivity(beta, size) / np.linalg.norm(traces(case))
        found["memory forgotten"] = Flaw(noise=float(alone))
    elif beta < 1:
        # fresh gradients, by their weight, without the old ones that are taken off
        weight = 1.0 if case.method == "dpmixsgd_inside" else beta
        alone = weight * MECHANISM.limit / size / clip.sensitivity(beta, size)
        found["memory forgotten"] = Flaw(noise=alone)
    found["counted for the mean"] = Flaw(noise=AGENTS**-0.5)
    return found


def pattern(case: Case) -> np.ndarray:
    """The canary's weights when it takes part as often as it may, [T]."""
    weights = np.zeros(STEPS)
    if isinstance(case.sampling, Cyclic):
        weights[:: case.sampling.separation] = 1.0
    else:
        weights[:] = (-1.0) ** np.arange(STEPS)  # in consecutive batches: see `Planted`
    return weights


def deviations(case: Case) -> np.ndarray:
    """Claimed standard deviations of what `seen` is measured in, [T]."""
    noise = claimed_noise(case)
    if not case.inside:
        return np.full(STEPS, noise)
    return noise * sensitivities(case)


def sensitivities(case: Case) -> np.ndarray:
    """How far the canary moves the fresh term of every step, [T]."""
    clip, size = case.release.clip, MECHANISM.batch_size
    found = np.full(STEPS, clip.sensitivity(case.release.beta, size))
    found[0] = clip.first(size)
    return found


def traces(case: Case) -> np.ndarray:
    """What the canary leaves in what is seen if it follows `pattern`, [T]."""
    changes = pattern(case) * sensitivities(case)
    return changes if case.inside else canary.remembered(changes, case.release.beta)


def _mean_first(estimator: Estimator, mean) -> Estimator:
    """Sees the mean of the batch's gradients in place of the first, zeros of the
    others."""

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
    """Keeps the key of the noise at t = 0 and draws with it again."""

    def start(objective, params, batch, iteration):
        told, memory = estimator.start(objective, params, batch, iteration)
        return told, (memory, iteration.noise)

    def update(objective, memory, params, batch, iteration):
        memory, first = memory
        iteration = iteration._replace(noise=jnp.where(stale, first, iteration.noise))
        told, memory = estimator.update(objective, memory, params, batch, iteration)
        return told, (memory, first)

    return Estimator(start, update)


def build(method: str, flaw: Flaw, noise):
    """The library's method, with what is flawed exchanged."""
    row = PRIVATE[method]
    size: Any = jnp.where(flaw.mean, 1.0, MECHANISM.batch_size)
    mechanism = dataclasses.replace(
        MECHANISM,
        limit=flaw.limit * MECHANISM.limit,
        change=flaw.limit * MECHANISM.change,
        batch_size=size,
    )
    noise = flaw.noise * noise
    if isinstance(row.release(MECHANISM, 1.0).noise, Inside):
        # a multiplier, and the flawed mechanism's own sensitivity is another
        noise = noise / (flaw.limit * MECHANISM.batch_size / size)

    def estimate(mechanism, noise):
        begin = row.estimate(mechanism, flaw.first * noise)
        later = row.estimate(mechanism, noise)
        both = _mean_first(Estimator(begin.start, later.update), flaw.mean)
        return _reusing(both, flaw.stale)

    return row._replace(estimate=estimate).build(mechanism, noise, lr=LR)


def of_examples(example_grad: GradFn) -> Objective:
    """The objective of these gradients of single examples."""
    mean = lambda *where: example_grad(*where).mean(0)
    return Objective(mean, example_grad=example_grad)


def trajectory(algorithm: Gossip, weights, key) -> jax.Array:
    """Parameters of all agents in the directions of the canaries, [T + 1, m, K].

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

    objective = of_examples(canary.plant(example_grad, HUGE * directions))
    mixer = gossip_engine.dense(WEIGHTS)
    start, step = gossip_engine.make(algorithm, objective, mixer, AGENTS)

    def batches(x, row):
        present = jnp.zeros((AGENTS, number)).at[0].set(row)
        return canary.Planted(targets, present, x)

    def body(state, row):
        x = state.nodes.params
        return step(state, batches(x, row), key), x[:, 2:]

    x0 = jnp.zeros(2 + number)
    everywhere = jnp.broadcast_to(x0, (AGENTS, *x0.shape))
    state = start(x0, batches(everywhere, weights[0]), key)
    last, before = jax.lax.scan(body, state, weights[1:])
    ends = everywhere[None, :, 2:], last.nodes.params[None, :, 2:]
    return jnp.concatenate([ends[0], before, ends[1]])


# optimised less, it compiles in half the time and runs as fast
_COMPILED = {"xla_backend_optimization_level": 1}


@functools.partial(jax.jit, static_argnames="method", compiler_options=_COMPILED)
def worlds(method: str, flaw: Flaw, noise, weights, keys) -> jax.Array:
    """[N, T + 1, m, K] for `weights` [N, T, K]."""
    algorithm = build(method, flaw, noise)
    one = lambda weights, key: trajectory(algorithm, weights, key)
    return jax.vmap(one)(weights, keys)


def told(method: str, x) -> np.ndarray:
    """What agent 0 told, from all agents' parameters: [N, T + 1, m, K] -> [N, K, T]."""
    u = canary.moves(np.moveaxis(x, -1, 1), WEIGHTS, LR)
    if PRIVATE[method].over is gradient_tracking:
        u = canary.untracked(u, WEIGHTS)
    return u[..., 0]


def seen(case: Case, x) -> np.ndarray:
    """What is known of agent 0, in standard deviations of the claimed noise."""
    y = told(case.method, x)
    y = canary.innovations(y, case.release.beta) if case.inside else y
    return y / deviations(case)


def run(case: Case, flaw: Flaw, weights, seed: int) -> np.ndarray:
    """`seen` [N, K, T] in worlds with the canaries' `weights` [N, T, K]."""
    noise = claimed_noise(case)
    keys = jax.random.split(jax.random.key(seed), len(weights))
    found = []
    for i in range(0, len(weights), CHUNK):
        part = jnp.asarray(weights[i : i + CHUNK], jnp.float32)
        x = worlds(case.method, flaw, noise, part, keys[i : i + CHUNK])
        found.append(seen(case, np.asarray(x)))
    return np.concatenate(found)

"""Client drift within a round of FedMuon (Zhang and Gao).

Lemma 6.2:  mean_k ||Xbar_t - X_t^k||_F <= 2 eta tau sqrt(n), always;
Lemma 6.1:  mean_k E||Mbar_t - M_t^k||_F
                <= 4 beta eta tau^2 L sqrt(n) + 2 beta tau sigma + beta tau delta,

for every t and without any bound on eta, with tau local steps, matrices of n columns,
E||noise||_F^2 <= sigma^2 and mean_k ||grad f_k - grad f||_F^2 <= delta^2. The lemma's
proof starts from equal momenta at the last exchange. Algorithm 1 does not provide these
before the first exchange: its M_0^k is a gradient of client k.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.theory import quadratics
from experiments.theory.frame import ZHANG, Finding, verdict
from fedjax_muon import engine
from fedjax_muon.algorithms import fedmuon
from fedjax_muon.engine import plans
from fedjax_muon.tasks.heavy_tails import gaussian

COLUMNS = 8  # n; the matrices are square
SHAPE = (COLUMNS, COLUMNS)


class Size(NamedTuple):
    clients: int = 8
    steps: int = 5  # tau
    rounds: int = 8
    seeds: int = 10
    lrs: tuple[float, ...] = (0.001, 0.1, 10.0)  # eta
    betas: tuple[float, ...] = (0.01, 0.1, 0.5)
    sigmas: tuple[float, ...] = (0.0, 1.0, 10.0)


FULL = Size()


class Drift(NamedTuple):
    """Mean distances of clients from their mean."""

    params: Any  # an array
    momentum: Any  # an array


def observing(client, shared, client_states, rows):
    """Runs a plan that returns the clients' messages in place of their states."""
    client_state = jax.tree.map(lambda x: x[rows.id], client_states)
    run = jax.vmap(client, in_axes=(None, 0, 0))
    (messages, weights), _, received = run(shared, client_state, rows)
    total = jax.tree.map(lambda x: x.sum(0), (messages, weights))
    return total, messages, received


def drifts(algorithm, objective, clients, key, size: Size) -> Drift:
    """Returns both distances at t = 1 ... tau - 1, tau + 1, ..., [rounds (tau - 1)].

    At multiples of tau everything has just been averaged. The clients after k steps are
    those at the end of a round of k batches.
    """
    cohort = quadratics.full_participation(clients)
    spread = lambda x: jnp.linalg.norm(x - x.mean(0)[None], axis=(1, 2)).mean()

    def run(plan, steps):
        draw = quadratics.repeated(steps)
        return engine.make_round(algorithm, objective, size.clients, plan, draw)

    def after(state, steps):
        sent = run(observing, steps)(state, *cohort, key)[0].client_states
        return Drift(spread(sent.params), spread(sent.momentum))

    def body(state, _):
        seen = [after(state, steps) for steps in range(1, size.steps)]
        following = run(plans.vmapped, size.steps)(state, *cohort, key)[0]
        return following, jax.tree.map(lambda *x: jnp.stack(x), *seen)

    state = quadratics.start(algorithm, clients, jnp.zeros(SHAPE), key, objective)
    _, seen = jax.lax.scan(body, state, None, length=size.rounds)
    return jax.tree.map(jnp.ravel, seen)


def ratios(algorithm, clients, size: Size) -> Drift:
    """Returns distances divided by their bounds.

    They are [eta, beta, sigma, seed, t] for parameters, and [eta, beta, sigma, t] for
    momenta, since Lemma 6.1 is about expectations.
    """

    def one(lr, beta, sigma, key):
        # entries of variance sigma^2 / n^2: E||noise||_F^2 = sigma^2
        objective = quadratics.noisy(gaussian(sigma / COLUMNS))
        method = quadratics.muon(algorithm, lr, beta)
        return drifts(method, objective, clients, key, size)

    keys = jax.random.split(jax.random.key(3), size.seeds)
    found = quadratics.over_grid(one, size.lrs, size.betas, size.sigmas, keys)
    delta = quadratics.dissimilarity(clients, np.zeros(SHAPE))
    eta, beta, sigma = np.ix_(size.lrs, size.betas, size.sigmas)
    tau, root = size.steps, np.sqrt(COLUMNS)
    params = 2 * eta * tau * root
    momentum = 4 * beta * eta * tau**2 * root + beta * tau * (2 * sigma + delta)
    return Drift(
        found.params / params[..., None, None],
        found.momentum.mean(3) / momentum[..., None],
    )


def study(size: Size = FULL, *, algorithm=fedmuon) -> list[Finding]:
    """Measures both lemmas, with first momenta as in Algorithm 1 and averaged."""
    clients = quadratics.random(jax.random.key(4), size.clients, SHAPE, 0.1, 1.0)
    found = {
        name: ratios(partial(algorithm, synced=synced), clients, size)
        for name, synced in (("as in Algorithm 1", False), ("averaged", True))
    }
    worst = max(float(ratio.params.max()) for ratio in found.values())
    findings = [
        Finding(
            "parameters of clients stay within the bound of Lemma 6.2 at any learning "
            "rate",
            f"{ZHANG}, Lemma 6.2",
            "distance over bound <= 1 at every t, eta, beta, sigma and seed",
            f"largest ratio {worst:.3f}",
            verdict(worst <= 1),
        )
    ]
    for name, ratio in found.items():
        early = float(ratio.momentum[..., : size.steps - 1].max())
        later = float(ratio.momentum[..., size.steps - 1 :].max())
        findings.append(
            Finding(
                "momenta of clients stay within the bound of Lemma 6.1, first momenta "
                f"{name}",
                f"{ZHANG}, Lemma 6.1",
                "mean distance over bound <= 1 at every t, eta, beta and sigma",
                f"largest ratio {early:.3g} for t < tau, {later:.3g} for t > tau",
                verdict(max(early, later) <= 1),
            )
        )
    return findings

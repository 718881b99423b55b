"""Client drift within a round of FedMuon (Zhang and Gao).

Lemma 6.2:  mean_k ||Xbar_t - X_t^k||_F <= 2 eta tau sqrt(n), always;
Lemma 6.1:  mean_k E||Mbar_t - M_t^k||_F
                <= 4 beta eta tau^2 L sqrt(n) + 2 beta tau sigma + beta tau delta,

for every t and without any bound on eta, with tau local steps, matrices of n columns,
E||noise||_F^2 <= sigma^2 and mean_k ||grad f_k - grad f||_F^2 <= delta^2. The lemma's
proof starts from equal momenta at the last exchange. Algorithm 1 does not provide these
before the first exchange: its M_0^k is a gradient of client k.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from experiments.theory import quadratics
from experiments.theory.finding import ZHANG, Finding, Study, verdict
from fedjax_muon import engine
from fedjax_muon.algorithms import fedmuon
from fedjax_muon.core import Objective
from fedjax_muon.engine import plans
from fedjax_muon.linalg.newton_schulz import polar
from fedjax_muon.tasks import heavy_tails as noise
from fedjax_muon.transforms import orthogonalize

COLUMNS = 8  # n; the matrices are square


class Size(NamedTuple):
    clients: int
    steps: int  # tau
    rounds: int
    seeds: int
    lrs: tuple[float, ...]  # eta
    betas: tuple[float, ...]
    sigmas: tuple[float, ...]


SIZES = {
    "smoke": Size(3, 2, 3, 2, (0.1, 10.0), (0.05,), (0.0, 1.0)),
    "full": Size(8, 5, 8, 10, (0.001, 0.1, 10.0), (0.01, 0.1, 0.5), (0.0, 1.0, 10.0)),
}


class Drift(NamedTuple):
    """Mean distances of clients from their mean."""

    params: Any  # an array
    momentum: Any  # an array


def _spread(x):
    return jnp.mean(jnp.linalg.norm(x - x.mean(0, keepdims=True), axis=(1, 2)))


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
    count, cohort = size.clients, quadratics.full_participation(clients)

    def run(plan, steps):
        draw = quadratics.repeated(steps)
        return engine.make_round(algorithm, objective, count, plan, draw)

    def after(state, steps):
        sent = run(observing, steps)(state, *cohort, key)[0].client_states
        return Drift(_spread(sent.params), _spread(sent.momentum))

    def body(state, _):
        seen = [after(state, steps) for steps in range(1, size.steps)]
        following = run(plans.vmapped, size.steps)(state, *cohort, key)[0]
        return following, jax.tree.map(lambda *x: jnp.stack(x), *seen)

    begin = jnp.zeros((COLUMNS, COLUMNS))
    state = quadratics.start(algorithm, clients, begin, key, objective)
    _, seen = jax.lax.scan(body, state, None, length=size.rounds)
    return jax.tree.map(jnp.ravel, seen)


def measure(algorithm, clients, size: Size) -> Drift:
    """Returns drifts [eta, beta, sigma, seed, t]."""

    def one(lr, beta, sigma, key):
        # entries of variance sigma^2 / n^2: E||noise||_F^2 = sigma^2
        grad = noise.noisy(quadratics.gradient, noise.gaussian(sigma / COLUMNS))
        method = algorithm(lr=lr, momentum=1 - beta, rule=orthogonalize(polar))
        return drifts(method, Objective(grad), clients, key, size)

    grid = one
    for axis in (3, 2, 1, 0):
        grid = jax.vmap(grid, tuple(0 if i == axis else None for i in range(4)))
    keys = jax.random.split(jax.random.key(3), size.seeds)
    values = map(jnp.array, (size.lrs, size.betas, size.sigmas))
    return Drift(
        *(np.asarray(x, np.float64) for x in quadratics.compiled(grid)(*values, keys))
    )


def ratios(drift: Drift, delta: float, size: Size) -> Drift:
    """Returns distances divided by their bounds.

    They are [eta, beta, sigma, seed, t] for parameters, and [eta, beta, sigma, t] for
    momenta, since Lemma 6.1 is about expectations.
    """
    eta, beta, sigma = np.ix_(size.lrs, size.betas, size.sigmas)
    tau, root = size.steps, np.sqrt(COLUMNS)
    momentum = 4 * beta * eta * tau**2 * root + beta * tau * (2 * sigma + delta)
    params = 2 * eta * tau * root
    return Drift(
        drift.params / params[..., None, None],
        drift.momentum.mean(3) / momentum[..., None],
    )


def params_finding(drifts: tuple[Drift, ...]) -> Finding:
    """Returns the finding on Lemma 6.2 over all measurements."""
    worst = max(float(drift.params.max()) for drift in drifts)
    return Finding(
        "parameters of clients stay within the bound of Lemma 6.2 at any learning rate",
        f"{ZHANG}, Lemma 6.2",
        "distance over bound <= 1 at every t, eta, beta, sigma and seed",
        f"largest ratio {worst:.3f}",
        verdict(worst <= 1),
        {"largest ratio": worst},
    )


def momentum_finding(name: str, ratio, size: Size) -> Finding:
    """Returns the finding on Lemma 6.1 for one choice of first momenta."""
    early = float(ratio[..., : size.steps - 1].max())
    later = float(ratio[..., size.steps - 1 :].max())
    return Finding(
        f"momenta of clients stay within the bound of Lemma 6.1, {name}",
        f"{ZHANG}, Lemma 6.1",
        "mean distance over bound <= 1 at every t, eta, beta and sigma",
        f"largest ratio {early:.3g} for t < tau, {later:.3g} for t > tau",
        verdict(max(early, later) <= 1),
        {"t < tau": early, "t > tau": later},
    )


def study(size: Size, *, algorithm=fedmuon) -> Study:
    """Measures both lemmas, with first momenta as in Algorithm 1 and averaged."""
    shape = (COLUMNS, COLUMNS)
    clients = quadratics.random(jax.random.key(4), size.clients, shape, 0.1, 1.0)
    delta = quadratics.dissimilarity(clients, np.zeros(shape))
    method = lambda synced: lambda *a, **k: algorithm(*a, synced=synced, **k)
    printed, averaged = (
        ratios(measure(method(synced), clients, size), delta, size)
        for synced in (False, True)
    )
    params = params_finding((printed, averaged))
    names = "first momenta as in Algorithm 1", "first momenta averaged"
    momenta = [
        momentum_finding(name, ratio.momentum, size)
        for name, ratio in zip(names, (printed, averaged), strict=True)
    ]
    drawn = {
        "params": averaged.params.max((1, 2, 3)),
        "momenta": {
            "as in Algorithm 1": printed.momentum.max((0, 1, 2)),
            "averaged": averaged.momentum.max((0, 1, 2)),
        },
    }
    return Study((params, *momenta), drawn)


def draw(drawn: Mapping[str, Any], size: Size) -> Figure:
    """Draws the largest ratios against t."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    inner = np.arange(1, size.steps)
    t = (size.steps * np.arange(size.rounds)[:, None] + inner).ravel()
    for i, (lr, ratio) in enumerate(zip(size.lrs, drawn["params"], strict=True)):
        left.plot(t, ratio, ".", color=f"C{i}", label=rf"$\eta$ = {lr:g}")
    for i, (name, ratio) in enumerate(drawn["momenta"].items()):
        right.semilogy(t, ratio, ".", color=f"C{i}", label=rf"$M_0$ {name}")
    for axis, number in ((left, "6.2"), (right, "6.1")):
        axis.axhline(1, color="0.4", ls=":", label="bound")
        axis.set_title(f"Lemma {number}, largest ratio")
        axis.set_xlabel("iteration t")
        axis.legend()
    left.set_ylabel("distance to the mean / bound")
    return figure

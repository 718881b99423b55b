"""FedMuon's error by the number of clients N, under light and heavy tails.

Zhang and Gao, Theorem 5.5: if E||noise||^p <= sigma^p for a p in (1, 2], then the mean
of ||grad f||_F over T iterations is at most

    (f_0 - f_*) / (eta T) + eta n L (1/2 + 4 tau + 8 beta tau^2 + 2 / beta)
    + beta tau sqrt(n) (8 sqrt(2) sigma + 2 delta) + 4 sqrt(2 n) sigma / (beta T)
    + 4 sqrt(2 n) sigma (beta / N)^(1 - 1/p).

Corollary 5.6: eta = N^(1/4) / T^(3/4), beta = (N / T)^(1/2), tau = T^(1/4) / N^(3/4)
make it O((N T)^(-(p - 1) / (2 p))), so the slope in log N, and that in log T, is
-(p - 1) / (2 p).

These parameters depend on N themselves. So a second run has tau = 1, where clients
agree exactly, and the best eta and beta of a grid for every N. The bound's first term,
2 eta n L / beta and its last term then balance at eta ~ (beta / T)^(1/2) and
beta^(1/2 + q) ~ N^q T^(-1/2), q = 1 - 1/p, which gives N^(-(p - 1) / (3 p - 2)). This
rate is derived here and is not in the paper.

Noise of tail index s < 2 is alpha-stable with alpha = s. It has moments of all orders
below s, so the rates hold for p up to s. s = 2 is Gaussian noise.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from experiments.theory import quadratics
from experiments.theory.frame import DERIVED, ZHANG, Finding, bound_verdict
from fedjax_muon.algorithms import fedmuon
from fedjax_muon.tasks.heavy_tails import alpha_stable

SHAPE = (4, 4)
SCALE = 1.0  # of the noise's entries


class Size(NamedTuple):
    clients: tuple[int, ...] = (1, 2, 4, 8, 16, 32)  # N
    tails: tuple[float, ...] = (2.0, 1.8, 1.5, 1.2)  # s
    seeds: int = 6
    tuning_seeds: int = 4  # of the grid
    # T with the corollary's parameters; all N at the last
    iterations: tuple[int, ...] = (256, 1024, 4096)
    some: int = 8  # the N for all T
    tuned_iterations: int = 512  # T with the best of a grid
    lrs: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    betas: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)


FULL = Size()


def corollary(clients: int, iterations: int) -> tuple[float, float, int]:
    """Returns eta, beta and tau of Corollary 5.6; tau is rounded, and at least 1."""
    eta = clients**0.25 / iterations**0.75
    beta = (clients / iterations) ** 0.5
    tau = iterations**0.25 / clients**0.75
    return eta, beta, max(1, round(tau))


def problem(clients: int) -> quadratics.Quadratics:
    """Returns the first clients of one large federation, with the same targets."""
    largest = quadratics.random(jax.random.key(5), 64, SHAPE, 0.1, 0.3)
    return jax.tree.map(lambda a: a[:clients], largest)


def mean_norm(algorithm, clients, tail, key, lr, beta, *, iterations: int, tau: int):
    """Returns the mean of ||grad f||_F over the rounds of one run from zero."""
    norms = quadratics.run(
        quadratics.muon(algorithm, lr, beta),
        clients,
        jnp.zeros(SHAPE),
        key,
        rounds=iterations // tau - 1,
        steps=tau,
        observe=quadratics.gradient_norm(clients),
        objective=quadratics.noisy(alpha_stable(tail, SCALE)),
    )
    return jnp.mean(norms)


def by_corollary(algorithm, size: Size, count: int, iterations: int):
    """Returns mean norms [tail, seed] with the corollary's parameters."""
    lr, beta, tau = corollary(count, iterations)
    run = partial(mean_norm, algorithm, problem(count), iterations=iterations, tau=tau)
    keys = jax.random.split(jax.random.key(6), size.seeds)
    return quadratics.over_grid(partial(run, lr=lr, beta=beta), size.tails, keys)


def tuned(algorithm, size: Size, count: int):
    """Returns mean norms [tail, seed] at the best of the grid for every tail.

    The best grid point has the smallest mean of log norms over seeds; its indices are
    returned too, [tail, 2].
    """
    keys = jax.random.split(jax.random.key(7), size.tuning_seeds)
    how = {"iterations": size.tuned_iterations, "tau": 1}
    run = partial(mean_norm, algorithm, problem(count), **how)
    norms = quadratics.over_grid(run, size.tails, keys, size.lrs, size.betas)
    cells = norms.reshape(*norms.shape[:2], -1)
    best = np.log(cells).mean(1).argmin(-1)
    where = np.stack(np.unravel_index(best, norms.shape[2:]), -1)
    return np.take_along_axis(cells, best[:, None, None], -1)[..., 0], where


def at_edges(where, size: Size) -> int:
    """Returns how many of the best cells [..., 2] are at an edge of the grid.

    beta = 1, which is no momentum, is the end of the range and does not count.
    """
    lr, beta = np.moveaxis(where, -1, 0)
    cut = (size.betas[-1] < 1) & (beta == len(size.betas) - 1)
    return int(np.sum((lr == 0) | (lr == len(size.lrs) - 1) | (beta == 0) | cut))


class Slope(NamedTuple):
    """The slope of log norm against log N, with its 95% confidence interval."""

    value: float
    low: float
    high: float


def fit(norms, counts) -> Slope:
    """Fits least squares through all seeds, norms [seed, N]."""
    x = np.broadcast_to(np.log(counts), norms.shape)
    line = stats.linregress(x.ravel(), np.log(norms).ravel())
    width = stats.t.ppf(0.975, x.size - 2) * line.stderr
    return Slope(line.slope, line.slope - width, line.slope + width)


def slope_verdict(slope: Slope, predicted: float) -> str:
    """Returns the verdict; a steeper slope than that of the upper bound agrees."""
    return bound_verdict(slope.low <= predicted and slope.high < 0)


def finding(claim: str, source: str, predicted: float, slope: Slope) -> Finding:
    return Finding(
        claim,
        source,
        "the 95% interval of the slope is below 0 and reaches down to the predicted "
        "one or beyond; undecided otherwise",
        f"slope {slope.value:.3f} [{slope.low:.3f}, {slope.high:.3f}], predicted "
        f"{predicted:.3f}",
        slope_verdict(slope, predicted),
    )


def study(size: Size = FULL, *, algorithm=fedmuon) -> list[Finding]:
    """Measures three slopes for every tail index, by the corollary and tuned."""
    *before, final = size.iterations
    by_count = {n: by_corollary(algorithm, size, n, final) for n in size.clients}
    by_time = [by_corollary(algorithm, size, size.some, t) for t in before]
    best, where = zip(*(tuned(algorithm, size, n) for n in size.clients), strict=True)
    source = f"{ZHANG}, Corollary 5.6, eq. (5.4)"
    tuned_source = f"derived from {ZHANG}, Theorem 5.5, eq. (5.3); {DERIVED}"
    found = []
    for i, s in enumerate(size.tails):
        fitted = lambda norms, x, i=i: fit(np.stack([n[i] for n in norms], -1), x)
        rate, formula = -(s - 1) / (2 * s), "O((N T)^(-(p - 1) / (2 p))), tail index"
        edges = at_edges(np.stack([cells[i] for cells in where]), size)
        found += [
            finding(
                f"linear speed-up in N at T = {final}: {formula} {s:g}",
                source,
                rate,
                fitted(by_count.values(), size.clients),
            ),
            finding(
                f"convergence in T without clipping at N = {size.some}: {formula} "
                f"{s:g}",
                source,
                rate,
                fitted([*by_time, by_count[size.some]], size.iterations),
            ),
            finding(
                "speed-up with the best eta and beta of a grid for every N, tau = 1, "
                f"tail index {s:g} (at the grid's edge for {edges} of "
                f"{len(size.clients)} N)",
                tuned_source,
                -(s - 1) / (3 * s - 2),
                fitted(best, size.clients),
            ),
        ]
    return found

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

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from scipy import stats

from experiments.theory import quadratics
from experiments.theory.finding import (
    DERIVED,
    ZHANG,
    Finding,
    Study,
    bound_verdict,
)
from fedjax_muon.algorithms import fedmuon
from fedjax_muon.core import Objective
from fedjax_muon.linalg.newton_schulz import polar
from fedjax_muon.tasks import heavy_tails as noise
from fedjax_muon.transforms import orthogonalize

SHAPE = (4, 4)
SCALE = 1.0  # of the noise's entries


class Size(NamedTuple):
    clients: tuple[int, ...]  # N
    tails: tuple[float, ...]  # s
    seeds: int
    tuning_seeds: int  # of the grid
    iterations: tuple[int, ...]  # T with the corollary's parameters; all N at the last
    some: int  # the N for all T
    tuned_iterations: int  # T with the best of a grid
    lrs: tuple[float, ...]
    betas: tuple[float, ...]


SIZES = {
    "smoke": Size((1, 4), (2.0, 1.5), 3, 3, (32, 128), 4, 16, (0.05, 0.2), (0.2,)),
    "full": Size(
        (1, 2, 4, 8, 16, 32),
        (2.0, 1.8, 1.5, 1.2),
        6,
        4,
        (256, 1024, 4096),
        8,
        512,
        (0.01, 0.03, 0.1, 0.3),
        (0.03, 0.1, 0.3, 1.0),
    ),
}


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
    grad = noise.noisy(quadratics.gradient, noise.alpha_stable(tail, SCALE))
    norms = quadratics.run(
        algorithm(lr=lr, momentum=1 - beta, rule=orthogonalize(polar)),
        clients,
        jnp.zeros(SHAPE),
        key,
        rounds=iterations // tau - 1,
        steps=tau,
        observe=quadratics.norm_of_gradient(clients),
        objective=Objective(grad),
    )
    return jnp.mean(norms)


def by_corollary(algorithm, size: Size, count: int, iterations: int):
    """Returns mean norms [tail, seed] with the corollary's parameters."""
    keys = jax.random.split(jax.random.key(6), size.seeds)
    lr, beta, tau = corollary(count, iterations)
    clients = problem(count)

    def one(tail, key):
        settings = {"iterations": iterations, "tau": tau}
        return mean_norm(algorithm, clients, tail, key, lr, beta, **settings)

    grid = quadratics.compiled(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))
    return np.asarray(grid(jnp.array(size.tails), keys), np.float64)


def tuned(algorithm, size: Size, count: int):
    """Returns mean norms [tail, seed] at the best of the grid for every tail.

    The best grid point has the smallest mean of log norms over seeds; its indices are
    returned too, [tail, 2].
    """
    keys = jax.random.split(jax.random.key(7), size.tuning_seeds)
    clients = problem(count)

    def one(tail, key, lr, beta):
        settings = {"iterations": size.tuned_iterations, "tau": 1}
        return mean_norm(algorithm, clients, tail, key, lr, beta, **settings)

    grid = one
    for axis in (3, 2, 1, 0):
        grid = jax.vmap(grid, tuple(0 if i == axis else None for i in range(4)))
    values = jnp.array(size.tails), keys, jnp.array(size.lrs), jnp.array(size.betas)
    norms = np.asarray(quadratics.compiled(grid)(*values), np.float64)
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
        {**slope._asdict(), "predicted": predicted},
    )


def findings(i: int, s: float, fixed, longer, best, edges, size: Size):
    """Returns the findings on the three slopes of one tail index."""
    rate, tuned_rate = -(s - 1) / (2 * s), -(s - 1) / (3 * s - 2)
    source = f"{ZHANG}, Corollary 5.6, eq. (5.4)"
    tuned_source = f"derived from {ZHANG}, Theorem 5.5, eq. (5.3); {DERIVED}"
    formula = f"O((N T)^(-(p - 1) / (2 p))), tail index {s:g}"
    return (
        finding(
            f"linear speed-up in N at T = {size.iterations[-1]}: {formula}",
            source,
            rate,
            fit(fixed[i], size.clients),
        ),
        finding(
            f"convergence in T without clipping at N = {size.some}: {formula}",
            source,
            rate,
            fit(longer[i], size.iterations),
        ),
        finding(
            "speed-up with the best eta and beta of a grid for every N, tau = 1, tail "
            f"index {s:g} (at the grid's edge for {edges} of {len(size.clients)} N)",
            tuned_source,
            tuned_rate,
            fit(best[i], size.clients),
        ),
    )


def study(size: Size, *, algorithm=fedmuon) -> Study:
    """Measures the slopes for every tail index, by the corollary and tuned."""
    final = size.iterations[-1]
    by_count = {n: by_corollary(algorithm, size, n, final) for n in size.clients}
    by_time = [
        by_corollary(algorithm, size, size.some, t) for t in size.iterations[:-1]
    ]
    pairs = [tuned(algorithm, size, count) for count in size.clients]
    fixed = np.stack(list(by_count.values()), -1)
    longer = np.stack([*by_time, by_count[size.some]], -1)
    best = np.stack([norms for norms, _ in pairs], -1)
    where = np.stack([cell for _, cell in pairs], 1)
    found = []
    for i, s in enumerate(size.tails):
        edges = at_edges(where[i], size)
        found += findings(i, s, fixed, longer, best, edges, size)
    drawn = {"fixed": fixed, "longer": longer, "best": best}
    return Study(tuple(found), drawn)


def draw(drawn: Mapping[str, Any], size: Size) -> Figure:
    """Draws mean norms of every seed and the predicted slopes."""
    fixed, longer, best = (np.array(drawn[k]) for k in ("fixed", "longer", "best"))
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    old = lambda s: -(s - 1) / (2 * s)
    new = lambda s: -(s - 1) / (3 * s - 2)
    panels = (
        (fixed, size.clients, old, f"Corollary 5.6, T = {size.iterations[-1]}"),
        (longer, size.iterations, old, f"Corollary 5.6, N = {size.some}"),
        (best, size.clients, new, "best of a grid, one local step"),
    )
    names = "clients N", "iterations T", "clients N"
    for axis, name, (norms, x, rate, title) in zip(axes, names, panels, strict=True):
        for i, s in enumerate(size.tails):
            style = {"color": f"C{i}"}
            center = np.exp(np.log(norms[i]).mean(0))
            axis.loglog(x, norms[i].T, ".", alpha=0.25, ms=4, **style)
            axis.loglog(x, center, marker="o", ms=4, label=f"s = {s:g}", **style)
            guide = center[0] * (np.array(x) / x[0]) ** rate(s)
            axis.loglog(x, guide, ls=":", **style)
        axis.set_xticks(x, [str(value) for value in x])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel(name)
        axis.set_title(title)
    axes[0].set_ylabel(r"mean of $\|\nabla f\|_F$ over the run")
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        title="tail index; dotted: predicted",
    )
    return figure

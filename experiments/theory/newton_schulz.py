"""FedMuon with bias correction after any number T >= 0 of Newton-Schulz steps.

arXiv:2509.26337, Theorem 3, with the coefficients (15/8, -5/4, 3/8): for every T some
learning rate and momentum give, without noise, a mean Schatten-p norm of the gradient
of O((L r_0 / R)^(1/2)). The p decreases from 2 at T = 0 to 1 as T grows. All Schatten
norms are equivalent, so the power of R can be measured in the largest, the trace norm.
In this norm the theorem also allows larger T to be better.
"""

import functools
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
    TAKEZAWA,
    Finding,
    Study,
    bound_verdict,
    verdict,
)
from fedjax_muon.algorithms import fedmuon_correct
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.transforms import orthogonalize

SHAPE = (8, 8)
THEOREM = f"{TAKEZAWA}, Theorem 3"


class Size(NamedTuple):
    rounds: tuple[int, ...]  # R
    rates: tuple[float, ...]  # the learning rate is one of these over sqrt(R)
    betas: tuple[float, ...]  # weights of the new gradient in the momentum
    newton_schulz: tuple[int, ...]  # T
    clients: int
    steps: int  # K


SIZES = {
    "smoke": Size((10, 20, 40), (0.5, 2.0), (1.0,), (0, 2), 3, 2),
    "full": Size(
        (25, 50, 100, 200, 400),
        (0.25, 0.5, 1.0, 2.0, 4.0),
        (0.2, 1.0),
        (0, 1, 2, 3, 5),
        8,
        4,
    ),
}


def polar_factors(size: Size):
    """Returns the approximations of the LMO by name."""
    quintic = functools.partial(kernel.orthogonalize, coefficients=kernel.QUINTIC)
    inexact = {
        f"T = {t}": functools.partial(quintic, steps=t) for t in size.newton_schulz
    }
    return {**inexact, "the exact LMO": kernel.polar}


def mean_norms(algorithm, polar, clients, size: Size):
    """Returns means of the trace norm over the first R rounds, [beta, rate, R]."""

    def one(beta, lr):
        return quadratics.run(
            algorithm(lr=lr, momentum=1 - beta, rule=orthogonalize(polar)),
            clients,
            jnp.zeros(SHAPE),
            jax.random.key(0),
            rounds=size.rounds[-1] - 1,
            steps=size.steps,
            observe=quadratics.trace_norm_of_gradient(clients),
        )

    rates, rounds = np.array(size.rates), np.array(size.rounds)
    lrs = jnp.array(rates[:, None] / np.sqrt(rounds), jnp.float32)
    grid = jax.vmap(jax.vmap(jax.vmap(one, (None, 0)), (None, 0)), (0, None))
    norms = np.asarray(
        quadratics.compiled(grid)(jnp.array(size.betas), lrs), np.float64
    )
    means = [norms[:, :, i, :R].mean(-1) for i, R in enumerate(rounds)]
    return np.stack(means, -1)


def convergence(name: str, best, size: Size) -> Finding:
    """Returns whether the mean gradient decreases at the predicted rate."""
    slope = stats.linregress(np.log(size.rounds), np.log(best)).slope
    return Finding(
        f"FedMuon with bias correction converges with {name}: mean gradient norm "
        "O(R^(-1/2)) without noise",
        THEOREM,
        "slope of the log of the best mean norm against log R <= -0.4; undecided "
        "otherwise",
        f"slope {slope:.2f}; {best[0]:.2f} at R = {size.rounds[0]}, {best[-1]:.2f} at "
        f"R = {size.rounds[-1]}",
        bound_verdict(slope <= -0.4),
        {"slope": float(slope), "first": float(best[0]), "last": float(best[-1])},
    )


def order(best, size: Size) -> Finding:
    """Returns whether a larger T gives a smaller gradient."""
    ends = {name: float(values[-1]) for name, values in best.items()}
    values = np.array(list(ends.values()))
    never_worse = bool(np.all(values[1:] <= 1.05 * values[:-1]))
    return Finding(
        "FedMuon with bias correction converges faster as T grows, here",
        f"derived from {THEOREM} and Remark 4, a bound; {DERIVED}",
        f"the best mean trace norm at R = {size.rounds[-1]} never rises by more than "
        "5 % from one T to the next; with a caveat if only the exact LMO beats T = 0",
        ", ".join(f"{name}: {value:.3f}" for name, value in ends.items()),
        verdict(never_worse, values[-1] < values[0]),
        ends,
    )


def study(size: Size, *, algorithm=fedmuon_correct) -> Study:
    """Runs every T on clients with random targets; the best of a grid for every R."""
    clients = quadratics.random(jax.random.key(2), size.clients, SHAPE, 0.1, 1.0)
    best = {
        name: mean_norms(algorithm, polar, clients, size).min((0, 1))
        for name, polar in polar_factors(size).items()
    }
    found = [convergence(name, values, size) for name, values in best.items()]
    return Study((*found, order(best, size)), best)


def draw(best: Mapping[str, Any], size: Size) -> Figure:
    """Draws the best mean gradient norms against R."""
    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axis = figure.subplots()
    for i, (name, values) in enumerate(best.items()):
        axis.loglog(size.rounds, values, marker="o", color=f"C{i}", label=name)
    guide = next(iter(best.values()))[0] * np.sqrt(
        size.rounds[0] / np.array(size.rounds)
    )
    axis.loglog(size.rounds, guide, color="0.4", ls=":", label=r"$R^{-1/2}$")
    axis.set_xticks(size.rounds, [str(value) for value in size.rounds])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("rounds R")
    axis.set_ylabel(r"mean of $\|\nabla f\|_{trace}$ over R rounds")
    axis.set_title("FedMuon, bias correction: T steps of Newton-Schulz")
    axis.legend()
    return figure

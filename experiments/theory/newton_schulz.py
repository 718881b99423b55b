"""FedMuon with bias correction after any number T >= 0 of Newton-Schulz steps.

arXiv:2509.26337, Theorem 3, with the coefficients (15/8, -5/4, 3/8): for every T some
learning rate and momentum give, without noise, a mean Schatten-p norm of the gradient
of O((L r_0 / R)^(1/2)). The p decreases from 2 at T = 0 to 1 as T grows. All Schatten
norms are equivalent, so the power of R can be measured in the largest, the trace norm.
In this norm the theorem also allows larger T to be better.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from experiments.theory import quadratics
from experiments.theory.frame import DERIVED, TAKEZAWA, Finding, bound_verdict, verdict
from fedjax_muon.algorithms import fedmuon_correct
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.transforms import orthogonalize

SHAPE = (8, 8)
THEOREM = f"{TAKEZAWA}, Theorem 3"


class Size(NamedTuple):
    rounds: tuple[int, ...] = (25, 50, 100, 200, 400)  # R
    # the learning rate is one of these over sqrt(R)
    rates: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    betas: tuple[float, ...] = (0.2, 1.0)  # weights of the new gradient in the momentum
    newton_schulz: tuple[int, ...] = (0, 1, 2, 3, 5)  # T
    clients: int = 8
    steps: int = 4  # K


FULL = Size()


def mean_norms(algorithm, polar, clients, size: Size):
    """Returns means of the trace norm over the first R rounds, [beta, rate, R]."""
    rounds, key = np.array(size.rounds), jax.random.key(0)
    how = {"rounds": rounds[-1] - 1, "steps": size.steps}
    how |= {"observe": quadratics.gradient_norm(clients, "nuc")}

    def one(beta, rate, root):
        method = quadratics.muon(algorithm, rate / root, beta, orthogonalize(polar))
        return quadratics.run(method, clients, jnp.zeros(SHAPE), key, **how)

    norms = quadratics.over_grid(one, size.betas, size.rates, np.sqrt(rounds))
    return np.stack([norms[:, :, i, :R].mean(-1) for i, R in enumerate(rounds)], -1)


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
    )


def order(best, size: Size) -> Finding:
    """Returns whether a larger T gives a smaller gradient."""
    ends = {name: float(values[-1]) for name, values in best.items()}
    values = np.array(list(ends.values()))
    never_worse = np.all(values[1:] <= 1.05 * values[:-1])
    return Finding(
        "FedMuon with bias correction converges faster as T grows, here",
        f"derived from {THEOREM} and Remark 4, a bound; {DERIVED}",
        f"the best mean trace norm at R = {size.rounds[-1]} never rises by more than "
        "5 % from one T to the next; with a caveat if only the exact LMO beats T = 0",
        ", ".join(f"{name}: {value:.3f}" for name, value in ends.items()),
        verdict(never_worse, values[-1] < values[0]),
    )


def study(size: Size = FULL, *, algorithm=fedmuon_correct) -> list[Finding]:
    """Runs every T on clients with random targets; the best of a grid for every R."""
    clients = quadratics.random(jax.random.key(2), size.clients, SHAPE, 0.1, 1.0)
    quintic = partial(kernel.orthogonalize, coefficients=kernel.QUINTIC)
    polars = {f"T = {t}": partial(quintic, steps=t) for t in size.newton_schulz}
    best = {
        name: mean_norms(algorithm, polar, clients, size).min((0, 1))
        for name, polar in (polars | {"the exact LMO": kernel.polar}).items()
    }
    found = [convergence(name, values, size) for name, values in best.items()]
    return [*found, order(best, size)]

"""Adaptive server rules.

For the pseudo-gradient g, the update is `m / (sqrt(v) + tau)` with the first moment
`m <- b1 m + (1 - b1) g`. The three rules differ in the second moment v. As in the
paper, and unlike in optax's Adam and Yogi, there is no bias correction, and v starts at
tau^2.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import check_range
from fedjax_muon.transforms.layout import widened


class MomentsState(NamedTuple):
    """Moments of the pseudo-gradient, shaped like the parameters."""

    mu: optax.Updates
    nu: optax.Updates


def _adaptive(
    second: Callable[[jax.Array, jax.Array], jax.Array], b1: float, tau: float
) -> optax.GradientTransformation:
    check_range("b1", b1, 0.0, 1.0, open_high=True, schedules=False)
    check_range("tau", tau, open_low=True, schedules=False)

    def init(params: optax.Params) -> MomentsState:
        start = jax.tree.map(lambda x: jnp.full_like(x, tau**2), params)
        return MomentsState(jax.tree.map(jnp.zeros_like, params), start)

    def update(
        updates: optax.Updates, state: MomentsState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, MomentsState]:
        del params
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: second(v, g**2), state.nu, updates)
        step = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + tau), mu, nu)
        return step, MomentsState(mu, nu)

    return optax.GradientTransformation(init, update)


def scale_by_fedadam(
    b1: float = 0.9, b2: float = 0.99, tau: float = 1e-3
) -> optax.GradientTransformation:
    """FedAdam, the rule with `v <- b2 v + (1 - b2) g^2`.

    Source: Reddi et al. 2021, arXiv:2003.00295, Algorithm 2.
    """
    check_range("b2", b2, 0.0, 1.0, open_high=True, schedules=False)
    return _adaptive(lambda v, g2: b2 * v + (1 - b2) * g2, b1, tau)


def scale_by_fedyogi(
    b1: float = 0.9, b2: float = 0.99, tau: float = 1e-3
) -> optax.GradientTransformation:
    """FedYogi, the rule with `v <- v - (1 - b2) g^2 sign(v - g^2)`.

    Source: Reddi et al. 2021, arXiv:2003.00295, Algorithm 2.
    """
    check_range("b2", b2, 0.0, 1.0, open_high=True, schedules=False)
    return _adaptive(lambda v, g2: v - (1 - b2) * g2 * jnp.sign(v - g2), b1, tau)


def scale_by_fedadagrad(
    b1: float = 0.0, tau: float = 1e-3
) -> optax.GradientTransformation:
    """FedAdagrad, the rule with `v <- v + g^2`.

    Source: Reddi et al. 2021, arXiv:2003.00295, Algorithm 2.
    """
    return _adaptive(lambda v, g2: v + g2, b1, tau)


class LargestState(NamedTuple):
    """Moments of the pseudo-gradient, and the largest second moment so far."""

    mu: optax.Updates
    nu: optax.Updates
    largest: optax.Updates


def scale_by_fadas(
    b1: float = 0.9, b2: float = 0.99, eps: float = 1e-8
) -> optax.GradientTransformation:
    """AMSGrad without bias correction: the server rule of FADAS.

    m / (sqrt(max of all v) + eps) with `v <- b2 v + (1 - b2) g^2` from v = 0.
    `optax.scale_by_amsgrad` takes the maximum of corrected moments.

    Source: Wang et al. 2024, arXiv:2407.18365. Checked against the authors' code, from
    which it departs: that code corrects both moments for their start. Summaries of the
    paper do not.
    """
    for name, value in {"b1": b1, "b2": b2}.items():
        check_range(name, value, 0.0, 1.0, open_high=True, schedules=False)
    check_range("eps", eps, open_low=True, schedules=False)

    def init(params: optax.Params) -> LargestState:
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)
        return LargestState(zeros(), zeros(), zeros())

    def update(
        updates: optax.Updates, state: LargestState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, LargestState]:
        del params
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g**2, state.nu, updates)
        largest = jax.tree.map(jnp.maximum, state.largest, nu)
        divide = lambda m, v: (m / (jnp.sqrt(widened(v)) + eps)).astype(m.dtype)
        step = jax.tree.map(divide, mu, largest)
        return step, LargestState(mu, nu, largest)

    return optax.GradientTransformation(init, update)

"""SUDA: primal steps and a dual sequence between which polynomials of W mix."""

from typing import Any, NamedTuple

import optax

from fedjax_muon.core import Hyper, check_range, descend, recorded, tree, value_at
from fedjax_muon.decentralized.estimators import ema, fresh
from fedjax_muon.decentralized.gossip import Estimator, Gossip
from fedjax_muon.transforms import Polar, unit_directions


class Triple(NamedTuple):
    """Coefficients of polynomials in W, from the constant term on."""

    A: tuple[float, ...]
    B2: tuple[float, ...]  # the square of B; its coefficients sum up to 0
    C: tuple[float, ...]


# of the manuscript of SUDA-Muon
ED = Triple((0, 1), (1, 0, -1), (0, 1))
EXTRA = Triple((0.5, 0.5), (0.5, -0.5), (0.5, 0.5))
GT = Triple((0, 1), (1, -2, 1), (0, 1))
# of Alghunaim and Yuan
STANDARD_ED = Triple((0, 1), (1, -1), (1,))
STANDARD_EXTRA = Triple((1,), (1, -1), (0, 1))
STANDARD_GT = Triple((0, 0, 1), (1, -2, 1), (1,))


class State(NamedTuple):
    """State of an agent."""

    params: Any  # x
    tracked: Any  # v
    estimate: Any  # g_
    memory: Any  # of the estimator
    dual: Any  # z
    opt: Any  # state of the rule


def _polynomial(coefficients: tuple[float, ...], mix: Any, x: Any) -> Any:
    """A polynomial of W times x, by Horner's rule: one call of `mix` per degree."""
    *rest, leading = coefficients
    result = tree.scale(x, leading)
    for coefficient in reversed(rest):
        result = mix(result)
        if coefficient:
            result = tree.add_scaled(result, coefficient, x)
    return result


@recorded
def suda(
    lr: Hyper = 0.01,
    *,
    triple: Triple = STANDARD_ED,
    rule: optax.GradientTransformation = optax.identity(),
    estimator: Estimator = fresh(),
) -> Gossip:
    """SUDA: primal-dual steps with any mixing polynomials, rule and estimator.

    With g the estimate of the gradient, g_ that of the iteration before, and
    polynomials A, B2 and C of the mixing weights W,

        v <- W(v + g - g_);    x <- project(A(C x - lr rule(v)) - z);    z <- z + B2 x

    and v = g_ = z = 0 before t = 0. It converges to stationary points with a constant
    rate and exact gradients. Without tracking, an update that does not keep sizes, such
    as an orthogonalized gradient, would have fixed points that are not stationary.

    Source: Defined here: Alghunaim and Yuan 2022, arXiv:2110.09993, with a tracked
    estimate as in SUDA-Muon, whose update was checked against a manuscript that is not
    the published text.

    Args:
      lr: Learning rate: 0.01 to 0.3 for SGD, 0.01 to 0.1 if `rule` is Muon.
      triple: The polynomials A, B2 and C; by default, exact diffusion.
      rule: Rule applied to the tracked gradient, an optax transformation without a
        learning rate; its state persists.
      estimator: How an agent estimates its gradient, such as `estimators.ema(0.9)`; by
        default by the gradient of a batch.

    Example:
      >>> from fedjax_muon.decentralized.suda import STANDARD_EXTRA
      >>> algorithm = fm.decentralized.suda(lr=0.1, triple=STANDARD_EXTRA)
      >>> weights = fm.topology.metropolis(fm.topology.ring(4))
      >>> around = {"weights": weights, "batch_size": 8}
      >>> agents = fm.decentralize(algorithm, task, digits, clients, **around)

    See also: `decentralized.suda_muon`, `decentralized.suda_muon_extra` and
    `decentralized.suda_muon_gt`; `decentralized.gradient_tracking` sends less.
    """
    check_range("lr", lr)
    if abs(sum(triple.B2)) > 1e-9:
        raise ValueError(
            f"the coefficients of B2 must sum up to 0, so that agents that agree stay "
            f"together, got {triple.B2}"
        )

    def advance(objective, x, change, z, estimate, opt, mix, iteration):
        g, memory = estimate
        v = mix(change)
        moved, opt = descend(
            _polynomial(triple.C, mix, x), value_at(lr, iteration), rule, opt, v
        )
        x = objective.project(tree.sub(_polynomial(triple.A, mix, moved), z))
        z = tree.add(z, _polynomial(triple.B2, mix, x))
        return State(x, v, g, memory, z, opt)

    def start(objective, x, mix, batch, iteration):
        estimate = estimator.start(objective, x, batch, iteration)
        z = tree.zeros_like(x)
        opt = rule.init(x)
        return advance(objective, x, estimate[0], z, estimate, opt, mix, iteration)

    def step(objective, state, mix, batch, iteration):
        x, v, before, memory, z, opt = state
        estimate = estimator.update(objective, memory, x, batch, iteration)
        change = tree.sub(tree.add(v, estimate[0]), before)
        return advance(objective, x, change, z, estimate, opt, mix, iteration)

    return Gossip(start, step)


@recorded
def suda_muon(
    lr: Hyper = 0.03,
    *,
    polar: Polar | None = None,
    normalize_vectors: bool = True,
    momentum: Hyper = 0.9,
) -> Gossip:
    """SUDA-Muon(ED): exact diffusion with tracked averages, orthogonalized.

    Source: Zhang et al. 2026, arXiv:2604.23980. Not verified. The same as
    `fm.decentralized.suda(triple=ED, rule=unit_directions(polar),
    estimator=ema(momentum, from_zero=False))`.

    Args:
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
      normalize_vectors: Whether vectors are divided by their norms. If not, they move
        along the tracked gradient itself.
      momentum: Weight of the past in the average of gradients, in [0, 1).
    """
    rule = unit_directions(polar, normalize_vectors=normalize_vectors)
    average = ema(momentum, from_zero=False)
    return suda(lr=lr, triple=ED, rule=rule, estimator=average)


@recorded
def suda_muon_extra(
    lr: Hyper = 0.03,
    *,
    polar: Polar | None = None,
    normalize_vectors: bool = True,
    momentum: Hyper = 0.9,
) -> Gossip:
    """SUDA-Muon(EXTRA): EXTRA with tracked averages, orthogonalized.

    Source: Zhang et al. 2026, arXiv:2604.23980. Not verified. The same as
    `fm.decentralized.suda_muon()`, except that `triple=EXTRA`.
    """
    rule = unit_directions(polar, normalize_vectors=normalize_vectors)
    average = ema(momentum, from_zero=False)
    return suda(lr=lr, triple=EXTRA, rule=rule, estimator=average)


@recorded
def suda_muon_gt(
    lr: Hyper = 0.03,
    *,
    polar: Polar | None = None,
    normalize_vectors: bool = True,
    momentum: Hyper = 0.9,
) -> Gossip:
    """SUDA-Muon(GT): gradient tracking by SUDA, with averages, orthogonalized.

    Source: Zhang et al. 2026, arXiv:2604.23980. Not verified. The same as
    `fm.decentralized.suda_muon()`, except that `triple=GT`.
    """
    rule = unit_directions(polar, normalize_vectors=normalize_vectors)
    average = ema(momentum, from_zero=False)
    return suda(lr=lr, triple=GT, rule=rule, estimator=average)

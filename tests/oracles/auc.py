"""The AUC loss as a minimax problem, equation (20) of "Federated Stochastic Minimax
Optimization under Heavy-Tailed Noises" (after Liu et al. 2020, arXiv 1908.10831).

min over the scores h (of the model), w_1, w_2 and max over w_3.
"""

from typing import NamedTuple

import numpy as np


class AucGradient(NamedTuple):
    """The derivatives of `auc_loss`: h [B], the others scalars."""

    h: np.ndarray
    w1: float
    w2: float
    w3: float


def auc_loss(h, positive, weight, w1: float, w2: float, w3: float, p: float) -> float:
    """Weighted mean over examples of ``f(h; b)``, with the label b = 1 or -1.

    ``f = (1-p)(h-w1)^2 [b=1] + p (h-w2)^2 [b=-1] + 2 (1+w3)(p h [b=-1] - (1-p) h
    [b=1]) - p (1-p) w3^2``

    h: scores [B]. positive: [B], true where b = 1. weight: [B]. p: the ratio of
    positives in the whole data, which need not be that of the batch.
    """
    losses = []
    for score, is_positive in zip(h, positive, strict=True):
        if is_positive:
            pair = (1 - p) * (score - w1) ** 2 - 2 * (1 + w3) * (1 - p) * score
        else:
            pair = p * (score - w2) ** 2 + 2 * (1 + w3) * p * score
        losses.append(pair - p * (1 - p) * w3**2)
    return float(np.sum(weight * np.array(losses)) / np.sum(weight))


def auc_grad(
    h, positive, weight, w1: float, w2: float, w3: float, p: float
) -> AucGradient:
    """The gradient of `auc_loss`; w3 ascends along its part, which has f's sign."""
    share = weight / np.sum(weight)
    d_h = np.zeros(len(h))
    d_w1 = d_w2 = d_w3 = 0.0
    for j, (score, is_positive) in enumerate(zip(h, positive, strict=True)):
        if is_positive:
            d_h[j] = share[j] * 2 * (1 - p) * (score - w1 - (1 + w3))
            d_w1 -= share[j] * 2 * (1 - p) * (score - w1)
            d_w3 -= share[j] * 2 * (1 - p) * score
        else:
            d_h[j] = share[j] * 2 * p * (score - w2 + (1 + w3))
            d_w2 -= share[j] * 2 * p * (score - w2)
            d_w3 += share[j] * 2 * p * score
        d_w3 -= share[j] * 2 * p * (1 - p) * w3
    return AucGradient(d_h, float(d_w1), float(d_w2), float(d_w3))

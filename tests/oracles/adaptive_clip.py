"""Algorithm 1 of Andrew et al. 2021, arXiv:1905.03871, on FedAvg with Poisson cohorts.

The noise is given, in units of its standard deviation. Sums are divided by the expected
cohort, and the server's optimizer is plain averaging.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .problem import Params, Trace


class Settings(NamedTuple):
    lr: float  # local
    cohort: int  # expected
    noise: float  # z, of the update and the count together
    count_noise: float  # sigma_b
    quantile: float  # gamma
    initial: float  # C in round 0
    clip_lr: float  # eta_C


class Draw(NamedTuple):
    """Standard normal noise of one round."""

    update: Params
    count: float


def adaptive_fedavg(
    x: Params,
    trace: Trace,
    present: Sequence[Sequence[int]],  # of all clients in a round
    draws: Sequence[Draw],
    s: Settings,
) -> list[tuple[Params, float, list[float]]]:
    """Parameters and clip norm after every round, and the norms of its messages."""
    history = []
    clip = s.initial
    if s.noise == 0:
        z_delta = sigma_b = 0.0
    else:
        z_delta = (s.noise**-2 - (2 * s.count_noise) ** -2) ** (-1 / 2)
        sigma_b = s.count_noise
    for (ids, data), who, draw in zip(trace.rounds, present, draws, strict=True):
        sigma_delta = z_delta * clip
        total = {k: np.zeros_like(v) for k, v in x.items()}
        count, norms = 0.0, []
        for i, batches in zip(ids, data, strict=True):
            if not who[i]:
                continue
            y = {k: v.copy() for k, v in x.items()}
            for batch in batches:
                g = trace.grad(y, batch)
                for k in y:
                    y[k] = y[k] - s.lr * g[k]
            delta = {k: y[k] - x[k] for k in x}
            norm = math.sqrt(sum(float(np.sum(d**2)) for d in delta.values()))
            norms.append(norm)
            indicator = 1 if norm <= clip else 0
            count += indicator - 1 / 2
            for k in total:
                total[k] = total[k] + delta[k] * min(1, clip / norm)
        mean = {k: (total[k] + sigma_delta * draw.update[k]) / s.cohort for k in total}
        b = (count + sigma_b * draw.count) / s.cohort + 1 / 2
        clip = clip * math.exp(-s.clip_lr * (b - s.quantile))
        x = {k: x[k] + mean[k] for k in x}
        history.append((x, clip, norms))
    return history

"""What one record can change in a private recursive-momentum (STORM) run.

An agent estimates its gradient by g_t = c g_{t-1} + d_t, c = 1 - beta, where

    d_0 = m_0(x_0),    d_t = m_t(x_t) - c m_t(x_{t-1}),

and m_t(x) is the sum over the batch of the clipped gradients at x, divided by a fixed
(expected) batch size. Noise is added either to the fresh term d_t (inside the
recursion) or to the released g_t while the recursion keeps the clean one (on the
output). In the second case the release is A d + noise with A[t, k] = c^(t-k), a matrix
mechanism: its L2 sensitivity is the norm of v_t = sum_k c^(t-k) w_k for the largest
changes w_k that one record can make to d_k (Denisov et al. 2022, arXiv:2202.08312;
Choquette-Choo et al. 2023, arXiv:2306.08153).

A clip describes w_k. Its methods give L2 norms for one record that is added or removed;
replacing a record counts twice. They raise `ValueError` for a `beta` outside (0, 1]
(one is plain gradients, without memory) or a `batch` below 1, and its constructor for
limits that are not positive.
"""

import dataclasses
import math
from typing import Protocol

import numpy as np
from scipy import signal

from fedjax_muon.core import check_range


class Clip(Protocol):
    """How the two gradients of one example are bounded before they are averaged."""

    def first(self, batch: int) -> float:
        """Change of d_0, the mean of clipped gradients of a first batch."""

    def sensitivity(self, beta: float, batch: int) -> float:
        """Change of d_t, t >= 1, by a record in its batch; noise inside scales so."""

    def anywhere(self, beta: float, batch: int) -> float:
        """A w for every step that bounds v_t whichever steps the record is in."""

    def always(self, beta: float, batch: int) -> float:
        """A w for every step t >= 1 that bounds v_t if the record is in every batch."""


@dataclasses.dataclass(frozen=True)
class Each:
    """Both gradients clipped to `limit`: clip(g(x_t)) - c clip(g(x_{t-1})).

    The change reaches (2 - beta) limit / batch, when the gradient flips. A record in
    consecutive batches changes the output by less than the sum, as the sum telescopes.
    """

    limit: float

    def __post_init__(self):
        _check_limit("limit", self.limit)

    def first(self, batch: int) -> float:
        return self.limit / _batch(batch)

    def sensitivity(self, beta: float, batch: int) -> float:
        return (2 - _beta(beta)) * self.limit / _batch(batch)

    def anywhere(self, beta: float, batch: int) -> float:
        _beta(beta)
        return self.limit / _batch(batch)

    def always(self, beta: float, batch: int) -> float:
        return _beta(beta) * self.limit / _batch(batch)


@dataclasses.dataclass(frozen=True)
class Difference:
    """The fresh term g(x_t) - c g(x_{t-1}) of every example clipped to `limit`."""

    limit: float

    def __post_init__(self):
        _check_limit("limit", self.limit)

    def first(self, batch: int) -> float:
        return self.limit / _batch(batch)

    def sensitivity(self, beta: float, batch: int) -> float:
        _beta(beta)
        return self.limit / _batch(batch)

    anywhere = sensitivity
    always = sensitivity


@dataclasses.dataclass(frozen=True)
class Split:
    """beta clip_limit(g(x_t)) + c clip_change(g(x_t) - g(x_{t-1})).

    `change` bounds how much the gradient of an example changes in one step (as in
    DIFF2, Murata and Suzuki 2023, arXiv:2302.03884). It may be set anew every step from
    public values only if the noise scales with it, which noise inside does.
    """

    limit: float
    change: float

    def __post_init__(self):
        _check_limit("limit", self.limit)
        _check_limit("change", self.change)

    def first(self, batch: int) -> float:
        return self.limit / _batch(batch)

    def sensitivity(self, beta: float, batch: int) -> float:
        bound = _beta(beta) * self.limit + (1 - beta) * self.change
        return bound / _batch(batch)

    anywhere = sensitivity
    always = sensitivity


@dataclasses.dataclass(frozen=True)
class Unclipped:
    """No clipping: one record can change the gradient without limit."""

    def first(self, batch: int) -> float:
        _batch(batch)
        return math.inf

    def sensitivity(self, beta: float, batch: int) -> float:
        _beta(beta)
        return self.first(batch)

    anywhere = sensitivity
    always = sensitivity


def transcript_norm(changes: np.ndarray, decay: float) -> float:
    """||v||_2 with v_t = decay v_{t-1} + changes_t; `changes` of shape (steps,)."""
    if np.isinf(changes).any():
        return math.inf
    return float(np.linalg.norm(signal.lfilter([1.0], [1.0, -decay], changes)))


def single_gain(steps: int, beta: float) -> float:
    """||v|| for a change of one at step 0 only: at most 1 / sqrt(beta (2 - beta))."""
    check_range("steps", steps, 1, schedules=False)
    c = 1 - _beta(beta)
    return math.sqrt((1 - c ** (2 * steps)) / (1 - c**2))


def separated_gain(steps: int, beta: float, separation: int) -> float:
    """||v|| for changes of one, at least `separation` steps apart: the largest."""
    check_range("steps", steps, 1, schedules=False)
    check_range("separation", separation, 1, schedules=False)
    changes = np.zeros(steps)
    changes[::separation] = 1.0
    return transcript_norm(changes, 1 - _beta(beta))


def any_gain(steps: int, beta: float) -> float:
    """||v|| for changes of one at any steps: at most sqrt(steps) / beta."""
    return separated_gain(steps, beta, 1)


def marginal_std(std: float, beta: float) -> float:
    """Long-run standard deviation of the noise in g_t when d_t gets noise of `std`."""
    return std / math.sqrt(_beta(beta) * (2 - beta))


def long_run_std(std: float, beta: float) -> float:
    """Its share in the sum of T estimates, divided by sqrt(T), for large T.

    This is what drives the parameters: noise of `std` in every d_t acts on their walk
    like independent noise of this standard deviation in every g_t. Noise on the output
    has the same standard deviation in both.
    """
    return std / _beta(beta)


def _beta(beta: float) -> float:
    check_range("beta", beta, 0, 1, open_low=True, schedules=False)
    return beta


def _batch(batch: int) -> int:
    check_range("batch", batch, 1, schedules=False)
    return batch


def _check_limit(name: str, limit: float) -> None:
    check_range(name, limit, open_low=True, schedules=False)

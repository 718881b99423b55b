"""Sensitivity of a private recursive-momentum (STORM) run to one record.

An agent estimates its gradient by g_t = c g_{t-1} + d_t, c = 1 - beta, where

    d_0 = m_0(x_0),    d_t = m_t(x_t) - c m_t(x_{t-1}),

and m_t(x) is the sum of the clipped gradients of a batch at x, divided by a fixed
(expected) batch size. Noise is added either to the innovation d_t, which the recursion
keeps, or to the released g_t, while the recursion keeps the clean value. In the second
case the release is A d + noise with A[t, k] = c^(t-k), a matrix mechanism. Its L2
sensitivity is the norm of v_t = sum_k c^(t-k) w_k for the largest changes w_k that one
record can make to d_k (Denisov et al. 2022, arXiv:2202.08312; Choquette-Choo et al.
2023, arXiv:2306.08153).

A `Clip` describes w_k. Its methods return L2 norms for one record that is added or
removed; replacing a record counts twice. They raise `ValueError` if `beta` is outside
(0, 1] (with 1, a release is the plain gradient without memory) or if `batch` is below
1. Its constructor raises `ValueError` if a clip norm is not positive.
"""

import dataclasses
import math
from typing import Protocol

import numpy as np

from fedjax_muon.core import check_range


class Clip(Protocol):
    """How the two gradients of one example are bounded before they are averaged."""

    def first_sensitivity(self, batch: int) -> float:
        """Change of d_0, the mean of clipped gradients of a first batch."""

    def sensitivity(self, beta: float, batch: int) -> float:
        """Change of d_t, t >= 1, by a record in its batch; scale of `Inside` noise."""

    def shuffled_change(self, beta: float, batch: int) -> float:
        """Bound w for every step, if the record may be in any batches."""

    def full_batch_change(self, beta: float, batch: int) -> float:
        """Bound w for every step t >= 1, if the record is in every batch."""


@dataclasses.dataclass(frozen=True)
class Each:
    """Clips both gradients: clip(g(x_t)) - c clip(g(x_{t-1})).

    The change reaches (2 - beta) clip_norm / batch when the gradient flips. A record in
    consecutive batches changes the output by less than the sum of its changes, since
    the sum telescopes.
    """

    clip_norm: float  # of each gradient

    def __post_init__(self) -> None:
        _check_norm("clip_norm", self.clip_norm)

    def first_sensitivity(self, batch: int) -> float:
        """See `Clip`."""
        return self.clip_norm / _batch(batch)

    def sensitivity(self, beta: float, batch: int) -> float:
        """See `Clip`."""
        return (2 - _beta(beta)) * self.clip_norm / _batch(batch)

    def shuffled_change(self, beta: float, batch: int) -> float:
        """See `Clip`."""
        _beta(beta)
        return self.clip_norm / _batch(batch)

    def full_batch_change(self, beta: float, batch: int) -> float:
        """See `Clip`."""
        return _beta(beta) * self.clip_norm / _batch(batch)


@dataclasses.dataclass(frozen=True)
class Difference:
    """Clips the innovation g(x_t) - c g(x_{t-1}) of every example."""

    clip_norm: float  # of the innovation

    def __post_init__(self) -> None:
        _check_norm("clip_norm", self.clip_norm)

    def first_sensitivity(self, batch: int) -> float:
        """See `Clip`."""
        return self.clip_norm / _batch(batch)

    def sensitivity(self, beta: float, batch: int) -> float:
        """See `Clip`."""
        _beta(beta)
        return self.clip_norm / _batch(batch)

    shuffled_change = sensitivity
    full_batch_change = sensitivity


@dataclasses.dataclass(frozen=True)
class Split:
    """Clips gradient and change: beta clip(g(x_t)) + c clip(g(x_t) - g(x_{t-1})).

    The second clip bounds how much the gradient of an example changes in one step, as
    in DIFF2 (Murata and Suzuki 2023, arXiv:2302.03884). Its norm may change in
    every step, by public values, only if the noise scales with it, as `Inside` does.
    """

    clip_norm: float  # of the gradient
    change_clip_norm: float  # of its change in one step

    def __post_init__(self) -> None:
        _check_norm("clip_norm", self.clip_norm)
        _check_norm("change_clip_norm", self.change_clip_norm)

    def first_sensitivity(self, batch: int) -> float:
        """See `Clip`."""
        return self.clip_norm / _batch(batch)

    def sensitivity(self, beta: float, batch: int) -> float:
        """See `Clip`."""
        bound = _beta(beta) * self.clip_norm + (1 - beta) * self.change_clip_norm
        return bound / _batch(batch)

    shuffled_change = sensitivity
    full_batch_change = sensitivity


@dataclasses.dataclass(frozen=True)
class Unclipped:
    """No clipping: the change that one record can make is unbounded."""

    def first_sensitivity(self, batch: int) -> float:
        """See `Clip`."""
        _batch(batch)
        return math.inf

    def sensitivity(self, beta: float, batch: int) -> float:
        """See `Clip`."""
        _beta(beta)
        return self.first_sensitivity(batch)

    shuffled_change = sensitivity
    full_batch_change = sensitivity


def transcript_norm(changes: np.ndarray, decay: float) -> float:
    """Returns the norm of v, where v_t = decay v_{t-1} + changes_t.

    Args:
      changes: Largest change of every d_t by one record, [steps].
      decay: c = 1 - beta, in [0, 1).

    Returns:
      ||v||_2, the L2 sensitivity of all releases together.
    """
    if np.isinf(changes).any():
        return math.inf
    from scipy import signal  # slow to import, for private runs alone

    return float(np.linalg.norm(signal.lfilter([1.0], [1.0, -decay], changes)))


def single_gain(steps: int, beta: float) -> float:
    """Returns ||v|| for a change of 1 at step 0 only.

    Args:
      steps: Number of steps, at least 1.
      beta: Weight of the new gradient in STORM, in (0, 1].

    Returns:
      The norm, at most 1 / sqrt(beta (2 - beta)).
    """
    check_range("steps", steps, 1, schedules=False)
    c = 1 - _beta(beta)
    return math.sqrt((1 - c ** (2 * steps)) / (1 - c**2))


def separated_gain(steps: int, beta: float, separation: int) -> float:
    """Returns the largest ||v|| for changes of 1 at least `separation` steps apart.

    Args:
      steps: Number of steps, at least 1.
      beta: Weight of the new gradient in STORM, in (0, 1].
      separation: Smallest distance of two changes in steps, at least 1.

    Returns:
      The norm.
    """
    check_range("steps", steps, 1, schedules=False)
    check_range("separation", separation, 1, schedules=False)
    changes = np.zeros(steps)
    changes[::separation] = 1.0
    return transcript_norm(changes, 1 - _beta(beta))


def any_gain(steps: int, beta: float) -> float:
    """Returns the largest ||v|| for changes of 1 at any steps.

    Args:
      steps: Number of steps, at least 1.
      beta: Weight of the new gradient in STORM, in (0, 1].

    Returns:
      The norm, at most sqrt(steps) / beta.
    """
    return separated_gain(steps, beta, 1)


def marginal_std(std: float, beta: float) -> float:
    """Returns the long-run standard deviation of the noise in g_t.

    Args:
      std: Standard deviation of the noise in every d_t.
      beta: Weight of the new gradient in STORM, in (0, 1].

    Returns:
      The standard deviation in each coordinate of g_t, for large t.
    """
    return std / math.sqrt(_beta(beta) * (2 - beta))


def long_run_std(std: float, beta: float) -> float:
    """Returns the standard deviation of the sum of T estimates over sqrt(T).

    This is the noise that drives the parameters: noise of `std` in every d_t acts on
    their sum like independent noise of the returned level in every g_t. For noise on
    the output, which is independent, it is the standard deviation itself.

    Args:
      std: Standard deviation of the noise in every d_t.
      beta: Weight of the new gradient in STORM, in (0, 1].

    Returns:
      The standard deviation in each coordinate, for large T.
    """
    return std / _beta(beta)


def _beta(beta: float) -> float:
    check_range("beta", beta, 0, 1, open_low=True, schedules=False)
    return beta


def _batch(batch: int) -> int:
    check_range("batch", batch, 1, schedules=False)
    return batch


def _check_norm(name: str, norm: float) -> None:
    check_range(name, norm, open_low=True, schedules=False)

"""Releases: a clipped, noisy stream of values, and where its noise is added.

Noise is added to the innovation d_t, which the recursion g_t = c g_{t-1} + d_t keeps,
or to the released g_t, while the recursion keeps the clean value. In the second case
the release is A d + noise with A[t, k] = c^(t-k), a matrix mechanism. Its L2
sensitivity is the norm of v_t = sum_k c^(t-k) w_k for the largest changes w_k that one
record can make to d_k (Denisov et al. 2022, arXiv:2202.08312; Choquette-Choo et al.
2023, arXiv:2306.08153).

Every kind of noise has `transcript_multiplier(changes, beta)`, the noise multiplier of
one Gaussian mechanism that is as private as the whole transcript, for the largest
changes of the innovations by one record, [steps].
"""

import dataclasses
from typing import ClassVar

import numpy as np

from fedjax_muon.core import check_range
from fedjax_muon.privacy.clipping import Clip
from fedjax_muon.privacy.correlated import Strategy


def transcript_norm(changes: np.ndarray, decay: float) -> float:
    """Returns the norm of v, where v_t = decay v_{t-1} + changes_t."""
    from scipy import signal  # slow to import, for private runs alone

    return float(np.linalg.norm(signal.lfilter([1.0], [1.0, -decay], changes)))


@dataclasses.dataclass(frozen=True)
class Inside:
    """Noise on the innovation d_t, which the recursion keeps.

    Its standard deviation is the multiplier times the sensitivity of d_t; at step 0,
    that of d_0.
    """

    multiplier: float
    first_multiplier: float | None = None  # of step 0; `multiplier` by default
    bands: ClassVar[int] = 1  # number of steps in which one innovation has a part

    def __post_init__(self) -> None:
        check_range("multiplier", self.multiplier, schedules=False)
        if self.first_multiplier is not None:
            check_range("first_multiplier", self.first_multiplier, schedules=False)

    @property
    def smallest(self) -> float:
        """The smaller of the multipliers of step 0 and of the later steps."""
        return min(self.step_multipliers())

    def scaled(self, factor: float) -> "Inside":
        """Returns the same noise with all multipliers scaled."""
        first = self.first_multiplier
        return Inside(
            self.multiplier * factor, None if first is None else first * factor
        )

    def step_multipliers(self) -> tuple[float, float]:
        """Returns the multipliers of step 0 and of every later step."""
        first = self.first_multiplier
        return self.multiplier if first is None else first, self.multiplier

    def transcript_multiplier(self, changes: np.ndarray, beta: float) -> float:
        """Returns the multiplier if each change is released once; beta is not used."""
        del beta
        first, later = self.step_multipliers()
        ratios = (changes > 0) / later
        ratios[0] = (changes[0] > 0) / first
        return 1 / transcript_norm(ratios, 0.0)


@dataclasses.dataclass(frozen=True)
class Output:
    """Noise on every released g_t; the recursion keeps the clean value."""

    sigma: float  # standard deviation in every coordinate
    bands: ClassVar[None] = None  # an innovation has a part in all later releases

    def __post_init__(self) -> None:
        check_range("sigma", self.sigma, schedules=False)

    @property
    def smallest(self) -> float:
        """The standard deviation."""
        return self.sigma

    def scaled(self, factor: float) -> "Output":
        """Returns noise with a scaled standard deviation."""
        return Output(self.sigma * factor)

    def step_multipliers(self) -> tuple[float, float]:
        """Raises `ValueError`: sampling does not amplify noise on the output."""
        raise ValueError(
            "noise on the output repeats a record's part in all later releases, so "
            "sampling does not hide it: use Cyclic sampling, or noise Inside"
        )

    def transcript_multiplier(self, changes: np.ndarray, beta: float) -> float:
        """Returns the multiplier of a transcript that repeats the memory."""
        return self.sigma / transcript_norm(changes, 1 - beta)


@dataclasses.dataclass(frozen=True)
class Correlated:
    """Noise C^-1 z on every released gradient; see `privacy.correlated`.

    The standard deviation of z is the multiplier times the sensitivity of a gradient.
    """

    multiplier: float
    strategy: Strategy

    def __post_init__(self) -> None:
        check_range("multiplier", self.multiplier, schedules=False)

    @property
    def smallest(self) -> float:
        """The multiplier."""
        return self.multiplier

    @property
    def bands(self) -> int | None:
        """Number of steps that one gradient contributes to; None: all later ones."""
        return self.strategy.bands

    def scaled(self, factor: float) -> "Correlated":
        """Returns the same noise with a scaled multiplier."""
        return dataclasses.replace(self, multiplier=self.multiplier * factor)

    def step_multipliers(self) -> tuple[float, float]:
        """Returns the multiplier of a step, twice.

        What is released of one gradient is its product with a column of C, and noise.
        """
        if self.bands is None:
            raise ValueError(
                "sampling does not amplify privacy if a gradient has parts in all "
                "later releases: use Cyclic sampling, or a banded strategy"
            )
        column = self.strategy.column(self.bands)
        multiplier = self.multiplier / float(np.linalg.norm(column))
        return multiplier, multiplier

    def transcript_multiplier(self, changes: np.ndarray, beta: float) -> float:
        """Returns the multiplier of the worst record, which joins as early as it can.

        Its parts always have the same direction, since no entry of C is negative.
        """
        del beta  # there is no memory
        steps = len(changes)
        column = self.strategy.column(steps)
        from scipy import signal  # slow to import, for private runs alone

        parts = signal.fftconvolve(column, (changes > 0).astype(float))[:steps]
        return self.multiplier / float(np.linalg.norm(parts))


Noise = Inside | Output | Correlated


@dataclasses.dataclass(frozen=True)
class Release:
    """One noisy stream of values, such as an agent's estimate of its gradient in x.

    For clients of a server, a record is a client, and `Each` bounds its update.
    """

    clip: Clip
    noise: Noise
    # weight of the new gradient in STORM, in (0, 1]; 1 for streams without memory
    beta: float = 1.0

    def __post_init__(self) -> None:
        check_range("beta", self.beta, 0, 1, open_low=True, schedules=False)
        if not isinstance(self.clip.sensitivity(self.beta, 1), (int, float)):
            raise ValueError(
                "accounting needs norms of all variables together, got "
                f"{self.clip}: give a number as clip_norm"
            )
        if isinstance(self.noise, Correlated) and self.beta != 1:
            raise ValueError(
                "correlated noise is for gradients without memory, got beta "
                f"{self.beta}"
            )

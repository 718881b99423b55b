"""Releases: a clipped, noisy stream of values, and where its noise is added."""

import dataclasses
from typing import ClassVar

import numpy as np

from fedjax_muon.core import check_range
from fedjax_muon.privacy.correlated import Strategy
from fedjax_muon.privacy.sensitivity import Clip, transcript_norm


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
        """Returns the multiplier of the whole transcript.

        Args:
          changes: Largest changes of the innovations by one record, [steps].
          beta: Not used: every change is released once.

        Returns:
          The noise multiplier of one Gaussian mechanism that is equally private.
        """
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
        """Returns the multiplier of the whole transcript, which repeats the memory.

        Args:
          changes: Largest changes of the innovations by one record, [steps].
          beta: Weight of the new gradient in STORM, in (0, 1].

        Returns:
          The noise multiplier of one Gaussian mechanism that is equally private.
        """
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
        """Number of steps in which one gradient has a part; None: all later ones."""
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
        """Returns the multiplier of the whole transcript.

        Since no entry of C is negative, the worst record takes part in the first of the
        steps that it can take part in, always in the same direction.

        Args:
          changes: Largest changes of the gradients by one record, [steps].
          beta: Not used: there is no memory.

        Returns:
          The noise multiplier of one Gaussian mechanism that is equally private.
        """
        del beta
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
    beta: float = (
        1.0  # weight of the new gradient in STORM; 1 for streams without memory
    )

    def __post_init__(self) -> None:
        self.clip.sensitivity(self.beta, 1)  # raises if `beta` is out of range
        if isinstance(self.noise, Correlated) and self.beta != 1:
            raise ValueError(
                "correlated noise is for gradients without memory, got beta "
                f"{self.beta}"
            )

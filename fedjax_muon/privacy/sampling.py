"""How an agent's records come into its batches, as privacy accounting sees it.

`Poisson` and `FixedSize` draw every batch afresh, which hides who took part: the coins
count as amplification, and only noise inside the recursion can be accounted for.
`Cyclic`, `Shuffled` and `FullBatch` have no coins that count: the pattern in which a
record takes part is bounded, and the whole transcript is one Gaussian mechanism.
Constructors raise `TypeError` for counts that are not whole numbers, and `ValueError`
for a batch that is larger than the data: batches are drawn without replacement.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from fedjax_muon.core import check_count
from fedjax_muon.privacy.sensitivity import Clip


@dataclasses.dataclass(frozen=True)
class Poisson:
    """Every record joins a batch independently with probability batch / examples.

    `batch` is the expected size, by which sums are divided. `longest`, if given, is the
    largest batch that the program holds: of a larger draw a uniform part is kept.
    `first=examples` makes step 0 a full batch without sampling.
    """

    examples: int
    batch: int
    longest: int | None = None
    first: int | None = None
    amplifies: ClassVar[bool] = True

    def __post_init__(self):
        _check_batch(self)
        if self.longest is not None:
            check_count("longest", self.longest, self.batch)
        if self.first not in (None, self.examples):
            raise ValueError(
                f"first must be None or all {self.examples} examples under Poisson "
                f"sampling, got {self.first}: a part of them is no Poisson sample"
            )

    def __str__(self):
        cut = "" if self.longest is None else f", at most {self.longest} of them"
        return (
            f"Poisson: every record joins a batch independently with probability "
            f"{self.batch}/{self.examples}{cut}{_first(self.first)}"
        )


@dataclasses.dataclass(frozen=True)
class FixedSize:
    """Every batch is a fresh uniform subset of exactly `batch` records."""

    examples: int
    batch: int
    first: ClassVar[None] = None
    amplifies: ClassVar[bool] = True

    def __post_init__(self):
        _check_batch(self)

    def __str__(self):
        return f"a fresh uniform subset of {self.batch} of {self.examples} every step"


@dataclasses.dataclass(frozen=True)
class Cyclic:
    """Fixed batches, taken in the same order over and over.

    A record takes part once in `separation` = examples // batch steps. Step 0 is the
    first batch of the cycle, unless `first` gives the size of a batch that is drawn
    apart for it, after which the cycle starts.
    """

    examples: int
    batch: int
    first: int | None = None
    amplifies: ClassVar[bool] = False

    def __post_init__(self):
        _check_batch(self)
        if self.first is not None:
            check_count("first", self.first, 1, self.examples)
        if self.separation < 2:
            raise ValueError(
                f"a cycle has at least 2 batches, got batch {self.batch} of "
                f"{self.examples} examples: use FullBatch or a smaller batch"
            )

    def __str__(self):
        return (
            f"cyclic: fixed batches of {self.batch} of {self.examples}, a record takes "
            f"part once in {self.separation} steps{_first(self.first)}"
        )

    @property
    def separation(self) -> int:
        return self.examples // self.batch

    def changes(self, clip: Clip, beta: float, steps: int) -> np.ndarray:
        """Largest change of d_0, ..., d_{steps-1} by one record, shape (steps,)."""
        change = clip.sensitivity(beta, self.batch)
        changes = np.zeros(steps)
        if self.first is None:
            # Step 0 counts as the larger of both kinds of step, which also covers the
            # records that take part at 1, 1 + separation, ... instead.
            changes[:: self.separation] = change
            changes[0] = max(change, clip.first(self.batch))
        else:
            changes[1 :: self.separation] = change
            changes[0] = clip.first(self.first)
        return changes


@dataclasses.dataclass(frozen=True)
class Shuffled:
    """Batches of a new permutation in every epoch.

    No amplification is claimed: a record may be anywhere, even in consecutive batches.
    """

    examples: int
    batch: int
    first: ClassVar[None] = None
    amplifies: ClassVar[bool] = False

    def __post_init__(self):
        _check_batch(self)

    def __str__(self):
        return (
            f"shuffled batches of {self.batch} of {self.examples}, accounted for as if "
            "a record could be in any of them"
        )

    def changes(self, clip: Clip, beta: float, steps: int) -> np.ndarray:
        """Changes that bound the transcript, shape (steps,); see `Clip.anywhere`."""
        changes = np.full(steps, clip.anywhere(beta, self.batch))
        changes[0] = max(changes[0], clip.first(self.batch))
        return changes


@dataclasses.dataclass(frozen=True)
class FullBatch:
    """All records in every step."""

    examples: int
    first: ClassVar[None] = None
    amplifies: ClassVar[bool] = False

    def __post_init__(self):
        check_count("examples", self.examples)

    def __str__(self):
        return f"all {self.examples} records in every step"

    @property
    def batch(self) -> int:
        return self.examples

    def changes(self, clip: Clip, beta: float, steps: int) -> np.ndarray:
        """Changes that bound the transcript, shape (steps,); see `Clip.always`."""
        changes = np.full(steps, clip.always(beta, self.examples))
        changes[0] = clip.first(self.examples)
        return changes


Patterned = Cyclic | Shuffled | FullBatch
Sampling = Poisson | FixedSize | Patterned


def _check_batch(sampling) -> None:
    check_count("examples", sampling.examples)
    check_count("batch", sampling.batch, 1, sampling.examples)


def _first(size: int | None) -> str:
    return "" if size is None else f"; a first batch of {size} without sampling"

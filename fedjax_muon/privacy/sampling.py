"""Sampling schemes: how an agent's batches are drawn, as privacy accounting sees it.

`Poisson` draws every batch independently, which hides who took part: the sampling
amplifies privacy, and only noise inside the recursion can be accounted for.
`Cyclic` and `FullBatch` do not amplify: the steps in which a record takes
part are bounded, and the whole transcript is one Gaussian mechanism.

Constructors refuse batches that are larger than the data, since batches are drawn
without replacement.

The `changes` of a sampling that does not amplify bound how one record changes the
innovations d_0, ..., d_{steps-1} (see `clipping`): L2 norms, [steps].
"""

import dataclasses
from typing import ClassVar

import numpy as np

from fedjax_muon.core import check_count
from fedjax_muon.privacy.clipping import Clip

LIMIT = "the agent's examples"  # of a batch without replacement


@dataclasses.dataclass(frozen=True)
class Poisson:
    """Every record joins a batch independently with probability batch / examples.

    If a draw is larger than `max_batch`, a uniform subset of that size is kept. With a
    `cycle`, the records are divided into so many groups of the same size, whatever
    their data, which take turns; a record joins a batch of its group with probability
    cycle batch / examples. Records that fill no group never take part.
    """

    examples: int  # records of the agent
    batch: int  # expected size, by which sums are divided
    max_batch: int | None = None  # the largest batch that the program can hold
    # size of the batch at step 0, if not sampled; it must be `examples`
    first_batch: int | None = None
    cycle: int = 1  # number of groups that take turns
    amplifies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_batch(self)
        check_count("cycle", self.cycle, 1)
        if self.batch > self.group:
            raise ValueError(
                f"a batch of {self.batch} is larger than a group of {self.group}, "
                f"which is {self.examples} examples over a cycle of {self.cycle}: use "
                "a smaller batch or cycle"
            )
        if self.cycle > 1 and self.first_batch is not None:
            raise ValueError(
                f"a cycle of {self.cycle} groups begins with the first group, got "
                f"first_batch {self.first_batch}"
            )
        if self.max_batch is not None:
            check_count("max_batch", self.max_batch, self.batch)
        if self.first_batch not in (None, self.examples):
            raise ValueError(
                f"first_batch must be None or all {self.examples} examples under "
                f"Poisson sampling, got {self.first_batch}: a part of them is not a "
                "Poisson sample"
            )

    def __str__(self) -> str:
        cut = "" if self.max_batch is None else f", at most {self.max_batch} of them"
        if self.cycle > 1:
            return (
                f"cyclic Poisson: {self.cycle} groups of {self.group} records take "
                "turns, and every record of a group joins a batch independently with "
                f"probability {self.batch}/{self.group}{cut}"
            )
        return (
            f"Poisson: every record joins a batch independently with probability "
            f"{self.batch}/{self.examples}{cut}{_first(self.first_batch)}"
        )

    @property
    def group(self) -> int:
        """Records of a group."""
        return self.examples // self.cycle


@dataclasses.dataclass(frozen=True)
class Cyclic:
    """Fixed batches in a fixed order, over and over.

    A record takes part once in `separation` = examples // batch steps.
    """

    examples: int  # records of the agent
    batch: int
    # size of a separate batch at step 0, after which the cycle starts; without it,
    # step 0 is the first batch of the cycle
    first_batch: int | None = None
    amplifies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_batch(self)
        if self.first_batch is not None:
            check_count("first_batch", self.first_batch, 1, self.examples, limit=LIMIT)
        if self.separation < 2:
            raise ValueError(
                f"a cycle has at least 2 batches, got batch {self.batch} of "
                f"{self.examples} examples: use FullBatch or a smaller batch"
            )

    def __str__(self) -> str:
        return (
            f"cyclic: fixed batches of {self.batch} of {self.examples}, a record takes "
            f"part once in {self.separation} steps{_first(self.first_batch)}"
        )

    @property
    def separation(self) -> int:
        """Steps between two batches with the same record."""
        return self.examples // self.batch

    def changes(self, clip: Clip, beta: float, steps: int) -> np.ndarray:
        """Returns the largest changes of a record, once in a cycle."""
        change = clip.sensitivity(beta, self.batch)
        changes = np.zeros(steps)
        if self.first_batch is None:
            # Step 0 counts as the larger of both kinds of step, which also covers the
            # records that take part at 1, 1 + separation, ... instead.
            changes[:: self.separation] = change
            changes[0] = max(change, clip.sensitivity(1.0, self.batch))
        else:
            changes[1 :: self.separation] = change
            changes[0] = clip.sensitivity(1.0, self.first_batch)
        return changes


@dataclasses.dataclass(frozen=True)
class FullBatch:
    """All records in every step."""

    examples: int  # records of the agent
    first_batch: ClassVar[None] = None
    amplifies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_count("examples", self.examples)

    def __str__(self) -> str:
        return f"all {self.examples} records in every step"

    @property
    def batch(self) -> int:
        """Size of a batch, all examples."""
        return self.examples

    def changes(self, clip: Clip, beta: float, steps: int) -> np.ndarray:
        """Returns changes that bound the transcript of a record in every batch."""
        changes = np.full(steps, clip.full_batch_change(beta, self.examples))
        changes[0] = clip.sensitivity(1.0, self.examples)
        return changes


Patterned = Cyclic | FullBatch
Sampling = Poisson | Patterned


def _check_batch(sampling: Poisson | Cyclic) -> None:
    check_count("examples", sampling.examples)
    check_count("batch", sampling.batch, 1, sampling.examples, limit=LIMIT)


def _first(size: int | None) -> str:
    return "" if size is None else f"; a first batch of {size} without sampling"


def rare_size(records: int, batch: int, probability: float) -> int:
    """The least size that a Poisson batch exceeds with at most some probability.

    Example:
      >>> rare_size(500, 50, 1e-10)
      97
    """
    from scipy.stats import binom  # slow to import, for private runs alone

    return int(binom.isf(probability, records, batch / records))

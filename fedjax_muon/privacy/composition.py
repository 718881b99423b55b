"""Composition: the epsilon of several private runs on the same data.

Every run has its own guarantee, but an adversary sees the results of all of them. A
`Cost` is what accounting needs of one run, in numbers and words that JSON can hold:

    costs = [cost_of(spec) for spec in specs]
    epsilon = composed_epsilon(costs, delta=1e-5)

The noise of all runs must be fixed before the first of them starts. A run whose noise
depends on the results of another is not covered.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from fedjax_muon.core import check_count, check_range
from fedjax_muon.privacy.accounting import (
    ADD_OR_REMOVE,
    REPLACE_ONE,
    Adjacency,
    Pld,
    check_delta,
    gaussian_epsilon,
    joint_multiplier,
    library,
    steps_event,
)
from fedjax_muon.privacy.guarantees import (
    PrivacySpec,
    checked_accountant,
    step_multipliers,
    transcript_multiplier,
    without_guarantee,
)
from fedjax_muon.privacy.sampling import Poisson

ADJACENCIES = {known.relation: known for known in (ADD_OR_REMOVE, REPLACE_ONE)}
POINTS = 2e6  # of the distribution of one mechanism's privacy loss


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one run costs: one Gaussian mechanism, or steps on Poisson samples.

    A noise multiplier is the standard deviation of the noise divided by the L2
    sensitivity to one added or removed record, whatever the adjacency.
    """

    multiplier: float  # of the whole transcript; with `sampling`, of a step
    unit: str  # what is protected, in words
    adjacency: str  # ADD_OR_REMOVE_ONE or REPLACE_ONE
    delta: float
    sampling: Poisson | None = None  # None: one Gaussian mechanism, not amplified
    steps: int = 1  # of `sampling`, step 0 included
    first_multiplier: float | None = None  # of step 0; `multiplier` by default

    def __post_init__(self) -> None:
        for name in ("unit", "adjacency"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a string, got {getattr(self, name)!r}")
        if self.adjacency not in ADJACENCIES:
            raise ValueError(
                f"adjacency must be one of {', '.join(ADJACENCIES)}, got "
                f"{self.adjacency!r}"
            )
        check_delta(self.delta)
        check_range("multiplier", self.multiplier, open_low=True, schedules=False)
        if self.first_multiplier is not None:
            first = self.first_multiplier
            check_range("first_multiplier", first, open_low=True, schedules=False)
        check_count("steps", self.steps)
        if self.sampling is not None:
            Pld().check(self.sampling, ADJACENCIES[self.adjacency])
        elif self.steps != 1 or self.first_multiplier is not None:
            raise ValueError(
                "one Gaussian mechanism has no steps, got steps "
                f"{self.steps} and first_multiplier {self.first_multiplier}"
            )

    def to_record(self) -> dict[str, Any]:
        """Returns the fields by name, as JSON can hold them."""
        plain = lambda v: v.item() if hasattr(v, "item") else v  # a number of NumPy's
        fields = {name: plain(v) for name, v in vars(self).items()}
        if self.sampling is not None:
            sampling = vars(self.sampling).items()
            fields["sampling"] = {name: plain(v) for name, v in sampling}
        return fields

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Cost":
        """Reads what `to_record` returned."""
        fields = dict(record)
        if fields.get("sampling") is not None:
            fields["sampling"] = Poisson(**fields["sampling"])
        return cls(**fields)


def cost_of(spec: PrivacySpec) -> Cost:
    """Returns what a run costs, from the multipliers that `report` computes with."""
    checked_accountant(spec)
    reasons = without_guarantee(spec.releases)
    if reasons:
        raise ValueError(f"a run without a guarantee has no cost: {reasons[0]}")
    relation = spec.adjacency.relation
    if ADJACENCIES.get(relation) != spec.adjacency:
        raise ValueError(
            f"composition covers ADD_OR_REMOVE and REPLACE_ONE, got {spec.adjacency}"
        )
    if not isinstance(spec.sampling, Poisson):
        whole = transcript_multiplier(spec)
        return Cost(whole, spec.unit, relation, spec.delta)
    first, later = step_multipliers(spec)
    run = (spec.sampling, spec.steps, None if first == later else first)
    return Cost(later, spec.unit, relation, spec.delta, *run)


def composed_epsilon(costs: Iterable[Cost], delta: float) -> float:
    """Computes the epsilon of several runs together.

    Gaussian mechanisms alone are composed exactly. As soon as one run has Poisson
    samples, all privacy loss distributions are composed numerically, rounded up as in
    `Pld`. Conditions of single runs, such as their adversary, hold for their part.

    Args:
      costs: Costs of the runs, in any order; equal ones count as often as they occur.
    """
    check_delta(delta)
    costs = tuple(dataclasses.replace(cost, delta=delta) for cost in costs)
    if not costs:
        return 0.0
    adjacency, gaussian = _common_adjacency(costs), joint_gaussian(costs)
    if gaussian is not None and all(cost.sampling is None for cost in costs):
        return gaussian_epsilon(gaussian / adjacency.factor, delta)
    return _pld_epsilon(tuple(sorted(costs, key=repr)), delta)


def joint_gaussian(costs: Iterable[Cost]) -> float | None:
    """The multiplier of all runs together that are Gaussian mechanisms, if any is."""
    found = sorted(cost.multiplier for cost in costs if cost.sampling is None)
    if len(found) > 1:
        return joint_multiplier(*found)
    return found[0] if found else None  # without rounding


def _common_adjacency(costs: Iterable[Cost]) -> Adjacency:
    units = sorted({cost.unit for cost in costs})
    if len(units) > 1:
        raise ValueError(
            "only runs that protect the same unit compose, got "
            f"{' and '.join(map(repr, units))}: keep a ledger for each"
        )
    relations = sorted({cost.adjacency for cost in costs})
    if len(relations) > 1:
        raise ValueError(
            "only runs with the same adjacency compose, got "
            f"{' and '.join(relations)}: keep a ledger for each"
        )
    return ADJACENCIES[relations[0]]


@np.errstate(over="ignore")  # as in `accounting`
@functools.lru_cache(maxsize=256)  # takes seconds
def _pld_epsilon(costs: tuple[Cost, ...], delta: float) -> float:
    return float(pld_accountant(costs, Pld().interval).get_epsilon(delta))


def pld_accountant(costs: Sequence[Cost], interval: float) -> Any:
    """Composes the privacy loss distributions of runs, in at least this interval."""
    accounting = library()
    relations, adjacency = accounting.NeighboringRelation, _common_adjacency(costs)
    gaussian = joint_gaussian(costs)
    counts = collections.Counter(cost for cost in costs if cost.sampling is not None)
    # `ADD_OR_REMOVE` zeroes a record out, which is REPLACE_SPECIAL in the library.
    # Truncated batches need it; for other events it is the same as ADD_OR_REMOVE_ONE.
    # Under REPLACE_ONE the library doubles the sensitivity by itself.
    replaced = adjacency == REPLACE_ONE
    multipliers = [gaussian, *(cost.multiplier for cost in counts)]
    multipliers += [cost.first_multiplier for cost in counts]
    smallest = min(z for z in multipliers if z is not None)
    accountant = accounting.pld.PLDAccountant(
        relations.REPLACE_ONE if replaced else relations.REPLACE_SPECIAL,
        _interval(adjacency.factor / smallest, interval),
    )
    if gaussian is not None:
        accountant.compose(accounting.GaussianDpEvent(gaussian))
    # in a fixed order, for the same rounding in every process
    for cost, count in sorted(counts.items(), key=repr):
        event = steps_event(
            accounting,
            cast(Poisson, cost.sampling),
            cost.multiplier,
            cost.steps,
            cost.first_multiplier,
        )
        accountant.compose(accounting.SelfComposedDpEvent(event, count))
    return accountant


def _interval(ratio: float, finest: float) -> float:
    """The finest, or a coarser one where losses are so large that memory would end.

    The losses of a Gaussian mechanism are distributed over ratio^2 + 20 ratio, for the
    ratio of sensitivity to noise.
    """
    return max(finest, (ratio**2 + 20 * ratio) / POINTS)

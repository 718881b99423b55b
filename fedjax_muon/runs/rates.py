"""Learning rates and schedules of the default comparisons, and without a search.

Rates for comparisons are the best of one grid for all methods, by validation on seeds
that the comparisons do not use; experiments/studies/learning_rates.py has the rule.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple


class Rate(NamedTuple):
    """The learning rate and schedule that a method is compared with."""

    lr: float
    schedule: Literal["constant", "cosine"] = "constant"


# by the problem and the method
RATES: Mapping[str, Mapping[str, Rate]] = {
    "classification": {
        "fedavg": Rate(0.3),
        "fedavg_adam": Rate(0.03),
        "scaffold": Rate(0.1, "cosine"),
        "local_muon": Rate(0.3, "cosine"),
        "fedmuon": Rate(0.03, "cosine"),
        "fedmuon_align": Rate(0.01),
        "fedmuon_correct": Rate(0.1, "cosine"),
    },
    "auc": {
        "fed_nsgda_m": Rate(0.1),
        "fedmuon_da": Rate(0.01),
        "fedsgda_clip": Rate(0.3),
        "local_sgda": Rate(3.0),
        "local_sgdam": Rate(1.0, "cosine"),
        "fedsgda_m": Rate(1.0),
        "sagda": Rate(3.0, "cosine"),
        "fsgda": Rate(3.0),
        "fess_gda": Rate(3.0),
    },
}


class Unsearched(NamedTuple):
    """The rate of a method that needs no search, and where that was measured."""

    rate: Rate
    gains: str  # of a search, over it
    cohort: tuple[int, int]  # least and most clients of a round
    local_steps: tuple[int, int]


# by experiments/board/RULES.md, "Rows without a search"
UNSEARCHED: Mapping[str, Unsearched] = {
    "fedmuon": Unsearched(
        Rate(0.03, "cosine"),
        "at most 0.5 points (or 0.02 bits) on 7 of 8 tracks of the board, and 7.0 "
        "points with an LSTM",
        (4, 20),
        (5, 100),
    ),
}

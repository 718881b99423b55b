"""Learning rates and schedules of the default comparisons.

They are the best by validation on seeds that the comparisons do not use, of one grid
for all methods; experiments/studies/learning_rates.py has the rule.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fedjax_muon.runs.config import (
    DEFAULTS,
    Config,
    Schedule,
    hyper_parameters,
    method_of,
)


class Rate(NamedTuple):
    """The learning rate and schedule that a method is compared with."""

    lr: float
    lr_schedule: Schedule = "constant"


TUNED: Mapping[str, Mapping[str, Rate]] = {
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

PROBLEM = ("dataset", "model", "hidden", "rnn", "checkpoint")
SHARES = (0.1, 0.3, 1.0, 3.0)  # of a rate for the default problem


def is_default_problem(config: Config) -> bool:
    """Whether its data and model are those that default rates were chosen for."""
    what = lambda config: [getattr(config, name) for name in ("problem", *PROBLEM)]
    return what(config) in map(what, DEFAULTS.values())


def rates_to_try(name: str, problem: str) -> tuple[float, ...]:
    """The learning rates of a method's default grid; none if it takes no number."""
    best = TUNED[problem].get(name)
    usual = hyper_parameters(method_of(name)).get("lr") if best is None else best.lr
    if not isinstance(usual, int | float):
        return ()
    return tuple(float(f"{share * usual:.3g}") for share in SHARES)

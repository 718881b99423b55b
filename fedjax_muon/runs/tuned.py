"""Learning rates and schedules of the default comparisons.

They are the best by validation on seeds that the comparisons do not use, of one grid
for all methods; experiments/studies/learning_rates.py has the rule.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fedjax_muon.runs.config import Schedule


class Tuned(NamedTuple):
    """What a method is compared with."""

    lr: float
    lr_schedule: Schedule = "constant"


TUNED: Mapping[str, Mapping[str, Tuned]] = {
    "classification": {
        "fedavg": Tuned(0.3),
        "fedavg_adam": Tuned(0.03),
        "scaffold": Tuned(0.1, "cosine"),
        "local_muon": Tuned(0.3, "cosine"),
        "fedmuon": Tuned(0.03, "cosine"),
        "fedmuon_align": Tuned(0.01),
        "fedmuon_correct": Tuned(0.1, "cosine"),
    },
    "auc": {
        "fed_nsgda_m": Tuned(0.1),
        "fedmuon_da": Tuned(0.01),
        "fedsgda_clip": Tuned(0.3),
        "local_sgda": Tuned(3.0),
        "local_sgdam": Tuned(1.0, "cosine"),
        "fedsgda_m": Tuned(1.0),
        "sagda": Tuned(3.0, "cosine"),
        "fsgda": Tuned(3.0),
        "fess_gda": Tuned(3.0),
    },
}

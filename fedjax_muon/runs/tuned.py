"""Learning rates and schedules of the default comparisons.

They are the best by validation on seeds that the comparisons do not use, of one grid
for all methods; experiments/studies/learning_rates.py has the rule.
"""

from fedjax_muon.experiments.tuned import RATES as TUNED
from fedjax_muon.runs.config import (
    DEFAULTS,
    Config,
    hyper_parameters,
    method_of,
)

PROBLEM = ("dataset", "model", "hidden", "rnn")
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

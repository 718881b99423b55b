"""Memory and time of simulations, before they run."""

from fedjax_muon.planning.ahead_of_time import compile_for
from fedjax_muon.planning.tuning import Tuned, tune

__all__ = ["Tuned", "compile_for", "tune"]

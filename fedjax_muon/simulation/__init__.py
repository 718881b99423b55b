"""Simulations of federated training."""

from fedjax_muon.simulation.ahead_of_time import Compiled, compile_for
from fedjax_muon.simulation.federated import (
    STATE,
    federate,
    with_plan,
    with_task,
)
from fedjax_muon.simulation.participation import by_examples, uniform
from fedjax_muon.simulation.simulation import (
    NonFiniteError,
    NonFiniteLossError,
    Simulation,
)
from fedjax_muon.simulation.tuning import Tuned, tune

__all__ = [
    "STATE",
    "Compiled",
    "NonFiniteError",
    "NonFiniteLossError",
    "Simulation",
    "Tuned",
    "by_examples",
    "compile_for",
    "federate",
    "tune",
    "uniform",
    "with_plan",
    "with_task",
]

"""Simulations of federated training."""

from fedjax_muon.simulation.federated import (
    STATE,
    by_examples,
    federate,
    uniform,
    with_plan,
)
from fedjax_muon.simulation.simulation import (
    NonFiniteError,
    NonFiniteLossError,
    Simulation,
)

__all__ = [
    "STATE",
    "NonFiniteError",
    "NonFiniteLossError",
    "Simulation",
    "by_examples",
    "federate",
    "uniform",
    "with_plan",
]

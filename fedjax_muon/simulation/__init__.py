"""Simulations of federated training."""

from fedjax_muon.simulation import checkpoint, clocks, staleness
from fedjax_muon.simulation.federated import STATE, federate
from fedjax_muon.simulation.participation import by_examples, uniform
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
    "checkpoint",
    "clocks",
    "federate",
    "staleness",
    "uniform",
]

"""Simulations of federated training."""

from fedjax_muon.simulation import checkpoint, clocks, staleness
from fedjax_muon.simulation.federated import STATE, federate
from fedjax_muon.simulation.meter import NonFiniteError, NonFiniteLossError
from fedjax_muon.simulation.participation import by_examples, uniform
from fedjax_muon.simulation.scores import (
    client_accuracies,
    client_scores,
    cohort_loss,
)
from fedjax_muon.simulation.simulation import Simulation

__all__ = [
    "STATE",
    "NonFiniteError",
    "NonFiniteLossError",
    "Simulation",
    "by_examples",
    "checkpoint",
    "client_accuracies",
    "client_scores",
    "clocks",
    "cohort_loss",
    "federate",
    "staleness",
    "uniform",
]

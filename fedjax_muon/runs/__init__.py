"""Experiments: methods on a problem, on some seeds, in a directory or without one.

    problem = fm.problems.classification("digits", clients=16, alpha=0.1)
    result = train(fm.fedmuon(lr=0.03), problem, rounds=100, directory="runs/a")
    result = compare([fm.fedavg(lr=0.3), fm.fedmuon], problem, seeds=(0, 1, 2))
    result = sweep([fm.fedavg, fm.fedmuon], problem, {"lr": (0.01, 0.03, 0.1)})

The same call with the same directory continues where it was interrupted. A directory is
known by what its run computes: the words of its method, problem and settings, digests
of its arrays, and of the code of your functions. Another run is refused there.
"""

from fedjax_muon.runs.compare import compare
from fedjax_muon.runs.methods import cosine
from fedjax_muon.runs.predicting import Predictions, TrainedModel
from fedjax_muon.runs.results import Comparison, Sweeps, Swept, Trained
from fedjax_muon.runs.simulate import Settings, simulate
from fedjax_muon.runs.sweep import sweep
from fedjax_muon.runs.train import train

__all__ = [
    "Comparison",
    "Predictions",
    "Settings",
    "Sweeps",
    "Swept",
    "Trained",
    "TrainedModel",
    "compare",
    "cosine",
    "simulate",
    "sweep",
    "train",
]

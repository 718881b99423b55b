"""Minimax problems as tasks: their parameters are a `Pair`, their gradients descend in
x and ascend in y, and every algorithm trains them."""

from fedjax_muon.problems.adversarial import adversarial
from fedjax_muon.problems.agnostic import agnostic
from fedjax_muon.problems.auc import auc

__all__ = ["adversarial", "agnostic", "auc"]

"""The plays and the table of oracles that the oracles' own tests run through."""

import numpy as np

from . import fedavg as avg
from .fedmuon import fedmuon
from .fedmuon_align import fedmuon_align
from .fedmuon_correct import fedmuon_correct, local_muon_persistent
from .fedprox import fedprox
from .muloco import muloco
from .problem import Play, draw_params, draw_play, normalise, toy_grad
from .scaffold import scaffold, scaffold_adam, scaffold_momentum

SIZES = [3, 9, 5, 14, 7]
X = draw_params(0)
PARTIAL = draw_play(1, 5, 3, 4, 6, 5, SIZES)
FULL = draw_play(2, 5, 5, 4, 6, 5, SIZES)
ONE_STEP = draw_play(3, 5, 5, 1, 6, 6, SIZES)
ONE_STEP_PARTIAL = draw_play(4, 5, 3, 1, 6, 8, SIZES)
ALONE = draw_play(5, 1, 1, 4, 6, 4, [9])
COSINE = lambda r: 0.05 * 0.5 * (1 + np.cos(np.pi * r / 6))

ORACLES = {
    "fedavg": lambda x, play: avg.fedavg(x, play, 0.2),
    "fedavg_weighted": lambda x, play: avg.fedavg_weighted(x, play, 0.2),
    "fedavg_momentum": lambda x, play: avg.fedavg_momentum(x, play, 0.1),
    "fedavg_adam": lambda x, play: avg.fedavg_adam(x, play, 0.02),
    "local_adamw": lambda x, play: avg.local_adamw(x, play, 0.02),
    "fedadam": lambda x, play: avg.fedadam(x, play, 0.1, 0.05),
    "fedyogi": lambda x, play: avg.fedyogi(x, play, 0.1, 0.05),
    "fedadagrad": lambda x, play: avg.fedadagrad(x, play, 0.1, 0.05),
    "local_muon": lambda x, play: avg.local_muon(x, play, 0.03),
    "local_muon_momentum": lambda x, play: avg.local_muon_momentum(x, play, 0.03),
    "fedprox": lambda x, play: fedprox(x, play, 0.2, 0.5),
    "scaffold": lambda x, play: scaffold(x, play, 0.2),
    "scaffold_momentum": lambda x, play: scaffold_momentum(x, play, 0.1),
    "scaffold_adam": lambda x, play: scaffold_adam(x, play, 0.02),
    "fedmuon": lambda x, play: fedmuon(x, play, 0.03, decay=0.01),
    "fedmuon_synced": lambda x, play: fedmuon(x, play, 0.03, synced=True),
    "fedmuon_align": lambda x, play: fedmuon_align(x, play, 0.03),
    "fedmuon_align_reset": lambda x, play: fedmuon_align(x, play, 0.03, carry=False),
    "fedmuon_correct": lambda x, play: fedmuon_correct(x, play, 0.03),
    "fedmuon_correct_sign": lambda x, play: fedmuon_correct(
        x, play, 0.01, direction=np.sign, everywhere=True
    ),
    "fedmuon_correct_euclidean": lambda x, play: fedmuon_correct(
        x, play, 0.03, direction=normalise, everywhere=True, warm_start=True
    ),
    "local_muon_persistent": lambda x, play: local_muon_persistent(x, play, 0.03),
    "muloco": lambda x, play: muloco(x, play, 0.03, decay=0.01),
}


def identity(v: np.ndarray) -> np.ndarray:
    """The direction that is no LMO at all."""
    return v


def matrix_only(play: Play) -> Play:
    """The same play with w alone as a parameter, the bias held at a constant."""
    fixed = np.array([0.1, -0.2, 0.3])
    grad = lambda p, batch: {"w": toy_grad({"w": p["w"], "b": fixed}, batch)["w"]}
    return play._replace(grad=grad)


def two_parabolas(a: float, rounds: int) -> Play:
    """f_1 = x^2/2, f_2 = (x+a)^2/2, exact gradients, K = 1, S = n = 2.

    The functions of Theorem 1 in Takezawa et al. 2025 (appendix D).
    """
    batches = [[(np.zeros((1, 1)), np.full((1, 1), s), np.ones(1))] for s in (0.0, a)]
    grad = lambda p, batch: {"w": p["w"] + batch[1]}
    return Play(grad, 2, batches, [([0, 1], batches)] * rounds, [1, 1])

"""The traces and the table of oracles that the oracles' own tests run through."""

import numpy as np

from . import fedavg as avg, guided
from .compression import largest, sparseloco
from .fedlada import fedlada
from .fedmuon import (
    fedmuon,
    fedmuon_align,
    fedmuon_correct,
    fedpac_soap,
    local_adamw_align,
    local_muon_persistent,
    local_sgd_align,
    local_soap,
)
from .outer import diloco, ef21_muon, muloco, streaming_diloco
from .problem import Trace, draw_params, draw_trace, normalise, toy_grad
from .proximal import fednova, fedprox
from .scaffold import scaffold, scaffold_adam, scaffold_momentum
from .two_sided import fafed, stem

SIZES = [3, 9, 5, 14, 7]
X = draw_params(0)
PARTIAL = draw_trace(1, 5, 3, 4, 6, 5, SIZES)
FULL = draw_trace(2, 5, 5, 4, 6, 5, SIZES)
ONE_STEP = draw_trace(3, 5, 5, 1, 6, 6, SIZES)
ONE_STEP_PARTIAL = draw_trace(4, 5, 3, 1, 6, 8, SIZES)
ALONE = draw_trace(5, 1, 1, 4, 6, 4, [9])
COSINE = lambda r: 0.05 * 0.5 * (1 + np.cos(np.pi * r / 6))

ORACLES = {
    "fedavg": lambda x, trace: avg.fedavg(x, trace, 0.2),
    "fedavg_weighted": lambda x, trace: avg.fedavg_weighted(x, trace, 0.2),
    "fedavg_momentum": lambda x, trace: avg.fedavg_momentum(x, trace, 0.1),
    "fedavg_server_momentum": lambda x, trace: avg.fedavg_server_momentum(
        x, trace, 0.1
    ),
    "local_soap": lambda x, trace: local_soap(x, trace, 0.02),
    "fedavg_adam": lambda x, trace: avg.fedavg_adam(x, trace, 0.02),
    "local_adamw": lambda x, trace: avg.local_adamw(x, trace, 0.02),
    "fedadam": lambda x, trace: avg.fedadam(x, trace, 0.1, 0.05),
    "fedyogi": lambda x, trace: avg.fedyogi(x, trace, 0.1, 0.05),
    "fadas": lambda x, trace: avg.fadas(x, trace, 0.1, 0.05),
    "ringmaster_lmo": lambda x, trace: avg.ringmaster_lmo(x, trace, 0.1, 0.05),
    "fedadagrad": lambda x, trace: avg.fedadagrad(x, trace, 0.1, 0.05),
    "dp_fedmuon": lambda x, trace: avg.dp_fedmuon(x, trace, 0.1, 0.05),
    "local_muon": lambda x, trace: avg.local_muon(x, trace, 0.03),
    "local_muon_momentum": lambda x, trace: avg.local_muon_momentum(x, trace, 0.03),
    "fedprox": lambda x, trace: fedprox(x, trace, 0.2, 0.5),
    "scaffold": lambda x, trace: scaffold(x, trace, 0.2),
    "scaffold_momentum": lambda x, trace: scaffold_momentum(x, trace, 0.1),
    "scaffold_adam": lambda x, trace: scaffold_adam(x, trace, 0.02),
    "fedmuon": lambda x, trace: fedmuon(x, trace, 0.03, decay=0.01),
    "fedmuon_synced": lambda x, trace: fedmuon(x, trace, 0.03, synced=True),
    "fedmuon_align": lambda x, trace: fedmuon_align(x, trace, 0.03),
    "fedmuon_align_reset": lambda x, trace: fedmuon_align(x, trace, 0.03, carry=False),
    "fedpac_soap": lambda x, trace: fedpac_soap(x, trace, 0.03, every=2),
    "fedmuon_correct": lambda x, trace: fedmuon_correct(x, trace, 0.03),
    "fedmuon_correct_sign": lambda x, trace: fedmuon_correct(
        x, trace, 0.01, direction=np.sign, everywhere=True
    ),
    "fedmuon_correct_euclidean": lambda x, trace: fedmuon_correct(
        x, trace, 0.03, direction=normalise, everywhere=True, warm_start=True
    ),
    "local_muon_persistent": lambda x, trace: local_muon_persistent(x, trace, 0.03),
    "muloco": lambda x, trace: muloco(x, trace, 0.03, decay=0.01),
    "diloco": lambda x, trace: diloco(x, trace, 0.03),
    "ef21_muon": lambda x, trace: [
        after[0] for after in ef21_muon(x, trace, 0.03, largest(0.3), largest(0.3))
    ],
    "sparseloco": lambda x, trace: sparseloco(x, trace, 0.02, 2, 3),
    "streaming_diloco": lambda x, trace: [
        after[0] for after in streaming_diloco(x, trace, 0.02)
    ],
    "fednova": lambda x, trace: fednova(x, trace, 0.2, 0.6, 0.5),
    "fedadamw": lambda x, trace: avg.fedadamw(x, trace, 0.02),
    "feddyn": lambda x, trace: avg.feddyn(x, trace, 0.2, 0.3),
    "fedexp": lambda x, trace: avg.fedexp(x, trace, 0.2, 1e-4),
    "fedcm": lambda x, trace: guided.fedcm(x, trace, 0.2),
    "fedavg_m": lambda x, trace: guided.fedavg_m(x, trace, 0.2),
    "fedavg_vr": lambda x, trace: guided.fedavg_vr(x, trace, 0.2),
    "scaffold_m": lambda x, trace: guided.scaffold_m(x, trace, 0.2),
    "scaffold_vr": lambda x, trace: guided.scaffold_vr(x, trace, 0.2),
    "padamfed": lambda x, trace: guided.padamfed(x, trace, 0.05),
    "padamfed_vr": lambda x, trace: guided.padamfed_vr(x, trace, 0.05),
    "fedlada": lambda x, trace: fedlada(x, trace, 0.02),
    "fafed": lambda x, trace: fafed(x, trace, 0.02),
    "stem": lambda x, trace: stem(x, trace, 0.1),
    "local_sgdm": lambda x, trace: avg.local_sgdm(x, trace, 0.1),
    "bi2clip": lambda x, trace: avg.bi2clip(x, trace, 0.2, 0.01, 0.5, 0.01, 0.5, 0.7),
    "local_sgd_align": lambda x, trace: local_sgd_align(x, trace, 0.1),
    "local_adamw_align": lambda x, trace: local_adamw_align(x, trace, 0.02),
}


def identity(v: np.ndarray) -> np.ndarray:
    """The direction that is no LMO at all."""
    return v


def matrix_only(trace: Trace) -> Trace:
    """The same trace with w alone as a parameter, the bias held at a constant."""
    fixed = np.array([0.1, -0.2, 0.3])
    grad = lambda p, batch: {"w": toy_grad({"w": p["w"], "b": fixed}, batch)["w"]}
    return trace._replace(grad=grad)


def two_parabolas(a: float, rounds: int) -> Trace:
    """f_1 = x^2/2, f_2 = (x+a)^2/2, exact gradients, K = 1, S = n = 2.

    The functions of Theorem 1 in Takezawa et al. 2026 (appendix D).
    """
    batches = [[(np.zeros((1, 1)), np.full((1, 1), s), np.ones(1))] for s in (0.0, a)]
    grad = lambda p, batch: {"w": p["w"] + batch[1]}
    return Trace(grad, 2, batches, [([0, 1], batches)] * rounds, [1, 1])

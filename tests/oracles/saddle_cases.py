"""The minimax traces and the table of oracles that their own tests run through."""

from collections.abc import Callable
from typing import Any

import numpy as np

from . import minimax as oracle
from .problem import Batch, Params, draw_params, times, toy_grad
from .saddle import Saddle, SaddleTrace, draw_saddle, draw_saddle_trace

START = draw_saddle(0)
PARTIAL = draw_saddle_trace(1)
FULL = draw_saddle_trace(2, cohort_size=5)
ONE_STEP = draw_saddle_trace(3, cohort_size=5, steps=1, rounds=6)
ALONE = draw_saddle_trace(5, 1, 1, rounds=4, sizes=(9,))

COSINE_X = lambda r: 0.05 * 0.5 * (1 + np.cos(np.pi * r / 6))
COSINE_Y = lambda r: 0.15 * 0.5 * (1 + np.cos(np.pi * r / 6))
COSINES: dict[str, Any] = {"lr_x": COSINE_X, "lr_y": COSINE_Y}
RATES: dict[str, Any] = {"lr_x": 0.05, "lr_y": 0.15}
SERVER: dict[str, Any] = {"server_lr_x": 1.2, "server_lr_y": 0.7}
FRESH: dict[str, Any] = {"b_x": 0.3, "b_y": 0.2}

# every setting differs between x and y, so that none can take the other's place
ORACLES: dict[str, tuple[Callable[..., list[Saddle]], dict[str, Any]]] = {
    "fed_nsgda_m": (oracle.fed_nsgda_m, RATES | FRESH | SERVER),
    "fedmuon_da": (oracle.fedmuon_da, RATES | FRESH | SERVER),
    "fedsgda_clip": (oracle.fedsgda_clip, RATES | FRESH | SERVER),
    "local_sgda": (oracle.local_sgda, RATES),
    "local_sgdam": (oracle.local_sgdam, RATES | FRESH),
    "fedsgda_m": (oracle.fedsgda_m, RATES | {"a_x": 0.3, "a_y": 0.2}),
    "fsgda": (oracle.fsgda, RATES | SERVER),
    "sagda": (oracle.sagda, RATES | SERVER),
    "fess_gda": (oracle.fess_gda, RATES | SERVER),
}
FULL_ONLY = {"fedsgda_m"}


def separable(trace: SaddleTrace) -> tuple[SaddleTrace, Saddle]:
    """f(x, y) = L(x) - L(y) with the toy loss L, and a start: two problems in one.

    Descent in x and ascent in y each minimise L, so that any minimiser must be met.
    """

    def grad(params: Saddle, batch: Batch) -> Saddle:
        g_y = toy_grad(params["y"], batch)
        return {"x": toy_grad(params["x"], batch), "y": times(-1.0, g_y)}

    return trace._replace(grad=grad), {"x": draw_params(7), "y": draw_params(8)}


def mirrored(trace: SaddleTrace) -> SaddleTrace:
    """The trace of -f(y, x): the two variables in each other's place."""

    def grad(params: Saddle, batch: Batch) -> Saddle:
        g = trace.grad({"x": params["y"], "y": params["x"]}, batch)
        return {"x": times(-1.0, g["y"]), "y": times(-1.0, g["x"])}

    return trace._replace(grad=grad)


# ---------------------------------------------------------------------- comparison
def flat(history: list[Saddle]) -> list[Params]:
    """{"x": {"w": ..}, "y": {"v": ..}} as one dict with the keys x.w and y.v."""
    return [
        {f"{part}.{k}": leaf for part in point for k, leaf in point[part].items()}
        for point in history
    ]


def apart(a: list[Saddle], b: list[Saddle]) -> float:
    """The largest entry of the difference after the last round."""
    u, v = flat(a)[-1], flat(b)[-1]
    return max(float(np.max(np.abs(u[k] - v[k]))) for k in u)


def assert_same(a: list[Saddle], b: list[Saddle], atol=1e-12) -> None:
    """Equal at every round, up to rounding."""
    assert len(a) == len(b) > 0
    for u, v in zip(flat(a), flat(b), strict=True):
        assert u.keys() == v.keys()
        for name in u:
            np.testing.assert_allclose(u[name], v[name], rtol=0, atol=atol)


def norm(variable: Params) -> float:
    """The Euclidean norm over all leaves."""
    return float(np.sqrt(sum(np.sum(leaf**2) for leaf in variable.values())))


def recorded(trace: SaddleTrace) -> tuple[SaddleTrace, list[Saddle]]:
    """The trace, and the list of the points at which gradients will be asked for."""
    points: list[Saddle] = []

    def grad(params: Saddle, batch: Batch) -> Saddle:
        points.append(params)
        return trace.grad(params, batch)

    return trace._replace(grad=grad), points

"""The minimax oracles among themselves: theorems, identities, known minimisers.

Facts that a paper proves are Lemmas A.2 and B.1 and the AUC loss (20) of "Federated
Stochastic Minimax Optimization under Heavy-Tailed Noises" (Zhang & Gao).
"""

from itertools import product
from typing import Any

import numpy as np
import pytest
from oracles import fedavg as avg, minimax as oracle
from oracles.auc import auc_grad, auc_loss, auc_optimum
from oracles.fedmuon import fedmuon
from oracles.guided import padamfed, scaffold_m
from oracles.problem import Trace, sub, toy_grad
from oracles.saddle import saddle_grad, saddle_loss
from oracles.saddle_cases import (
    ALONE,
    COSINES,
    FRESH,
    FULL,
    FULL_ONLY,
    ORACLES,
    PARTIAL,
    RATES,
    SERVER,
    START,
    apart,
    assert_same,
    mirrored,
    norm,
    separable,
)
from oracles.scaffold import scaffold

TRACES = pytest.mark.parametrize("trace", [PARTIAL, FULL], ids=["partial", "full"])


# ------------------------------------------------------------------- the toy problem
def test_saddle_gradient_is_that_of_finite_differences():
    for _, data in PARTIAL.rounds[:2]:
        batch = data[0][0]
        weighted = (batch[0], batch[1], np.linspace(0.0, 2.0, len(batch[2])))
        for b, part in product((batch, weighted), ("x", "y")):
            gradient = saddle_grad(START, b)[part]
            for name, leaf in START[part].items():
                assert gradient[name].shape == leaf.shape
                for at in np.ndindex(leaf.shape):
                    h = np.zeros_like(leaf)
                    h[at] = 1e-5
                    up = {**START, part: {**START[part], name: leaf + h}}
                    down = {**START, part: {**START[part], name: leaf - h}}
                    slope = (saddle_loss(up, b) - saddle_loss(down, b)) / 2e-5
                    assert abs(gradient[name][at] - slope) < 1e-9


# --------------------------------------------------- signs, and one variable at a time
@pytest.mark.parametrize("name", ORACLES)
def test_swapping_the_variables_swaps_the_path(name):
    # f(x, y) and -f(y, x) are one game; with rho > 0 FESS-GDA smooths x alone
    f, hyper = ORACLES[name]
    if name == "fess_gda":
        hyper = {**hyper, "rho": 0.0}
    other = {"x": "y", "y": "x"}
    swapped = {k[:-1] + other.get(k[-1], k[-1]): v for k, v in hyper.items()}
    for trace in [FULL] if name in FULL_ONLY else [PARTIAL, FULL]:
        path = f(START, trace, **hyper)
        turned = f({"x": START["y"], "y": START["x"]}, mirrored(trace), **swapped)
        assert_same(path, [{"x": s["y"], "y": s["x"]} for s in turned])
        assert min(norm(sub(path[-1][v], START[v])) for v in "xy") > 0.01


def both(minimiser, x, y, trace, lr_x, lr_y, server_lr_x=1.0, server_lr_y=1.0, **rest):
    """Two runs of a minimiser, as the two variables of one path."""
    b_x, b_y = rest.get("b_x"), rest.get("b_y")
    sides = (x, lr_x, b_x, server_lr_x), (y, lr_y, b_y, server_lr_y)
    paths = [
        minimiser(start, trace, lr, *([] if b is None else [b]), server_lr)
        for start, lr, b, server_lr in sides
    ]
    return [{"x": x, "y": y} for x, y in zip(*paths, strict=True)]


@TRACES
@pytest.mark.parametrize("rates", [RATES, COSINES], ids=["constant", "cosine"])
@pytest.mark.parametrize("name", ["fed_nsgda_m", "fedsgda_clip", "sagda", "fsgda"])
def test_separable_problems_are_two_minimisations(name, rates, trace):
    cases: dict[str, Any] = {
        "fed_nsgda_m": (oracle.fed_nsgda_m, padamfed, FRESH, {}),
        "fedsgda_clip": (oracle.fedsgda_clip, scaffold_m, FRESH, {"tau": np.inf}),
        "sagda": (oracle.sagda, scaffold, {}, {}),
        "fsgda": (oracle.fsgda, avg.fedavg, {}, {}),
    }
    f, minimiser, weights, extra = cases[name]
    two, start = separable(trace)
    one = Trace(toy_grad, *trace[1:])
    expected = both(minimiser, **start, trace=one, **rates, **weights, **SERVER)
    assert_same(f(start, two, **rates, **weights, **SERVER, **extra), expected)


@TRACES
@pytest.mark.parametrize("own", [False, True])
def test_separable_momentum_is_fedmuon_without_the_polar_factor(own, trace):
    two, start = separable(trace)
    one = Trace(toy_grad, *trace[1:])
    hyper = {"synced": not own, "direction": lambda leaf: leaf}
    runs = [
        fedmuon(start[v], one, COSINES[f"lr_{v}"], FRESH[f"b_{v}"], **hyper)
        for v in "xy"
    ]
    expected = [{"x": x, "y": y} for x, y in zip(*runs, strict=True)]
    ours = oracle.local_sgdam(start, two, **COSINES, **FRESH, own_start=own)
    assert_same(ours, expected)
    other = oracle.local_sgdam(start, two, **COSINES, **FRESH, own_start=not own)
    assert apart(other, expected) > 1e-4


@pytest.mark.parametrize("name", ORACLES)
def test_identical_clients_are_one_client(name):
    f, hyper = ORACLES[name]
    rounds = [([2, 0, 1], data * 3) for _, data in ALONE.rounds]
    crowd = ALONE._replace(num_clients=3, first=ALONE.first * 3, rounds=rounds)
    history = f(START, crowd, **hyper)
    assert_same(history, f(START, ALONE, **hyper))
    assert apart(history, [START]) > 1e-2


# -------------------------------------------------------------------------- FESS-GDA
@TRACES
def test_smoothed_server_reduces_to_local_sgda(trace):
    free = oracle.fess_gda(START, trace, **RATES, rho=0.0)
    assert_same(free, oracle.local_sgda(START, trace, **RATES))
    # beta = 1: z is x itself, whatever rho
    two_sided = oracle.fess_gda(START, trace, **COSINES, **SERVER, rho=3.0, beta=1.0)
    assert_same(two_sided, oracle.fsgda(START, trace, **COSINES, **SERVER))
    smoothed = oracle.fess_gda(START, trace, **COSINES, **SERVER, rho=3.0, beta=0.5)
    assert apart(smoothed, two_sided) > 1e-3


# ------------------------------------------------------------- the guided methods


def test_directions_that_need_no_matrix():
    # a one-column polar factor is u/|u|, and so is the sign of a scalar
    thin = {"x": {"w": START["x"]["w"][:, :1]}, "y": {"t": START["y"]["t"]}}

    def grad(params, batch):
        w = np.pad(params["x"]["w"], ((0, 0), (0, 2)))
        whole = {"x": {**START["x"], "w": w}, "y": {**START["y"], **params["y"]}}
        g = saddle_grad(whole, batch)
        return {"x": {"w": g["x"]["w"][:, :1]}, "y": {"t": g["y"]["t"]}}

    trace = PARTIAL._replace(grad=grad)
    hyper = {**RATES, **FRESH, **SERVER}
    muon = oracle.fedmuon_da(thin, trace, **hyper)
    assert_same(muon, oracle.fed_nsgda_m(thin, trace, **hyper))
    # a tiny threshold clips every step to the length tau
    tiny = {**hyper, "lr_x": 0.05 / 1e-9, "lr_y": 0.15 / 1e-9}
    assert_same(oracle.fedsgda_clip(thin, trace, **tiny, tau=1e-9), muon)
    ident = oracle.fedmuon_da(thin, trace, **hyper, scalar=lambda t: t)
    assert apart(ident, muon) > 1e-3


# ------------------------------------------------------------------ the AUC loss (20)
def draw_scores(seed):
    """Scores in (0, 1), labels and weights with zeros, both labels being there."""
    rng = np.random.default_rng(seed)
    h, positive = rng.uniform(size=12), rng.uniform(size=12) < 0.3
    positive[:2] = True, False
    weight = rng.integers(0, 3, 12).astype(float)
    weight[:2] = 1.0
    return h, positive, weight


@pytest.mark.parametrize("seed", range(5))
def test_auc_gradient_is_that_of_finite_differences(seed):
    h, positive, weight = draw_scores(seed)
    p, point = 0.2, np.random.default_rng(seed + 50).standard_normal(15)
    point[3:] = h
    loss = lambda v: auc_loss(v[3:], positive, weight, v[0], v[1], v[2], p)
    g = auc_grad(h, positive, weight, point[0], point[1], point[2], p)
    for j, slope in enumerate([g.w1, g.w2, g.w3, *g.h]):
        e = 1e-4 * np.eye(15)[j]
        assert slope == pytest.approx((loss(point + e) - loss(point - e)) / 2e-4, 1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_auc_saddle_point_is_the_pairwise_surrogate(seed):
    h, positive, weight = draw_scores(seed)
    p = np.sum(weight[positive]) / np.sum(weight)
    best = auc_optimum(h, positive, weight)
    w1, w2, w3 = best.w1, best.w2, best.w3
    g = auc_grad(h, positive, weight, w1, w2, w3, p)
    assert [g.w1, g.w2, g.w3] == pytest.approx([0.0] * 3, abs=1e-14)
    f = lambda w1, w2, w3: auc_loss(h, positive, weight, w1, w2, w3, p)
    assert f(w1, w2, w3) == pytest.approx(best.value, abs=1e-14)
    for d in np.random.default_rng(seed).standard_normal((20, 3)):
        assert f(w1 + d[0], w2 + d[1], w3) > best.value
        assert f(w1, w2, w3 + d[2]) < best.value
    # a ratio that is not the batch's moves w3 away
    off = auc_grad(h, positive, weight, w1, w2, w3, p / 2)
    assert abs(off.w3) > 1e-3

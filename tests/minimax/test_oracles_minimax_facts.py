"""The minimax oracles against the facts that the papers prove.

Of "Federated Stochastic Minimax Optimization under Heavy-Tailed Noises" (Zhang & Gao)
Lemmas A.2 and B.1 and the AUC loss (20).
"""

from itertools import pairwise

import numpy as np
import pytest
from oracles import minimax_guided as guided
from oracles.auc import auc_grad, auc_loss, auc_optimum
from oracles.guided import normalise_whole
from oracles.problem import Params, each, mean, sub, times
from oracles.saddle import saddle_grad
from oracles.saddle_cases import (
    FRESH,
    FULL,
    PARTIAL,
    RATES,
    SERVER,
    START,
    apart,
    assert_same,
    norm,
    recorded,
)

TRACES = pytest.mark.parametrize("trace", [PARTIAL, FULL], ids=["partial", "full"])


# ------------------------------------------------------------- the guided methods


# per leaf the norm of its longest polar factor, sqrt of the shorter side
BY_LEAF = [
    (("x", "w"), 3**0.5),
    (("x", "b"), 1.0),  # a column, whose polar factor is of length 1
    (("x", "s"), 1.0),
    (("y", "v"), 2**0.5),
    (("y", "t"), 1),
]


@TRACES
@pytest.mark.parametrize(
    ("f", "bounds"),
    [
        (guided.fed_nsgda_m, [(("x", *START["x"]), 1.0), (("y", *START["y"]), 1.0)]),
        (guided.fedmuon_da, BY_LEAF),
    ],
    ids=["fed_nsgda_m", "fedmuon_da"],
)
def test_normalised_methods_move_by_their_rates_at_most(f, bounds, trace):
    # Lemmas A.2 and B.1: lr times the local step; the server by gamma = K server_lr lr
    noting, points = recorded(trace)
    starts = [START, *f(START, noting, **RATES, **FRESH, **SERVER)]
    cohort = len(trace.rounds[0][0])
    for (part, *leaves), most in bounds:

        def gap(a, b, part=part, leaves=leaves):
            return norm({k: a[part][k] - b[part][k] for k in leaves})

        lr = most * RATES[f"lr_{part}"]
        drift = []
        for n, point in enumerate(points):
            i = n % 4
            drift.append(gap(point, starts[n // (4 * cohort)]))
            assert drift[-1] <= i * lr + 1e-12
        assert max(drift) > 1.5 * lr
        moved = [gap(b, a) for a, b in pairwise(starts)]
        gamma = 4 * SERVER[f"server_lr_{part}"] * lr
        assert 0.15 * gamma < max(moved) <= gamma + 1e-12


@TRACES
def test_mean_of_the_local_directions_is_the_servers_momentum(trace):
    # also under partial participation; and in the first round
    seen: dict[str, list[Params]] = {"x": [], "y": []}

    def noting(v):
        def direction(u):
            seen[v].append(u)
            return normalise_whole(u)

        return direction

    states = guided.guided_states(
        START, trace, **RATES, direction_x=noting("x"), direction_y=noting("y"), **FRESH
    )
    per_round = 4 * len(trace.rounds[0][0])
    for r, s in enumerate(states):
        for v, momentum in s.momentum.items():
            local = mean(seen[v][r * per_round : (r + 1) * per_round])
            assert norm(sub(local, momentum)) < 1e-12
            assert norm(momentum) > 1e-3
            assert norm(sub(s.g[v], mean([own[v] for own in s.g_i]))) < 1e-12
    for (a, b), (ids, _) in zip(pairwise(states), trace.rounds[1:], strict=True):
        for i in range(5):
            stays = all(
                np.array_equal(b.g_i[i][v][k], a.g_i[i][v][k])
                for v, leaves in b.g_i[i].items()
                for k in leaves
            )
            assert stays == (i not in ids)


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
    muon = guided.fedmuon_da(thin, trace, **hyper)
    assert_same(muon, guided.fed_nsgda_m(thin, trace, **hyper))
    # a tiny threshold clips every step to the length tau
    tiny = {**hyper, "lr_x": 0.05 / 1e-9, "lr_y": 0.15 / 1e-9}
    assert_same(guided.fedsgda_clip(thin, trace, **tiny, tau=1e-9), muon)
    ident = guided.fedmuon_da(thin, trace, **hyper, scalar=lambda t: t)
    assert apart(ident, muon) > 1e-3


@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_clip_shortens_the_whole_variable(tau):
    long, short = START["x"], times(0.01, START["x"])
    assert norm(guided.clip_whole(long, tau)) == pytest.approx(tau)
    unit = lambda u: each(lambda leaf: leaf / norm(u), u)
    clipped = guided.clip_whole(long, tau)
    assert norm(sub(unit(clipped), unit(long))) < 1e-12
    assert norm(sub(guided.clip_whole(short, tau), short)) == 0
    assert norm(guided.clip_whole(times(0.0, short), tau)) == 0


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

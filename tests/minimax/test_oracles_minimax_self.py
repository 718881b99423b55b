"""The minimax oracles among themselves: theorems, identities, known minimisers.

Facts that a paper proves are Lemmas A.2 and B.1 and the AUC loss (20) of "Federated
Stochastic Minimax Optimization under Heavy-Tailed Noises" (Zhang & Gao).
"""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from oracles import fedavg as avg, minimax as oracle
from oracles.auc import auc_grad, auc_loss, auc_optimum
from oracles.fedmuon import fedmuon, fedmuon_correct
from oracles.guided import normalise_whole, padamfed, scaffold_m
from oracles.problem import Params, Trace, add, each, mean, sub, times, toy_grad
from oracles.saddle import Saddle, saddle_grad, saddle_loss
from oracles.saddle_cases import (
    ALONE,
    COSINE_X,
    COSINE_Y,
    COSINES,
    FRESH,
    FULL,
    FULL_ONLY,
    ONE_STEP,
    ORACLES,
    PARTIAL,
    RATES,
    SERVER,
    START,
    apart,
    assert_same,
    flat,
    mirrored,
    norm,
    recorded,
    separable,
)
from oracles.scaffold import scaffold
from oracles.two_sided import stem

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


def test_separable_storm_is_stem():
    two, start = separable(FULL)
    one = Trace(toy_grad, *FULL[1:])
    runs = [stem(start["x"], one, COSINE_X, 0.3), stem(start["y"], one, COSINE_Y, 0.2)]
    expected = [{"x": x, "y": y} for x, y in zip(*runs, strict=True)]
    assert_same(oracle.fedsgda_m(start, two, **COSINES, a_x=0.3, a_y=0.2), expected)


def test_separable_polar_steps_are_those_of_bias_corrected_fedmuon():
    # for one step and fresh gradients alone; its server averages over all N = S
    two, start = separable(ONE_STEP)
    one = Trace(toy_grad, *ONE_STEP[1:])
    runs = [
        fedmuon_correct(start[v], one, RATES[f"lr_{v}"], 1.0, ratio=2.0) for v in "xy"
    ]
    expected = [{"x": x, "y": y} for x, y in zip(*runs, strict=True)]
    double = lambda leaf: 2.0 * leaf
    ours = oracle.fedmuon_da(start, two, **RATES, b_x=1.0, b_y=1.0, vector=double)
    assert_same(ours, expected)


# --------------------------------------------------------- both variables, one machine
def descend_ascend(point, g, lr_x, lr_y):
    """x - lr_x g_x and y + lr_y g_y."""
    x, y = times(lr_x, g["x"]), times(lr_y, g["y"])
    return {"x": sub(point["x"], x), "y": add(point["y"], y)}


def mean_gradient(trace, point, batches):
    """The mean of the gradients at one point, one batch for each client."""
    seen = [trace.grad(point, batch) for batch in batches]
    return {v: mean([g[v] for g in seen]) for v in "xy"}


def centralised(trace, step, state):
    """The paths of ``state <- step(state, mean gradient's batches)``, per round."""
    history = []
    for _, data in trace.rounds:
        for batches in zip(*data, strict=True):
            state = step(state, batches)
        history.append(state)
    return history


@pytest.mark.parametrize("trace", [ONE_STEP, ALONE], ids=["one step", "one client"])
def test_one_step_or_one_client_is_centralised_sgda(trace):
    ahead = lambda at, batches: mean_gradient(trace, at, batches)
    step = lambda at, batches: descend_ascend(at, ahead(at, batches), **RATES)
    path = centralised(trace, step, START)
    for f in (oracle.local_sgda, oracle.fsgda, oracle.sagda):
        assert_same(f(START, trace, **RATES), path)
    assert_same(oracle.fess_gda(START, trace, **RATES, rho=0.0), path)

    def alternating(at, batches):
        x = descend_ascend(at, mean_gradient(trace, at, batches), **RATES)["x"]
        g = mean_gradient(trace, {"x": x, "y": at["y"]}, batches)
        return {"x": x, "y": descend_ascend(at, g, **RATES)["y"]}

    assert apart(centralised(trace, alternating, START), path) > 1e-4


@pytest.mark.parametrize("trace", [ONE_STEP, ALONE], ids=["one step", "one client"])
def test_storm_is_centralised(trace):
    def step(state, batches):
        at, before, d = state
        new = mean_gradient(trace, at, batches)
        old = mean_gradient(trace, before, batches)
        keep = {"x": 0.7, "y": 0.8}
        d = {v: add(new[v], times(keep[v], sub(d[v], old[v]))) for v in "xy"}
        return descend_ascend(at, d, **RATES), at, d

    seen = [[client[j] for client in trace.first] for j in range(2)]
    halves = [mean_gradient(trace, START, batches) for batches in seen]
    d = {v: mean([half[v] for half in halves]) for v in "xy"}
    state = (descend_ascend(START, d, **RATES), START, d)
    path = [at for at, _, _ in centralised(trace, step, state)]
    assert_same(oracle.fedsgda_m(START, trace, **RATES, a_x=0.3, a_y=0.2), path)


def test_alone_the_guided_methods_have_a_momentum_of_round_means():
    # g = g_i cancels, and u is constant in a round; K = 4, one client
    fresh = {"x": 0.3, "y": 0.2}
    at, path = START, []
    memory: Saddle = {}
    for r, (_, data) in enumerate(ALONE.rounds):
        raw: dict[str, list[Params]] = {"x": [], "y": []}
        for batch in data[0]:
            g, d = ALONE.grad(at, batch), {}
            for v, b in fresh.items():
                raw[v].append(g[v])
                old = memory[v] if r else g[v]
                d[v] = normalise_whole(add(times(b, g[v]), times(1 - b, old)))
            at = descend_ascend(at, d, **RATES)
        for v, b in fresh.items():
            old = memory[v] if r else mean(raw[v])
            memory[v] = add(times(b, mean(raw[v])), times(1 - b, old))
        path.append(at)
    assert_same(oracle.fed_nsgda_m(START, ALONE, **RATES, **FRESH), path)


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


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_smoothed_server_descends_on_the_proximal_function(beta):
    # K = 1, S = N: SGDA on f(x, y) + rho/2 |x - z|^2, z a moving average of x
    def step(state, batches):
        at, z = state
        g = mean_gradient(ONE_STEP, at, batches)
        g["x"] = add(g["x"], times(2.0, sub(at["x"], z)))
        at = descend_ascend(at, g, 1.2 * RATES["lr_x"], 0.7 * RATES["lr_y"])
        return at, add(times(1 - beta, z), times(beta, at["x"]))

    path = [at for at, _ in centralised(ONE_STEP, step, (START, START["x"]))]
    ours = oracle.fess_gda(START, ONE_STEP, **RATES, **SERVER, rho=2.0, beta=beta)
    assert_same(ours, path)


def test_projection_holds_locally_and_on_the_server():
    radius = 0.5
    ball = lambda y: times(min(1.0, radius / norm(y)), y)
    start = {"x": START["x"], "y": ball(START["y"])}
    noting, points = recorded(PARTIAL)
    hyper: dict[str, Any] = {"lr_x": 0.05, "lr_y": 0.5, "server_lr_y": 3.0}
    inside = oracle.fess_gda(start, noting, **hyper, project=ball)
    assert max(norm(at["y"]) for at in [*points, *inside]) <= radius + 1e-12
    assert sum(norm(at["y"]) > radius - 1e-9 for at in points) > 10
    wide = lambda y: times(min(1.0, 100 / norm(y)), y)
    free = oracle.fess_gda(start, PARTIAL, **hyper)
    assert_same(oracle.fess_gda(start, PARTIAL, **hyper, project=wide), free)


# ------------------------------------------------------------- the guided methods

# per leaf the norm of its longest polar factor, sqrt of the shorter side
BY_LEAF = [(("x", "w"), 3**0.5), (("y", "v"), 2**0.5)]
# a column, whose polar factor is of length 1, and scalars
BY_LEAF += [(("x", "b"), 1.0), (("x", "s"), 1.0), (("y", "t"), 1.0)]


@TRACES
@pytest.mark.parametrize(
    ("f", "bounds"),
    [
        (oracle.fed_nsgda_m, [(("x", *START["x"]), 1.0), (("y", *START["y"]), 1.0)]),
        (oracle.fedmuon_da, BY_LEAF),
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

    states = oracle.guided_states(
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
            before, after = flat([a.g_i[i], b.g_i[i]])
            stays = all(np.array_equal(before[k], after[k]) for k in after)
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
    muon = oracle.fedmuon_da(thin, trace, **hyper)
    assert_same(muon, oracle.fed_nsgda_m(thin, trace, **hyper))
    # a tiny threshold clips every step to the length tau
    tiny = {**hyper, "lr_x": 0.05 / 1e-9, "lr_y": 0.15 / 1e-9}
    assert_same(oracle.fedsgda_clip(thin, trace, **tiny, tau=1e-9), muon)
    ident = oracle.fedmuon_da(thin, trace, **hyper, scalar=lambda t: t)
    assert apart(ident, muon) > 1e-3


@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_clip_shortens_the_whole_variable(tau):
    long, short = START["x"], times(0.01, START["x"])
    assert norm(oracle.clip_whole(long, tau)) == pytest.approx(tau)
    unit = lambda u: each(lambda leaf: leaf / norm(u), u)
    clipped = oracle.clip_whole(long, tau)
    assert norm(sub(unit(clipped), unit(long))) < 1e-12
    assert norm(sub(oracle.clip_whole(short, tau), short)) == 0
    assert norm(oracle.clip_whole(times(0.0, short), tau)) == 0


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

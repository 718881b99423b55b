"""The oracles among themselves: theorems, identities and independent optimisers.

An oracle that is wrong makes a wrong library look right, so each is held here against
something that is neither the library nor another copy of the same loop.
"""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from oracles import fedavg as avg, guided
from oracles.cases import (
    ALONE,
    COSINE,
    FULL,
    ONE_STEP,
    ONE_STEP_PARTIAL,
    ORACLES,
    PARTIAL,
    SIZES,
    X,
    identity,
    matrix_only,
    two_parabolas,
)
from oracles.fedlada import fedlada
from oracles.fedmuon import (
    fedmuon,
    fedmuon_align,
    fedmuon_correct,
    fedmuon_correct_states,
    local_adamw_align,
    local_muon_persistent,
    local_sgd_align,
)
from oracles.outer import muloco
from oracles.problem import (
    Trace,
    add,
    assert_same,
    draw_trace,
    each,
    first_gradient,
    mean,
    normalise,
    polar,
    sub,
    times,
    toy_grad,
    toy_loss,
    zeros,
)
from oracles.proximal import fedprox
from oracles.scaffold import scaffold, scaffold_adam, scaffold_momentum, scaffold_states
from oracles.two_sided import fafed, stem

CONTROLLED = [
    guided.scaffold_m_states,
    guided.scaffold_vr_states,
    guided.padamfed_states,
    guided.padamfed_vr_states,
]
TRACES = pytest.mark.parametrize("trace", [PARTIAL, FULL], ids=["partial", "full"])


def apart(a, b):
    """The largest entry of the difference after the last round."""
    return max(np.max(np.abs(a[-1][k] - b[-1][k])) for k in a[-1])


# ------------------------------------------------------------------- the toy problem
def test_toy_gradient_is_that_of_finite_differences():
    for _, data in PARTIAL.rounds[:2]:
        batch = data[0][0]
        weighted = (batch[0], batch[1], np.linspace(0.0, 2.0, len(batch[2])))
        for b, name in product((batch, weighted), X):
            for at in np.ndindex(X[name].shape):
                h = np.zeros_like(X[name])
                h[at] = 1e-5
                up = toy_loss({**X, name: X[name] + h}, b)
                down = toy_loss({**X, name: X[name] - h}, b)
                assert abs(toy_grad(X, b)[name][at] - (up - down) / 2e-5) < 1e-9


def test_polar_is_the_maximiser_over_the_spectral_ball():
    rng = np.random.default_rng(0)
    for shape in [(4, 3), (3, 4), (3, 3), (1, 5)]:
        m = rng.standard_normal(shape)
        nuclear = np.sum(np.linalg.svd(m, compute_uv=False))
        assert np.sum(m * polar(m)) == pytest.approx(nuclear, rel=1e-12)
        assert np.linalg.norm(polar(m), 2) == pytest.approx(1.0, rel=1e-12)
    low = rng.standard_normal((4, 1)) @ rng.standard_normal((1, 3))
    np.testing.assert_allclose(polar(low), low / np.linalg.norm(low), atol=1e-12)
    assert np.array_equal(polar(np.zeros((4, 3))), np.zeros((4, 3)))
    assert np.array_equal(normalise(np.zeros(3)), np.zeros(3))


# ------------------------------------------ Local Muon stalls (Takezawa et al. 2026)
@pytest.mark.parametrize("b", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("lr", [0.01, 0.25])
def test_local_muon_stalls_where_the_lmo_votes_cancel(b, lr):
    a = 2.0
    trace = two_parabolas(a, 50)
    start = {"w": np.full((1, 1), -a / 4)}
    stalled = [
        local_muon_persistent(start, trace, lr, b),
        local_muon_persistent(start, trace, lr, b, np.sign, everywhere=True),
        muloco(start, trace, lr, momentum=1 - b),
        avg.local_muon(start, trace, lr, momentum=1 - b, decay=0.0),
    ]
    for history in stalled:
        assert_same(history, [start] * 50)
    zeta = np.mean([(-a / 2) ** 2, (a / 2) ** 2])  # at the minimiser -a/2
    assert (-a / 4 + a / 2) ** 2 == pytest.approx(zeta / 4)


def test_bias_correction_reaches_the_minimiser():
    a, lr = 2.0, 0.05
    start = {"w": np.full((1, 1), -a / 4)}
    history = fedmuon_correct(start, two_parabolas(a, 200), lr, b=0.5, warm_start=True)
    tail = np.array([x["w"].item() for x in history[100:]])
    assert np.max(np.abs(tail + a / 2)) < 2 * lr
    assert abs(history[0]["w"].item() - start["w"].item()) == pytest.approx(lr)


# ------------------------------------------------------------------------ invariants
@pytest.mark.parametrize(
    ("f", "options"),
    [
        *((fedmuon_correct_states, {"warm_start": warm}) for warm in (False, True)),
        *((scaffold_states, {"warm_start": warm}) for warm in (False, True)),
        *((states, {"b": 0.3}) for states in CONTROLLED),
    ],
)
def test_the_servers_control_is_the_mean_of_all_clients_controls(f, options):
    states = f(X, PARTIAL, 0.05, **options)
    for state in states:
        assert_same([state.c], [mean(state.c_i)])
        assert np.max(np.abs(state.c["w"])) > 1e-3
    later = zip(pairwise(states), PARTIAL.rounds[1:], strict=True)
    for (before, after), (ids, _) in later:
        for i in range(5):
            same = np.array_equal(before.c_i[i]["w"], after.c_i[i]["w"])
            assert same == (i not in ids)


def test_correct_moves_at_most_a_share_of_the_local_steps():
    # Takezawa et al., Lemma 5, in the norm of the LMO: (eta S / n)(r - r') K
    history = [X, *fedmuon_correct(X, PARTIAL, 0.05)]
    steps = [np.linalg.norm(v["w"] - u["w"], 2) for u, v in pairwise(history)]
    assert max(steps) <= 0.05 * 3 / 5 * 4 + 1e-12
    assert max(steps) > 0.5 * 0.05 * 3 / 5 * 4


@TRACES
@pytest.mark.parametrize("align", [0.0, 0.5, 0.75])
def test_alignment_is_momentum_on_directions(trace, align):
    # Delta_G' = align Delta_G + (1-align) mean direction, also when lr is scheduled
    seen = []

    def record(m):
        seen.append(polar(m))
        return seen[-1]

    history = fedmuon_align(X, trace, COSINE, align=align, decay=0.0, direction=record)
    per_round = np.array(seen).reshape(5, -1, 4, 3)
    assert per_round.shape[1] == 4 * len(trace.rounds[0][0])
    before, delta_g = X["w"], np.zeros((4, 3))
    for r, x in enumerate(history):
        delta_g = align * delta_g + (1 - align) * per_round[r].mean(axis=0)
        moved, before = before - x["w"], x["w"]
        np.testing.assert_allclose(moved, COSINE(r) * 4 * delta_g, 0, 1e-12)
    alone = fedmuon_align(X, trace, 0.05, align=1.0, decay=0.0)
    assert_same(alone, [X] * 5, 0)  # never moves


def centralised_muon(trace, b, lr, decay, ratio):
    """One worker, whose gradient is the mean over the trace's clients (Zhang & Gao)."""
    gradient = lambda x, batches: mean([toy_grad(x, batch) for batch in batches])
    x, m, path = X, gradient(X, [batches[0] for batches in trace.first]), []
    for _, data in trace.rounds:
        for batches in zip(*data, strict=True):
            w = (1 - lr * decay) * x["w"] - lr * polar(m["w"])
            x = {"w": w, "b": (1 - lr * decay) * x["b"] - lr * ratio * m["b"]}
            g = gradient(x, batches)
            m = {name: (1 - b) * m[name] + b * g[name] for name in m}
        path.append(x)
    return path


def test_synced_fedmuon_is_centralised_muon_for_one_step_or_one_client():
    hyper: dict[str, Any] = {"b": 0.3, "lr": 0.05, "decay": 0.1, "ratio": 2.0}
    path = centralised_muon(ONE_STEP, **hyper)
    assert_same(fedmuon(X, ONE_STEP, synced=True, **hyper), path)
    assert apart(fedmuon(X, ONE_STEP, **hyper), path) > 1e-3
    assert_same(fedmuon(X, ALONE, **hyper), centralised_muon(ALONE, **hyper))


def test_muloco_with_a_trivial_server_is_persistent_local_muon():
    # heavy ball and the moving average point the same way, as U V^T ignores scale
    trace, x = matrix_only(FULL), {"w": X["w"]}
    local = local_muon_persistent(x, trace, 0.05, b=0.1)
    assert_same(muloco(x, trace, 0.05, outer_lr=1.0, outer_momentum=0.0), local)
    assert apart(muloco(x, trace, 0.05, outer_lr=1.0), local) > 1e-3
    scale = lambda rows, cols: 1.5 * rows / cols  # 2 for the 4 by 3 leaf
    twice = muloco(x, trace, 0.025, 0.9, 0.0, 1.0, 0.0, scale)
    assert_same(twice, local)
    alone = matrix_only(ALONE)
    carried = avg.local_muon_momentum(x, alone, 0.05, momentum=0.9, decay=0.0)
    assert_same(local_muon_persistent(x, alone, 0.05, b=0.1), carried)


@pytest.mark.parametrize("name", ORACLES)
def test_identical_clients_are_one_client(name):
    rounds = [([2, 0, 1], data * 3) for _, data in ALONE.rounds]
    crowd = Trace(toy_grad, 3, ALONE.first * 3, rounds, [9] * 3)
    history = ORACLES[name](X, crowd)
    assert_same(history, ORACLES[name](X, ALONE))
    assert apart(history, [X]) > 1e-3


def descent(trace, share):
    """Gradient descent on the cohort's gradients, averaged by the clients' shares."""
    x, path = X, []
    for ids, data in trace.rounds:
        present = share[ids] / np.sum(share[ids])
        g = [toy_grad(x, batches[0]) for batches in data]
        x = {k: x[k] - 0.2 * np.tensordot(present, [u[k] for u in g], 1) for k in x}
        path.append(x)
    return path


@pytest.mark.parametrize("trace", [ONE_STEP, ONE_STEP_PARTIAL])
def test_fedavg_of_one_step_is_gradient_descent_on_the_mean(trace):
    plain, by_size = descent(trace, np.ones(5)), descent(trace, np.array(SIZES))
    assert_same(avg.fedavg(X, trace, 0.2), plain)
    assert_same(avg.fedavg_weighted(X, trace, 0.2), by_size)
    assert apart(by_size, plain) > 1e-3


def test_two_steps_of_fedprox_by_hand():
    # the pull begins at the second one
    two = draw_trace(8, 1, 1, 2, 6, 1, [9])
    a, b = two.rounds[0][1][0]
    x1 = {k: X[k] - 0.2 * toy_grad(X, a)[k] for k in X}
    x2 = {k: x1[k] - 0.2 * (toy_grad(x1, b)[k] + 0.5 * (x1[k] - X[k])) for k in X}
    assert_same(fedprox(X, two, 0.2, 0.5), [x2])


def test_scaffold_variants_agree_where_the_optimiser_is_sgd():
    # for SGD the mean of the raw gradients is what option II computes
    for lr in (0.2, COSINE):
        literal = scaffold(X, PARTIAL, lr, server_lr=0.7)
        assert_same(scaffold_momentum(X, PARTIAL, lr, 0.0, server_lr=0.7), literal)
        assert apart(literal, avg.fedavg(X, PARTIAL, lr, server_lr=0.7)) > 1e-3
    # an eps far above the gradients turns Adam into SGD with the rate lr / eps
    literal = scaffold(X, PARTIAL, 0.2)
    assert_same(scaffold_adam(X, PARTIAL, 0.2e13, 0.0, 0.0, 1e13), literal)


def test_adaptive_servers_unrolled():
    # the sums that the recursions stand for, on displacements recomputed from x
    lr, tau = 0.1, 0.01  # so that Yogi meets both signs of v - d^2
    means = lambda d, w: sum(c * u for c, u in zip(w, d, strict=True))

    def v_yogi(d):
        v = np.full_like(d[0], tau**2)
        for u in d:
            v = np.where(v > u**2, v - 0.01 * u**2, v + 0.01 * u**2)
        return v

    def v_adam(d):
        t = len(d)
        w = [0.01 * 0.99 ** (t - 1 - s) for s in range(t)]
        return 0.99**t * tau**2 + means([u**2 for u in d], w)

    v_adagrad = lambda d: tau**2 + sum(u**2 for u in d)
    for f, b1, v in (
        (avg.fedadam, 0.9, v_adam),
        (avg.fedyogi, 0.9, v_yogi),
        (avg.fedadagrad, 0.0, v_adagrad),
    ):
        history = [X, *f(X, ONE_STEP, lr, 0.05, tau=tau)]
        for name in X:
            d = []
            for r, (_, data) in enumerate(ONE_STEP.rounds):
                g = mean([toy_grad(history[r], batches[0]) for batches in data])
                d.append(-lr * g[name])
                m = means(d, [(1 - b1) * b1 ** (r - s) for s in range(r + 1)])
                step = 0.05 * m / (np.sqrt(v(d)) + tau)
                now = history[r + 1][name]
                np.testing.assert_allclose(now, history[r][name] + step, 0, 1e-12)


PLAIN = dict.fromkeys((guided.fedcm, guided.fedavg_m, guided.fedavg_vr), avg.fedavg)
PLAIN |= dict.fromkeys((guided.scaffold_m, guided.scaffold_vr), scaffold)


def mean_gradient(trace, x, r):
    """The cohort's mean gradient at x over the only batch of each in round r."""
    return mean([trace.grad(x, batches[0]) for batches in trace.rounds[r][1]])


# ------------------------------------------------------------------------ momentum
@TRACES
@pytest.mark.parametrize("lr", [0.2, COSINE], ids=["constant", "cosine"])
def test_fedcm_is_fedavg_m(trace, lr):
    one, other = (f(X, trace, lr, 0.3, 0.7) for f in (guided.fedcm, guided.fedavg_m))
    assert_same(one, other)


@TRACES
@pytest.mark.parametrize("f", PLAIN)
def test_weight_one_on_the_fresh_gradient_is_the_method_without_momentum(f, trace):
    expected = PLAIN[f](X, trace, COSINE, 0.7)
    assert_same(f(X, trace, COSINE, b=1.0, server_lr=0.7), expected)
    moves = [f(X, trace, 0.2, b)[-1]["w"] for b in (0.1, 1.0)]
    assert np.max(np.abs(moves[0] - moves[1])) > 0.01


# ------------------------------------------------------------------ normalised steps
@pytest.mark.parametrize("f", [guided.padamfed, guided.padamfed_vr])
def test_padamfed_alone_with_weight_one_is_normalised_sgd(f):
    x, expected = X, []
    for _, [batches] in ALONE.rounds:
        for batch in batches:
            x = sub(x, times(0.05, guided.normalise_whole(ALONE.grad(x, batch))))
        expected.append(x)
    assert_same(f(X, ALONE, 0.05, b=1.0), expected)


@TRACES
def test_padamfed_g_is_the_mean_of_the_local_directions(trace):
    states = guided.padamfed_states(X, trace, 0.05, b=0.3)
    for r, (before, after) in enumerate(pairwise(states), start=1):
        ids, data = trace.rounds[r]
        h = add(times(0.3, before.c), times(0.7, before.g))
        directions = []
        for i, batches in zip(ids, data, strict=True):
            xi = before.x
            for batch in batches:
                d = add(times(0.3, sub(trace.grad(xi, batch), before.c_i[i])), h)
                directions.append(d)
                xi = sub(xi, times(0.05, guided.normalise_whole(d)))
        assert_same([after.g], [mean(directions)])


def test_padamfed_vr_of_one_step_is_normalised_storm():
    x, x_prev, g, expected = X, X, zeros(X), []
    for r in range(len(ONE_STEP.rounds)):
        b = 1.0 if r == 0 else 0.3
        change = sub(g, mean_gradient(ONE_STEP, x_prev, r))
        g = add(mean_gradient(ONE_STEP, x, r), times(1 - b, change))
        expected.append(g)
        x_prev, x = x, guided.padamfed_vr(X, ONE_STEP, 0.05, b=0.3)[r]
    states = guided.padamfed_vr_states(X, ONE_STEP, 0.05, b=0.3)
    assert_same([s.g for s in states], expected)


# -------------------------------------------------- two-point momentum, averaged last
def test_stem_of_one_step_is_storm():
    d = mean([first_gradient(ONE_STEP, X, i) for i in range(ONE_STEP.num_clients)])
    x_prev, x, expected = X, sub(X, times(0.1, d)), []
    for r in range(len(ONE_STEP.rounds)):
        new, old = mean_gradient(ONE_STEP, x, r), mean_gradient(ONE_STEP, x_prev, r)
        d = add(new, times(0.7, sub(d, old)))
        x_prev, x = x, sub(x, times(0.1, d))
        expected.append(x)
    assert_same(stem(X, ONE_STEP, 0.1, a=0.3), expected)


def test_stem_without_memory_is_fedavg_after_its_first_move():
    d = mean([first_gradient(FULL, X, i) for i in range(FULL.num_clients)])
    start = sub(X, times(0.1, d))
    assert_same(stem(X, FULL, 0.1, a=1.0), avg.fedavg(start, FULL, 0.1))


def test_fafed_of_one_step_without_memory_is_rmsprop():
    g0 = [first_gradient(ONE_STEP, X, i) for i in range(ONE_STEP.num_clients)]
    v = mean([each(np.square, g) for g in g0])
    x, expected = sub(X, times(0.02, mean(g0))), []
    for _, data in ONE_STEP.rounds:
        gs = [ONE_STEP.grad(x, batches[0]) for batches in data]
        squares = mean([each(np.square, g) for g in gs])
        v = add(times(0.9, v), times(0.1, squares))
        step = each(lambda m, v: m / (np.sqrt(v) + 0.01), mean(gs), v)
        x = sub(x, times(0.02, step))
        expected.append(x)
    assert_same(fafed(X, ONE_STEP, 0.02, a=1.0, beta=0.9), expected)


def test_fafed_on_tiny_gradients_is_stem():
    """Gradients of 1e-9 at a rate of 1e8: sqrt(v) + 1 is 1, the path is not short."""
    tiny = FULL._replace(grad=lambda p, batch: times(1e-9, FULL.grad(p, batch)))
    stemmed = stem(X, tiny, 1e8, a=0.3)
    assert_same(fafed(X, tiny, 1e8, a=0.3, rho=1.0), stemmed, atol=1e-7)
    assert np.max(np.abs(stemmed[-1]["w"] - X["w"])) > 0.1


# --------------------------------------------------------------- FedLADA and BiClip
@TRACES
def test_fedlada_with_constant_second_moment_is_fedavg_and_mixes_as_fedcm(trace):
    constant = {"b1": 0.0, "b2": 1.0, "eps": 1.0, "server_lr": 0.7}
    path = fedlada(X, trace, 0.2, alpha=1.0, **constant)
    assert_same(path, avg.fedavg(X, trace, 0.2, 0.7))
    path = fedlada(X, trace, COSINE, 0.3, **constant)
    assert_same(path, guided.fedcm(X, trace, COSINE, 0.3, 0.7))
    # of the global direction alone it stays
    assert_same(fedlada(X, trace, 0.2, alpha=0.0), [X] * len(trace.rounds))


@TRACES
def test_biclip_with_open_thresholds_clips_nothing(trace):
    adam = avg.adam_biclip(X, trace, 0.1, 0.0, np.inf, 0.05)
    assert_same(adam, avg.fedadam(X, trace, 0.1, 0.05))
    twice = avg.bi2clip(X, trace, 0.1, 0.0, np.inf, 0.0, np.inf, 0.7)
    assert_same(twice, avg.fedavg(X, trace, 0.1, 0.7))


def test_biclip_lifts_small_and_cuts_large_entries():
    clipped = avg.biclip({"w": np.array([-5.0, -0.01, 0.0, 0.5, 7.0])}, 0.1, 2.0)
    np.testing.assert_array_equal(clipped["w"], [-2.0, -0.1, 0.0, 0.5, 2.0])


@TRACES
def test_bi2clip_with_equal_thresholds_moves_every_entry_alike(trace):
    path = avg.bi2clip(X, trace, 0.1, 0.05, 0.5, 0.2, 0.2, 0.3)
    for a, b in pairwise([X, *path]):
        np.testing.assert_allclose(np.abs(b["w"] - a["w"]), 0.06, rtol=1e-12)


@TRACES
def test_local_sgd_align_is_fedmuon_with_the_identity_on_matrices(trace):
    trace, x = matrix_only(trace), {"w": X["w"]}
    muon = fedmuon_align(x, trace, COSINE, 0.8, 0.4, decay=0.0, direction=identity)
    assert_same(local_sgd_align(x, trace, COSINE, 0.8, 0.4), muon)


@TRACES
def test_local_adamw_align_without_both_parts_is_local_adamw(trace):
    path = local_adamw_align(X, trace, 0.02, b1=0.0, b2=0.0, align=0.0)
    assert_same(path, avg.local_adamw(X, trace, 0.02, b1=0.0, b2=0.0))
    first = local_adamw_align(X, trace, 0.02, align=0.0)[:1]
    assert_same(first, avg.local_adamw(X, trace, 0.02)[:1])

"""The further oracles among themselves: identities, invariants, known optimisers."""

from itertools import pairwise

import numpy as np
import pytest
from oracles import fedavg as avg
from oracles.cases import (
    ALONE,
    COSINE,
    FULL,
    ONE_STEP,
    PARTIAL,
    X,
    identity,
    matrix_only,
)
from oracles.fedlada import fedlada
from oracles.fedmuon import fedmuon_align, local_adamw_align, local_sgd_align
from oracles.guided import (
    fedavg_m,
    fedavg_vr,
    fedcm,
    normalise_whole,
    padamfed,
    padamfed_states,
    padamfed_vr,
    padamfed_vr_states,
    scaffold_m,
    scaffold_m_states,
    scaffold_vr,
    scaffold_vr_states,
)
from oracles.problem import (
    add,
    assert_same,
    each,
    first_gradient,
    mean,
    sub,
    times,
    zeros,
)
from oracles.scaffold import scaffold
from oracles.two_sided import fafed, stem

TRACES = pytest.mark.parametrize("trace", [PARTIAL, FULL], ids=["partial", "full"])
CONTROLLED = [
    scaffold_m_states,
    scaffold_vr_states,
    padamfed_states,
    padamfed_vr_states,
]


def mean_gradient(trace, x, r):
    """The cohort's mean gradient at x over the only batch of each in round r."""
    return mean([trace.grad(x, batches[0]) for batches in trace.rounds[r][1]])


# ------------------------------------------------------------------------ momentum


@TRACES
@pytest.mark.parametrize("lr", [0.2, COSINE], ids=["constant", "cosine"])
def test_fedcm_is_fedavg_m(trace, lr):
    assert_same(fedcm(X, trace, lr, 0.3, 0.7), fedavg_m(X, trace, lr, 0.3, 0.7))


@TRACES
@pytest.mark.parametrize("f", [fedcm, fedavg_m, fedavg_vr])
def test_weight_one_on_the_fresh_gradient_is_fedavg(f, trace):
    expected = avg.fedavg(X, trace, COSINE, 0.7)
    assert_same(f(X, trace, COSINE, b=1.0, server_lr=0.7), expected)


@TRACES
@pytest.mark.parametrize("f", [scaffold_m, scaffold_vr])
def test_weight_one_on_the_fresh_gradient_is_scaffold(f, trace):
    expected = scaffold(X, trace, COSINE, 0.7)
    assert_same(f(X, trace, COSINE, b=1.0, server_lr=0.7), expected)


@TRACES
@pytest.mark.parametrize("f", CONTROLLED)
def test_c_is_the_mean_of_all_controls(f, trace):
    states = f(X, trace, 0.05, b=0.3)
    assert_same([s.c for s in states], [mean(s.c_i) for s in states])


def test_one_client_needs_no_controls():
    assert_same(scaffold_vr(X, ALONE, 0.2, 0.3), fedavg_vr(X, ALONE, 0.2, 0.3))


@TRACES
@pytest.mark.parametrize("f", [fedcm, fedavg_m, fedavg_vr, scaffold_m, scaffold_vr])
def test_a_small_weight_changes_the_path(f, trace):
    assert (
        np.max(np.abs(f(X, trace, 0.2)[-1]["w"] - f(X, trace, 0.2, 1.0)[-1]["w"]))
        > 0.01
    )


# ------------------------------------------------------------------ normalised steps


@pytest.mark.parametrize("f", [padamfed, padamfed_vr])
def test_padamfed_alone_with_weight_one_is_normalised_sgd(f):
    x, expected = X, []
    for _, [batches] in ALONE.rounds:
        for batch in batches:
            x = sub(x, times(0.05, normalise_whole(ALONE.grad(x, batch))))
        expected.append(x)
    assert_same(f(X, ALONE, 0.05, b=1.0), expected)


@TRACES
def test_padamfed_g_is_the_mean_of_the_local_directions(trace):
    states = padamfed_states(X, trace, 0.05, b=0.3)
    for r, (before, after) in enumerate(pairwise(states), start=1):
        ids, data = trace.rounds[r]
        h = add(times(0.3, before.c), times(0.7, before.g))
        directions = []
        for i, batches in zip(ids, data, strict=True):
            xi = before.x
            for batch in batches:
                d = add(times(0.3, sub(trace.grad(xi, batch), before.c_i[i])), h)
                directions.append(d)
                xi = sub(xi, times(0.05, normalise_whole(d)))
        assert_same([after.g], [mean(directions)])


def test_padamfed_vr_of_one_step_is_normalised_storm():
    x, x_prev, g, expected = X, X, zeros(X), []
    for r in range(len(ONE_STEP.rounds)):
        b = 1.0 if r == 0 else 0.3
        change = sub(g, mean_gradient(ONE_STEP, x_prev, r))
        g = add(mean_gradient(ONE_STEP, x, r), times(1 - b, change))
        expected.append(g)
        x_prev, x = x, padamfed_vr(X, ONE_STEP, 0.05, b=0.3)[r]
    states = padamfed_vr_states(X, ONE_STEP, 0.05, b=0.3)
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
def test_fedlada_with_constant_second_moment_is_fedavg(trace):
    path = fedlada(X, trace, 0.2, alpha=1.0, b1=0.0, b2=1.0, eps=1.0, server_lr=0.7)
    assert_same(path, avg.fedavg(X, trace, 0.2, 0.7))


@TRACES
def test_fedlada_with_constant_second_moment_mixes_as_fedcm(trace):
    path = fedlada(X, trace, COSINE, 0.3, b1=0.0, b2=1.0, eps=1.0, server_lr=0.7)
    assert_same(path, fedcm(X, trace, COSINE, 0.3, 0.7))


@TRACES
def test_fedlada_of_the_global_direction_alone_stays(trace):
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


# ------------------------------------------------------------- averaged momentum


@TRACES
def test_local_sgd_align_without_alignment_is_local_sgdm(trace):
    path = local_sgd_align(X, trace, COSINE, 0.8, align=0.0)
    assert_same(path, avg.local_sgdm(X, trace, COSINE, 0.8))


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


def test_local_adamw_align_of_one_step_with_a_huge_eps_is_local_sgd_align():
    """Adam is then m/(1-b1) over eps in each first step, and m/(1-b1) is heavy ball."""
    path = local_adamw_align(X, ONE_STEP, 1e8, 0.8, eps=1e9, align=0.4, decay=0.0)
    assert_same(path, local_sgd_align(X, ONE_STEP, 0.1, 0.8, 0.4), atol=1e-8)

"""The oracles among themselves: theorems, identities and independent optimisers.

An oracle that is wrong makes a wrong library look right, so each is held here against
something that is neither the library nor another copy of the same loop.
"""

from itertools import pairwise, product

import numpy as np
import pytest
from oracles import fedavg as avg, guided
from oracles.cases import (
    ALONE,
    COSINE,
    FULL,
    ORACLES,
    PARTIAL,
    X,
)
from oracles.fedlada import fedlada
from oracles.fedmuon import (
    fedmuon_align,
    fedmuon_correct_states,
)
from oracles.problem import (
    Trace,
    assert_same,
    mean,
    normalise,
    polar,
    times,
    toy_grad,
    toy_loss,
)
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


@pytest.mark.parametrize("name", ORACLES)
def test_identical_clients_are_one_client(name):
    rounds = [([2, 0, 1], data * 3) for _, data in ALONE.rounds]
    crowd = Trace(toy_grad, 3, ALONE.first * 3, rounds, [9] * 3)
    history = ORACLES[name](X, crowd)
    assert_same(history, ORACLES[name](X, ALONE))
    assert apart(history, [X]) > 1e-3


def test_scaffold_variants_agree_where_the_optimiser_is_sgd():
    # for SGD the mean of the raw gradients is what option II computes
    for lr in (0.2, COSINE):
        literal = scaffold(X, PARTIAL, lr, server_lr=0.7)
        assert_same(scaffold_momentum(X, PARTIAL, lr, 0.0, server_lr=0.7), literal)
        assert apart(literal, avg.fedavg(X, PARTIAL, lr, server_lr=0.7)) > 1e-3
    # an eps far above the gradients turns Adam into SGD with the rate lr / eps
    literal = scaffold(X, PARTIAL, 0.2)
    assert_same(scaffold_adam(X, PARTIAL, 0.2e13, 0.0, 0.0, 1e13), literal)


PLAIN = dict.fromkeys((guided.fedcm, guided.fedavg_m, guided.fedavg_vr), avg.fedavg)
PLAIN |= dict.fromkeys((guided.scaffold_m, guided.scaffold_vr), scaffold)


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


def test_biclip_lifts_small_and_cuts_large_entries():
    clipped = avg.biclip({"w": np.array([-5.0, -0.01, 0.0, 0.5, 7.0])}, 0.1, 2.0)
    np.testing.assert_array_equal(clipped["w"], [-2.0, -0.1, 0.0, 0.5, 2.0])

"""Hyperball: directions and matrices that are scaled to the norms of parameters."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.contrib import MuonDimensionNumbers

import fedjax_muon as fm
from fedjax_muon import engine
from fedjax_muon.core import Objective, tree
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.transforms import by_rank, hyperball, muon, scale_by_normuon
from fedjax_muon.transforms.hyperball import with_norms_of
from tests.oracles import fedavg as avg
from tests.oracles.cases import ALONE, FULL, PARTIAL, X
from tests.support import traces
from tests.support.cases import slow_but

R = np.linalg.norm(X["w"])
NORMUON = optax.chain(by_rank(scale_by_normuon(), optax.scale_by_adam()), hyperball())
ADAM = optax.chain(optax.scale_by_adam(), hyperball())
WRAPPED = {
    "MuonH": fm.muonh(lr=0.3),
    "with two exchanges and a rule of the server": fm.keep_norms(
        fm.fedmuon(lr=0.3, rule=optax.chain(optax.scale(2.0), hyperball()))
    ),
    "NorMuonH with control variates": fm.keep_norms(fm.scaffold(lr=0.3, rule=NORMUON)),
    "AdamH and sparse messages": fm.compress(
        fm.keep_norms(fm.diloco(lr=0.3, rule=ADAM)), fm.top_k(0.5)
    ),
    "layers of clients": fm.keep_own(fm.muonh(lr=0.3), ["b"]),
}


@pytest.mark.parametrize("name", slow_but(1, WRAPPED))
def test_norms_stay(name):
    """To the accuracy of float64, while directions turn."""
    points = traces.path(WRAPPED[name], X, PARTIAL)
    norms = np.array([np.linalg.norm(x["w"]) for x in points])
    np.testing.assert_allclose(norms, R, rtol=1e-12, atol=0)
    assert np.sum(points[-1]["w"] * X["w"]) < 0.99 * R**2


def test_a_mean_that_is_not_projected_is_shorter():
    """By the mean cosine of two clients."""
    trace = FULL._replace(rounds=FULL.rounds[:1])
    (ids, data) = trace.rounds[0]
    algorithm = fm.muonh(lr=0.3, polar=kernel.polar)
    main = algorithm.exchanges[0]._replace(server=fm.fedavg().exchanges[0].server)
    (end,) = traces.path(algorithm._replace(exchanges=(main,)), X, trace)
    one = lambda *client: trace._replace(rounds=[tuple([part] for part in client)])
    alone = map(one, ids, data)
    ends = [avg.muonh(X, trace, 0.3)[0]["w"] for trace in alone]
    c = np.mean([np.sum(a * b) / R**2 for a, b in itertools.combinations(ends, 2)])
    factor = np.sqrt((1 + (len(ids) - 1) * c) / len(ids))
    assert factor < 0.97
    np.testing.assert_allclose(np.linalg.norm(end["w"]), factor * R, rtol=1e-12)


def test_a_step_turns_a_matrix():
    w, u = jnp.array([[3.0, 4.0]]), jnp.array([[0.0, 1.0]])
    direction, _ = hyperball().update(u, optax.EmptyState(), w)
    got = with_norms_of(w, w - 0.2 * direction)
    np.testing.assert_allclose(direction, [[0.0, 5.0]])
    np.testing.assert_allclose(got, [[3.5355, 3.5355]], atol=1e-4)


@pytest.mark.parametrize("size", [1e-36, 1e-3, 1e36])
def test_the_size_of_a_direction_is_irrelevant(size):
    w, u = {"w": jnp.array([[3.0, 4.0]])}, {"w": jnp.array([[2.0, -1.0]])}
    turn = lambda u: hyperball().update(u, optax.EmptyState(), w)[0]["w"]
    np.testing.assert_allclose(turn(tree.scale(u, size)), turn(u), rtol=1e-6)


def test_layers_of_a_stack_keep_their_own_norms():
    layers = lambda params: MuonDimensionNumbers(1, 2)
    like = jnp.array([[[3.0, 4.0]], [[0.0, 0.1]]])
    got = with_norms_of(like, jnp.array([[[0.0, 1.0]], [[2.0, 0.0]]]), layers)
    np.testing.assert_allclose(got, [[[0.0, 5.0]], [[0.1, 0.0]]], rtol=1e-6)


@jax.enable_x64(True)
def test_of_one_client_it_is_plain_training_on_spheres():
    """With a rule whose state persists, over several local steps."""
    rule = optax.chain(muon(0.9, polar=kernel.polar), hyperball())
    outer = {"server_lr": 1.0, "server_rule": optax.identity()}
    got = traces.path(fm.keep_norms(fm.diloco(0.1, rule=rule, **outer)), X, ALONE)
    x = jax.tree.map(jnp.asarray, X)
    opt, want = rule.init(x), []
    for _, (batches,) in ALONE.rounds:
        for batch in batches:
            g = traces.grad_fn(x, jax.tree.map(jnp.asarray, batch), None)
            u, opt = rule.update(g, opt, x)
            x = tree.sub_scaled(x, 0.1, u)
            x["w"] *= R / np.linalg.norm(x["w"])
        want.append(x)
    assert traces.farthest(got, want) < 1e-13
    assert traces.farthest(want[-1:], [X]) > 0.1


def test_without_a_direction_nothing_moves():
    flat = Objective(lambda params, batch, key: tree.zeros_like(params))
    for x in traces.path(fm.muonh(), X, PARTIAL, objective=flat):
        assert traces.farthest([x], [X]) == 0


def test_what_is_no_matrix_may_be_zero():
    zeros = {"head": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}
    engine.init(fm.muonh(), {"up": jnp.ones((2, 2)), **zeros}, 2)

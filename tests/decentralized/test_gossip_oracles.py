"""Every decentralized method equals its transcription in NumPy, agent by agent."""

import jax
import numpy as np
import pytest
from gossip_cases import (
    BEGIN,
    BETA,
    BOUND,
    INSIDE,
    LR,
    MINIMAX,
    START,
    TRACE,
    WEIGHTS,
    M,
    inside,
    pair,
    run,
    states_of,
)
from oracles import gossip as oracle
from oracles.cases import X
from traces import grad_fn as plain_grad

from fedjax_muon.core import Objective
from fedjax_muon.decentralized import ALL, dm_hsgd, dsgda
from fedjax_muon.decentralized.mixing import dense
from fedjax_muon.linalg import newton_schulz as kernel

pytestmark = pytest.mark.portable

MINIMUM = oracle.draw_minimum(4, lambda t: WEIGHTS[t])


def compare(found, history, bound=1e-10):
    """[T, m, ...] against lists over t of lists over agents; the largest difference."""
    if "y" in history[0][0]:
        found = {"x": found.x, "y": found.y}
    rows = [jax.tree.map(lambda *a: np.stack(a), *agents) for agents in history]
    want = jax.tree.map(lambda *a: np.stack(a), *rows)
    far = jax.tree.map(lambda a, b: np.max(np.abs(a - b)), found, want)
    worst = max(jax.tree.leaves(far))
    assert worst <= bound, far
    for leaf in jax.tree.leaves(want):  # nobody stands still, and nobody agrees
        assert np.abs(leaf[-1] - leaf[0]).max() > 1e-3
        assert np.ptp(leaf[-1], axis=0).max() > 1e-6
    return worst


PLAIN = {
    "dsgd": ({"lr": 0.1}, oracle.dsgd),
    "gradient_tracking": ({"lr": 0.1}, oracle.gradient_tracking),
    "dsgd_muon": ({"lr": 0.05, "polar": kernel.polar}, oracle.dsgd_muon),
    "gradient_tracking_muon": (
        {"lr": 0.05, "polar": kernel.polar},
        oracle.gradient_tracking_muon,
    ),
}


def test_every_method_has_an_oracle():
    assert MINIMAX.keys() | PLAIN.keys() == ALL.keys()


@pytest.mark.parametrize("name", MINIMAX)
def test_minimax_methods_equal_their_transcriptions(name):
    _, objective, expected = MINIMAX[name]
    states = states_of(name)
    with jax.enable_x64(True):
        history = expected(TRACE)
    worst = compare(states.params, history)
    print(f"{name}: {worst:.1e}")
    reached = np.abs(states.params.y["v"]).max()
    assert reached == BOUND if objective is INSIDE else reached > BOUND


@pytest.mark.parametrize("name", PLAIN)
def test_methods_of_one_variable_equal_their_transcriptions(name):
    hyper, expected = PLAIN[name]
    with jax.enable_x64(True):
        algorithm = ALL[name].function(**hyper)
        objective = Objective(plain_grad)
        states = run(algorithm, objective, dense(WEIGHTS), X, MINIMUM)
    print(f"{name}: {compare(states.params, expected(X, MINIMUM, hyper['lr'])):.1e}")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PLAIN if name.endswith("_muon")])
def test_vectors_may_keep_their_lengths(name):
    hyper, expected = PLAIN[name]
    with jax.enable_x64(True):
        algorithm = ALL[name].function(**hyper, normalize_vectors=False)
        states = run(algorithm, Objective(plain_grad), dense(WEIGHTS), X, MINIMUM)
    compare(states.params, expected(X, MINIMUM, hyper["lr"], vectors=False))


def alone_weights(t):
    return np.eye(1)


@pytest.mark.slow
def test_a_lone_agent_descends_and_ascends_by_storm():
    alone = TRACE._replace(
        batches=[batches[2:3] for batches in TRACE.batches], W=alone_weights
    )
    with jax.enable_x64(True):
        algorithm = dm_hsgd(LR, beta=BETA)
        states = run(algorithm, INSIDE, dense(np.eye(1)), pair(START), alone)
    x, y, g, h, before = BEGIN["x"], BEGIN["y"], None, None, None
    for t, (batch,) in enumerate(alone.batches):
        new = alone.grad({"x": x, "y": y}, batch)
        if t:
            old = alone.grad(before, batch)
            storm = lambda g, new, old, k: {
                n: new[n] + k * (g[n] - old[n]) for n in new
            }
            g, h = (
                storm(g, new["x"], old["x"], 1 - BETA.x),
                storm(h, new["y"], old["y"], 1 - BETA.y),
            )
        else:
            g, h = new["x"], new["y"]
        before = {"x": x, "y": y}
        x = {n: x[n] - LR.x * g[n] for n in x}
        y = inside({n: y[n] + LR.y * h[n] for n in y})
        for found, want in ((states.params.x, x), (states.params.y, y)):
            for n in want:
                np.testing.assert_allclose(found[n][t, 0], want[n], atol=1e-12)


@pytest.mark.slow
def test_on_the_complete_graph_dsgda_is_sgda_on_the_mean_gradient():
    with jax.enable_x64(True):
        complete = dense(np.full((M, M), 1 / M))
        states = run(dsgda(LR), INSIDE, complete, pair(START), TRACE)
    x, y = BEGIN["x"], BEGIN["y"]
    for t, batches in enumerate(TRACE.batches):
        gradients = [TRACE.grad({"x": x, "y": y}, batch) for batch in batches]
        x = {n: x[n] - LR.x * np.mean([g["x"][n] for g in gradients], 0) for n in x}
        y = {n: y[n] + LR.y * np.mean([g["y"][n] for g in gradients], 0) for n in y}
        y = inside(y)
        for found, want in ((states.params.x, x), (states.params.y, y)):
            for n in want:
                for i in range(M):
                    np.testing.assert_allclose(found[n][t, i], want[n], atol=1e-12)

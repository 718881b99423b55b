"""Where two methods coincide, and what the papers prove: identities, stalls, bounds."""

from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracles.cases import ALONE, FULL, ONE_STEP, ONE_STEP_PARTIAL, PARTIAL, X
from oracles.problem import Trace, mean, polar, toy_grad
from traces import FIXED_BIAS, TOY, by_code, farthest, path, precision, run

from fedjax_muon import engine
from fedjax_muon.algorithms import (
    ALL,
    diloco,
    fedavg,
    fedmuon,
    fedmuon_align,
    fedmuon_correct,
    fedprox,
    local_muon_persistent,
    scaffold,
)
from fedjax_muon.core import Algorithm, Objective
from fedjax_muon.engine import plans
from fedjax_muon.linalg import lmo
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.transforms import by_rank, muon, orthogonalize, scale_by_lmo

pytestmark = pytest.mark.slow

W = {"w": X["w"]}  # the toy model without its bias
NOTHING = optax.identity()
BALL = optax.trace(0.9)
MUON = muon(0.98)
DECAYED = optax.chain(MUON, optax.add_decayed_weights(0.1))
FIRST = PARTIAL._replace(rounds=PARTIAL.rounds[:1])
cosine = lambda r: 0.05 * 0.5 * (1 + jnp.cos(jnp.pi * r / 6))
correct_sgd = fedmuon_correct(lr=0.2, momentum=0.0, rule=NOTHING)
heavy_ball = fedavg(rule=BALL, averaged_state=("trace",))

# what is compared: parameters, trace, objective; the one method; the other
SAME: dict[str, tuple[Any, Trace, Objective, Algorithm, Algorithm]] = {
    "one step without LMO and past: bias correction is SCAFFOLD": (
        *(X, ONE_STEP, TOY),
        correct_sgd,
        scaffold(lr=0.2),
    ),
    "the same, with the server rate S/N, if clients are sampled": (
        *(X, ONE_STEP_PARTIAL, TOY),
        correct_sgd,
        scaffold(lr=0.2, server_lr=3 / 5),
    ),
    "alignment and momentum aggregation off: Local Muon": (
        *(X, PARTIAL, TOY),
        fedmuon_align(lr=cosine, align=0, decay=0.1, rule=MUON, averaged_state=()),
        fedavg(lr=cosine, rule=DECAYED),
    ),
    "alignment off: Local Muon with averaged momentum": (
        *(X, PARTIAL, TOY),
        fedmuon_align(lr=cosine, align=0.0, decay=0.0, rule=MUON),
        fedavg(lr=cosine, rule=MUON, averaged_state=("trace",)),
    ),
    "MuLoCo with a trivial server: persistent LocalMuon": (
        *(W, FULL, FIXED_BIAS),
        diloco(lr=0.05, rule=muon(0.9), server_lr=1, server_rule=NOTHING),
        local_muon_persistent(lr=0.05, momentum=0.9, rule=orthogonalize()),
    ),
    "U V' sees no scale: exponential average or heavy ball": (
        *(W, PARTIAL, FIXED_BIAS),
        fedavg(
            lr=0.05,
            rule=optax.chain(optax.ema(0.9, debias=False), orthogonalize()),
        ),
        fedavg(lr=0.05, rule=muon(0.9)),
    ),
    "persistent LocalMuon without LMO and past: FedAvg at the server rate S/N": (
        *(X, PARTIAL, TOY),
        local_muon_persistent(lr=0.1, momentum=0.0, rule=NOTHING),
        fedavg(lr=0.1, server_lr=3 / 5),
    ),
    "FedProx without its term: FedAvg": (
        *(X, PARTIAL, TOY),
        fedprox(mu=0.0, rule=BALL),
        fedavg(rule=BALL),
    ),
    "SCAFFOLD's first round: FedAvg": (*(X, FIRST, TOY), scaffold(), fedavg()),
    "DiLoCo whose clients have no state: FedAvg with that server": (
        *(X, PARTIAL, TOY),
        diloco(lr=0.1, rule=NOTHING, server_rule=BALL),
        fedavg(lr=0.1, server_lr=0.7, server_rule=BALL),
    ),
    "one step, averaged momentum: the server's heavy ball": (
        *(X, ONE_STEP, TOY),
        heavy_ball,
        fedavg(server_rule=BALL),
    ),
}
# the same pairs where one condition is missing
DIFFERENT = {
    "several steps": (
        "one step without LMO and past: bias correction is SCAFFOLD",
        FULL,
    ),
    "several steps, averaged momentum": (
        "one step, averaged momentum: the server's heavy ball",
        FULL,
    ),
    "later rounds": ("SCAFFOLD's first round: FedAvg", PARTIAL),
    "absent clients": (
        "one step without LMO and past: bias correction is SCAFFOLD",
        ONE_STEP_PARTIAL,
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_methods_that_coincide(name):
    params, trace, objective, one, other = SAME[name]
    a = path(one, params, trace, objective=objective)
    assert farthest(a, path(other, params, trace, objective=objective)) <= 1e-12
    assert farthest(a[-1:], [params]) >= 1e-2


@pytest.mark.parametrize("name", DIFFERENT)
def test_and_where_they_part(name):
    pair, trace = DIFFERENT[name]
    params, _, objective, one, other = SAME[pair]
    a, b = (path(each, params, trace, objective=objective) for each in (one, other))
    assert farthest(a, b) >= 1e-3


def mean_gradient(x, data):
    """The mean over clients of the gradients on their only batch."""
    return mean([toy_grad(x, batches[0]) for batches in data])


def test_one_step_of_fedavg_is_descent_on_the_mean_gradient():
    optimiser, x, central = optax.sgd(0.2), X, []
    with precision(jnp.float64):
        state = optimiser.init(x)
        for _, data in ONE_STEP.rounds:
            updates, state = optimiser.update(mean_gradient(x, data), state)
            x = jax.tree.map(np.asarray, optax.apply_updates(x, updates))
            central.append(x)
    got = path(fedavg(lr=0.2), X, ONE_STEP)
    assert farthest(got, central) <= 1e-12


def test_one_step_of_synced_fedmuon_is_centralised_muon():
    x, m, central = X, mean_gradient(X, ONE_STEP.first), []
    for _, data in ONE_STEP.rounds:
        x = {"w": x["w"] - 0.05 * polar(m["w"]), "b": x["b"] - 0.05 * m["b"]}
        g = mean_gradient(x, data)
        m = {k: 0.7 * m[k] + 0.3 * g[k] for k in m}
        central.append(x)
    rule = by_rank(orthogonalize(kernel.polar))
    make = lambda **how: fedmuon(lr=0.05, momentum=0.7, rule=rule, **how)
    assert farthest(path(make(), X, ONE_STEP), central) <= 1e-12
    assert farthest(path(make(synced=False), X, ONE_STEP), central) >= 1e-3


@pytest.mark.parametrize("name", sorted(names[0] for names in by_code(ALL)))
def test_identical_clients_are_one_client(name):
    rounds = [([2, 0, 1], data * 3) for _, data in ALONE.rounds]
    crowd = Trace(toy_grad, 3, ALONE.first * 3, rounds, [9] * 3)
    algorithm = ALL[name].function(lr=0.02)
    alone = path(algorithm, X, ALONE)
    assert farthest(path(algorithm, X, crowd), alone) <= 1e-12
    assert farthest(alone[-1:], [X]) >= 1e-3


# --------------------------------------------------- alignment (Liu et al. 2025)


@pytest.mark.parametrize("align", [0.0, 0.5, 0.75])
def test_alignment_is_momentum_on_directions(align):
    # the gradient is the batch itself, so that every local direction is known
    rng = np.random.default_rng(0)
    data = rng.normal(size=(5, 3, 4, 4, 3))  # rounds, S, K
    rounds: Any = [([4, 0, 2], [[(b,) for b in one] for one in now]) for now in data]
    trace = PARTIAL._replace(rounds=rounds)
    objective = Objective(lambda params, batch, key: {"w": batch[0]})
    rule = orthogonalize(kernel.polar)
    algorithm = fedmuon_align(
        lr=cosine, align=align, decay=0.0, rule=rule, averaged_state=()
    )
    x, delta = X["w"], np.zeros((4, 3))
    for r, state in enumerate(run(algorithm, W, trace, objective=objective)):
        directions = [polar(g) for one in data[r] for g in one]
        delta = align * delta + (1 - align) * np.mean(directions, axis=0)
        x = x - 0.05 * 0.5 * (1 + np.cos(np.pi * r / 6)) * 4 * delta
        np.testing.assert_allclose(state.server.delta["w"], delta, 0, 1e-12)
        np.testing.assert_allclose(state.server.params["w"], x, 0, 1e-12)


def test_alignment_alone_never_moves():
    algorithm = fedmuon_align(align=1.0, decay=0.0)
    assert farthest(path(algorithm, X, FIRST), [X]) == 0.0


# ------------------------------------- stalls and their cure (Takezawa et al. 2025)

A = 2.0  # f_1 = x^2 / 2, f_2 = (x + A)^2 / 2, minimiser of the mean -A / 2
RULES = {
    "spectral": orthogonalize(kernel.polar),
    "euclidean": scale_by_lmo(lmo.euclidean),
    "max_norm": scale_by_lmo(lmo.max_norm),
}


def parabolas(factory, rule, rounds):
    """All x of the trace of Theorem 1, from -A / 4, for many (fresh, lr) at once."""
    objective = Objective(lambda p, batch, key: {"w": p["w"] + batch})
    batches = jnp.array([0.0, A]).reshape(2, 1, 1, 1)  # S, K, and the matrix

    def trajectory(fresh, lr):
        algorithm = factory(lr=lr, momentum=1 - fresh, rule=rule)
        round = engine.make_round(algorithm, objective, 2, plans.vmapped)
        state = engine.init(algorithm, {"w": jnp.full((1, 1), -A / 4)}, 2)

        def body(state, _):
            given = jnp.arange(2), batches, jnp.ones(2), jax.random.key(0)
            state, _ = round(state, *given)
            return state, state.server.params["w"].squeeze()

        return jax.lax.scan(body, state, length=rounds)[1]

    return jax.jit(jax.vmap(trajectory))(*GRID)


GRID = tuple(jnp.array(np.meshgrid([0.05, 0.1, 0.5, 1.0], [0.01, 0.25])).reshape(2, -1))


@pytest.mark.parametrize("rule", RULES)
def test_local_muon_stalls_where_the_votes_cancel(rule):
    stuck = parabolas(local_muon_persistent, RULES[rule], 40)
    np.testing.assert_array_equal(stuck, np.full((8, 40), -A / 4))


@pytest.mark.parametrize("rule", RULES)
def test_bias_correction_reaches_the_minimiser(rule):
    moving = np.asarray(parabolas(fedmuon_correct, RULES[rule], 200))
    fresh, lr = np.asarray(GRID)
    for x, step in zip(moving[fresh == 0.5], lr[fresh == 0.5], strict=True):
        assert np.max(np.abs(x[100:] + A / 2)) < 2 * step
    assert np.all(moving[:, -1] != -A / 4)


@pytest.mark.parametrize("factory", [scaffold, fedmuon_correct])
def test_the_servers_control_is_the_mean_of_all_clients(factory):
    for state in run(factory(lr=0.05), X, PARTIAL):
        everyone = {k: v.mean(axis=0) for k, v in state.client_states.items()}
        assert farthest([state.server.control], [everyone]) <= 1e-12
        assert np.max(np.abs(everyone["w"])) > 1e-3


def test_correction_moves_at_most_a_share_of_the_local_steps():
    # Lemma 5 between two rounds, in the norm of the LMO: (lr S / N) (r - r') K
    rule = by_rank(orthogonalize(kernel.polar))
    later = path(fedmuon_correct(lr=0.05, rule=rule), X, PARTIAL)
    points = [X, *later]
    share = [
        np.linalg.norm(points[r]["w"] - points[s]["w"], 2)
        / (0.05 * 3 / 5 * 4 * (r - s))
        for s, r in combinations(range(len(points)), 2)
    ]
    assert 0.5 < max(share) <= 1 + 1e-12


# ------------------------------------------------- consensus (Zhang and Gao, section 6)

LR, FRESH, TAU = 0.02, 0.05, 4
SHAPE = (3, 5)


def consensus(synced):
    """Mean distances to the mean of X and of M after every local step, in 3 rounds.

    f_k = |X - B_k|^2 / 2: the gradients are exact (sigma = 0), L = 1. Round after
    round with all weight on one client shows what that client alone has.
    """
    targets = np.random.default_rng(0).normal(size=(4, 1, *SHAPE))
    data = jnp.asarray(targets)
    rule = orthogonalize(kernel.polar)
    objective = Objective(lambda p, batch, key: p - batch)
    algorithm = fedmuon(lr=LR, momentum=1 - FRESH, rule=rule, synced=synced)
    all_clients, key = jnp.arange(4), jax.random.key(0)
    round = engine.make_round(algorithm, objective, 4, plans.vmapped)
    alone = jax.jit(jax.vmap(round, in_axes=(None, None, None, 0, None)))
    state = engine.init(algorithm, jnp.zeros(SHAPE), 4)
    start = engine.make_prologue(algorithm, objective, 4, plans.vmapped)
    state, _ = jax.jit(start)(state, all_clients, data, jnp.ones(4), key)
    spread = lambda a: np.mean(np.linalg.norm(a - a.mean(0), axis=(1, 2)))
    x, m = [], []
    for _ in range(3):
        for steps in (1, 2, TAU):
            given = all_clients, data.repeat(steps, 1)
            each, _ = alone(state, *given, jnp.eye(4), key)
            x.append(spread(np.asarray(each.server.params)))
            m.append(spread(np.asarray(each.server.momentum)))
        mean_of = lambda a: a.mean(0)
        state = state._replace(
            index=state.index + 1, server=jax.tree.map(mean_of, each.server)
        )
    away = targets - targets.mean(0)
    return np.array(x), np.array(m), np.sqrt(np.mean(np.sum(away**2, (1, 2, 3))))


def test_consensus_errors_stay_below_the_lemmas():
    for synced in (True, False):
        x, m, delta = consensus(synced)
        root = np.sqrt(min(SHAPE))
        assert np.all(x <= 2 * LR * TAU * root)  # Lemma 6.2
        assert np.max(x) > 0.2 * LR * TAU * root
        bound = 4 * FRESH * LR * TAU**2 * root + FRESH * TAU * delta  # Lemma 6.1
        assert np.all(m[3:] <= bound)
        assert np.max(m[3:]) > 0.2 * bound
        # before the first communication only if the first momenta were averaged
        assert np.all(m[:3] <= bound) == synced

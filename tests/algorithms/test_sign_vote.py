"""Votes with ties and zeros, and losses on which each method of one bit ascends.

The matrices are those of Smirnova and Kravatskiy 2026, arXiv:2607.29674, Theorems 1 to
3, whose losses <G, X> have the gradient G everywhere. The loss of Theorem 4 is that of
the authors' code; the library has not the method.
"""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_muon as fm
from fedjax_muon.core import Objective, Round
from fedjax_muon.linalg import newton_schulz as kernel
from tests.oracles.problem import polar

ROTATION = (
    np.array(
        [[101, 20, 2, -2], [-20, 97, 20, -20], [-2, 20, 2, 101], [-2, 20, -101, -2]]
    )
    / 103
)
LEFT, RIGHT = np.array([10, -3, 10, 10]), np.array([10, 3, -10, 10])
AFTER = 1000 * np.outer(LEFT, RIGHT) / 309 + ROTATION  # ascends if signs come last
SIGNS = np.array(
    [
        [-1, -1, 1, 1, 1],
        [-1, -1, 1, -1, -1],
        [1, -1, 1, 1, -1],
        [1, 1, -1, -1, 1],
        [1, 1, 1, -1, 1],
    ]
)
BEFORE = SIGNS + 99.0 * np.outer(np.eye(5)[3], np.eye(5)[1])  # if they come first


def test_the_exact_products_of_the_theorems():
    product = lambda g, step: float(np.sum(g * step))
    np.testing.assert_allclose(polar(AFTER), ROTATION, atol=1e-10)
    assert product(AFTER, np.sign(polar(AFTER))) == pytest.approx(-42468 / 103)
    assert product(BEFORE, polar(np.sign(BEFORE))) == pytest.approx(-13.888, abs=1e-3)
    assert product(BEFORE, np.sign(polar(np.sign(BEFORE)))) == pytest.approx(-76)


def steps(algorithm, g, rounds=6, clients=3):
    """The parameters after rounds in which all clients have the gradient g(client)."""
    objective = Objective(lambda params, batch, key: {"w": g(batch.astype(int))})
    x = {"w": jnp.zeros_like(g(0))}
    state = fm.engine.init(algorithm, x, clients)
    plan = fm.engine.plans.mapped
    one = jax.jit(fm.engine.make_round(algorithm, objective, clients, plan))
    given = jnp.arange(clients), jnp.arange(clients, dtype=float)[:, None]
    weights, key = jnp.ones(clients), jax.random.key(3)
    prologue = fm.engine.make_prologue(algorithm, objective, clients, plan)
    state, _ = prologue(state, *given, weights, key)
    found = []
    for _ in range(rounds):
        state, _ = one(state, *given, weights, key)
        found.append(np.asarray(state.server.params["w"]))
    return found


@pytest.mark.parametrize(
    ("name", "g", "ascends"),
    [
        ("signmuon", AFTER, True),
        ("muonusign", AFTER, False),
        ("muonsign", AFTER, False),
        ("signmuon", BEFORE, False),
        ("muonusign", BEFORE, True),
        ("muonsign", BEFORE, True),
        ("sign_vote", AFTER, False),
        ("sign_vote", BEFORE, False),
    ],
)
def test_which_methods_ascend(name, g, ascends):
    with jax.enable_x64(True):
        exact = {} if name == "sign_vote" else {"polar": kernel.polar}
        algorithm = getattr(fm, name)(lr=0.1, **exact)
        losses = [np.sum(g * x) for x in steps(algorithm, lambda _: jnp.array(g))]
    assert (np.diff([0, *losses]) > 0).all() == ascends
    assert (np.diff([0, *losses]) < 0).all() != ascends


@pytest.mark.parametrize("g", [AFTER, BEFORE], ids=["after", "before"])
@pytest.mark.parametrize("down", [False, True], ids=["exact", "one bit"])
def test_error_feedback_descends(g, down):
    bits = fm.signs()
    with jax.enable_x64(True):
        algorithm = fm.ef21_muon(
            lr=0.1,
            compressor=bits,
            broadcast_compressor=bits if down else fm.no_compression(),
            polar=kernel.polar,
        )
        losses = [np.sum(g * x) for x in steps(algorithm, lambda _: jnp.array(g))]
    assert (np.diff([0, *losses]) < 0).all()


# ------------------------------------------------------------------ Theorem 4, exactly
def fractions(rows, over=1):
    return np.array([[Fraction(n, over) for n in row] for row in rows])


SLOPE = Fraction(7, 12)
CENTERS = [fractions(rows, 20) for rows in ([[0, 0], [0, 0]], [[14, -14], [14, 14]])]
CENTERS.append(CENTERS[1] / 2)
SPIN, FLAT = fractions([[-4, 3], [-3, -4]], 5), fractions([[3, -4], [0, 0]], 5)
WAVES = Fraction(21, 20), Fraction(7, 20)  # periods, of entries (1, 2) and (2, 1)


def exact_polar(m):
    """Of a matrix [2, 2] of fractions whose polar factor has fractions, too."""
    (a, b), (c, d) = m
    det, cofactors = a * d - b * c, np.array([[d, -c], [-b, a]])
    whole = m + ((det > 0) - (det < 0)) * cofactors
    square = (whole**2).sum() / (2 if det else 1)
    size = Fraction(math.isqrt(square.numerator), math.isqrt(square.denominator))
    assert size**2 == square
    return whole / size


def wave(w, period):
    """The derivative of a periodic function: 1, then -1, and smooth in between."""
    at = (w - Fraction(61, 400)) % period
    assert min(at % (period / 2), -at % (period / 2)) > Fraction(1, 100)
    return 1 if at < period / 2 else -1


def forced(mu, nesterov):
    """The gradient of the loss of Theorem 4 for this momentum, at rate 1.

    f(X) = -7/12 X22 + A (Phi1(X12) + Phi2(X21)) where X22 < 1, but for three bumps of
    radius 1/50, at whose centers the gradient is given.
    """
    M, size = [SPIN, FLAT, fractions([[0, -12], [-12, -7]], 12)], (1 + mu) / (1 - mu)
    if nesterov:
        nu, size = 1 / (1 + 2 * mu), size / (1 + 2 * mu)
        stretch = 1 + (140 * (1 + mu) ** 2 * nu - 44) * (1 + mu) / (117 * mu)
        M[0] = SPIN * np.array([1, stretch]) / (1 + mu)
        M[1] = (FLAT + mu * M[0]) / (1 + mu)
        M[2] = np.array([[0, -nu], [-nu, -SLOPE]])
    olds = [0 * SPIN, *M[:2]]
    gradients = [(m - mu * old) / (1 - mu) for m, old in zip(M, olds, strict=True)]

    def gradient(X):
        for center, g in zip(CENTERS, gradients, strict=True):
            if np.array_equal(X, center):
                return g
            assert ((X - center) ** 2).sum() > Fraction(1, 50) ** 2
        assert X[1, 1] < 1
        up, low = size * wave(X[0, 1], WAVES[0]), size * wave(X[1, 0], WAVES[1])
        return np.array([[0, up], [low, -SLOPE]])

    return gradient


def followed(D, estimate):
    """EF21: the estimate, and the scaled signs of what it lacks."""
    lacks = D - estimate
    assert (lacks != 0).all()
    return estimate + abs(lacks).sum() / 4 * np.where(lacks > 0, 1, -1)


@pytest.mark.parametrize(
    ("mu", "nesterov"),
    [(Fraction(0), False), (Fraction(9, 10), False), (Fraction(9, 10), True)],
)
def test_ef21_of_polar_factors_ascends(mu, nesterov):
    """By 49/480 a step, exactly. With X/lr for X, the same holds for every rate."""
    X = M = estimate = 0 * SPIN
    gradient, path = forced(mu, nesterov), []
    for _ in range(40):
        g = gradient(X)
        M = mu * M + (1 - mu) * g
        D = exact_polar((1 - mu) * g + mu * M if nesterov else M)
        estimate = followed(D, estimate)
        X = X - estimate
        path.append(X)
    for before, after in zip(path[2:-2], path[4:], strict=True):
        moved = after - before
        assert moved[0, 1] % WAVES[0] == moved[1, 0] % WAVES[1] == 0
        assert moved[1, 1] * -SLOPE == Fraction(49, 240)
    assert path[-1][1, 1] < -5


def test_ef21_follows_on_average_without_the_first_two_targets():
    """The same alternating targets have a harmless cycle, too, from a start at 0."""
    estimate, seen = 0 * SPIN, []
    for t in range(40):
        up = (-1) ** (t + 1) * 24
        D = fractions([[7, up], [up, -7]], 25)
        estimate = followed(D, estimate)
        seen.append(estimate[1, 1])
    assert seen[-1] + seen[-2] == Fraction(-7, 25)


def test_a_tie_is_drawn_anew_in_every_round():
    opposite = lambda client: jnp.where(client % 2, -1.0, 1.0) * jnp.ones((40, 40))
    found = steps(fm.sign_vote(lr=1.0), opposite, rounds=4, clients=2)
    moves = np.diff([np.zeros((40, 40)), *found], axis=0)
    assert set(np.unique(moves)) == {-1.0, 1.0}
    assert abs(moves.mean((1, 2))).max() < 0.1  # four deviations
    assert len({move.tobytes() for move in moves}) == 4


def test_the_sign_of_zero_is_drawn_for_every_client():
    found = steps(fm.sign_vote(lr=1.0), lambda _: jnp.zeros((50, 50)), clients=3)
    moves = np.diff([np.zeros((50, 50)), *found], axis=0)
    assert set(np.unique(moves)) == {-1.0, 1.0}
    assert abs(moves.mean((1, 2))).max() < 0.1


def test_signs_are_packed_and_scaled():
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    compressor = fm.signs()
    sent = compressor.encode(jnp.array(x), jax.random.key(0))
    assert sent[0].nbytes == 5  # of 35 bits
    got = compressor.decode(sent, jax.ShapeDtypeStruct(x.shape, x.dtype))
    np.testing.assert_allclose(got, np.abs(x).mean() * np.sign(x), rtol=1e-6)


def test_a_direction_that_is_not_finite_has_no_vote():
    """Its signs would be finite: two of three clients would outvote the third."""

    def spoiled(updates, params):
        bad = updates["w"][0] < 0
        return {"w": jnp.where(bad, jnp.nan, updates["w"])}

    rule = optax.stateless(spoiled)
    gradient = lambda client: jnp.where(client == 0, 1.0, -1.0) * jnp.ones(3)
    moved = steps(fm.sign_vote(lr=1.0, rule=rule), gradient, rounds=2)
    np.testing.assert_array_equal(moved[-1], -2 * np.ones(3))


def test_momenta_are_those_of_gradients_and_begin_at_zero():
    """A client's sign changes when its momentum does, not when its gradient does."""
    algorithm = fm.sign_vote(lr=1.0, momentum=0.9)
    exchange, state = algorithm.exchanges[0], algorithm.init_client({"w": jnp.zeros(2)})
    grads = jnp.array([[1.0, -1.0], [-0.5, 0.5], [-1.0, 1.0], [-9.0, 9.0]])
    seen = []
    for g in grads:
        objective = Objective(lambda params, batch, key, g=g: {"w": g})
        broadcast = exchange.broadcast(
            algorithm.init({"w": jnp.zeros(2)}), Round(0, jax.random.key(0), 1, 1, 1.0)
        )
        round = Round(jnp.int32(0), jax.random.key(0), 1, 1, 1.0)
        sent, state = exchange.client(objective, broadcast, state, jnp.zeros(1), round)
        seen.append(float(exchange.decode(sent).direction["w"][0]))
    m, want = 0.0, []
    for g in grads[:, 0]:
        m = 0.9 * m + 0.1 * float(g)
        want.append(np.sign(m))
    assert seen == want

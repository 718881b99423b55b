"""Decentralized methods equal their transcriptions; what gossip keeps; its noise."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedjax_muon.core import Objective
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized import ALL, engine as gossip_engine
from fedjax_muon.decentralized.estimators import (
    add_public_gradient,
    fresh,
    noisy,
    storm,
)
from fedjax_muon.decentralized.gossip import Gossip, Iteration
from fedjax_muon.decentralized.mixing import dense
from fedjax_muon.decentralized.suda import suda
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.privacy.gaussian import box_muller, standard_normal
from tests.oracles import gossip as oracle
from tests.oracles.cases import X
from tests.support.federation import assert_same_bits
from tests.support.gossip_cases import (
    BOUND,
    INSIDE,
    LR,
    MINIMAX,
    TRACE,
    WEIGHTS,
    M,
    T,
    run,
    states_of,
)
from tests.support.traces import grad_fn as plain_grad

# a module in the way of its function
suda_forms = importlib.import_module("fedjax_muon.decentralized.suda")
PORTABLE = pytest.mark.portable
MINIMUM = oracle.draw_minimum(4, lambda t: WEIGHTS[t])


def compare(found, history, bound=1e-10):
    """[T, m, ...] against lists over t of lists over agents."""
    if "y" in history[0][0]:
        found = {"x": found.x, "y": found.y}
    rows = [jax.tree.map(lambda *a: np.stack(a), *agents) for agents in history]
    want = jax.tree.map(lambda *a: np.stack(a), *rows)
    far = jax.tree.map(lambda a, b: np.max(np.abs(a - b)), found, want)
    assert max(jax.tree.leaves(far)) <= bound, far
    for leaf in jax.tree.leaves(want):  # nobody stands still, and nobody agrees
        assert np.abs(leaf[-1] - leaf[0]).max() > 1e-3
        assert np.ptp(leaf[-1], axis=0).max() > 1e-6


PLAIN = {
    "dsgd": ({"lr": 0.1}, oracle.dsgd),
    "gradient_tracking": ({"lr": 0.1}, oracle.gradient_tracking),
    "dsgd_muon": ({"lr": 0.05, "polar": kernel.polar}, oracle.dsgd_muon),
    "gradient_tracking_muon": (
        {"lr": 0.05, "polar": kernel.polar},
        oracle.gradient_tracking_muon,
    ),
    "demuon": (
        {"lr": 0.05, "momentum": 0.6, "polar": kernel.polar},
        functools.partial(oracle.demuon, beta=0.6),
    ),
    "suda": ({"lr": 0.1}, oracle.exact_diffusion),
    "suda_muon": (
        {"lr": 0.05, "momentum": 0.6, "polar": kernel.polar},
        functools.partial(oracle.suda_muon, beta=0.6, form="ED"),
    ),
    "suda_muon_extra": (
        {"lr": 0.05, "momentum": 0.6, "polar": kernel.polar},
        functools.partial(oracle.suda_muon, beta=0.6, form="EXTRA"),
    ),
    "suda_muon_gt": (
        {"lr": 0.05, "momentum": 0.6, "polar": kernel.polar},
        functools.partial(oracle.suda_muon, beta=0.6, form="GT"),
    ),
}


@PORTABLE
def test_every_method_has_an_oracle():
    assert MINIMAX.keys() | PLAIN.keys() == ALL.keys()


@PORTABLE
@pytest.mark.parametrize("name", MINIMAX)
def test_minimax_methods_equal_their_transcriptions(name):
    _, objective, expected = MINIMAX[name]
    states = states_of(name)
    with jax.enable_x64(True):
        history = expected(TRACE)
    compare(states.params, history)
    reached = np.abs(states.params.y["v"]).max()
    assert reached == BOUND if objective is INSIDE else reached > BOUND


@PORTABLE
@pytest.mark.parametrize("name", PLAIN)
def test_methods_of_one_variable_equal_their_transcriptions(name):
    hyper, expected = PLAIN[name]
    with jax.enable_x64(True):
        algorithm = ALL[name].function(**hyper)
        objective = Objective(plain_grad)
        states = run(algorithm, objective, dense(WEIGHTS), X, MINIMUM)
    compare(states.params, expected(X, MINIMUM, hyper["lr"]))


@PORTABLE
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PLAIN if name.endswith("_muon")])
def test_vectors_may_keep_their_lengths(name):
    hyper, expected = PLAIN[name]
    with jax.enable_x64(True):
        algorithm = ALL[name].function(**hyper, normalize_vectors=False)
        states = run(algorithm, Objective(plain_grad), dense(WEIGHTS), X, MINIMUM)
    compare(states.params, expected(X, MINIMUM, hyper["lr"], vectors=False))


KEY = jax.random.key(2)


def iteration(index=0):
    key, noise = jax.random.split(jax.random.fold_in(KEY, index))
    return Iteration(jnp.int32(index), key, noise)


def always(gradient):
    """An objective that has this gradient everywhere."""
    return Objective(lambda params, batch, key: gradient)


def flat(a):
    """[T, m, dimensions], all leaves."""
    return np.concatenate([x.reshape(T, M, -1) for x in jax.tree.leaves(a)], axis=2)


# -------------------------------------------------------------------- identities
def test_the_mean_track_is_the_mean_of_what_is_told():
    """Lemma 7 of DPMixSGD: of all noise only the present remains in the mean."""
    states = states_of("dpmixsgd_unclipped")
    track, told = flat(states.tracked), flat(states.estimate)
    np.testing.assert_allclose(track.mean(1), told.mean(1), atol=1e-13)
    assert np.ptp(track, axis=1).max() > 0.1


@pytest.mark.parametrize("variable", [0, 1])
def test_consensus_contracts_up_to_what_the_tracks_disagree(variable):
    """Lemma 10 of DPMixSGD, one step, for every W by its own second singular value."""
    states, rate = states_of("dpmixsgd_unclipped"), LR[variable]
    x, v = flat(states.params[variable]), flat(states.tracked[variable])
    apart = lambda a: np.sum((a - a.mean(0)) ** 2)
    for t in range(1, T):
        gap = np.linalg.norm(WEIGHTS[t] - 1 / M, 2) ** 2
        bound = (1 + gap) / 2 * apart(x[t - 1])
        bound += 2 * gap * rate**2 / (1 - gap) * apart(v[t])
        assert 0 < apart(x[t]) <= bound
        exact = WEIGHTS[t] @ (x[t - 1] - rate * v[t])
        np.testing.assert_allclose(x[t], exact, atol=1e-13)


# ------------------------------------------------------------------- what noise is

SIZE = 4000


def recorder(estimator):
    """An algorithm whose state is what its agents tell."""

    def start(objective, params, mix, batch, iteration):
        return (estimator.start(objective, params, batch, iteration)[0],)

    def step(objective, told, mix, batch, iteration):
        return start(objective, told[0], mix, batch, iteration)

    return Gossip(start, step)


def told_noise(sigma, agents=3, iterations=3):
    """[iterations, agents, variables, SIZE] of noise on a gradient of zero."""
    zero = Pair({"a": jnp.zeros(SIZE)}, {"a": jnp.zeros((2, SIZE // 2))})
    recorded, alone = recorder(noisy(fresh(), sigma)), dense(np.eye(agents))
    start, step = gossip_engine.make(recorded, always(zero), alone, agents)
    idle = jnp.zeros(agents)
    state = jax.jit(start)(zero, idle, KEY)
    step = jax.jit(step)
    seen = [state.agents[0]]
    for _ in range(iterations - 1):
        state = step(state, idle, KEY)
        seen.append(state.agents[0])
    rows = lambda v: np.asarray(v["a"]).reshape(agents, SIZE)
    return np.stack([np.stack([rows(v) for v in g], 1) for g in seen])


@pytest.mark.slow
def test_noise_is_normal_and_independent_over_iterations_agents_and_variables():
    noise = told_noise(Pair(lambda t: 0.5 * (1 + t), 2.0))
    want = np.stack([[0.5 * (1 + t), 2.0] for t in range(3)])[:, None]
    unit = noise / want[..., None]
    streams = unit.reshape(-1, SIZE)
    assert np.abs(streams.mean(1)).max() < 4 / np.sqrt(SIZE)
    assert np.abs(streams.var(1) - 1).max() < 4 * np.sqrt(2 / SIZE)
    correlation = np.corrcoef(streams) - np.eye(len(streams))
    assert np.abs(correlation).max() < 4.5 / np.sqrt(SIZE)
    neighbours = [np.corrcoef(row[1:], row[:-1])[0, 1] for row in streams]
    assert np.abs(neighbours).max() < 4 / np.sqrt(SIZE)
    assert scipy.stats.kstest(streams.ravel(), "norm").pvalue > 0.01


def words_of(key, size):
    """What noise of this size is made of: three words for every two numbers."""
    pairs = -(-size // 2)
    blocks = jax.random.key_data(jax.random.split(key, -(-3 * pairs // 2)))
    return np.asarray(blocks).T.ravel()[: 3 * pairs].reshape(3, pairs)


def exactly(high, low, angle):
    """Box and Muller in double precision."""
    uniform = (high * 2.0**32 + low + 0.5) * 2.0**-64
    theta = np.pi * (((angle >> 9) + 0.5) * 2.0**-23 - 0.5 + (angle & 1))
    radius = np.sqrt(-2 * np.log(uniform))
    return radius * np.cos(theta), radius * np.sin(theta)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (5, 4), (1001,)])
def test_single_precision_noise_is_by_box_and_muller(shape):
    found = standard_normal(KEY, shape)
    assert found.dtype == jnp.float32
    size = found.size
    want = np.concatenate(exactly(*words_of(KEY, size)))[:size].reshape(shape)
    # 2^-24 of a uniform near 1 is what the radius resolves where it is small
    np.testing.assert_allclose(found, want, atol=3e-6, rtol=2e-6)


def test_single_precision_noise_at_the_ends_of_its_words():
    ends = np.array([0, 1, 511, 512, 2**31 - 1, 2**31, 2**32 - 512, 2**32 - 1])
    grid = [a.ravel() for a in np.meshgrid(ends, ends, ends)]
    found = np.stack(box_muller(*(jnp.asarray(a, jnp.uint32) for a in grid)))
    want = np.stack(exactly(*(a.astype(np.uint64) for a in grid)))
    np.testing.assert_allclose(found, want, atol=6e-4, rtol=2e-6)
    # of one draw the largest is the inverse error function's at the last grid point
    edge = np.sqrt(2) * jax.lax.erf_inv(np.nextafter(np.float32(1), np.float32(0)))
    assert edge < 5.43
    assert found.max() > 9.49
    assert found.min() < -9.49


def test_double_precision_noise_is_one_draw_in_double_precision():
    with jax.enable_x64(True):
        found = standard_normal(KEY, (1000,))
        want = jax.random.normal(KEY, (1000,), jnp.float64)
        assert found.dtype == jnp.float64
        assert_same_bits(found, want)


@pytest.mark.slow
def test_nested_noise_is_independent_and_gradients_keep_their_key():
    seen = []

    def grad(params, batch, key):
        seen.append(jax.random.key_data(key))
        return jnp.zeros(SIZE)

    zero, objective = jnp.zeros(SIZE), Objective(grad)
    once, _ = noisy(fresh(), 1.0).start(objective, zero, (), iteration())
    both = noisy(noisy(fresh(), 1.0), 1.0)
    twice, _ = both.start(objective, zero, (), iteration())
    inner = twice - once
    assert abs(np.corrcoef(once, inner)[0, 1]) < 4 / np.sqrt(SIZE)
    assert abs(np.std(inner) - 1) < 0.05
    fresh().start(objective, zero, (), iteration())
    for key in seen:
        np.testing.assert_array_equal(key, jax.random.key_data(iteration().key))


# --------------------------------------------------------------------- estimators
def quadratic(params, batch, key):
    del key
    return jax.tree.map(lambda x: batch * x, params)


QUADRATIC = Objective(quadratic)


def told_along(estimator, points, batches, objective=QUADRATIC):
    told, memory = estimator.start(objective, points[0], batches[0], iteration(0))
    seen = [told]
    for t in range(1, len(points)):
        told, memory = estimator.update(
            objective, memory, points[t], batches[t], iteration(t)
        )
        seen.append(told)
    return seen


POINTS = [jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0]), jnp.array([-1.0, 0.25])]


def test_public_terms_are_told_and_not_remembered():
    objective = QUADRATIC._replace(public_grad=lambda params: 10 * params)
    estimator = add_public_gradient(storm(0.25))
    found = told_along(estimator, POINTS, [2.0, 3.0, -1.0], objective)
    data = told_along(storm(0.25), POINTS, [2.0, 3.0, -1.0])
    for told, private, point in zip(found, data, POINTS, strict=True):
        np.testing.assert_allclose(told, private + 10 * point, rtol=1e-6)
    assert_same_bits(told_along(estimator, POINTS, [2.0, 3.0, -1.0]), data)


# ------------------------------------------------------------------------------- SUDA
TRIPLES = {
    "ED": suda_forms.ED,
    "EXTRA": suda_forms.EXTRA,
    "GT": suda_forms.GT,
    "standard ED": suda_forms.STANDARD_ED,
    "standard EXTRA": suda_forms.STANDARD_EXTRA,
    "standard GT": suda_forms.STANDARD_GT,
}


def quadratic_agents(algorithm, count):
    """x_i of five agents on (a_i / 2) |x - b_i|^2, and the minimizer of the sum."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.5, 2, size=(M, 1)), rng.normal(size=(M, 3))
    with jax.enable_x64(True):
        objective = Objective(lambda x, batch, key: batch[0] * (x - batch[1]))
        start, step = gossip_engine.make(algorithm, objective, dense(WEIGHTS[0]), M)
        batches = jnp.asarray(a), jnp.asarray(b)
        state = start(jnp.zeros(3), batches, KEY)
        move = jax.jit(step)
        for _ in range(count):
            state = move(state, batches, KEY)
    return np.asarray(state.agents.params), (a * b).sum(0) / a.sum()


@pytest.mark.parametrize("name", TRIPLES)
def test_suda_reaches_the_minimizer_with_a_constant_rate(name):
    algorithm = suda(lr=0.1, triple=TRIPLES[name])
    x, best = quadratic_agents(algorithm, 1500)
    np.testing.assert_allclose(x, np.tile(best, (M, 1)), atol=1e-9)


@pytest.mark.parametrize("name", ["dsgd_muon", "gradient_tracking_muon", "demuon"])
def test_without_tracking_polar_factors_stop_where_the_gradient_is_not_zero(name):
    """Two agents whose gradients at 0 are a / 2 and -b / 2 times one matrix U."""
    u = jnp.asarray(np.outer([0.6, 0.8], [1.0, 0, 0]))
    slopes = jnp.array([3.0, -1.0])  # a, -b
    sign = jnp.sign(slopes)

    def grad(params, batch, key):
        slope, sign = batch
        return {"w": slope * jax.nn.sigmoid(sign * jnp.vdot(u, params["w"])) * u}

    algorithm = ALL[name].function(lr=0.1, polar=kernel.polar)
    start, step = gossip_engine.make(
        algorithm, Objective(grad), dense(np.full((2, 2), 0.5)), 2
    )
    batches = slopes, sign
    state = start({"w": jnp.zeros((2, 3))}, batches, KEY)
    for _ in range(5):
        state = jax.jit(step)(state, batches, KEY)
    moved = float(jnp.abs(state.agents.params["w"].mean(0)).max())
    if name == "dsgd_muon":
        assert moved < 1e-6  # the mean gradient is (a - b) / 4 times U
    else:
        assert moved > 0.2

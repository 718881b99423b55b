"""STORM with bounded examples: equal to its transcription, and bounded indeed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon.core import Objective
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized import ALL
from fedjax_muon.decentralized.estimators import fresh, noisy
from fedjax_muon.decentralized.gossip import Iteration
from fedjax_muon.decentralized.mixing import dense
from fedjax_muon.decentralized.private import private_gradient, private_storm
from fedjax_muon.decentralized.tracking import gradient_tracking
from fedjax_muon.privacy.clipping import Difference, Each, Split, clipped
from fedjax_muon.tasks.task import Batch, per_example
from tests.oracles import gossip as oracle
from tests.oracles.saddle import draw_saddle, saddle_grad
from tests.support.federation import assert_same_bits
from tests.support.gossip_cases import (
    BEGIN,
    INSIDE,
    LR,
    QUICKLY,
    START,
    TRACE,
    WEIGHTS,
    draws,
    draws_from,
    pair,
    run,
)
from tests.support.saddle import loss

T = 5
LIMIT, CHANGE = Pair(0.8, 0.5), Pair(0.05, 0.03)
CLIPS = {
    "each": (Each(LIMIT), oracle.share_each),
    "difference": (Difference(LIMIT), oracle.share_difference),
    "split": (Split(LIMIT, CHANGE), oracle.share_split),
}
quick = functools.partial(jax.jit, compiler_options=QUICKLY)


def grad_fn(params, batch, key):
    del key
    x, y = jax.grad(loss)(params, (batch.x, batch.y, batch.weight))
    return Pair(x, jax.tree.map(jnp.negative, y))


OBJECTIVE = Objective(grad_fn, example_grad=per_example(grad_fn))
POINTS = [draw_saddle(seed) for seed in range(T)]
RAW = [agents[2] for agents in TRACE.batches[:T]]
# the last example is twice padding: junk for the library, absent for the oracle
RAW = [(a, y, np.where(np.arange(len(w)) >= len(w) - 2, 0.0, w)) for a, y, w in RAW]


def as_batch(raw, dtype=jnp.float64):
    return Batch(*(jnp.asarray(leaf, dtype) for leaf in raw))


def iteration(t):
    key = jax.random.fold_in(jax.random.key(3), t)
    return Iteration(jnp.int32(t), *jax.random.split(key))


def compiled(estimator, objective):
    """Its two functions for an objective."""
    start, update, _ = estimator
    return [quick(functools.partial(f, objective)) for f in (start, update)]


def estimates(estimator, points=POINTS, batches=RAW, dtype=jnp.float64):
    """What one agent tells at t = 0 to T - 1: two compiled functions."""
    start, update = compiled(estimator, OBJECTIVE)
    points = [jax.tree.map(lambda a: jnp.asarray(a, dtype), pair(p)) for p in points]
    batches = [as_batch(raw, dtype) for raw in batches]
    told, memory = start(points[0], batches[0], iteration(0))
    seen = [told]
    for t in range(1, len(points)):
        told, memory = update(memory, points[t], batches[t], iteration(t))
        seen.append(told)
    return seen


def descending(saddle):
    """The oracle's estimate as the library has it."""
    return Pair(saddle["x"], {n: -v for n, v in saddle["y"].items()})


def assert_close(found, want, bound=1e-10):
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=bound)
    for a, b in zip(found, want, strict=True):
        jax.tree.map(close, a, b)


BETA = Pair(0.3, 0.2)
SIZES = (11.0, 5.5)  # expected, of t = 0 and later; the batches have other numbers
GIVEN = dict(zip(("first_size", "batch_size"), SIZES, strict=True))
# as the oracle takes them
SETTINGS = (*({"x": p.x, "y": p.y} for p in (BETA, LIMIT, CHANGE)), SIZES)


@functools.cache
def noise():
    """N(0, 1) of every iteration, outer noise and inner, y's as it ascends."""

    @quick
    def drawn(key):
        outer = draws(key, pair(START))
        _, own = jax.random.split(key)
        inner, _ = jax.random.split(own)
        return outer, draws_from(inner, pair(START))

    both = [drawn(jax.random.fold_in(jax.random.key(3), t)) for t in range(T)]
    signed = lambda part, sign: {n: sign * np.asarray(v) for n, v in part.items()}
    rising = lambda n: {"x": signed(n.x, 1), "y": signed(n.y, -1)}
    return [rising(outer) for outer, _ in both], [rising(inner) for _, inner in both]


# -------------------------------------------------------------- the transcription
@pytest.mark.parametrize("name", CLIPS)
def test_every_clip_with_noise_in_both_places_equals_its_transcription(name):
    clip, share = CLIPS[name]
    inside, sigma = 0.6, 0.3
    with jax.enable_x64(True):
        private = private_storm(clip, beta=BETA, **GIVEN, noise_multiplier=inside)
        found = estimates(noisy(private, sigma))
        outer, inner = noise()
    want = oracle.private_estimates(POINTS, RAW, share, *SETTINGS, inside, inner)
    want = [
        {k: oracle.add(g[k], oracle.times(sigma, n[k])) for k in g}
        for g, n in zip(want, outer, strict=True)
    ]
    assert_close(found, [descending(g) for g in want])


@pytest.mark.slow
def test_without_clip_and_noise_tracking_it_is_dm_hsgd():
    """Here the expected sizes are those realised."""
    whole = lambda b: (b[0], b[1], np.ones(len(b[2])))
    trace = TRACE._replace(batches=[[whole(b) for b in row] for row in TRACE.batches])
    rows = lambda params, batch, key: OBJECTIVE.example_grad(params, Batch(*batch), key)
    objective = INSIDE._replace(example_grad=rows)
    first, size = (len(trace.batches[t][0][2]) for t in (0, 1))
    with jax.enable_x64(True):
        free = Split(Pair(1e9, 1e9), Pair(1e9, 1e9))
        estimator = private_storm(free, beta=BETA, batch_size=size, first_size=first)
        algorithm = gradient_tracking(LR, estimator=estimator)
        states = run(algorithm, objective, dense(WEIGHTS), pair(START), trace)
    box = lambda y: {n: np.clip(v, -0.12, 0.12) for n, v in y.items()}
    history = oracle.dpmixsgd(BEGIN, trace, *LR, *BETA, box)
    for t, agents in enumerate(history):
        for i, want in enumerate(agents):
            for found, part in ((states.params.x, "x"), (states.params.y, "y")):
                for n, leaf in want[part].items():
                    np.testing.assert_allclose(found[n][t, i], leaf, atol=1e-10)


# ------------------------------------------------------------------- sensitivity

WEIGHT = Pair(0.2, 0.3)
JOINT = {"each": Each(0.8), "difference": Difference(0.8), "split": Split(0.8, 0.05)}
BOUNDS = {
    "each": Pair(1.8 * 0.8, 1.7 * 0.5),
    "difference": LIMIT,
    "split": Pair(0.2 * 0.8 + 0.8 * 0.05, 0.3 * 0.5 + 0.7 * 0.03),
}
JOINT_BOUNDS = {"each": 1.8 * 0.8, "difference": 0.8, "split": 0.3 * 0.8 + 0.8 * 0.05}


def norm(a):
    return np.sqrt(sum(np.sum(np.asarray(x, np.float64) ** 2) for x in a.values()))


def leaves_of(beta):
    return Pair({"w": beta.x, "b": beta.x}, {"v": beta.y})


def shapes(draw):
    return Pair({"w": draw(3, 2), "b": draw(4)}, {"v": draw(5)})


def adversaries(dtype):
    """Pairs of gradients at two points, as hostile as they come."""
    rng = np.random.default_rng(0)
    random = shapes(lambda *shape: rng.standard_normal(shape))
    as_is = lambda a: jax.tree.map(lambda x: jnp.asarray(x, dtype), a)
    large = float(jnp.finfo(dtype).max) / 1.01
    filled = lambda value: as_is(shapes(lambda *shape: np.full(shape, value)))
    zero, huge = filled(0.0), filled(large)
    for scale in (1e-30, 1e-3, 1.0, 1e3, 1e30):
        g = as_is(jax.tree.map(lambda x: scale * x, random))  # noqa: B023 - called here
        flipped = jax.tree.map(jnp.negative, g)
        yield from ((g, flipped), (g, g), (g, zero), (zero, g))
    yield from ((huge, filled(-large)), (huge, zero), (zero, zero), (huge, huge))
    for bad in (np.nan, np.inf, -np.inf):
        one = filled(1.0)
        one.x["w"] = one.x["w"].at[0, 0].set(bad)
        yield from ((one, g), (g, one), (one, one), (filled(bad), zero), (one, huge))


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", CLIPS)
def test_one_example_moves_the_estimate_by_the_sensitivity_at_most(name, dtype):
    with jax.enable_x64(dtype == "float64"):
        clip = CLIPS[name][0]
        bound = clip.sensitivity(WEIGHT, 1)
        share = quick(lambda new, old: clip.share(new, old, leaves_of(WEIGHT)))
        worst = Pair(0.0, 0.0)
        for new, old in adversaries(jnp.dtype(dtype)):
            found = share(new, old)
            assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))
            worst = Pair(max(worst.x, norm(found.x)), max(worst.y, norm(found.y)))
    eps = 1e-6 if dtype == "float32" else 1e-12
    for found, limit, want in zip(worst, bound, BOUNDS[name], strict=True):
        assert limit == pytest.approx(want, rel=1e-6)
        assert want * (1 - eps) <= found <= want * (1 + eps)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINT)
def test_one_limit_for_both_variables_with_a_beta_of_each(name):
    clip, worst = JOINT[name], 0.0
    only_x = Pair({"a": jnp.full(3, 9.0)}, {"a": jnp.zeros(2)})
    only_y = Pair({"a": jnp.zeros(3)}, {"a": jnp.full(2, 9.0)})
    both = Pair({"a": jnp.full(3, 9.0)}, {"a": jnp.full(2, 7.0)})
    beta, innovate = Pair({"a": WEIGHT.x}, {"a": WEIGHT.y}), jax.jit(clip.share)
    for new in (only_x, only_y, both):
        for old in (new, *(jax.tree.map(jnp.negative, g) for g in (only_x, both, new))):
            share = innovate(new, old, beta)
            worst = max(worst, float(np.hypot(norm(share.x), norm(share.y))))
    bound = clip.sensitivity(WEIGHT, 1)
    assert bound == pytest.approx(JOINT_BOUNDS[name])
    assert worst <= bound * (1 + 1e-6)
    if name != "split":  # whose bound takes the larger weight twice
        assert worst >= bound * (1 - 1e-6)


def test_sensitivities_take_weights_as_they_come():
    assert Each(2.0).sensitivity(0.5, 4) == 3.0 / 4
    assert Each(Pair(2.0, 1.0)).sensitivity(0.5, 4) == (3.0 / 4, 1.5 / 4)
    assert Each(2.0).sensitivity(1.0, 4) == 2.0 / 4  # as at t = 0
    assert Difference(2.0).sensitivity(Pair(0.5, 0.9), 4) == 2.0 / 4
    assert Split(2.0, 1.0).sensitivity(0.25, 4) == (0.25 * 2 + 0.75) / 4
    found = Split(Pair(2.0, 1.0), Pair(1.0, 0.5)).sensitivity(0.25, 1)
    assert found == (0.25 * 2 + 0.75, 0.25 + 0.75 * 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIPS)
def test_an_example_less_in_the_batch_moves_what_is_told_within_the_bound(name):
    """The whole mechanism: denominators, padding, and an example gone mad."""
    clip = CLIPS[name][0]
    estimator = private_storm(clip, beta=BETA, **GIVEN)
    a, y, w = RAW[1]
    w = np.ones_like(w)
    gone = np.where(np.arange(len(w)) == 1, 0.0, w)
    start, update = compiled(estimator, OBJECTIVE)
    at = lambda t: jax.tree.map(lambda v: jnp.asarray(v, jnp.float32), pair(POINTS[t]))
    _, memory = start(at(0), as_batch((a, y, w), jnp.float32), iteration(0))
    first = lambda batch: start(at(0), batch, iteration(0))[0]
    later = lambda batch: update(memory, at(1), batch, iteration(1))[0]
    moved = []
    for value in (0.0, 1.0, -30.0, 1e25, np.nan, np.inf):
        odd = a.copy()
        odd[1] = value
        both = [as_batch((odd, y, weight), jnp.float32) for weight in (w, gone)]
        for tell, bound in (
            (first, clip.sensitivity(Pair(1.0, 1.0), SIZES[0])),
            (later, clip.sensitivity(BETA, SIZES[1])),
        ):
            change = jax.tree.map(lambda u, v: u - v, *map(tell, both))
            for part, most in zip(change, bound, strict=True):
                assert norm(part) <= most * (1 + 1e-4)
            moved.append(norm(change.x) / bound.x)
    assert max(moved) > 0.1


# ---------------------------------------------------------------- private gradient
def test_the_private_gradient_is_a_clipped_mean():
    with jax.enable_x64(True):
        estimator = private_gradient(LIMIT, **GIVEN, noise_multiplier=0.6)
        found, (normal, _) = estimates(estimator), noise()
    limits = {"x": LIMIT.x, "y": LIMIT.y}
    every = {"x": 1.0, "y": 1.0}  # STORM that keeps nothing
    want = oracle.private_estimates(
        POINTS, RAW, oracle.share_each, every, limits, limits, SIZES, 0.6, normal
    )
    assert_close(found, [descending(g) for g in want])


@pytest.mark.slow
def test_short_parameters_have_estimates_in_single_precision():
    params = {"w": jnp.ones((4, 3), jnp.bfloat16)}
    rows = lambda params, batch, key: {"w": jnp.ones((6, 4, 3), jnp.bfloat16) * 1e-3}
    estimator = private_storm(Each(1.0), batch_size=6, noise_multiplier=1.0)
    start, update = compiled(estimator, OBJECTIVE._replace(example_grad=rows))
    told, memory = start(params, (), iteration(0))
    assert told["w"].dtype == jnp.float32
    assert np.abs(np.asarray(told["w"]) * 256 % 1).max() > 0  # finer than bfloat16
    _, memory = update(memory, params, (), iteration(1))
    assert memory.estimate["w"].dtype == jnp.float32
    assert memory.before["w"].dtype == jnp.bfloat16


def test_the_published_methods_do_not_clip():
    """A single example moves their estimates without bound, whatever the noise."""
    told = []
    for size in (1.0, 1e6):
        g = {"a": jnp.full(2, size)}
        objective = Objective(lambda *_: g)  # noqa: B023 - called here
        told.append(noisy(fresh(), 1.0).start(objective, g, (), iteration(0))[0])
    assert np.abs(told[1]["a"] - told[0]["a"]).max() > 1e5
    assert "without a clip" in ALL["dp_sgda_unclipped"].paper


# ---------------------------------------------------------------------- clipping
def test_clipped_by_hand():
    g = Pair({"a": jnp.array([3.0, 4.0])}, {"a": jnp.array([0.3])})
    found = clipped(Pair(2.5, 1.0), g)
    np.testing.assert_allclose(found.x["a"], [1.5, 2.0], rtol=1e-6)
    assert_same_bits(found.y, g.y)
    together = clipped(2.5, g)
    norm_of_all = np.sqrt(25 + 0.09)
    np.testing.assert_allclose(together.y["a"], 0.3 * 2.5 / norm_of_all, rtol=1e-6)


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-15, 1.0, 1e15, 8e37, 1e38, 3e38])
def test_clipped_stands_any_scale(size):
    g = {"a": jnp.array([size, -size])}
    found = np.asarray(clipped(1e-3, g)["a"], np.float64)
    want = np.array([size, -size]) * min(1, 1e-3 / max(np.sqrt(2) * size, 1e-300))
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_what_is_not_finite_counts_as_zero_in_its_part_alone():
    g = Pair({"a": jnp.array([1.0, np.nan])}, {"a": jnp.array([0.5])})
    found = clipped(Pair(1.0, 1.0), g)
    assert not np.asarray(found.x["a"]).any()
    assert found.y["a"] == 0.5
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(clipped(1.0, g)))


# ------------------------------------------------------------------- per example
def test_examples_gradients_are_the_oracles_and_padding_has_none():
    a, y, _ = RAW[1]
    weight = np.array([1.0, 0.0, 2.0, 1.0, 0.0, 1.0])
    a = a.copy()
    a[1] = np.nan
    with jax.enable_x64(True):
        rows = quick(OBJECTIVE.example_grad)(
            pair(POINTS[0]), as_batch((a, y, weight)), jax.random.key(0)
        )
    for i, w in enumerate(weight):
        found = jax.tree.map(lambda g: np.asarray(g)[i], rows)  # noqa: B023 - called here
        if w == 0:
            assert not any(leaf.any() for leaf in jax.tree.leaves(found))
            continue
        g = saddle_grad(POINTS[0], (a[i : i + 1], y[i : i + 1], np.ones(1)))
        want = jax.tree.map(lambda v: w * v, descending(g))  # noqa: B023 - called here
        assert_close([found], [want], 1e-12)


@pytest.mark.slow
def test_examples_see_their_client_and_have_keys_of_their_own():
    seen = {}

    def grad(params, batch, key):
        assert batch.x.shape == (1, 2)
        assert batch.weight.shape == batch.y.shape == (1,)
        assert batch.client.shape == ()
        assert batch.shares.shape == (3,)
        seen["shapes"] = True
        return params * batch.shares.sum() + jax.random.normal(key)

    rows = jnp.ones((4, 2)), jnp.arange(4), jnp.ones(4)
    batch = Batch(*rows, jnp.int32(1), jnp.full(3, 1 / 3))
    key = jax.random.key(0)
    rows = per_example(grad)(jnp.ones(()), batch, key)
    assert seen
    assert len(np.unique(rows)) == 4
    again = per_example(grad)(jnp.ones(()), batch, key)
    assert_same_bits(rows, again)

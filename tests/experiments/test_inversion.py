"""Attacks: exact without noise, worse than no release with it, but for averages."""

import functools

import jax
import numpy as np
import optax
import pytest
from leaks import (
    CLASSES,
    COSINE,
    DLG,
    GRADIENT,
    INNOVATION,
    LABELS,
    SHAPE,
    baseline,
    by_hand,
    decibels,
    examples,
    gradient,
    init,
    innovated,
    key,
    mean_of,
    told,
)

from experiments import inversion
from experiments.inversion import matching

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", [0, 1])
def test_analytic_inversion_is_exact_without_noise(first):
    _, release, batch = told(0.0, 1, first)
    for factor in (1.0, -0.01, 300.0):  # a clip shortens, optimizers turn signs
        some = jax.tree.map(lambda a, f=factor: f * a, release)
        assert decibels(batch, inversion.analytic(some, SHAPE)) > 60
    assert inversion.score(batch.x, batch.y, inversion.analytic(release, SHAPE)).labels


def test_analytic_inversion_of_a_batch_is_a_weighted_mean():
    params, batch = init(key(6)), examples(4)
    single = by_hand(params, batch.x, LABELS[batch.y])
    parts = np.stack([g["Dense_0"]["bias"] for g in single])
    weights = parts @ parts.sum(0) / (parts.sum(0) @ parts.sum(0))
    found = inversion.analytic(mean_of(single), SHAPE, 4)
    assert found.x.shape == (4, *SHAPE)
    assert found.labels.shape == (4, CLASSES)
    wanted = np.tensordot(weights, np.float64(batch.x), 1)
    np.testing.assert_allclose(found.x, np.stack(4 * [wanted]), rtol=1e-9, atol=1e-9)
    least = np.argmin(mean_of(single)["Dense_1"]["bias"])
    assert np.array_equal(found.labels, np.eye(CLASSES)[4 * [least]])


def leaked(size):
    params, batch = init(key(0)), examples(size)
    return params, gradient(params, batch.x, LABELS[batch.y]), batch


@pytest.mark.parametrize(
    ("case", "attack"),
    [
        (lambda: told(0.0, 1, 0), DLG),
        (lambda: told(0.0, 1, 1), DLG),
        (lambda: leaked(2), inversion.deep_leakage(GRADIENT, SHAPE, CLASSES, size=2)),
    ],
)
def test_deep_leakage_without_noise(case, attack):
    params, release, batch = case()
    found = attack(params, release, key(2))
    assert found.x.dtype == np.float64
    assert not jax.config.jax_enable_x64  # outside of the search
    result = inversion.score(batch.x, batch.y, found)
    assert result.psnr > 40
    assert result.labels == 1


def test_inversion_of_an_innovation():
    points, release, batch = innovated()
    assert decibels(batch, inversion.analytic(release, SHAPE)) > 60
    attack = inversion.deep_leakage(INNOVATION, SHAPE, CLASSES, restarts=2)
    assert decibels(batch, attack(points, release, key(2))) > 40


def test_under_noise_attacks_are_worse_than_no_release_until_releases_are_averaged():
    params, one, batch = told(1.0)
    _, many, _ = told(1.0, 100)
    labels, bar = LABELS[batch.y], baseline(batch)
    for attack in (
        lambda release: inversion.analytic(release, SHAPE),
        lambda release: DLG(params, release, key(2)),
        lambda release: COSINE(params, release, labels, key(2)),
    ):
        assert decibels(batch, attack(one)) < bar
        assert decibels(batch, attack(many)) > decibels(batch, attack(one)) + 1
    assert decibels(batch, DLG(params, many, key(2))) > bar


def test_deep_leakage_minimises_the_squared_distance(monkeypatch):
    params, release, _ = told(0.1)
    seen = []

    def stop(function, start, **kwargs):
        seen.append((start, *function(start)))
        raise InterruptedError

    monkeypatch.setattr(matching.optimize, "minimize", stop)
    with pytest.raises(InterruptedError):
        DLG(params, release, key(0))
    [(start, value, slope)] = seen
    logits = np.exp(start[64:])
    guess = by_hand(params, start[:64].reshape(1, *SHAPE), [logits / logits.sum()])[0]
    wanted = jax.tree.map(lambda a, b: ((a - b) ** 2).sum(), guess, release)
    np.testing.assert_allclose(value, sum(jax.tree.leaves(wanted)), rtol=1e-9)
    assert slope.shape == start.shape
    assert slope.dtype == start.dtype == np.float64


def test_cosine_matching_step_by_step():
    """Adam on signs in NumPy, at a rate that falls after 3, 5 and 7 of 8 steps; the
    best of the points visited from all starts is returned."""
    params, release, batch = told(0.0)
    labels = LABELS[batch.y]

    @jax.jit
    @jax.value_and_grad
    def objective(x):
        found = GRADIENT(params, x, labels)
        norms = optax.tree.norm(found) * optax.tree.norm(release)
        rough = matching.total_variation(x)
        return 1 - optax.tree.vdot(found, release) / norms + 0.02 * rough

    attack = inversion.cosine_matching(
        GRADIENT, SHAPE, steps=8, restarts=2, variation=0.02, rate=0.3, box=(0.1, 0.9)
    )
    winners = set()
    for seed in (2, 3):
        ends = []
        for x in np.clip(jax.random.normal(key(seed), (2, 1, *SHAPE)), 0.1, 0.9):
            m, v, visited = 0.0, 0.0, []
            for t in range(8):
                value, slope = objective(x)
                visited.append((float(value), x))
                m = 0.9 * m + 0.1 * np.sign(slope)
                v = 0.999 * v + 0.001 * np.sign(slope) ** 2
                second = np.sqrt(v / (1 - 0.999 ** (t + 1))) + 1e-8
                rate = 0.3 * 0.1 ** sum(t >= k for k in (3, 5, 7))
                x = x - rate * m / (1 - 0.9 ** (t + 1)) / second
                x = np.float32(np.clip(x, 0.1, 0.9))
            ends.append(min(visited, key=lambda pair: pair[0]))
        winner = int(np.argmin([value for value, _ in ends]))
        found = attack(params, release, labels, key(seed)).x
        np.testing.assert_allclose(found, ends[winner][1], atol=1e-5)
        winners.add(winner)
    assert winners == {0, 1}


def test_refusals():
    params, release, batch = told(0.0)
    labels = LABELS[batch.y]
    none, lost = (jax.tree.map(lambda a, f=f: f * a, release) for f in (0, np.nan))
    nothing = "must be finite and not zero"
    make = functools.partial(inversion.deep_leakage, GRADIENT, SHAPE, CLASSES)
    search = functools.partial(inversion.cosine_matching, GRADIENT)
    analytic = inversion.analytic
    bare = {"Dense_0": {"kernel": release["Dense_0"]["kernel"]}}
    swapped = {"Dense_0": release["Dense_1"], "Dense_1": release["Dense_0"]}
    for call, said in (
        (lambda: DLG(params, none, key(0)), nothing),
        (lambda: DLG(params, lost, key(0)), nothing),
        (lambda: COSINE(params, none, labels, key(0)), nothing),
        (lambda: analytic(none, SHAPE), "bias' gradient " + nothing),
        (lambda: analytic(lost, SHAPE), "bias' gradient " + nothing),
        (lambda: analytic(release, (9, 8, 1)), "64 entries .* got \\(9, 8, 1\\)"),
        (lambda: analytic(bare, SHAPE), "with biases, got .*kernel"),
        (lambda: analytic({"Conv_0": {}}, SHAPE), "Dense_0"),
        (lambda: analytic(swapped, SHAPE), "applied in this order, got kernels"),
        (lambda: inversion.clipped(GRADIENT, 0.0), "clip_norm"),
        (lambda: inversion.innovation(GRADIENT, 1.5), "keep"),
        (lambda: inversion.average({"a": np.zeros((0, 3))}), "k of at least 1"),
        (lambda: inversion.average({"a": np.zeros(3), "b": np.zeros(4)}), "one k"),
        (lambda: inversion.average({"a": np.float64(1)}), "k of at least 1"),
        (lambda: inversion.average({}), "k of at least 1"),
        (lambda: make(size=0), "size must be .* got 0"),
        (lambda: make(steps=1.5), "steps must be .* got 1.5"),
        (lambda: make(restarts=0), "restarts"),
        (lambda: search(SHAPE, steps=0), "steps"),
        (lambda: search(SHAPE, restarts=0), "restarts"),
        (lambda: search(SHAPE, rate=0.0), "rate"),
        (lambda: search(SHAPE, variation=-1.0), "variation"),
        (lambda: search((64,)), "height, width, channels"),
        (lambda: search(SHAPE, box=(1.0, 1.0)), "box"),
    ):
        with pytest.raises(ValueError, match=said):
            call()


DRAWS = np.random.default_rng(0)


def ssim_by_hand(a, b):
    """Wang et al. 2004 with uniform windows of 7 x 7 inside the image, unbiased."""
    c1, c2 = 0.01**2, 0.03**2
    values = []
    for i, j, k in np.ndindex(a.shape[0] - 6, a.shape[1] - 6, a.shape[2]):
        u, v = (m[i : i + 7, j : j + 7, k].ravel() for m in (a, b))
        cov, (p, q) = np.cov(u, v), (u.mean(), v.mean())
        mean = (2 * p * q + c1) / (p**2 + q**2 + c1)
        values.append(mean * (2 * cov[0, 1] + c2) / (cov[0, 0] + cov[1, 1] + c2))
    return np.mean(values)


@pytest.mark.parametrize("shape", [(8, 8, 1), (9, 10, 3)])
def test_psnr_ssim_and_the_mean_guess_by_hand(shape):
    a = DRAWS.uniform(size=shape)
    near = np.clip(a + 0.1 * DRAWS.normal(size=shape), 0, 1)
    for b in (DRAWS.uniform(size=shape), near):
        wanted = -10 * np.log10(np.mean((a - b) ** 2))
        np.testing.assert_allclose(inversion.psnr(a, b), wanted, rtol=1e-12)
        np.testing.assert_allclose(inversion.ssim(a, b), ssim_by_hand(a, b), rtol=1e-9)
    x, y = DRAWS.uniform(size=(5, *shape)), np.array([0, 2, 2, 2, 0])
    found = inversion.mean_guess(x, y, 4, 2)
    np.testing.assert_allclose(found.x, np.stack(2 * [sum(x) / 5]), rtol=1e-12)
    np.testing.assert_allclose(found.labels, 2 * [[0.4, 0, 0.6, 0]])

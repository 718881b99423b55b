"""The oracles' own gradients and directions, by finite differences and by theorems."""

from itertools import product

import numpy as np
import pytest

from .auc import auc_grad, auc_loss
from .cases import PARTIAL, X
from .problem import normalise, polar, toy_grad, toy_loss
from .saddle import saddle_grad, saddle_loss
from .saddle_cases import PARTIAL as SADDLE, START


def assert_slopes(loss, gradient, params):
    """Of every entry, by central differences."""
    for name, at in ((k, i) for k in params for i in np.ndindex(params[k].shape)):
        h = np.zeros_like(params[name])
        h[at] = 1e-5
        up, down = ({**params, name: params[name] + s * h} for s in (1, -1))
        slope = (loss(up) - loss(down)) / 2e-5
        assert abs(gradient[name][at] - slope) < 1e-9


def test_toy_and_saddle_gradients():
    for _, data in PARTIAL.rounds[:2]:
        x, y, weight = data[0][0]
        for batch in ((x, y, weight), (x, y, np.linspace(0.0, 2.0, len(weight)))):
            assert_slopes(lambda p, b=batch: toy_loss(p, b), toy_grad(X, batch), X)
    for (_, data), part in product(SADDLE.rounds[:2], "xy"):
        x, y, weight = data[0][0]
        for batch in ((x, y, weight), (x, y, np.linspace(0.0, 2.0, len(weight)))):
            loss = lambda p, b=batch, v=part: saddle_loss({**START, v: p}, b)
            assert_slopes(loss, saddle_grad(START, batch)[part], START[part])


@pytest.mark.parametrize("seed", range(3))
def test_auc_gradient(seed):
    rng = np.random.default_rng(seed)
    positive, weight = rng.uniform(size=12) < 0.3, rng.integers(0, 3, 12).astype(float)
    positive[:2], weight[:2] = (True, False), 1.0
    at = {"h": rng.uniform(size=12), "w": rng.standard_normal(3)}
    loss = lambda p: auc_loss(p["h"], positive, weight, *p["w"], 0.2)
    g = auc_grad(at["h"], positive, weight, *at["w"], 0.2)
    assert_slopes(loss, {"h": g.h, "w": np.array([g.w1, g.w2, g.w3])}, at)


def test_polar_is_the_maximizer_over_the_spectral_ball():
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

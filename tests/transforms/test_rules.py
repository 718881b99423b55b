"""Rules of servers, maps of whole directions, a correction of Muon, and its bound."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize

from fedjax_muon import transforms
from fedjax_muon.algorithms import fedavg
from fedjax_muon.core import Objective, Round
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.linalg.newton_schulz import polar
from fedjax_muon.transforms import (
    biclip,
    muon,
    normalize,
    scale_by_fedadagrad,
    scale_by_fedadam,
    scale_by_fedyogi,
    spectral,
    unit_directions,
    unscaled,
)
from fedjax_muon.transforms.bound import JORDAN_LARGEST, muon_bound
from fedjax_muon.transforms.noise_bias import muon_with_noise


def adaptive(second, gradients, b1, tau):
    """Algorithm 2 of Reddi et al., lines 9 to 13, of one leaf in float64."""
    m, v = np.zeros_like(gradients[0]), np.full_like(gradients[0], tau**2)
    for g in gradients:
        m = b1 * m + (1 - b1) * g
        v = second(v, g**2)
        yield m / (np.sqrt(v) + tau)


SECOND = {
    scale_by_fedadagrad: lambda v, g2, b2: v + g2,
    scale_by_fedadam: lambda v, g2, b2: b2 * v + (1 - b2) * g2,
    scale_by_fedyogi: lambda v, g2, b2: (
        v - (1 - b2) * np.where(v > g2, g2, np.where(v < g2, -g2, 0))
    ),
}
DEFAULTS = {"b1": 0.9, "b2": 0.99, "tau": 1e-3}
UNUSUAL = {"b1": 0.8, "b2": 0.6, "tau": 0.5}  # a start of v that is felt for long


@pytest.mark.parametrize("factory", SECOND)
@pytest.mark.parametrize("given", [{}, UNUSUAL])
def test_adaptive_rules(factory, given):
    values = DEFAULTS | given
    if factory is scale_by_fedadagrad:
        values = {"b1": 0.0} | given | {"b2": None, "tau": values["tau"]}
        given = {k: v for k, v in given.items() if k != "b2"}
    second = lambda v, g2: SECOND[factory](v, g2, values["b2"])
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        draw = lambda: {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)}
        gradients = [draw() for _ in range(6)]
        gradients[0]["bias"][:2] = 0
        tx = factory(**given)
        state, update, ours = tx.init(gradients[0]), jax.jit(tx.update), []
        for g in gradients:
            u, state = update(g, state)
            ours.append(u)
        for name in ("kernel", "bias"):
            leaf = [g[name] for g in gradients]
            theirs = list(adaptive(second, leaf, values["b1"], values["tau"]))
            found = np.stack([u[name] for u in ours])
            np.testing.assert_allclose(found, theirs, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("factory", "name", "value", "allowed"),
    [
        (factory, name, value, allowed)
        for factory in SECOND
        for name, values, allowed in (
            ("b1", (-0.1, 1.0, math.nan), r"lie in \[0, 1\)"),
            ("b2", (-0.1, 1.0, math.nan), r"lie in \[0, 1\)"),
            ("tau", (0.0, -1.0, math.nan), r"lie in \(0, infinity\)"),
        )
        for value in values
        if (factory, name) != (scale_by_fedadagrad, "b2")
    ],
)
def test_adaptive_rules_refuse(factory, name, value, allowed):
    with pytest.raises(ValueError, match=f"{name} must {allowed}, got {value}"):
        factory(**{name: value})


# ------------------------------------------------------- maps of whole directions

G = {"w": jnp.array([[3.0, -0.5], [0.0, 1e-6]]), "b": jnp.array([-20.0, 4.0])}


def apply(rule, g):
    return rule.update(g, rule.init(g), g)[0]


def test_normalize_divides_by_the_norm_of_all_leaves_together():
    out = apply(normalize(), G)
    norm = np.sqrt(sum(float(np.sum(np.square(np.float64(v)))) for v in G.values()))
    for name, value in G.items():
        np.testing.assert_allclose(out[name], np.float64(value) / norm, rtol=1e-6)


def test_normalize_keeps_zero_and_every_scale():
    zero = jax.tree.map(jnp.zeros_like, G)
    jax.tree.map(np.testing.assert_array_equal, apply(normalize(), zero), zero)
    tiny = apply(normalize(), jax.tree.map(lambda v: v * 2.0**-50, G))
    jax.tree.map(np.testing.assert_array_equal, tiny, apply(normalize(), G))


def test_biclip_brings_sizes_into_the_interval_and_keeps_signs_and_zeros():
    out = apply(biclip(0.1, 5.0), G)
    np.testing.assert_allclose(out["w"], [[3.0, -0.5], [0.0, 0.1]], rtol=1e-7)
    np.testing.assert_allclose(out["b"], [-5.0, 4.0], rtol=1e-7)


def test_unit_directions_by_hand():
    g = {"w": G["w"], "b": G["b"], "s": jnp.array(-3.0), "zero": jnp.zeros(2)}
    out = apply(unit_directions(polar), g)
    u, _, vt = np.linalg.svd(np.float64(g["w"]))
    np.testing.assert_allclose(out["w"], u @ vt, atol=1e-5)
    np.testing.assert_allclose(out["b"], np.array([-20.0, 4.0]) / 416**0.5, rtol=1e-6)
    np.testing.assert_array_equal(out["s"], -1.0)
    np.testing.assert_array_equal(out["zero"], 0.0)
    column = polar(np.float32(g["b"])[:, None])[:, 0]  # a matrix of one column
    np.testing.assert_allclose(out["b"], column, rtol=1e-6)
    kept = apply(unit_directions(polar, normalize_vectors=False), g)
    np.testing.assert_array_equal(kept["b"], g["b"])
    np.testing.assert_array_equal(kept["w"], out["w"])
    np.testing.assert_array_equal(kept["s"], -1.0)


def test_biclip_refuses_an_empty_interval():
    for low, high, message in (
        (-0.1, 1.0, r"low must lie in \[0, infinity\), got -0.1"),
        (0.1, -1.0, r"high must lie in \[0, infinity\), got -1.0"),
        (2.0, 1.0, r"low must lie in \[0, 1\], got 2.0"),
    ):
        with pytest.raises(ValueError, match=message):
            biclip(low, high)


# --------------------------------------------------- Muon on noisy gradients: its bias
def exact(a):
    u, _, v = np.linalg.svd(np.asarray(a, np.float64), full_matrices=False)
    return u @ v


def test_steps_are_the_formula():
    """A literal transcription with the same draws, two probes, three steps."""
    std, mu, shape = 0.1, 0.8, (4, 3)
    rule = muon_with_noise(std, momentum=mu, probes=2, seed=5, polar=polar)
    state, m = rule.init({"w": jnp.zeros(shape)}), np.zeros(shape)
    for t in range(3):
        g = np.random.default_rng(t).normal(size=shape)
        step, state = rule.update({"w": jnp.asarray(g, jnp.float32)}, state)
        m = mu * m + g
        s = std * np.sqrt(sum(mu ** (2 * k) for k in range(t + 1)))
        key = jax.random.fold_in(jax.random.key(5), t + 1)
        (key,) = jax.random.split(key, 1)
        total = np.zeros(shape)
        for probe in jax.random.split(key, 2):
            v = s * np.asarray(jax.random.normal(probe, shape), np.float64)
            total += (exact(m + v) + exact(m - v)) / 2
        expected = 2 * exact(m) - total / 2
        np.testing.assert_allclose(step["w"], expected, rtol=1e-4, atol=1e-5)


def test_vectors_keep_their_momentum_and_numbers_are_checked():
    rule = muon_with_noise(0.1, momentum=0.5)
    g = {"b": jnp.ones(3)}
    state = rule.init(g)
    _, state = rule.update(g, state)
    step, _ = rule.update(g, state)
    np.testing.assert_allclose(step["b"], 1.5)
    for bad in ({"noise_std": -1.0}, {"noise_std": 0.1, "momentum": 1.0}):
        with pytest.raises(ValueError, match="must"):
            muon_with_noise(**bad)
    with pytest.raises(ValueError, match="probes"):
        muon_with_noise(0.1, probes=0)


# ---------------------------------------- how far Muon moves at most, and nearly does

LR, STEPS, KEY = 0.02, 5, jax.random.key(0)
PARAMS = {"a": jnp.ones((12, 8)), "b": jnp.ones((3, 3, 2, 5))}
FANS, RANKS = ((12, 8), (18, 5)), (8, 5)


def test_the_largest_singular_value():
    """p maps [0, its largest value] into itself: the value holds for all steps."""
    ((a, b, c),) = kernel.JORDAN
    p = lambda s: a * s + b * s**3 + c * s**5
    peak = optimize.minimize_scalar(lambda s: -p(s), (0, 0.5, 1)).x
    assert 0 < peak < 1
    assert p(peak) <= JORDAN_LARGEST < p(peak) + 1e-7
    grid = np.linspace(0, JORDAN_LARGEST, 10**6)
    assert p(grid).min() >= 0
    assert p(grid).max() <= JORDAN_LARGEST


def sent(rule, gradients, decay=0.0):
    """A client's message, of gradients [K, ...]: start - end."""
    rule = optax.chain(rule, optax.add_decayed_weights(decay)) if decay else rule
    objective = Objective(lambda params, batch, key: batch)
    client = fedavg(lr=LR, rule=rule).exchanges[0].client
    round = Round(jnp.int32(0), KEY, STEPS, 1, 1.0)
    message, _ = client(objective, (PARAMS, []), (), gradients, round)
    return message.params


def norm(message):
    return np.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(message)))


def drawn(key, scale):
    """Gradients of any size in any direction."""
    keys = dict(zip(PARAMS, jax.random.split(key), strict=True))
    wild = lambda key, x: jax.random.cauchy(key, (STEPS, *x.shape))
    return {name: scale * wild(keys[name], x) for name, x in PARAMS.items()}


def adversarial():
    """One large singular value, and all others where five steps end highest."""
    rng = np.random.default_rng(0)

    def one(x):
        shape = int(np.prod(x.shape[:-1])), x.shape[-1]
        u, _, v = np.linalg.svd(rng.normal(size=shape), full_matrices=False)
        s = np.full(len(v), 0.00411)
        s[0] = np.sqrt(1 - np.sum(s[1:] ** 2))
        matrix = ((u * s) @ v).reshape(x.shape)
        return jnp.asarray(np.broadcast_to(matrix, (STEPS, *x.shape)), jnp.float32)

    return jax.tree.map(one, PARAMS)


@pytest.mark.slow
@pytest.mark.parametrize(("shape_scale", "decay"), [(unscaled, 0.5), (spectral, 0.0)])
def test_no_message_is_longer(shape_scale, decay):
    rule = muon(0.9, shape_scale=shape_scale)
    bound = muon_bound(PARAMS, lr=LR, steps=STEPS, decay=decay, shape_scale=shape_scale)
    scales = [shape_scale(*fans) ** 2 for fans in FANS]
    weight = sum(scales) / np.dot(scales, RANKS)
    one = jax.jit(partial(sent, rule, decay=decay))
    decayed = jax.tree.map(lambda x: (1 - (1 - LR * decay) ** STEPS) * x, PARAMS)
    longest = 0.0
    for i in range(20):
        gradients = drawn(jax.random.fold_in(KEY, i), 10.0 ** (i - 10))
        part = jax.tree.map(jnp.subtract, one(gradients), decayed)
        longest = max(longest, norm(part))
    worst = norm(jax.tree.map(jnp.subtract, one(adversarial()), decayed))
    assert 0.3 * bound < longest <= bound
    # all singular values but the two large ones end where they are largest
    assert np.sqrt(1 - weight) * bound < worst <= bound


def test_the_formula():
    squares = np.dot([spectral(*fans) ** 2 for fans in FANS], RANKS)
    moves = sum(0.98**k for k in range(5))
    options = {"lr": LR, "steps": 5, "decay": 1.0, "largest": 1.0}
    found = muon_bound(PARAMS, **options, shape_scale=spectral)
    assert found == pytest.approx(LR * moves * np.sqrt(squares))


def test_bad_arguments_are_refused():
    for changes, message in (
        ({"params": {"b": jnp.ones(3)}}, "no matrix among the parameters"),
        ({"lr": 0.0}, "lr must lie in"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"decay": 51.0}, r"decay must lie in \[0, 50\]"),
        ({"largest": 0.0}, "largest must lie in"),
    ):
        given = {"params": PARAMS, "lr": LR, "steps": STEPS, **changes}
        with pytest.raises(ValueError, match=message):
            muon_bound(**given)


HALF = {
    "biclip": lambda: biclip(1e-5, 0.1),
    "normalize_axes": lambda: transforms.normalize_axes("out", "in"),
}
RULES = [
    *HALF,
    *("equilibrate", "input_direction", "muon", "normalize", "orthogonalize"),
    *("output_direction", "rms_direction", "scale_by_adamuon", "scale_by_fadas"),
    *("scale_by_fedadam", "scale_by_mars", "scale_by_muon", "scale_by_muon2"),
    *("scale_by_normuon", "scale_by_scion", "scale_by_soap", "unit_directions"),
]


@pytest.mark.parametrize("name", RULES)
def test_16_bit_parameters_get_finite_steps_of_any_gradient(name):
    """A zero gradient is one of a client without a class, or of a head of zeros."""
    rule = HALF.get(name, getattr(transforms, name))()
    for dtype in (jnp.bfloat16, jnp.float16):
        params = {"k": jnp.full((8, 4), 0.1, dtype), "b": jnp.ones(4, dtype)}
        for size in (0.0, 1e-4, 1.0):
            g = jax.tree.map(lambda x, s=size: s * jnp.cos(jnp.arange(x.size)), params)
            g = jax.tree.map(lambda g, x: g.reshape(x.shape).astype(x.dtype), g, params)
            state = rule.init(params)
            for _ in range(2):
                u, state = rule.update(g, state, params)
            for x in jax.tree.leaves(u):
                assert x.dtype == dtype
                assert bool(jnp.isfinite(x.astype(jnp.float32)).all()), (dtype, size)

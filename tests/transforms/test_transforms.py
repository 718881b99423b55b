"""The rules against optax, PyTorch and float64 NumPy, and what every rule keeps."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon.linalg import lmo
from fedjax_muon.linalg.newton_schulz import JORDAN, polar
from fedjax_muon.transforms import (
    by_rank,
    jordan,
    moonlight,
    muon,
    muon_dimension_numbers,
    orthogonalize,
    scale_by_fedadagrad,
    scale_by_fedadam,
    scale_by_fedyogi,
    scale_by_lmo,
    scale_by_muon,
    scale_by_shape,
    spectral,
    unscaled,
)
from tests.support.packages import needs

MATRICES = {"tall": (48, 20), "wide": (20, 48)}
MIXED = {
    "conv": {"kernel": (3, 3, 4, 6), "bias": (6,)},
    "query": {"kernel": (6, 2, 3), "bias": (2, 3)},
    "list": [(), (3,)],
}


def draw(shapes, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    normal = lambda shape: np.asarray(rng.normal(size=shape), dtype)
    return jax.tree.map(normal, shapes, is_leaf=lambda x: isinstance(x, tuple))


def sequence(shapes, steps=6, dtype=np.float32):
    return [draw(shapes, seed, dtype) for seed in range(steps)]


def run(tx, gradients, params=None, compiled=True):
    """The updates of every step; `params` do not move.

    Not `compiled`, tests share the compiled orthogonalization of equal shapes.
    """
    params = gradients[0] if params is None else params
    state, updates = tx.init(params), []
    update = jax.jit(tx.update) if compiled else tx.update
    for g in gradients:
        u, state = update(g, state, params)
        updates.append(u)
    return updates


def distance(a, b):
    return np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(b)


def check_close(ours, theirs, tolerance):
    """Relative in the Frobenius norm, leaf by leaf and step by step."""
    for a, b in zip(ours, theirs, strict=True):
        assert jax.tree.structure(a) == jax.tree.structure(b)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            assert distance(x, y) <= tolerance


# ------------------------------------------------------------------ against optax
@pytest.mark.parametrize(("scale", "rms"), [(jordan, None), (moonlight, 0.2)])
def test_training_rule_of_optax(scale, rms):
    """Weight decay on matrices only, Adam for the rest, through their own layout."""
    params, gradients = draw(MIXED, 9), sequence(MIXED)
    theirs = optax.contrib.muon(
        0.1,
        nesterov=False,
        weight_decay=0.3,
        consistent_rms=rms,
        muon_weight_dimension_numbers=muon_dimension_numbers,
    )
    step, decay = scale_by_muon(shape_scale=scale), optax.add_decayed_weights(0.3)
    rule = by_rank(optax.chain(step, decay), optax.scale_by_adam())
    ours = optax.chain(rule, optax.scale_by_learning_rate(0.1))
    check_close(run(ours, gradients, params), run(theirs, gradients, params), 1e-5)


# ------------------------------------------------------- against float64 and PyTorch
def newton_schulz(x):
    """Jordan's five steps on the singular values, in float64."""
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    s = s / np.linalg.norm(s)
    ((a, b, c),) = JORDAN
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    return (u * s) @ vt


def lerp(gradients, beta, nesterov):
    """Muon of its authors and of PyTorch: an exponential average, mixed once more."""
    average = 0.0
    for g in gradients:
        average = beta * average + (1 - beta) * g
        yield newton_schulz((1 - beta) * g + beta * average if nesterov else average)


def check_average(tx, gradients, beta, nesterov, tolerance):
    ours = run(tx, gradients, compiled=False)
    for name in MATRICES:
        leaf = [g[name].astype(np.float64) for g in gradients]
        theirs = list(lerp(leaf, beta, nesterov))
        check_close([u[name] for u in ours], theirs, tolerance)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_trajectories_of_an_exponential_average(nesterov, beta, dtype):
    tolerance = {"float32": 1e-5, "float64": 1e-12}[dtype]
    with jax.enable_x64(dtype == "float64"):
        gradients = sequence(MATRICES, dtype=dtype)
        tx = scale_by_muon(beta, nesterov=nesterov)
        check_average(tx, gradients, beta, nesterov, tolerance)


def torch_muon(params, gradients, **options):
    """How PyTorch moves transposed weights, step by step: a list of differences."""
    torch = needs("torch")
    weights = {k: torch.nn.Parameter(torch.tensor(v.T)) for k, v in params.items()}
    optimizer = torch.optim.Muon(weights.values(), **options)
    path = [params]
    for g in gradients:
        for k, weight in weights.items():
            weight.grad = torch.tensor(g[k].T)
        optimizer.step()
        path.append({k: w.detach().numpy().T.copy() for k, w in weights.items()})
    return [jax.tree.map(np.subtract, b, a) for a, b in itertools.pairwise(path)]


@pytest.mark.slow
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    ("name", "scale"), [("original", jordan), ("match_rms_adamw", moonlight)]
)
def test_steps_of_torch(name, scale, nesterov):
    """Decay so strong that it shows whether the shape scales it, and its order.

    PyTorch orthogonalizes in bfloat16, which alone makes a difference of 0.02.
    """
    params, gradients = draw(MATRICES, 9), sequence(MATRICES)
    options = {"lr": 1.0, "weight_decay": 0.2, "adjust_lr_fn": name}
    theirs = torch_muon(params, gradients, **options, nesterov=nesterov)
    tx = optax.chain(
        scale_by_muon(0.95, nesterov=nesterov, shape_scale=scale),
        optax.add_decayed_weights(0.2),
        optax.scale_by_learning_rate(1.0),
    )
    state, ours = tx.init(params), []
    for g in gradients:
        u, state = tx.update(g, state, params)
        params = optax.apply_updates(params, u)
        ours.append(u)
    check_close(ours, theirs, 0.03)


# ------------------------------------------------------------------- parts of Muon

RULES = (unscaled, jordan, moonlight, spectral)
TABLE = {  # shape: name of the leaf's owner, factors in the order of RULES
    (64, 256): ("dense", 1, 2, 0.2 * 16, 2),
    (256, 64): ("dense", 1, 1, 0.2 * 16, 1 / 2),
    (3, 3, 64, 128): ("conv", 1, 1, 0.2 * 24, math.sqrt(128 / 576)),
    (3, 64, 768): ("conv", 1, 2, 0.2 * math.sqrt(768), 2),
    (16, 8, 32): ("query", 1, 4, 0.2 * 16, 4),
    (8, 32, 16): ("out", 1, 1, 0.2 * 16, 1 / 4),
}


@pytest.mark.parametrize("shape", TABLE)
def test_scale_by_shape(shape):
    owner, *factors = TABLE[shape]
    params = {owner: {"kernel": np.ones(shape), "bias": np.ones((2, 2))}}
    for scale, factor in zip(RULES, factors, strict=True):
        rule = scale_by_shape(scale)
        scaled = rule.update(params, rule.init(params))[0][owner]
        np.testing.assert_allclose(scaled["kernel"], factor, rtol=1e-6)
        np.testing.assert_array_equal(scaled["bias"], 1)
    rule = scale_by_shape()
    default = rule.update(params, rule.init(params))[0][owner]["kernel"]
    np.testing.assert_allclose(default, factors[RULES.index(jordan)], rtol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_of_other_leaves_passes(nesterov):
    gradients = sequence({"kernel": (4, 3), "bias": (3,)})
    ours = run(scale_by_muon(0.9, nesterov=nesterov, shape_scale=jordan), gradients)
    m = 0.0
    for g, u in zip(gradients, ours, strict=True):
        m = 0.9 * m + g["bias"]
        expected = g["bias"] + 0.9 * m if nesterov else m
        np.testing.assert_allclose(u["bias"], expected, rtol=2e-6, atol=1e-7)


def test_scale_by_lmo():
    g = draw(MIXED)
    (unit,) = run(scale_by_lmo(lmo.euclidean), [g])
    (sign,) = run(scale_by_lmo(lmo.max_norm), [g])
    check_close([unit], [jax.tree.map(lambda x: x / np.linalg.norm(x), g)], 1e-6)
    jax.tree.map(np.testing.assert_array_equal, sign, jax.tree.map(np.sign, g))


# ------------------------------------------------------------------------- routing


def collect(sign):
    """A rule with a memory that spans leaves: the sum of the squares it has seen."""

    def update(updates, state, params=None):
        del params
        seen = state + sum(jnp.sum(x**2) for x in jax.tree.leaves(updates))
        return jax.tree.map(lambda x: sign * x, updates), seen

    return optax.GradientTransformation(lambda params: jnp.zeros(()), update)


def test_each_rule_sees_its_own_leaves_alone():
    gradients = sequence({"kernel": (4, 3), "bias": (3,), "scale": (2, 2)}, 3)
    tx = by_rank(collect(-1.0), collect(2.0))
    state = tx.init(gradients[0])
    for g in gradients:
        u, state = tx.update(g, state)
        for name, factor in {"kernel": -1, "bias": 2, "scale": 2}.items():
            np.testing.assert_array_equal(u[name], factor * g[name])
    sums = {k: sum(np.sum(g[k] ** 2) for g in gradients) for k in gradients[0]}
    seen = {k: v.inner_state for k, v in state.inner_states.items()}
    np.testing.assert_allclose(seen["matrix"], sums["kernel"], rtol=1e-6)
    np.testing.assert_allclose(seen["rest"], sums["bias"] + sums["scale"], rtol=1e-6)


def test_by_rank_passes_other_leaves_by_default():
    g = draw(MIXED)
    (updates,) = run(by_rank(optax.scale(0.0)), [g])
    np.testing.assert_array_equal(updates["query"]["bias"], g["query"]["bias"])
    np.testing.assert_array_equal(updates["list"][1], g["list"][1])
    assert not np.any(updates["query"]["kernel"])


@pytest.mark.parametrize("names", [(), ("out",), ("hidden", "out")])
def test_layout_routes_in_every_part(names):
    """What the layout excludes goes to `rest`, and no part of Muon touches it."""
    g = draw({"hidden": {"kernel": (4, 5)}, "out": {"kernel": (5, 3)}})
    layout = partial(muon_dimension_numbers, exclude=names)
    tx = muon(polar=polar, shape_scale=moonlight, rest=optax.scale(3), layout=layout)
    (updates,) = run(tx, [g])
    for owner, leaf in g.items():
        u, _, vt = np.linalg.svd(leaf["kernel"], full_matrices=False)
        step = 0.2 * math.sqrt(5) * u @ vt
        expected = 3 * leaf["kernel"] if owner in names else step
        np.testing.assert_allclose(updates[owner]["kernel"], expected, atol=5e-6)


# ------- what every rule keeps: structure and types, under jit and vmap

EVERY = {
    "muon": muon(nesterov=True, shape_scale=moonlight),
    "scale_by_muon": scale_by_muon(shape_scale=jordan),
    "by_rank": by_rank(orthogonalize()),
    "scale_by_shape": scale_by_shape(),
    "scale_by_lmo": scale_by_lmo(lmo.euclidean),
    "scale_by_fedadam": scale_by_fedadam(),
    "scale_by_fedyogi": scale_by_fedyogi(),
    "scale_by_fedadagrad": scale_by_fedadagrad(),
}
all_rules = pytest.mark.parametrize("tx", EVERY.values(), ids=EVERY)


def draw_clients(seed=0, lead=(), dtype=jnp.float32):
    """Parameters in dicts, lists and tuples, with an optional axis of clients."""
    rng = np.random.default_rng(seed)
    leaf = lambda *shape: jnp.asarray(rng.normal(size=(*lead, *shape)), dtype)
    return {
        "Conv_0": {"kernel": leaf(3, 3, 2, 4), "bias": leaf(4)},
        "query": {"kernel": leaf(6, 2, 3), "bias": leaf(2, 3)},
        "list": [(leaf(4), None)],
        "temperature": leaf(),
    }


def types(tree):
    """Shapes and dtypes in the tree's own structure."""
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


@all_rules
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_structure_and_types(tx, dtype):
    params = draw_clients(dtype=dtype)
    state = tx.init(params)
    updates, after = jax.eval_shape(tx.update, params, state, params)
    assert types(updates) == types(params)
    assert types(after) == types(state)
    assert types(jax.eval_shape(tx.init, params)) == types(state)


@all_rules
def test_one_trace(tx):
    """The state keeps its types, weak ones included, so that no step traces anew."""
    traces = []

    def update(gradients, state, params):
        traces.append(jax.typeof(gradients["temperature"]))
        return tx.update(gradients, state, params)

    params = draw_clients()
    state, update = tx.init(params), jax.jit(update)
    for seed in range(3):
        _, state = update(draw_clients(seed), state, params)
    assert len(traces) == 1

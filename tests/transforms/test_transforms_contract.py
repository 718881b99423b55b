"""What every rule keeps: structure, types, one compilation, vmap; and it trains."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon.linalg import lmo
from fedjax_muon.transforms import (
    by_rank,
    jordan,
    moonlight,
    muon,
    orthogonalize,
    scale_by_fedadagrad,
    scale_by_fedadam,
    scale_by_fedyogi,
    scale_by_lmo,
    scale_by_muon,
    scale_by_shape,
    spectral,
)

RULES = {
    "muon": muon(nesterov=True, shape_scale=moonlight),
    "scale_by_muon": scale_by_muon(shape_scale=jordan),
    "by_rank": by_rank(orthogonalize()),
    "scale_by_shape": scale_by_shape(),
    "scale_by_lmo": scale_by_lmo(lmo.euclidean),
    "scale_by_fedadam": scale_by_fedadam(),
    "scale_by_fedyogi": scale_by_fedyogi(),
    "scale_by_fedadagrad": scale_by_fedadagrad(),
}
all_rules = pytest.mark.parametrize("tx", RULES.values(), ids=RULES)


def draw(seed=0, lead=(), dtype=jnp.float32):
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
    params = draw(dtype=dtype)
    state = tx.init(params)
    updates, after = jax.eval_shape(tx.update, params, state, params)
    assert types(updates) == types(params)
    assert types(after) == types(state)


@pytest.mark.parametrize("nesterov", [False, True])
def test_bfloat16_is_close_to_float32(nesterov):
    """The kernel is well conditioned, and the rounding of its entries is 2^-9."""
    rule = scale_by_muon(nesterov=nesterov)
    high = {"kernel": np.random.default_rng(0).normal(size=(48, 20))}
    low = {"kernel": jnp.asarray(high["kernel"], jnp.bfloat16)}
    high = {"kernel": jnp.asarray(high["kernel"], jnp.float32)}
    (u, _), (v, _) = (rule.update(g, rule.init(g)) for g in (low, high))
    error = np.asarray(u["kernel"], np.float32) - np.asarray(v["kernel"])
    assert 1e-4 < np.linalg.norm(error) / np.linalg.norm(v["kernel"]) < 0.02


@all_rules
def test_one_trace(tx):
    """The state keeps its types, weak ones included, so that no step traces anew."""
    traces = []

    def update(gradients, state, params):
        traces.append(jax.typeof(gradients["temperature"]))
        return tx.update(gradients, state, params)

    params = draw()
    state, update = tx.init(params), jax.jit(update)
    for seed in range(3):
        _, state = update(draw(seed), state, params)
    assert len(traces) == 1


@all_rules
def test_init_of_shapes_alone(tx):
    params = draw()
    assert types(jax.eval_shape(tx.init, params)) == types(tx.init(params))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["muon", "scale_by_lmo", "scale_by_fedadam"])
def test_clients_under_vmap(name):
    """A stack of clients, each with its own state, is the loop over clients."""
    tx = RULES[name]
    params = draw(0, lead=(3,))
    gradients = [draw(seed, lead=(3,)) for seed in (1, 2)]
    state, update = jax.vmap(tx.init)(params), jax.jit(jax.vmap(tx.update))
    for g in gradients:
        stacked, state = update(g, state, params)
    alone = jax.jit(tx.update)
    for i in range(3):
        of_client = lambda tree, i=i: jax.tree.map(lambda x: x[i], tree)
        one = tx.init(of_client(params))
        for g in gradients:
            updates, one = alone(of_client(g), one, of_client(params))
        ours = of_client(stacked)
        assert jax.tree.structure(ours) == jax.tree.structure(updates)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(updates), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "factory",
    [
        scale_by_muon,
        lambda x: scale_by_fedadam(b1=x),
        lambda x: scale_by_fedyogi(b2=x),
        lambda x: scale_by_fedadagrad(tau=x),
    ],
)
def test_sweeps_over_hyperparameters(factory):
    """A traced value cannot be checked, but it can be mapped over."""
    gradients = draw(1)["query"], draw(2)["query"]

    def run(value):
        tx = factory(value)
        state = tx.init(gradients[0])
        for g in gradients:
            updates, state = tx.update(g, state)
        return updates

    values = (0.25, 0.5, 0.9)
    swept = jax.jit(jax.vmap(run))(jnp.asarray(values))
    for i, value in enumerate(values):
        for a, b in zip(
            jax.tree.leaves(swept), jax.tree.leaves(run(value)), strict=True
        ):
            np.testing.assert_allclose(a[i], b, rtol=1e-4, atol=2e-5)


# ------------------------------------------------------------------------ training


def train(model, x, y, rule, rate, steps):
    """The mean squared error at first and at last; the rate falls linearly to zero."""
    params = model.init(jax.random.key(0), x)
    loss = lambda p: jnp.mean((model.apply(p, x) - y) ** 2)
    schedule = optax.linear_schedule(rate, 0.0, steps)
    tx = optax.chain(rule, optax.scale_by_learning_rate(schedule))

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    carry = params, tx.init(params)
    (last, _), _ = jax.jit(lambda c: jax.lax.scan(step, c, length=steps))(carry)
    return float(loss(params)), float(loss(last))


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [muon(0.9, nesterov=True, shape_scale=spectral), scale_by_fedadam()],
    ids=["muon", "fedadam"],
)
def test_least_squares_reach_the_optimum(rule):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 6)).astype(np.float32)
    y = x @ rng.normal(size=(6, 3)) + 1 + 0.5 * rng.normal(size=(64, 3))
    design = np.hstack([x, np.ones((64, 1))])
    solution = np.linalg.lstsq(design, y, rcond=None)[0]
    optimum = np.mean((design @ solution - y) ** 2)
    first, last = train(nn.Dense(3), x, y.astype(np.float32), rule, 0.1, 300)
    assert last >= optimum - 1e-6
    assert last - optimum <= 1e-3 * (first - optimum)


class Perceptron(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(32)(x)))


@pytest.mark.slow
def test_a_perceptron_learns_a_quadratic():
    """Targets x^T A x, whose least error is 0 up to what 32 units can approximate."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(128, 3)).astype(np.float32)
    y = np.sum(x @ rng.normal(size=(3, 3)) * x, axis=1, keepdims=True)
    y = y.astype(np.float32)
    first, last = train(Perceptron(), x, y, muon(0.9), 0.1, 400)
    assert last <= 0.02 * first

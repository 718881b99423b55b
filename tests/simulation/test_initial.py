"""Initial parameters: one program for equal layers, with the values of one for all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.tree_util import Partial

import fedjax_muon as fm
from fedjax_muon.simulation import initial
from tests.support.federation import assert_same_bits

KEY = jax.random.key(3)


def named(draw):
    """Six layers, the last of them twice as large."""
    return lambda key: {
        f"layer_{i}": draw(jax.random.fold_in(key, i), 2 + 2 * (i == 5), i)
        for i in range(6)
    }


def signed(key, size, i):
    return {"w": jax.random.normal(key, (size,)), "b": jnp.full(2, -0.0 if i else 0.0)}


def halves(key, size, i):
    both = 0.5 * jax.random.normal(key, (2, size))
    return {"first": both[0], "second": both[1] * (2 if i < 5 else 3)}


def split(key, size, i):
    del i
    keys = jax.random.split(key)
    return [jax.random.truncated_normal(k, -2, 2, (size, size)) / 3 for k in keys]


def raw(key, size, i):
    del i
    return jax.random.uniform(jax.random.key_data(key), (size,))


def of_model(model):
    return fm.tasks.classification(model, (8, 8, 1)).init


def nnx_module(rngs):
    layers = [nnx.Linear(8, 8, rngs=rngs) for _ in range(5)]
    first = nnx.Conv(1, 8, (8, 8), padding="VALID", rngs=rngs)
    return nnx.Sequential(first, lambda x: x[:, 0, 0], *layers)


VIT = fm.models.ViT(2, width=16, depth=3, heads=2, head_width=8, hidden=24)
SHARED = {
    "signed": named(signed),
    "halves": named(halves),
    "split": named(split),
    "raw": named(raw),
    "vit": of_model(VIT),
    "nnx": of_model(fm.models.from_nnx(nnx_module)),
}
ALONE = {
    "mlp": of_model(fm.models.MLP(3, (4, 5))),
    "given": lambda key: named(signed)(key) | {"given": key_free},
    "twice": lambda key: {"a": (layers := named(signed)(key)), "b": layers},
}
key_free = jnp.arange(3.0)


@pytest.mark.parametrize("name", [*SHARED, *ALONE])
def test_equal_layers_are_drawn_as_in_one_program(name):
    init = {**SHARED, **ALONE}[name]
    before = initial._evaluate._cache_size() + initial._evaluate_quickly._cache_size()
    drawn = initial.draw_params(Partial(init), KEY)
    programs = initial._evaluate._cache_size() + initial._evaluate_quickly._cache_size()
    assert_same_bits(drawn, jax.jit(init)(KEY))
    assert (programs > before) == (name in SHARED)
    other = initial.draw_params(Partial(init), jax.random.key(4))
    assert any(
        jax.tree.leaves(jax.tree.map(lambda a, b: jnp.any(a != b), drawn, other))
    )


def test_arrays_of_a_task_are_not_given_away():
    given = {"x": jnp.arange(3.0)}
    init = Partial(lambda given, key: {**given, "y": jax.random.normal(key)}, given)
    drawn = initial.draw_params(init, KEY)
    np.testing.assert_array_equal(drawn["x"], given["x"])
    assert drawn["x"].unsafe_buffer_pointer() != given["x"].unsafe_buffer_pointer()

"""Modules of flax.nnx by the adapter: gradients and training as those of flax.linen."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_muon as fm
from fedjax_muon.models import MLP, from_nnx
from fedjax_muon.tasks.task import Batch

WIDTHS = (5, 4)


class Net(nnx.Module):
    """The MLP of the library, its layers in a list."""

    def __init__(self, rngs: nnx.Rngs):
        sizes = (6, *WIDTHS, 3)
        pairs = itertools.pairwise(sizes)
        self.layers = nnx.List([nnx.Linear(*pair, rngs=rngs) for pair in pairs])

    def __call__(self, x):
        x = x.reshape(len(x), -1)
        for layer in self.layers:
            x = layer(x)
            x = x if layer is self.layers[-1] else nnx.relu(x)
        return x


class Dropped(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.head = nnx.Linear(400, 3, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.head(self.drop(x))


def in_linen(params):
    layers = list(params["layers"].values())
    return {f"Dense_{i}": x for i, x in enumerate(layers[:-1])} | {"head": layers[-1]}


@pytest.fixture(scope="module")
def tasks():
    return [fm.tasks.classification(m, (6,)) for m in (from_nnx(Net), MLP(3, WIDTHS))]


def batch(rng, rows=7):
    x = jnp.asarray(rng.normal(size=(rows, 6)), jnp.float32)
    y = jnp.asarray(rng.integers(3, size=rows), jnp.int32)
    return Batch(x, y, jnp.asarray(rng.random(rows), jnp.float32))


def test_gradients_are_those_of_linen(tasks):
    ours, linen = tasks
    params = ours.init(jax.random.key(0))
    given = batch(np.random.default_rng(0))
    found = ours.grad(params, given, jax.random.key(1))
    wanted = linen.grad(in_linen(params), given, jax.random.key(1))
    assert jax.tree.structure(found) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, in_linen(found), wanted)


def test_each_key_draws_other_parameters_as_nnx_does(tasks):
    first, again, other = (tasks[0].init(jax.random.key(i)) for i in (0, 0, 1))
    kernel = lambda params: np.asarray(params["layers"]["0"]["kernel"])
    np.testing.assert_array_equal(kernel(first), kernel(again))
    assert (kernel(first) != kernel(other)).all()
    assert abs(kernel(first).std() - 6**-0.5) < 0.2


class Flagged(Dropped):
    def __call__(self, x, train: bool):
        return self.head(self.drop(x, deterministic=not train))


class Silenced(Dropped):
    def __call__(self, x, *, deterministic=True):
        return self.head(self.drop(x, deterministic=deterministic))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Dropped, Flagged, Silenced])
def test_dropout_is_active_in_training_alone(kind):
    model = from_nnx(kind)
    x = jnp.ones((1, 400))
    params = model.init(jax.random.key(0), x)["params"]
    params["head"]["bias"] = jnp.zeros(3)
    params["head"]["kernel"] = jnp.ones((400, 3))
    apply = partial(model.apply, {"params": params}, x)
    keyed = lambda i: apply(rngs={"dropout": jax.random.key(i)})
    np.testing.assert_array_equal(apply(), [[400] * 3])
    draws = np.array([keyed(i)[0, 0] for i in range(8)])
    # sums of 400 entries that are 0 or 2
    assert len({*draws}) > 3
    assert np.abs(draws - 400).max() < 5 * 2 * 10
    assert (draws % 2 == 0).all()
    np.testing.assert_array_equal(keyed(3), keyed(3))

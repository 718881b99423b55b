"""Matrices of one shape, which accelerators get at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from optax.contrib import MuonDimensionNumbers
from support.jaxprs import products

from fedjax_muon.linalg import newton_schulz
from fedjax_muon.transforms import layout, orthogonalize
from fedjax_muon.transforms.layout import in_stacks

SHAPES = [(4, 6), (6, 4), (2, 4, 6), (4, 6), (4, 4), (0, 4, 6)]


def gaussian(shape, dtype=jnp.float32):
    values = np.random.default_rng(sum(shape)).normal(size=shape)
    return jnp.asarray(values, dtype)


def calls_of(*matrices):
    """What a function of matrices is called with, its results being checked."""
    calls = []

    def double(x):
        calls.append((x.shape, str(x.dtype)))
        return 2 * x

    results = in_stacks(double, *matrices)
    for x, doubled in zip(matrices, results, strict=True):
        assert doubled.dtype == x.dtype
        np.testing.assert_array_equal(doubled, 2 * x)
    return calls


def test_one_call_for_each_shape():
    found = calls_of(*map(gaussian, SHAPES))
    assert [shape for shape, _ in found] == [(4, 4, 6), (1, 6, 4), (1, 4, 4)]


def test_types_are_kept_apart():
    half = gaussian((4, 6), jnp.bfloat16)
    found = calls_of(gaussian((4, 6)), half, gaussian((4, 6)))
    assert found == [((2, 4, 6), "float32"), ((1, 4, 6), "bfloat16")]


def test_stacks_have_a_largest_size(monkeypatch):
    monkeypatch.setattr(layout, "STACK", 2 * 24)
    found = calls_of(*[gaussian((4, 6))] * 5, gaussian((3, 4, 6)))
    assert [shape[0] for shape, _ in found] == [2, 2, 1, 3]


def test_without_matrices_nothing_is_called():
    rule = orthogonalize(lambda x: pytest.fail("called"))
    given = {"bias": jnp.ones(3), "scalar": jnp.ones(())}
    result, _ = rule.update(given, rule.init(given))
    jax.tree.map(np.testing.assert_array_equal, result, given)


@pytest.fixture
def on_accelerators(monkeypatch):
    """The form of accelerators, on this CPU."""

    def default(*args, cpu, default):
        del cpu
        return default(*args)

    monkeypatch.setattr(jax.lax, "platform_dependent", default)


TREE = {
    "dense": gaussian((4, 6)),
    "attention": {"query": {"kernel": gaussian((4, 2, 3))}, "bias": gaussian((6,))},
    "convolution": gaussian((1, 2, 2, 6)),
    "scanned": gaussian((3, 6, 4)),
}


def numbers(tree):
    """The layers of a scan are a batch axis."""
    found = layout.muon_dimension_numbers(tree)
    return found | {"scanned": MuonDimensionNumbers(-2, -1)}


def transformed(tree, polar=newton_schulz.polar):
    rule = orthogonalize(polar, layout=numbers)
    return rule.update(tree, rule.init(tree))[0]


def test_polar_factors_are_those_of_every_leaf(on_accelerators):
    shapes = []

    def polar(x):
        shapes.append(x.shape)
        return newton_schulz.polar(x)

    found = transformed(TREE, polar)
    assert sorted(shapes) == [(3, 4, 6), (3, 6, 4)]
    one = lambda n, leaf: layout.as_matrices(newton_schulz.polar, n, leaf)
    expected = layout.map_matrices(one, numbers(TREE), TREE)
    close = lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6)
    jax.tree.map(close, found, expected)


@pytest.mark.slow
def test_clients_are_one_more_axis(on_accelerators):
    two = jax.tree.map(lambda x: jnp.stack([x, x[..., ::-1]]), TREE)
    found = jax.jit(jax.vmap(transformed))(two)
    close = lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5)
    for i in range(2):
        one = jax.tree.map(lambda x, i=i: x[i], two)
        jax.tree.map(lambda x, y, i=i: close(x[i], y), found, transformed(one))


@pytest.mark.slow
@pytest.mark.parametrize("accelerator", [False, True])
def test_matrices_that_devices_share_are_kept_apart(accelerator, request):
    if accelerator:
        request.getfixturevalue("on_accelerators")
    kinds = (AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("d",), kinds, devices=jax.devices()[:2])
    own, shared = PartitionSpec("d"), PartitionSpec()

    def run(a, b):
        found = transformed({"scanned": TREE["scanned"], "a": a, "b": b})
        return found["a"], found["b"]

    a, b = gaussian((8, 6)), gaussian((4, 6))
    given = {"in_specs": (own, shared), "out_specs": (own, shared)}
    found_a, found_b = jax.jit(jax.shard_map(run, mesh=mesh, **given))(a, b)
    halves = [newton_schulz.polar(half) for half in jnp.split(a, 2)]
    np.testing.assert_allclose(found_a, jnp.concatenate(halves), atol=1e-5)
    np.testing.assert_allclose(found_b, newton_schulz.polar(b), atol=1e-5)


def test_the_platform_decides():
    matrices = {str(i): gaussian((4, 4)) for i in range(7)}
    rule = orthogonalize()
    run = lambda tree: rule.update(tree, rule.init(tree))[0]
    traced = jax.make_jaxpr(run)(matrices).jaxpr
    step = 15  # products of five steps
    assert len(products(traced, "cpu")) == 7 * step
    assert len(products(traced, "tpu")) == len(products(traced, "cuda")) == step

"""Which leaves of real Flax models are matrices, which way up, and their stacks."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from flax import nnx
from jax.sharding import AxisType, PartitionSpec
from optax.contrib import MuonDimensionNumbers

from fedjax_muon import models
from fedjax_muon.linalg import newton_schulz
from fedjax_muon.linalg.newton_schulz import polar
from fedjax_muon.transforms import (
    by_rank,
    layout,
    muon_dimension_numbers,
    orthogonalize,
)
from fedjax_muon.transforms.layout import (
    as_matrices,
    fans,
    in_stacks,
    leaf_axes,
    map_matrices,
)
from tests.support.jaxprs import products
from tests.support.parity import by_path

DENSE = MuonDimensionNumbers((0,), 1)
CONV = MuonDimensionNumbers((0, 1, 2), 3)
PROJECTION = MuonDimensionNumbers(0, (1, 2))
MERGE = MuonDimensionNumbers((0, 1), 2)


def gaussian(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def scipy_polar(x):
    """The polar factor of one matrix, in float64 by another algorithm."""
    return scipy.linalg.polar(np.asarray(x, np.float64))[0]


def is_numbers(node):
    return node is None or isinstance(node, MuonDimensionNumbers)


def numbers_of(params, **options):
    return by_path(muon_dimension_numbers(params, **options), is_numbers)


class Transformer(nn.Module):
    """All kinds of leaves: 7 tokens, width 12 in 4 heads of 3."""

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(7, 12)(tokens)
        x = nn.Conv(12, (3,))(x)
        x = nn.MultiHeadDotProductAttention(4, normalize_qk=True)(x)
        return nn.Dense(5, name="head")(nn.LayerNorm()(x))


class ConvNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm(feature_axes=(-2, -1))(nn.Conv(8, (3, 5))(x))
        x = nn.ConvTranspose(6, (2, 2))(nn.Conv(8, (3, 3), feature_group_count=4)(x))
        return nn.Dense(10, name="query")(x.reshape(len(x), -1))


class Block(nn.Module):
    bias: bool = True
    norm: bool = False

    @nn.compact
    def __call__(self, x, _):
        x = nn.LayerNorm()(x) if self.norm else x
        return nn.Dense(4, use_bias=self.bias)(x), None


class Scanned(nn.Module):
    bias: bool = True
    norm: bool = False

    @nn.compact
    def __call__(self, x):
        stack = nn.scan(
            Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3
        )
        x, _ = stack(self.bias, self.norm)(x, None)
        return nn.Dense(2, name="head")(x)


class Together(nn.Module):
    @nn.compact
    def __call__(self, x):
        kind = nn.vmap(
            nn.MultiHeadDotProductAttention,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            axis_size=3,
            in_axes=None,
        )
        return kind(num_heads=2)(x)


@nnx.vmap(in_axes=0, out_axes=0)
def linears(rngs):
    return nnx.Linear(4, 4, rngs=rngs)


STACKED = {  # parameters, and the name of what is stacked
    "scan": (lambda: params_of(Scanned(), jnp.ones((1, 4))), "ScanBlock_0"),
    "no bias": (lambda: params_of(Scanned(False), jnp.ones((1, 4))), "ScanBlock_0"),
    "a norm": (
        lambda: params_of(Scanned(False, True), jnp.ones((1, 4))),
        "ScanBlock_0",
    ),
    "attention": (
        lambda: params_of(Together(), jnp.ones((1, 5, 4))),
        "VmapMultiHeadDotProductAttention_0",
    ),
    "nnx": (
        lambda: {"layers": nnx.to_pure_dict(nnx.state(linears(nnx.Rngs(0).split(3))))},
        "layers",
    ),
}


@pytest.mark.parametrize("kind", STACKED)
def test_stacked_layers_are_warned_of_or_named(kind):
    make, name = STACKED[kind]
    params = make()
    said = rf"of an nn.scan or nn.vmap.*stacked=\('{name}',\)"
    for look in (muon_dimension_numbers, layout.hidden_matrices):
        with pytest.warns(UserWarning, match=said):
            look({**params, "head": jnp.ones((4, 2))})
    numbers = numbers_of(params, stacked=(name,))
    for path, known in numbers.items():
        if known is not None and name in path:
            shape = dict(by_path(params, lambda _: False))[path].shape
            axes = leaf_axes(known, jax.ShapeDtypeStruct(shape, jnp.float32))
            assert axes.batch == (0,)
    assert any(known is not None for known in numbers.values())


def test_layers_of_one_kind_are_no_stack():
    """Convolutions, attention, and parts of a tree that `partition` masks."""
    for params in (
        params_of(Transformer(), jnp.ones((1, 5), jnp.int32)),
        params_of(ConvNet(), jnp.ones((1, 8, 8, 3))),
        params_of(nn.Conv(4, (3,), use_bias=False, name="conv"), jnp.ones((1, 5, 2))),
    ):
        muon_dimension_numbers({"conv": params})  # warnings are errors
        rule = by_rank(orthogonalize(), layout=muon_dimension_numbers)
        jax.eval_shape(rule.init, {"conv": params})


@pytest.mark.parametrize("name", ["lm_head", "Dense_3", "classifier", "logits"])
def test_a_model_without_a_head_is_warned_of(name):
    params = {
        "Embed_0": {"embedding": jnp.ones((5, 4))},
        name: {"kernel": jnp.ones((4, 5))},
    }
    with pytest.warns(UserWarning, match="no layer is named head, so the layout takes"):
        layout.hidden_matrices(params)
    tied = {
        "tokens": {"embedding": jnp.ones((5, 4))},
        "up": {"kernel": jnp.ones((4, 4))},
    }
    layout.hidden_matrices(tied)
    layout.hidden_matrices({"head": params[name], "Embed_0": params["Embed_0"]})


def params_of(model, *inputs):
    """Shapes suffice: nothing here depends on values."""
    return jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]


def test_leaves_of_a_transformer():
    params = params_of(Transformer(), jnp.zeros((2, 9), int))
    matrices = {
        "Embed_0/embedding": ((7, 12), DENSE),
        "Conv_0/kernel": ((3, 12, 12), MERGE),
        "head/kernel": ((12, 5), DENSE),
    }
    attention = "MultiHeadDotProductAttention_0"
    for name in ("query", "key", "value"):
        matrices[f"{attention}/{name}/kernel"] = (12, 4, 3), PROJECTION
    matrices[f"{attention}/out/kernel"] = (4, 3, 12), MERGE
    numbers, leaves = numbers_of(params), by_path(params)
    assert numbers.keys() == leaves.keys()
    assert leaves[f"{attention}/query/bias"].ndim == 2  # the trap for rules by rank
    found = {k: (leaves[k].shape, n) for k, n in numbers.items() if n is not None}
    assert found == matrices


def test_leaves_of_a_convolutional_net():
    params = params_of(ConvNet(), jnp.zeros((2, 4, 4, 3)))
    assert params["LayerNorm_0"]["scale"].ndim == 2
    found = {k: n for k, n in numbers_of(params).items() if n is not None}
    names = ("Conv_0/kernel", "Conv_1/kernel", "ConvTranspose_0/kernel")
    assert found == dict.fromkeys(names, CONV) | {"query/kernel": DENSE}


@pytest.mark.parametrize("name", ["mlp", "lenet", "emnist_cnn"])
def test_kernels_and_only_kernels_of_our_models(name):
    image = jnp.zeros((1, 28, 28, 1))
    params = params_of(models.ALL[name](classes=10), image)
    numbers = numbers_of(params)
    for path, n in numbers.items():
        assert (n is not None) == path.endswith("/kernel")
    for path, leaf in by_path(params).items():
        if numbers[path] is not None:
            expected = math.prod(leaf.shape[:-1]), leaf.shape[-1]
            assert fans(numbers[path], leaf) == expected


def test_exclude():
    params = params_of(Transformer(), jnp.zeros((2, 9), int))
    every = numbers_of(params)
    fewer = numbers_of(params, exclude=("bias", "scale", "embedding", "head"))
    gone = {k for k in every if every[k] is not None and fewer[k] is None}
    assert gone == {"Embed_0/embedding", "head/kernel"}
    biases = numbers_of(params, exclude=())
    more = {k for k in every if every[k] is None and biases[k] is not None}
    assert {k.rsplit("/", 2)[1] for k in more} == {"query", "key", "value"}


def test_nnx_and_boxed_parameters_have_the_same_matrices():
    init = nn.with_partitioning(nn.initializers.lecun_normal(), ("a", "b"))
    model = nn.MultiHeadDotProductAttention(4, kernel_init=init)
    boxed = params_of(model, jnp.zeros((2, 5, 12)))
    attention = nnx.MultiHeadAttention(4, 12, decode=False, rngs=nnx.Rngs(0))
    state = nnx.state(attention, nnx.Param)
    for params in (boxed, state):
        found = {k.removesuffix("/value"): n for k, n in numbers_of(params).items()}
        assert found == numbers_of(nn.unbox(boxed))

    tx = by_rank(orthogonalize(polar))
    updates, _ = tx.update(state, tx.init(state), state)
    assert jax.tree.structure(updates) == jax.tree.structure(state)
    found, given = (t["query"]["kernel"][...].reshape(12, 12) for t in (updates, state))
    np.testing.assert_allclose(found, scipy_polar(given), atol=3e-5)


def applied(function, x, numbers):
    rule = orthogonalize(function, layout=lambda _: {"x": numbers})
    return np.asarray(rule.update({"x": x}, rule.init(None))[0]["x"])


def test_convolutions_agree_with_the_layout_of_torch():
    x = gaussian(3, 5, 4, 7)  # height, width, in, out
    rule = orthogonalize(polar)
    ours = rule.update({"kernel": x}, rule.init(None))[0]["kernel"]
    torch_kernel = x.transpose(3, 2, 0, 1)  # out, in, height, width
    theirs = scipy_polar(torch_kernel.reshape(7, -1)).reshape(torch_kernel.shape)
    np.testing.assert_allclose(ours, theirs.transpose(2, 3, 1, 0), atol=3e-6)


@pytest.mark.parametrize("numbers", [(1, 2), (-2, -1), ((1,), (-1,))])
def test_a_stack_of_layers_is_a_batch(numbers):
    stack = gaussian(3, 6, 4)
    ours = applied(polar, stack, MuonDimensionNumbers(*numbers))
    np.testing.assert_allclose(ours, [scipy_polar(x) for x in stack], atol=3e-6)


def test_axes_are_taken_in_the_order_given():
    """Row (l, k) of the matrix is x[k, :, l]: the last reduction axis is the inner."""
    x = gaussian(2, 5, 3)
    seen = []

    def spy(matrices):
        seen.append(np.asarray(matrices))
        return matrices

    back = as_matrices(spy, MuonDimensionNumbers((2, 0), 1), jnp.asarray(x))
    np.testing.assert_array_equal(back, x)
    assert seen[0].shape == (6, 5)
    for k, l in np.ndindex(2, 3):
        np.testing.assert_array_equal(seen[0][2 * l + k], x[k, :, l])


def test_fans_and_axes():
    x = jnp.zeros((2, 3, 4, 5))
    numbers = MuonDimensionNumbers((-1, 0), -2)
    assert leaf_axes(numbers, x) == ((1,), (3, 0), (2,))
    assert fans(numbers, x) == (10, 4)
    # A grouped convolution has in / groups inputs.
    assert fans(CONV, jnp.zeros((3, 3, 64, 128))) == (576, 128)


def test_other_leaves_are_left_alone():
    """None may stand for a whole subtree, and parameters may be absent (None)."""
    leaves = {"a": jnp.ones((2, 3)), "b": {"c": jnp.ones(4), "d": None}, "e": None}
    numbers = {"a": DENSE, "b": None, "e": None}
    mapped = map_matrices(lambda n, x: (n, -x), numbers, leaves)
    assert mapped["b"] is leaves["b"]
    assert mapped["e"] is None
    given, negative = mapped["a"]
    assert given == DENSE
    np.testing.assert_array_equal(negative, -leaves["a"])
    derived = muon_dimension_numbers(leaves)
    assert derived == {"a": DENSE, "b": {"c": None, "d": None}, "e": None}


SHAPES = [(4, 6), (6, 4), (2, 4, 6), (4, 6), (4, 4), (0, 4, 6)]


def drawn(shape, dtype=jnp.float32):
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


def test_one_call_for_each_shape_and_type_up_to_a_largest_size(monkeypatch):
    found = calls_of(*map(drawn, SHAPES))
    assert [shape for shape, _ in found] == [(4, 4, 6), (1, 6, 4), (1, 4, 4)]
    found = calls_of(drawn((4, 6)), drawn((4, 6), jnp.bfloat16), drawn((4, 6)))
    assert found == [((2, 4, 6), "float32"), ((1, 4, 6), "bfloat16")]
    monkeypatch.setattr(layout, "STACK", 2 * 24)
    found = calls_of(*[drawn((4, 6))] * 5, drawn((3, 4, 6)))
    assert [shape[0] for shape, _ in found] == [2, 2, 1, 3]


@pytest.fixture
def on_accelerators(monkeypatch):
    """The form of accelerators, on this CPU."""

    def default(*args, cpu, default):
        del cpu
        return default(*args)

    monkeypatch.setattr(jax.lax, "platform_dependent", default)


TREE = {
    "dense": drawn((4, 6)),
    "attention": {"query": {"kernel": drawn((4, 2, 3))}, "bias": drawn((6,))},
    "convolution": drawn((1, 2, 2, 6)),
    "scanned": drawn((3, 6, 4)),
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


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_cpus_treat_every_matrix_as_it_would_be_alone(count):
    leaves = {f"{i}": (i + 1.0) * drawn((2 + i % 2, 4, 6))[0] for i in range(count)}
    leaves["scanned"] = drawn((3, 4, 6))
    expected = jax.tree.map(jax.jit(newton_schulz.orthogonalize), leaves)
    found = jax.jit(lambda tree: transformed(tree, newton_schulz.orthogonalize))(leaves)
    close = lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6)
    jax.tree.map(close, found, expected)


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

    a, b = drawn((8, 6)), drawn((4, 6))
    given = {"in_specs": (own, shared), "out_specs": (own, shared)}
    found_a, found_b = jax.jit(jax.shard_map(run, mesh=mesh, **given))(a, b)
    halves = [newton_schulz.polar(half) for half in jnp.split(a, 2)]
    np.testing.assert_allclose(found_a, jnp.concatenate(halves), atol=1e-5)
    np.testing.assert_allclose(found_b, newton_schulz.polar(b), atol=1e-5)


@pytest.mark.parametrize("count", [2, 7])
def test_the_platform_decides(count):
    matrices = {str(i): drawn((4, 4)) for i in range(count)}
    rule = orthogonalize()
    run = lambda tree: rule.update(tree, rule.init(tree))[0]
    traced = jax.make_jaxpr(run)(matrices).jaxpr
    step = 15  # products of five steps
    assert len(products(traced, "cpu")) == (2 if count == 2 else 1) * step  # a loop
    assert len(products(traced, "tpu")) == len(products(traced, "cuda")) == step

"""A network in float64 beside torch's: the sum of the sines of its logits."""

import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.models.dropout import Dropout
from tests.support.packages import needs


def shapes(model, image):
    """Of the parameters."""
    x = jax.ShapeDtypeStruct((2, *image), jnp.float32)
    logits, variables = jax.eval_shape(model.init_with_output, jax.random.key(0), x)
    assert logits.shape == (2, model.classes)
    assert set(variables) == {"params"}
    return variables["params"]


def drawn(shapes):
    """Normal parameters, all away from where they start, in float64."""
    rng = np.random.default_rng(0)
    scale = lambda p: math.sqrt(p.size / p.shape[-1])
    return jax.tree.map(lambda p: rng.normal(size=p.shape) / scale(p), shapes)


def by_path(tree, is_leaf=None):
    """The leaves by the names that lead to them."""
    pairs = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
    return {name(path): leaf for path, leaf in pairs}


def differentiated(model, params, x):
    """The logits [B, classes] and the gradient of the parameters, by JAX."""
    with jax.enable_x64(True):

        def loss(params):
            logits = model.apply({"params": params}, jnp.asarray(x))
            return jnp.sum(jnp.sin(logits)), logits

        gradient, logits = jax.jit(jax.grad(loss, has_aux=True))(params)
        return np.asarray(logits), jax.tree.map(np.asarray, gradient)


def torch_leaves(params):
    """The parameters as torch's, which gather their gradients."""
    torch = needs("torch")
    return jax.tree.map(lambda p: torch.tensor(p, requires_grad=True), params)


def check_against_torch(model, image, reference):
    """Logits and gradients are those of `reference(model, leaves, x)` in torch."""
    torch = needs("torch")
    params = drawn(shapes(model, image))
    x = np.random.default_rng(1).normal(size=(2, *image))
    logits, gradient = differentiated(model, params, x)
    leaves = torch_leaves(params)
    expected = reference(model, leaves, torch.tensor(x))
    torch.sin(expected).sum().backward()
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)
    close(logits, expected.detach().numpy())
    for path, leaf in by_path(leaves).items():
        close(by_path(gradient)[path], leaf.grad.numpy(), err_msg=path)


def check_initial_scales(model, side, scales):
    """The standard deviations of some parameters, by their names."""

    @jax.jit
    def some():  # the others cost time to compile
        params = model.init(jax.random.key(0), jnp.zeros((1, side, side, 3)))["params"]
        return {name: by_path(params)[name] for name in scales}

    leaves = some()
    for name, scale in scales.items():
        # an entry's square strays from its mean by sqrt(2) of it at most
        error = 5 * math.sqrt(2 / leaves[name].size)
        mean = np.mean(leaves[name] ** 2)
        assert math.isclose(mean, scale**2, rel_tol=error), name
    if scales["patches/kernel"] != 0.02:
        bound = math.sqrt(3) * scales["patches/kernel"]
        assert np.max(np.abs(leaves["patches/kernel"])) <= bound  # uniform


def check_inside_shard_map(model, image):
    """That what does not vary over devices, and images, which do, go together."""
    params = shapes(model, image)
    loss = lambda p, x: jnp.sum(jnp.sin(model.apply({"params": p}, x)))
    mesh = jax.make_mesh((4,), ("b",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, split = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("b")
    gradient = jax.shard_map(
        jax.grad(loss), mesh=mesh, in_specs=(whole, split), out_specs=whole
    )
    x = jax.ShapeDtypeStruct((4, *image), jnp.float32)
    found = jax.eval_shape(gradient, params, x)
    jax.tree.map(lambda g, p: np.testing.assert_equal(g.shape, p.shape), found, params)


def dropouts(run):
    """Shape and rate of each `Dropout` that `run()` comes by, in their order."""
    seen = []

    def watch(call, args, options, context):
        if isinstance(context.module, Dropout) and context.method_name == "__call__":
            seen.append((args[0].shape, context.module.rate))
        return call(*args, **options)

    with nn.intercept_methods(watch):
        run()
    return seen

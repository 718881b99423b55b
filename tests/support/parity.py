"""A network in float64 beside torch's: the sum of the sines of its logits."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from packages import needs


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
    """Shape and rate of each `nn.Dropout` that `run()` comes by, in their order; they
    must act where there is a key, and nowhere else."""
    seen = []

    def watch(call, args, options, context):
        if isinstance(context.module, nn.Dropout) and context.method_name == "__call__":
            seen.append((args[0].shape, context.module.rate))
            assert context.module.deterministic is not context.module.has_rng("dropout")
        return call(*args, **options)

    with nn.intercept_methods(watch):
        run()
    return seen

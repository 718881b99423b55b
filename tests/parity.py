"""A network in float64 beside torch's: the sum of the sines of its logits."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch


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
    return jax.tree.map(lambda p: torch.tensor(p, requires_grad=True), params)

"""A network in float64 beside torch's: the sum of the sines of its logits."""

import jax
import jax.numpy as jnp
import numpy as np
import torch


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

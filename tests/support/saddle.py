"""The saddle-point problem of the oracles, with automatic gradients."""

import jax
import jax.numpy as jnp

from fedjax_muon.core import Objective
from fedjax_muon.core.pair import descent_ascent
from tests.oracles.saddle import CURVATURE


def loss(params, batch):
    """`oracles.saddle.saddle_loss`, to be differentiated automatically."""
    a, target, weight = batch
    x, y = params
    error = jnp.tanh(x["s"] * (a @ x["w"]) + x["b"][None, :]) - target
    z = error @ y["v"] + y["t"]
    payoff = jnp.sum(target[:, :2] * z - 0.5 * z**2, axis=1)
    mean = jnp.sum(weight * (jnp.mean(error**2, axis=1) + payoff)) / jnp.sum(weight)
    return mean - 0.5 * CURVATURE * (jnp.sum(y["v"] ** 2) + y["t"] ** 2)


def gradient(params, batch, key):
    del key
    return jax.grad(loss)(params, batch)


grad_fn = descent_ascent(gradient)
OBJECTIVE = Objective(grad_fn)

"""How far clients' stochastic gradients lie from their mean, to see the noise's tail.

norms = noise_norms(simulation, state.params, jax.random.key(0), batches=128)
metrics.hill(norms, tail=100)  # below 2: no finite variance
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import tree
from fedjax_muon.simulation.batching import Clients, draw_rows, on
from fedjax_muon.simulation.rounds import Setup, of_inputs
from fedjax_muon.simulation.simulation import Simulation


def noise_norms(
    simulation: Simulation, params, key: jax.Array, *, batches: int
) -> jax.Array:
    """|| g(batch) - mean of g || for independent batches of every client.

    Args:
      simulation: its task, clients, sampler and batch size are what is measured.
      params: where gradients are taken, as `State.params`.
      key: of the batches.
      batches: how many of every client; their mean stands for the client's gradient.

    Returns the norms over all parameters together, [N, batches]: all zero where batches
    are all of a client's examples. Raises `ValueError` for fewer than two batches.
    """
    if batches < 2:
        raise ValueError(f"batches must be at least 2, got {batches}")
    run = partial(_norms, max_client_size=simulation.max_client_size, batches=batches)
    measure = jax.jit(of_inputs(run, simulation.setup))
    return measure(simulation.inputs, simulation.clients, params, key)


def _norms(
    setup: Setup, clients: Clients, params, key, *, max_client_size: int, batches: int
):
    grad = on(clients, setup.task.grad)
    draw = draw_rows(clients, setup.sampler, 1, setup.batch_size, max_client_size)

    def gradient(client, key):
        rows_key, grad_key = jax.random.split(key)
        rows = jax.tree.map(lambda v: v[0], draw(client, rows_key))
        return grad(params, rows, grad_key)

    def of_client(client, key):
        keys = jax.random.split(key, batches)

        def add(total, key):
            return tree.add(total, gradient(client, key)), None

        total, _ = jax.lax.scan(add, tree.zeros_like(params), keys)
        mean = tree.scale(1 / batches, total)
        # the same batches again: gradients of all of them need not fit in memory
        apart = lambda key: tree.sub(gradient(client, key), mean)
        return jax.lax.map(lambda key: optax.tree.norm(apart(key)), keys)

    ids = jnp.arange(setup.num_clients, dtype=jnp.int32)
    keys = jax.random.split(key, setup.num_clients)
    return jax.lax.map(lambda pair: of_client(*pair), (ids, keys))

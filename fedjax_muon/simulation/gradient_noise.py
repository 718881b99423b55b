"""Norms of the noise in clients' stochastic gradients, to estimate its tail.

norms = noise_norms(simulation, state.params, jax.random.key(0), batches=128)
metrics.hill(norms, tail=100)  # below 2: no finite variance
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import Params, check_count, tree
from fedjax_muon.engine.programs import promoting
from fedjax_muon.simulation.batching import Clients, draw_rows, gradient_of_indices
from fedjax_muon.simulation.rounds import Setup, with_inputs
from fedjax_muon.simulation.simulation import Simulation


@promoting
def noise_norms(
    simulation: Simulation, params: Params, key: jax.Array, *, batches: int
) -> jax.Array:
    """Computes ||g(batch) - mean of g|| for independent batches of every client.

    Args:
      batches: Number of batches per client, whose mean estimates the client's gradient.

    Returns:
      Norms over all parameters together, [N, batches]. They are zero if every batch has
      all examples of the client.
    """
    check_count("batches", batches, 2)
    run = partial(_norms, batches=batches)
    measure = jax.jit(with_inputs(run, simulation.setup))
    return measure(simulation.inputs, simulation.clients, params, key)


def _norms(
    setup: Setup, clients: Clients, params: Params, key: jax.Array, *, batches: int
) -> jax.Array:
    grad = gradient_of_indices(clients, setup.task.grad)
    draw = draw_rows(clients, setup.sampler, 1, setup.batch_size)

    def gradient(client: jax.Array, key: jax.Array) -> Params:
        rows_key, grad_key = jax.random.split(key)
        rows = jax.tree.map(lambda v: v[0], draw(client, rows_key))
        return grad(params, rows, grad_key)

    def client_norms(client: jax.Array, key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, batches)

        def add(total: Params, key: jax.Array) -> tuple[Params, None]:
            return tree.add(total, gradient(client, key)), None

        total, _ = jax.lax.scan(add, tree.zeros_like(params), keys)
        mean = tree.scale(1 / batches, total)
        # The same gradients again, since all of them may not fit in memory.
        noise = lambda key: tree.sub(gradient(client, key), mean)
        return jax.lax.map(lambda key: optax.tree.norm(noise(key)), keys)

    ids = jnp.arange(setup.num_clients, dtype=jnp.int32)
    keys = jax.random.split(key, setup.num_clients)
    return jax.lax.map(lambda pair: client_norms(*pair), (ids, keys))

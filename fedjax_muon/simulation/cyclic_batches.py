"""Samplers of `decentralize` whose batches depend on the iteration."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_muon.simulation.batching import Sampler, poisson


def cyclic(index: jax.Array) -> Sampler:
    """Makes a sampler that cycles through fixed batches of a client's examples.

    Examples that fill no batch are never drawn.

    Args:
      index: Int32 [], the iteration.

    Returns:
      The sampler of this iteration.
    """

    def sample(
        key: jax.Array,
        size: jax.Array,
        steps: int,
        batch_size: int,
        max_client_size: int,
    ) -> jax.Array:
        del key, max_client_size
        at = (index * steps + jnp.arange(steps)) % jnp.maximum(size // batch_size, 1)
        return at[:, None] * batch_size + jnp.arange(batch_size)[None]

    return sample


def cyclic_poisson(longest_batch: int, cycle: int) -> Callable[[jax.Array], Sampler]:
    """Makes Poisson samplers of groups that take turns, for correlated noise.

    A client's examples are divided into `cycle` groups of the same size, in order.
    Examples that fill no group are never drawn.

    Args:
      longest_batch: Largest number of examples in a batch, as for `poisson`.
      cycle: Number of groups.

    Returns:
      A function of the iteration that returns its sampler.
    """
    one = poisson(longest_batch)

    def of(index: jax.Array) -> Sampler:
        def sample(
            key: jax.Array,
            size: jax.Array,
            steps: int,
            batch_size: int,
            max_client_size: int,
        ) -> jax.Array:
            group = size // cycle
            within = one(key, group, steps, batch_size, max_client_size)
            turn = (index * steps + jnp.arange(steps)) % cycle
            return jnp.where(within < 0, -1, within + (turn * group)[:, None])

        return sample

    return of

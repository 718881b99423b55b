"""Modules of flax.nnx as modules of flax.linen, which tasks accept."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_muon.core.training_flags import flags_of


def from_nnx(make: Callable[[nnx.Rngs], nnx.Module]) -> nn.Module:
    """Converts a module of flax.nnx to one of flax.linen.

    The parameters of the nnx module become nested dictionaries, keyed by the names of
    its attributes; entries of lists have their numbers as names. With a stream
    "dropout", as in training, the module is in the mode of `train()`, otherwise of
    `eval()`, and so are the arguments of its call that say so, such as `deterministic`.

    Args:
      make: Function of the random streams that returns the module, such as
        `lambda rngs: Net(64, 10, rngs=rngs)`. It is called whenever parameters are
        drawn, so that every seed has its own.
    """
    if isinstance(make, nnx.Module):
        name = type(make).__name__
        raise TypeError(
            "from_nnx takes a function that makes the module, so that every seed has "
            f"its own parameters: from_nnx(lambda rngs: {name}(..., rngs=rngs)); to "
            "start at given ones, use tasks.starting_at"
        )
    _split(make)
    return _Converted(make)


def _split(make: Callable[[nnx.Rngs], nnx.Module]) -> tuple[Any, Any, Any]:
    """The graph of a module, and the shapes of its parameters and random streams."""
    shapes = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
    if not isinstance(shapes, nnx.Module):
        raise TypeError("from_nnx takes a function that returns a module of flax.nnx")
    parts: Any = nnx.split(shapes, nnx.Param, nnx.RngState, ...)
    graph, params, streams, others = parts
    kinds = sorted({type(v).__name__ for _, v in nnx.to_flat_state(others)})
    if kinds:
        raise ValueError(
            "from_nnx: a module must have no variables but parameters and the keys of "
            f"dropout, got {', '.join(kinds)}; use GroupNorm or LayerNorm for "
            "BatchNorm, or that of flax.linen, and decode=False in attention"
        )
    return graph, params, streams


class _Converted(nn.Module):
    make: Callable[[nnx.Rngs], nnx.Module]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        graph, params, streams = _split(self.make)
        if self.is_initializing():
            drawn = self.make(nnx.Rngs(self.make_rng("params")))
            start = _by_name(nnx.to_pure_dict(nnx.state(drawn, nnx.Param)))
        else:
            start = dict.fromkeys(_by_name(nnx.to_pure_dict(params)))
        values = {k: self.param(k, lambda _, v: v, v) for k, v in start.items()}
        nnx.replace_by_pure_dict(params, nnx.restore_int_paths(values))
        training = self.has_rng("dropout")
        key = self.make_rng("dropout") if training else jax.random.key(0)
        module: Any = nnx.merge(graph, params, _drawn(streams, key))
        module.train() if training else module.eval()
        return module(x, **flags_of(module, training=training))


def _by_name(tree: Any) -> Any:
    """Nested dictionaries whose keys are all strings."""
    if not isinstance(tree, dict):
        return tree
    return {str(name): _by_name(part) for name, part in tree.items()}


def _drawn(streams: Any, key: jax.Array) -> Any:
    """Random streams that start at keys of their own."""
    leaves, structure = jax.tree.flatten(streams)
    values = [
        jax.random.fold_in(key, i)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else jnp.zeros(leaf.shape, leaf.dtype)
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, values)

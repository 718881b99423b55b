"""Matrices that keep their Frobenius norms, for rules with `transforms.hyperball`.

    rule = optax.chain(muon(0.95, layout=hidden_matrices), hyperball())
    algorithm = fm.keep_norms(fm.fedprox(lr=0.018, rule=rule))

The mean of n points of a sphere, whose cosines are c on average, has the norm
sqrt((1 + (n - 1) c) / n) of theirs. So the server projects its parameters too.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_muon import core
from fedjax_muon.core import tree
from fedjax_muon.transforms.hyperball import with_norms_of
from fedjax_muon.transforms.layout import (
    Layout,
    hidden_matrices,
    is_numbers,
    to_matrices,
)


@core.recorded
def keep_norms(
    algorithm: core.Algorithm, layout: Layout = hidden_matrices
) -> core.Algorithm:
    """Projects matrices on the sphere of their Frobenius norm, after every move.

    Clients keep the norms of the broadcast, and the server keeps its own. Constraints
    of the task come last.

    Source: Wen et al. 2026, arXiv:2606.16899.

    Args:
      algorithm: An algorithm that broadcasts its parameters. Wrap compression of
        broadcasts, personalization and privacy around `keep_norms`.
      layout: The matrices that keep their norms. None may be 0 at the start.

    Example:
      >>> layout = fm.transforms.hidden_matrices
      >>> method = fm.keep_norms(fm.fedprox(lr=0.018), layout)
    """

    def init(params):
        _check_norms(params, layout)
        state = algorithm.init(params)
        _check_broadcasts(algorithm, state)
        return state

    def change(number: int, exchange: core.Exchange) -> core.Exchange:
        del number

        def client(objective, broadcast, client_state, batches, round):
            def project(params: core.Params) -> core.Params:
                kept = with_norms_of(broadcast.params, params, layout)
                return objective.project(kept)

            on_spheres = objective._replace(project=project)
            return exchange.client(on_spheres, broadcast, client_state, batches, round)

        def server(state, mean, round):
            after = exchange.server(state, mean, round)
            kept = with_norms_of(state.params, after.params, layout)
            return after._replace(params=kept)

        return exchange._replace(client=client, server=server)

    return core.map_exchanges(change, algorithm)._replace(init=init)


def _check_norms(params: core.Params, layout: Layout) -> None:
    """Raises `ValueError` for a matrix that is 0, where its values are known."""
    numbers = jax.tree.leaves(layout(params), is_leaf=is_numbers)
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for (path, leaf), known in zip(leaves, numbers, strict=True):
        if known is None or isinstance(leaf, jax.core.Tracer):
            continue
        if not jnp.any(to_matrices(known, leaf), (-2, -1)).all():
            raise ValueError(
                "keep_norms needs matrices that are not 0 at the start, but "
                f"{jax.tree_util.keystr(path)} is 0: draw it at random, or leave it "
                "out of the layout"
            )


def _check_broadcasts(algorithm: core.Algorithm, state: Any) -> None:
    """Raises `ValueError` unless all broadcasts have the server's parameters."""
    start = core.Round(jnp.int32(0), jax.random.key(0), 1, 1, 1.0)
    for exchange in (*algorithm.prologue, *algorithm.exchanges):
        sent = jax.eval_shape(exchange.broadcast, state, start)
        params = tree.shapes(getattr(sent, "params", None))
        if tree.difference(params, tree.shapes(state.params)):
            raise ValueError(
                f"keep_norms needs broadcasts of all parameters, unlike those of "
                f"{algorithm!r}; wrap it around another algorithm, such as fedavg, and "
                "other wrappers around keep_norms"
            )

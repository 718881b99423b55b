"""Parameters that every client keeps, such as its head or its normalization layers.

FedPer: Arivazhagan et al. 2019, arXiv:1912.00818 (heads). FedBN: Li et al. 2021,
arXiv:2102.07623 (normalization layers). Clients train all parameters together. Their
own ones never leave them: they are in no broadcast and no message.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_muon.core import Algorithm, Exchange, Params, map_exchanges, recorded
from fedjax_muon.core.messages import message_shapes
from fedjax_muon.personalization.personal import Personal, merged

Path = tuple[Any, ...]


@recorded
def keep_own(algorithm: Algorithm, names: Sequence[str]) -> Algorithm:
    """Lets every client keep some parameters, which all start from the initial ones.

    What the server broadcasts besides them, such as a momentum, is 0 there.

    Args:
      algorithm: An algorithm whose clients average what they move, such as `fedavg`,
        `fedprox`, `fednova`, `fedmuon` or `fedmuon_align`, and their variants.
      names: Names of layers or of single arrays: a parameter is a client's own if one
        of them is in its path.

    Returns:
      The algorithm. Its clients keep `Personal` states; the server's own leaves stay
      the initial ones.
    """
    if isinstance(names, str):
        raise TypeError(f"names must be a sequence of names, got {names!r}")
    if not names:
        raise ValueError("names must have the name of a layer, got none")
    if any(e.local_params is None for e in algorithm.exchanges):
        raise ValueError(
            "keep_own needs an algorithm whose clients average what they move, such as "
            "fedavg, fedprox, fednova or fedmuon; wrap compress and privacy around "
            "keep_own"
        )
    names = tuple(names)
    first = len(algorithm.prologue)

    def init(params):
        _check(params, names)
        return algorithm.init(params)

    def init_client(params):
        own = _only(params, _paths(params, names))
        return Personal(algorithm.init_client(params), own)

    def change(number: int, exchange: Exchange) -> Exchange:
        def send(state, round):
            return _without(
                exchange.broadcast(state, round), _paths(state.params, names)
            )

        def client(objective, broadcast, client_state, batches, round):
            start = merged(broadcast.params, client_state.params)
            paths = _paths(start, names)
            whole = lambda params: exchange.broadcast(algorithm.init(params), round)
            full = _filled(broadcast, jax.eval_shape(whole, start))
            full = full._replace(params=start)
            inner = client_state.inner
            message, inner = exchange.client(objective, full, inner, batches, round)
            own = client_state.params
            if number >= first and exchange.local_params is not None:
                own = _only(exchange.local_params(full, message), paths)
            return _without(message, paths), Personal(inner, own)

        def server(state, mean, round):
            shape = message_shapes(algorithm, state.params)[number]
            after = exchange.server(state, _filled(mean, shape), round)
            own = _only(state.params, _paths(state.params, names))
            return after._replace(params=merged(after.params, own))

        return Exchange(send, client, server)

    changed = map_exchanges(change, algorithm)
    return changed._replace(init=init, init_client=init_client)


def _name(key: Any) -> str:
    """The name in a path of a dictionary, a named tuple or a sequence."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _paths(params: Params, names: Sequence[str]) -> set[Path]:
    """The paths of the parameters that a client keeps."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    named = (tuple(map(_name, path)) for path, _ in leaves)
    return {path for path in named if set(path) & set(names)}


def _is_own(path: Any, paths: set[Path]) -> bool:
    """Whether a path leads to a parameter, or to its entry in a tree shaped alike."""
    named = tuple(map(_name, path))
    return any(named[-len(own) :] == own for own in paths)


def _only(params: Params, paths: set[Path]) -> Any:
    keep = lambda path, leaf: leaf if _is_own(path, paths) else None
    return jax.tree_util.tree_map_with_path(keep, params)


def _without(message: Any, paths: set[Path]) -> Any:
    keep = lambda path, leaf: None if _is_own(path, paths) else leaf
    return jax.tree_util.tree_map_with_path(keep, message)


def _filled(message: Any, shape: Any) -> Any:
    """The message with zeros where it has None."""
    zeros = lambda like: jnp.zeros(like.shape, like.dtype)
    fill = lambda leaf, like: zeros(like) if leaf is None else leaf
    return jax.tree.map(fill, message, shape, is_leaf=lambda leaf: leaf is None)


def _check(params: Params, names: Sequence[str]) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    known = {_name(key) for path, _ in leaves for key in path}
    for name in names:
        if name not in known:
            raise ValueError(
                f"no parameter has {name!r} in its path; there are "
                f"{', '.join(sorted(known))}"
            )
    if len(_paths(params, names)) == len(leaves):
        raise ValueError(
            f"{', '.join(names)} are all parameters; a client must share some of them"
        )

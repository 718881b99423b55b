"""Personalization: clients that keep parameters of their own.

`keep_own` keeps some layers on the clients, such as the head or the normalization
layers. Clients train all parameters together, but their own layers are never broadcast,
and never part of a message.

`ditto` also trains a personal model v_i for every client, close to the shared model w.
With the w that the client received, and batches s of the same round,

    v_i <- v_i - lr (grad_i(v_i; s) + pull (v_i - w))

The algorithm that trains w is not changed.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon import core
from fedjax_muon.core import tree
from fedjax_muon.core.messages import message_shapes


class Personal(NamedTuple):
    """State of a client that keeps its own parameters."""

    inner: Any  # state of the algorithm that is wrapped
    params: Any  # its own parameters, None where it uses the server's


def merged(params: core.Params, own: Any) -> core.Params:
    """Puts a client's own parameters in the place of the server's.

    Args:
      own: The client's own parameters, None where it uses the server's.

    Example:
      >>> merged({"body": 1.0, "head": 2.0}, {"body": None, "head": 3.0})
      {'body': 1.0, 'head': 3.0}
    """
    is_none = lambda leaf: leaf is None
    choose = lambda own, leaf: leaf if own is None else own
    return jax.tree.map(choose, own, params, is_leaf=is_none)


def params_of_clients(params: core.Params, client_states: Any) -> core.Params | None:
    """Finds the parameters of every client.

    Returns:
      Parameters of all clients, leaves [N, ...]; None if clients keep none.
    """
    is_personal = lambda node: isinstance(node, Personal)
    nodes = jax.tree.leaves(client_states, is_leaf=is_personal)
    found = [node.params for node in nodes if is_personal(node)]
    if not jax.tree.leaves(found):
        return None
    number = len(jax.tree.leaves(found[0])[0])
    stacked = jax.tree.map(lambda x: jax.numpy.stack([x] * number), params)
    own = found[0]
    if isinstance(params, core.Variables) and not isinstance(own, core.Variables):
        own = core.Variables(own, None)
    return merged(stacked, own)


Path = tuple[Any, ...]


@core.recorded
def keep_own(algorithm: core.Algorithm, names: Sequence[str]) -> core.Algorithm:
    """Lets every client keep its own values of some parameters.

    They start from the initial parameters. For them, other values that the server
    broadcasts, such as a momentum, are 0.

    Source: FedPer for the head, Arivazhagan et al. 2019, arXiv:1912.00818, and FedBN
    for normalization layers, Li et al. 2021, arXiv:2102.07623.

    Args:
      algorithm: An algorithm whose clients average what they move, such as `fedavg`,
        `fedprox`, `fednova`, `fedmuon` or `fedmuon_align`, and their variants.
      names: Names of layers or arrays, or paths such as "Block_0/norm": a parameter is
        a client's own if its path contains one of them.

    Returns:
      The algorithm. Its clients keep `Personal` states; on the server, these parameters
      keep their initial values.

    Example:
      >>> method = fm.keep_own(fm.fedavg(lr=0.1), ["head"])
    """
    if isinstance(names, str):
        raise TypeError(f"names must be a sequence of names, got {names!r}")
    if not names:
        raise ValueError("names must have the name of a layer, got none")
    if any(e.local_params is None for e in algorithm.exchanges):
        raise ValueError(
            "keep_own and own_norms need an algorithm whose clients average what they "
            "move, such as fedavg, fedprox, fednova or fedmuon; wrap compress and "
            "privacy around keep_own"
        )
    names = tuple(names)
    first = len(algorithm.prologue)

    def init(params):
        _check(params, names)
        return algorithm.init(params)

    def init_client(params):
        own = _only(params, _paths(params, names))
        return _personal(algorithm, params, own)

    def change(number: int, exchange: core.Exchange) -> core.Exchange:
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

        return exchange._replace(
            broadcast=send, client=client, server=server, local_params=None
        )

    changed = core.map_exchanges(change, algorithm)
    return changed._replace(init=init, init_client=init_client)


def _personal(
    algorithm: core.Algorithm, params: core.Params, own: core.Params
) -> Personal:
    """The first state of a client with parameters of its own."""
    inner = algorithm.init_client(params)
    if isinstance(inner, Personal):
        raise ValueError("keep_own and ditto cannot be combined; choose one")
    return Personal(inner, own)


def _name(key: Any) -> str:
    """The name in a path of a dictionary, a named tuple or a sequence."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _paths(params: core.Params, names: Sequence[str]) -> set[Path]:
    """The paths of the parameters that a client keeps."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    named = (tuple(map(_name, path)) for path, _ in leaves)
    inside = lambda name, path: f"/{name}/" in f"/{'/'.join(path)}/"
    return {path for path in named if any(inside(name, path) for name in names)}


def _is_own(path: Any, paths: set[Path]) -> bool:
    """Whether a path leads to a parameter, or to its entry in a tree shaped alike."""
    named = tuple(map(_name, path))
    return any(named[-len(own) :] == own for own in paths)


def _only(params: core.Params, paths: set[Path]) -> Any:
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


def _check(params: core.Params, names: Sequence[str]) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    known = {_name(key) for path, _ in leaves for key in path}
    for name in names:
        if not _paths(params, [name]):
            raise ValueError(
                f"no parameter has {name!r} in its path; the names are "
                f"{', '.join(sorted(known))}"
            )
    if len(_paths(params, names)) == len(leaves):
        raise ValueError(
            f"{', '.join(names)} cover all parameters; clients must share some of them"
        )


@core.recorded
def ditto(
    algorithm: core.Algorithm, *, personal_lr: core.Hyper = 0.1, pull: core.Hyper = 1.0
) -> core.Algorithm:
    """Adds a personal model to every client.

    Source: Li et al. 2021, arXiv:2012.04221, Algorithm 1.

    Args:
      pull: Strength of the pull toward the shared model (lambda in the paper); with 0,
        clients train alone.

    Example:
      >>> method = fm.ditto(fm.fedmuon(lr=0.01), personal_lr=0.1, pull=1.0)
    """
    core.check_range("personal_lr", personal_lr)
    core.check_range("pull", pull)

    def init_client(params):
        return _personal(algorithm, params, params)

    def inner_only(exchange: core.Exchange) -> core.Exchange:
        def client(objective, broadcast, client_state, batches, round):
            inner, own = client_state
            message, inner = exchange.client(
                objective, broadcast, inner, batches, round
            )
            return message, Personal(inner, own)

        return exchange._replace(client=client)

    def with_personal(exchange: core.Exchange) -> core.Exchange:
        train = inner_only(exchange).client

        def client(objective, broadcast, client_state, batches, round):
            sent, after = train(objective, broadcast, client_state, batches, round)

            def step(v: Any, batch: Any, key: Any) -> tuple[Any, tuple[()]]:
                back = tree.sub(v, broadcast.params)
                g = objective.grad(v, batch, key)
                d = tree.add_scaled(g, core.value_at(pull, round), back)
                rate = core.value_at(personal_lr, round)
                return objective.project(tree.sub_scaled(v, rate, d)), ()

            own, _ = core.local_steps(step, after.params, batches, round)
            return sent, after._replace(params=own)

        return exchange._replace(client=client)

    first, *rest = algorithm.exchanges
    return algorithm._replace(
        init_client=init_client,
        prologue=tuple(map(inner_only, algorithm.prologue)),
        exchanges=(with_personal(first), *map(inner_only, rest)),
    )


__all__ = ["Personal", "ditto", "keep_own", "params_of_clients"]

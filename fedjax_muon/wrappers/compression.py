"""Compression of what the clients of any algorithm send and receive.

A compressor encodes one array in fewer bytes; `compress` applies it to messages, and
`compress_broadcasts` to the changes of broadcasts.

    svd = truncated_svd(memory_share(0.05))
    algorithm = compress(fedmuon_align(lr=0.03), svd, fields=["momentum"])

The engine averages decompressed messages, and counts the bytes of compressed ones.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon import core
from fedjax_muon.core import tree
from fedjax_muon.wrappers.compressors import (
    Compressor,
    Rank,
    bins,
    check_compressor,
    chunked_top_k,
    memory_share,
    no_compression,
    power_iteration,
    quantize,
    rank_share,
    signs,
    top_k,
    truncated_svd,
)
from fedjax_muon.wrappers.secure_sums import is_summed


class Encoded(NamedTuple):
    """One compressed array, without names that `fields` could select."""

    sent: Any
    like: jax.ShapeDtypeStruct  # shape and dtype of the array
    owner: object  # the call of `compress` that made it; only that call decodes it


jax.tree_util.register_pytree_node(
    Encoded,
    lambda encoded: ((encoded.sent,), encoded[1:]),
    lambda rest, sent: Encoded(*sent, *rest),
)


class ClientState(NamedTuple):
    """State of a client: that of the algorithm, and accumulated compression errors."""

    inner: Any  # of the algorithm
    errors: dict[int, list[jax.Array]]  # by exchange, of its compressed arrays


@core.recorded
def compress(
    algorithm: core.Algorithm,
    compressor: Compressor,
    *,
    fields: Sequence[str] = (),
    feedback: float | None = None,
) -> core.Algorithm:
    """Compresses the messages that the clients of an algorithm send.

    Args:
      compressor: Applied to every array separately.
      fields: Names of the fields of the messages that are compressed, such as
        "momentum"; by default, the whole message.
      feedback: Decay of the accumulated compression error, in [0, 1], which a client
        adds to its next message: e <- feedback e + message, sends C(e), e <- e - C(e).
        It is 1 in Karimireddy et al. 2019, arXiv:1901.09847, and at most 1 in Therien
        et al. 2025, arXiv:2505.23725. By default errors are discarded. Errors in the
        prologue, whose messages are sent once, are always discarded.

    Returns:
      The algorithm with compressed messages. As soon as it is given parameters, it
      raises `ValueError` if the compressor does not fit an array, or no message has one
      of the fields.

    Example:
      >>> method = fm.compress(fm.fedmuon(lr=0.01), fm.top_k(0.05), feedback=1.0)
    """
    check_compressor("compressor", compressor)
    _check_names(fields)
    if feedback is not None:
        core.check_range("feedback", feedback, 0.0, 1.0, schedules=False)
    if is_summed(algorithm):
        raise ValueError(
            "secure_sums adds messages up, and compressed ones can't be added; wrap it "
            "around compress, secure_sums(compress(...))"
        )

    owner = object()
    first = len(algorithm.prologue)
    later = range(first, first + len(algorithm.exchanges))
    added = {} if feedback is None else {n: _error_feedback(feedback) for n in later}

    def init(params):
        _check("message", compressor, fields, core.message_shapes(algorithm, params))
        return algorithm.init(params)

    def init_client(params):
        shapes = core.message_shapes(algorithm, params)
        zeros = lambda message: tree.zeros_like(_chosen(message, fields))
        errors = {n: zeros(shapes[n]) for n in added}
        return ClientState(algorithm.init_client(params), errors)

    def change(number: int, exchange: core.Exchange) -> core.Exchange:
        def client(objective, broadcast, client_state, batches, round):
            inner, errors = client_state
            message, inner = exchange.client(
                objective, broadcast, inner, batches, round
            )
            arrays = _chosen(message, fields)
            if number in errors:
                arrays = added[number](arrays, errors[number])
            encoded = _encode(compressor, owner, arrays, round.key)
            if number in errors:
                error = tree.sub(arrays, _decode(compressor, owner, encoded))
                errors = {**errors, number: error}
            return _replaced(message, fields, encoded), ClientState(inner, errors)

        decode = lambda sent: exchange.decode(_decode(compressor, owner, sent))
        return exchange._replace(client=client, decode=decode, local_params=None)

    changed = core.map_exchanges(change, algorithm)
    return changed._replace(init=init, init_client=init_client)


def _error_feedback(decay: float) -> Callable[[Any, Any], Any]:
    """Source: Karimireddy et al. 2019, arXiv:1901.09847, where the decay is 1."""
    return lambda arrays, error: tree.add_scaled(arrays, decay, error)


@core.recorded
def compress_broadcasts(
    algorithm: core.Algorithm, compressor: Compressor, *, fields: Sequence[str] = ()
) -> core.Algorithm:
    """Compresses the broadcasts of an algorithm, as changes of the clients' copies.

    The server sends C(b - w) of a broadcast b, and all clients add it to their copy w,
    from which they train. The compression error b - w stays at the server, and is part
    of the next change. At first, w is the broadcast of the initial state. Broadcasts of
    the prologue are sent as they are.

    Source: EF21-P, Gruntkowska, Tyurin and Richtarik 2022, arXiv:2209.15218.

    A simulation gives w to clients, and counts the bytes of C(b - w). A client that was
    absent needs the changes that it missed, which are not counted. A deployed server
    sends w.

    Args:
      compressor: Applied to every array separately.
      fields: Names of the fields of the broadcasts that are compressed, such as
        "params"; by default, the whole broadcast.

    Returns:
      The algorithm with compressed broadcasts. As soon as it is given parameters, it
      raises `ValueError` if the compressor does not fit an array, or no broadcast has
      one of the fields.

    Example:
      >>> method = fm.compress(fm.fedavg(lr=0.1), fm.quantize(8))
      >>> method = fm.compress_broadcasts(method, fm.quantize(8))
    """
    check_compressor("compressor", compressor)
    _check_names(fields)
    owner = object()
    first = len(algorithm.prologue)

    def init(params):
        state = algorithm.init(params)
        start = core.Round(jnp.int32(0), jax.random.key(0), 1, 1, 1.0)
        sent = [exchange.broadcast(state, start) for exchange in algorithm.exchanges]
        _check("broadcast", compressor, fields, sent)
        copies = dict(enumerate((_chosen(b, fields) for b in sent), first))
        return core.wrapped(state, copies)

    def change(number: int, exchange: core.Exchange) -> core.Exchange:
        def changed(state, round):
            """The broadcast, the arrays that are sent, and the clients' copies."""
            whole = exchange.broadcast(state.inner, round)
            copies = state.kept[number]
            new = tree.sub(_chosen(whole, fields), copies)
            sent = _encode(compressor, owner, new, round.key)
            return whole, sent, tree.add(copies, _decode(compressor, owner, sent))

        def broadcast(state, round):
            if number < first:
                return exchange.broadcast(state.inner, round)
            whole, sent, copies = changed(state, round)
            nbytes = core.sent_bytes(_replaced(whole, fields, sent))
            return core.Reconstructed(_replaced(whole, fields, copies), nbytes)

        def client(objective, broadcast, client_state, batches, round):
            known = broadcast.value if number >= first else broadcast
            if number >= first and objective.project is not core.unconstrained:
                known = known._replace(params=objective.project(known.params))
            return exchange.client(objective, known, client_state, batches, round)

        def server(state, mean, round):
            copies = state.kept
            if number >= first:  # the key is that of the broadcast
                copies = {**copies, number: changed(state, round)[2]}
            return core.wrapped(exchange.server(state.inner, mean, round), copies)

        return exchange._replace(
            broadcast=broadcast, client=client, server=server, local_params=None
        )

    return core.map_exchanges(change, algorithm)._replace(init=init)


def _check_names(fields: Sequence[str]) -> None:
    if isinstance(fields, str):
        raise TypeError(f"fields must be a sequence of names, got {fields!r}")


def _is_chosen(path: Any, fields: Sequence[str]) -> bool:
    return not fields or any(getattr(key, "name", None) in fields for key in path)


def _chosen(message: Any, fields: Sequence[str]) -> list[Any]:
    leaves = jax.tree_util.tree_leaves_with_path(message)
    return [leaf for path, leaf in leaves if _is_chosen(path, fields)]


def _replaced(message: Any, fields: Sequence[str], encoded: list[Encoded]) -> Any:
    following = iter(encoded)
    one = lambda path, leaf: next(following) if _is_chosen(path, fields) else leaf
    return jax.tree_util.tree_map_with_path(one, message)


def _encode(
    compressor: Compressor, owner: object, arrays: list[Any], key: jax.Array
) -> list[Encoded]:
    key = jax.random.fold_in(key, core.streams.COMPRESSION)
    like = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
    encode = lambda i, x: compressor.encode(x, jax.random.fold_in(key, i))
    return [Encoded(encode(i, x), like(x), owner) for i, x in enumerate(arrays)]


def _decode(compressor: Compressor, owner: object, sent: Any) -> Any:
    is_own = lambda node: isinstance(node, Encoded) and node.owner is owner
    one = lambda x: compressor.decode(x.sent, x.like) if is_own(x) else x
    return jax.tree.map(one, sent, is_leaf=is_own)


def _check(
    kind: str, compressor: Compressor, fields: Sequence[str], messages: Any
) -> None:
    leaves = [x for m in messages for x in jax.tree_util.tree_leaves_with_path(m)]
    names = {getattr(key, "name", "") for path, _ in leaves for key in path} - {""}
    for field in fields:
        if field not in names:
            known = ", ".join(sorted(names)) or "no named fields"
            raise ValueError(f"no {kind} has a field {field!r}; there are {known}")
    key = jax.eval_shape(lambda: jax.random.key(0))
    for path, leaf in leaves:
        if _is_chosen(path, fields):
            try:
                jax.eval_shape(compressor.encode, leaf, key)
            except ValueError as error:
                name = jax.tree_util.keystr(path)
                raise ValueError(
                    f"{kind}{name} can't be compressed: {error}"
                ) from error


__all__ = [
    "Compressor",
    "Rank",
    "bins",
    "chunked_top_k",
    "compress",
    "compress_broadcasts",
    "memory_share",
    "no_compression",
    "power_iteration",
    "quantize",
    "rank_share",
    "signs",
    "top_k",
    "truncated_svd",
]

"""Compression of the messages of any algorithm.

    svd = truncated_svd(memory_share(0.05))
    algorithm = compress(fedmuon_align(lr=0.03), svd, parts=["momentum"])

The engine averages decompressed messages, and counts the bytes of compressed ones.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from fedjax_muon.compression.compressors import Compressor
from fedjax_muon.core import (
    Algorithm,
    Exchange,
    check_range,
    map_exchanges,
    message_shapes,
    recorded,
    streams,
    tree,
)


class Encoded(NamedTuple):
    """One compressed array. It has no named fields for `parts` to select."""

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


@recorded
def compress(
    algorithm: Algorithm,
    compressor: Compressor,
    *,
    parts: Sequence[str] = (),
    feedback: float | None = None,
) -> Algorithm:
    """Compresses the messages that the clients of an algorithm send.

    Args:
      compressor: Applied to every array separately.
      parts: Names of the parts of the messages that are compressed, such as
        "momentum"; by default, the whole message.
      feedback: Decay of the accumulated compression error, in [0, 1], which a client
        adds to its next message: e <- feedback e + message, sends C(e), e <- e - C(e).
        It is 1 in Karimireddy et al. 2019, arXiv:1901.09847, and at most 1 in Therien
        et al. 2025, arXiv:2505.23725. By default errors are discarded. Those of the
        prologue, whose messages are sent once, are always discarded.

    Returns:
      The algorithm with compressed messages. As soon as it is given parameters, it
      raises `ValueError` if the compressor does not fit an array, or no message has one
      of the parts.
    """
    if isinstance(parts, str):
        raise TypeError(f"parts must be a sequence of names, got {parts!r}")
    if feedback is not None:
        check_range("feedback", feedback, 0.0, 1.0, schedules=False)

    owner = object()
    first = len(algorithm.prologue)
    with_feedback = range(first, first + len(algorithm.exchanges))
    if feedback is None:
        with_feedback = range(0)

    def init(params):
        _check(compressor, parts, message_shapes(algorithm, params))
        return algorithm.init(params)

    def init_client(params):
        shapes = message_shapes(algorithm, params)
        zeros = lambda message: tree.zeros_like(_chosen(message, parts))
        errors = {n: zeros(shapes[n]) for n in with_feedback}
        return ClientState(algorithm.init_client(params), errors)

    def change(number: int, exchange: Exchange) -> Exchange:
        def client(objective, broadcast, client_state, batches, round):
            inner, errors = client_state
            message, inner = exchange.client(
                objective, broadcast, inner, batches, round
            )
            arrays = _chosen(message, parts)
            if number in errors:
                arrays = tree.add_scaled(arrays, feedback, errors[number])
            encoded = _encode(compressor, owner, arrays, round.key)
            if number in errors:
                error = tree.sub(arrays, _decode(compressor, owner, encoded))
                errors = {**errors, number: error}
            return _replaced(message, parts, encoded), ClientState(inner, errors)

        decode = lambda sent: exchange.decode(_decode(compressor, owner, sent))
        return exchange._replace(client=client, decode=decode, local_params=None)

    changed = map_exchanges(change, algorithm)
    return changed._replace(init=init, init_client=init_client)


def _is_chosen(path: Any, parts: Sequence[str]) -> bool:
    return not parts or any(getattr(key, "name", None) in parts for key in path)


def _chosen(message: Any, parts: Sequence[str]) -> list[Any]:
    leaves = jax.tree_util.tree_leaves_with_path(message)
    return [leaf for path, leaf in leaves if _is_chosen(path, parts)]


def _replaced(message: Any, parts: Sequence[str], encoded: list[Encoded]) -> Any:
    following = iter(encoded)
    one = lambda path, leaf: next(following) if _is_chosen(path, parts) else leaf
    return jax.tree_util.tree_map_with_path(one, message)


def _encode(
    compressor: Compressor, owner: object, arrays: list[Any], key: jax.Array
) -> list[Encoded]:
    key = jax.random.fold_in(key, streams.COMPRESSION)
    like = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
    encode = lambda i, x: compressor.encode(x, jax.random.fold_in(key, i))
    return [Encoded(encode(i, x), like(x), owner) for i, x in enumerate(arrays)]


def _decode(compressor: Compressor, owner: object, sent: Any) -> Any:
    is_own = lambda node: isinstance(node, Encoded) and node.owner is owner
    one = lambda x: compressor.decode(x.sent, x.like) if is_own(x) else x
    return jax.tree.map(one, sent, is_leaf=is_own)


def _check(compressor: Compressor, parts: Sequence[str], messages: Any) -> None:
    leaves = [x for m in messages for x in jax.tree_util.tree_leaves_with_path(m)]
    names = {getattr(key, "name", "") for path, _ in leaves for key in path} - {""}
    for part in parts:
        if part not in names:
            known = ", ".join(sorted(names)) or "no parts with names"
            raise ValueError(f"no message has a part {part!r}; there are {known}")
    key = jax.eval_shape(lambda: jax.random.key(0))
    for path, leaf in leaves:
        if _is_chosen(path, parts):
            try:
                jax.eval_shape(compressor.encode, leaf, key)
            except ValueError as error:
                name = jax.tree_util.keystr(path)
                raise ValueError(
                    f"message{name} can't be compressed: {error}"
                ) from error

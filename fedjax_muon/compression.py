"""Compression of what clients send, for any algorithm.

    svd = compress(fedmuon_align, truncated_svd(memory_share(0.05)), parts=["momentum"])
    simulation = simulate(partial(svd, lr=0.03), ...)

The engine averages what a compressor gives back, and counts the bytes of what travels.
"""

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import Any, NamedTuple

import jax

from fedjax_muon import tree
from fedjax_muon.compressors import Compressor
from fedjax_muon.core import Algorithm, Exchange, map_exchanges, messages, still
from fedjax_muon.ranges import check_range

Factory = Callable[..., Algorithm]  # (grad_fn, **hyper) -> Algorithm
STREAM = 1 << 20  # of a client's key, which compressors draw from


class Encoded(NamedTuple):
    """One array on its way. Its insides have no names, and so are no parts."""

    sent: Any
    like: jax.ShapeDtypeStruct
    by: object  # the call of `compress` that made it, which alone decodes it


jax.tree_util.register_pytree_node(
    Encoded,
    lambda encoded: ((encoded.sent,), encoded[1:]),
    lambda rest, sent: Encoded(*sent, *rest),
)


class Private(NamedTuple):
    """What a client keeps between rounds."""

    mine: Any  # as the algorithm has it
    errors: dict[int, list[jax.Array]]  # of each exchange's compressed arrays


def compress(
    factory: Factory,
    compressor: Compressor,
    *,
    parts: Sequence[str] = (),
    feedback: float | None = None,
) -> Factory:
    """The same algorithm, but its clients' messages are compressed.

    Args:
      factory: makes the algorithm: `fedavg`, `algorithms.ALL["fedavg"]`, a partial.
      compressor: applied to every array by itself.
      parts: names of the parts of the messages that are compressed, such as
        "momentum"; the whole message if there are none.
      feedback: decay of the error that a client keeps and adds to what it sends next,
        e <- feedback e + message, sends C(e), e <- e - C(e): 1 in Karimireddy et al.
        2019, arXiv:1901.09847, at most 1 in Therien et al. 2025, arXiv:2505.23725. By
        default errors are forgotten. What the prologue sends is sent once only, and
        its errors are forgotten in any case.

    Returns a factory with the same arguments. The algorithm that it makes raises
    `ValueError`, as soon as it is given parameters, for an array that the compressor
    does not fit, and for parts that no message has.
    """
    if isinstance(parts, str):
        raise TypeError(f"parts must be a sequence of names, got {parts!r}")
    if feedback is not None:
        check_range("feedback", feedback, 0.0, 1.0, schedules=False)

    mark = object()

    def compressed(grad_fn, **hyper) -> Algorithm:
        algorithm = factory(grad_fn, **hyper)
        shapes = partial(messages, factory(still, **hyper))
        first = len(algorithm.prologue)
        remembered = range(first, first + len(algorithm.exchanges))
        if feedback is None:
            remembered = range(0)

        def init(params):
            _check(compressor, parts, shapes(params))
            return algorithm.init(params)

        def init_client(params):
            zeros = lambda message: tree.zeros_like(_chosen(message, parts))
            errors = {n: zeros(shapes(params)[n]) for n in remembered}
            return Private(algorithm.init_client(params), errors)

        def change(number: int, exchange: Exchange) -> Exchange:
            def client(shared, private, batches, round):
                mine, errors = private
                message, mine = exchange.client(shared, mine, batches, round)
                arrays = _chosen(message, parts)
                if number in errors:
                    arrays = tree.add_scaled(arrays, feedback, errors[number])
                encoded = _encode(compressor, mark, arrays, round.key)
                if number in errors:
                    lost = tree.sub(arrays, _decode(compressor, mark, encoded))
                    errors = {**errors, number: lost}
                return _replaced(message, parts, encoded), Private(mine, errors)

            decode = lambda sent: exchange.decode(_decode(compressor, mark, sent))
            return exchange._replace(client=client, decode=decode)

        changed = map_exchanges(change, algorithm)
        return changed._replace(init=init, init_client=init_client)

    return update_wrapper(compressed, factory)


def _is_chosen(path, parts) -> bool:
    return not parts or any(getattr(key, "name", None) in parts for key in path)


def _chosen(message, parts) -> list[Any]:
    leaves = jax.tree_util.tree_leaves_with_path(message)
    return [leaf for path, leaf in leaves if _is_chosen(path, parts)]


def _replaced(message, parts, encoded):
    waiting = iter(encoded)
    one = lambda path, leaf: next(waiting) if _is_chosen(path, parts) else leaf
    return jax.tree_util.tree_map_with_path(one, message)


def _encode(compressor: Compressor, mark, arrays, key) -> list[Encoded]:
    key = jax.random.fold_in(key, STREAM)
    like = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
    encode = lambda i, x: compressor.encode(x, jax.random.fold_in(key, i))
    return [Encoded(encode(i, x), like(x), mark) for i, x in enumerate(arrays)]


def _decode(compressor: Compressor, mark, sent):
    is_ours = lambda node: isinstance(node, Encoded) and node.by is mark
    one = lambda x: compressor.decode(x.sent, x.like) if is_ours(x) else x
    return jax.tree.map(one, sent, is_leaf=is_ours)


def _check(compressor: Compressor, parts, sent) -> None:
    leaves = [x for m in sent for x in jax.tree_util.tree_leaves_with_path(m)]
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

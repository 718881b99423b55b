"""Messages between the server and the nodes: plain values and arrays, as bytes.

    magic    8 bytes
    length   4 bytes, of the header, little-endian
    header   JSON: {"about": {...}, "arrays": [[dtype, shape], ...]}
    arrays   their bytes in order, little-endian, without gaps

A message is read without running anything that it contains, and only if its length is
exactly that of its arrays.
"""

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MAGIC = b"fjmuon01"
LENGTH = struct.Struct("<I")
LONGEST_HEADER = 1 << 20
MOST_DIMENSIONS = 32
DTYPES = frozenset(
    ["bool", "bfloat16", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
)


class MessageError(ValueError):
    """Bytes that are no message, or one that does not fit."""


class Message(NamedTuple):
    """Plain values and arrays.

    Example:
      >>> message = Message({"round": 3}, [np.zeros(2)])
      >>> read(write(message)).about["round"]
      3
    """

    about: Mapping[str, Any]
    arrays: Sequence[np.ndarray]


def write(message: Message) -> bytes:
    """Converts a message, whose values are those of JSON, to bytes."""
    arrays = [np.asarray(array) for array in message.arrays]
    for array in arrays:
        if array.dtype.name not in DTYPES:
            raise MessageError(f"arrays of {array.dtype} can't be sent")
    shapes = [[array.dtype.name, list(array.shape)] for array in arrays]
    header = json.dumps({"about": dict(message.about), "arrays": shapes}).encode()
    if len(header) > LONGEST_HEADER:
        raise MessageError(
            f"a header must have at most {LONGEST_HEADER} bytes, got {len(header)}"
        )
    contents = [np.ascontiguousarray(array).tobytes() for array in arrays]
    return b"".join([MAGIC, LENGTH.pack(len(header)), header, *contents])


def read(data: bytes) -> Message:
    """Converts bytes from `write`, or refuses any others; the arrays are read-only."""
    begin = len(MAGIC) + LENGTH.size
    if data[: len(MAGIC)] != MAGIC or len(data) < begin:
        raise MessageError("these bytes are no message of fedjax_muon")
    (length,) = LENGTH.unpack_from(data, len(MAGIC))
    if length > min(LONGEST_HEADER, len(data) - begin):
        raise MessageError(f"its header has {length} bytes, more than there are")
    about, shapes = _header(data[begin : begin + length])
    sizes = [np.dtype(_dtype(name)).itemsize * math.prod(s) for name, s in shapes]
    if begin + length + sum(sizes) != len(data):
        raise MessageError(
            f"its arrays have {sum(sizes)} bytes, and there are "
            f"{len(data) - begin - length}: it was cut or extended"
        )
    arrays, at = [], begin + length
    for (name, shape), size in zip(shapes, sizes, strict=True):
        flat = np.frombuffer(data, _dtype(name), math.prod(shape), at)
        arrays.append(flat.reshape(shape))
        at += size
    return Message(about, arrays)


def _dtype(name: str) -> Any:
    return jnp.dtype(name)  # knows bfloat16


def _header(data: bytes) -> tuple[dict[str, Any], list[tuple[str, list[int]]]]:
    try:
        header = json.loads(data)
        about, arrays = header["about"], header["arrays"]
        shapes = [(str(name), list(shape)) for name, shape in arrays]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MessageError(f"its header can't be read: {error}") from error
    if not isinstance(about, dict):
        raise MessageError("its header has no values")
    for name, shape in shapes:
        sizes = all(type(size) is int and 0 <= size < 2**48 for size in shape)
        if name not in DTYPES or not sizes or len(shape) > MOST_DIMENSIONS:
            raise MessageError(f"it has an array of {name} {shape}")
    return about, shapes


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def key_data(leaf: Any) -> Any:
    """The data of typed keys; any other array as it is."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def unflatten(arrays: Sequence[Any], like: Any) -> Any:
    """Puts arrays back into a pytree like this one; it can be traced."""
    leaves, structure = jax.tree.flatten(like)
    arrays = [
        jax.random.wrap_key_data(a) if _is_key(leaf) else a
        for a, leaf in zip(arrays, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, arrays)


def pack(tree: Any) -> list[np.ndarray]:
    """Converts a pytree to its leaves in order; typed keys become their data."""
    return [np.asarray(key_data(leaf)) for leaf in jax.tree.leaves(tree)]


def _check_schema(arrays: Sequence[np.ndarray], like: Any) -> None:
    got = [(str(array.dtype), array.shape) for array in arrays]
    expected = [_stored(leaf) for leaf in jax.tree.leaves(like)]
    if got == expected:
        return
    pairs = zip(got, expected, strict=False)
    shortest = min(len(got), len(expected))
    at = next((i for i, (g, e) in enumerate(pairs) if g != e), shortest)
    name = lambda those: "nothing" if at >= len(those) else _text(those[at])
    raise MessageError(
        f"it has another schema: array {at} of {len(expected)} must be "
        f"{name(expected)}, got {name(got)}"
    )


def unpack(arrays: Sequence[np.ndarray], like: Any) -> Any:
    """Converts arrays of `pack` back; raises `MessageError` if their schema differs.

    Args:
      like: A pytree of the same structure, shapes and dtypes, or of
        `ShapeDtypeStruct`s.
    """
    _check_schema(arrays, like)
    return unflatten([jnp.asarray(array) for array in arrays], like)


def _stored(leaf: Any) -> tuple[str, tuple[int, ...]]:
    if _is_key(leaf):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return str(leaf.dtype), tuple(leaf.shape)


def _text(array: tuple[str, tuple[int, ...]]) -> str:
    return f"{array[0]} {list(array[1])}"


def schema(tree: Any) -> str:
    """A digest of the structure, names, shapes and dtypes of a pytree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    shapes = [
        f"{jax.tree_util.keystr(path)} {_text(_stored(x))} {_is_key(x)}"
        for path, x in leaves
    ]
    return hashlib.sha256("\n".join(shapes).encode()).hexdigest()

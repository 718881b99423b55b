"""Messages between the server and the nodes: plain values and arrays, as bytes.

They are in flax's form of msgpack. A message is read without running anything that it
contains. Its values are those of JSON, and arrays are used only if they have the schema
that is expected.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np

LONGEST = 200  # characters of a reason


class MessageError(ValueError):
    """Bytes that are not a message, or a message that does not fit."""


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
    numbered = {str(i): np.asarray(array) for i, array in enumerate(message.arrays)}
    for array in numbered.values():
        if array.dtype.hasobject:
            raise MessageError(f"arrays of {array.dtype} can't be sent")
    content = {"about": dict(message.about), "arrays": numbered}
    return flax.serialization.msgpack_serialize(content)


def refusal(client: int, reason: str) -> bytes:
    """An answer by a client, or on its behalf: it can't do what it is asked."""
    return write(Message({"client": client, "refused": plain(reason)}, []))


def plain(value: Any, longest: int = LONGEST) -> str:
    """A text or a number that others have sent, for lists, files and terminals.

    It is one short line without control characters; any other value is its type.

    Example:
      >>> plain("an \\x1b[31merror\\n" + 1000 * "!", 20)
      'an [31merror !!!!...'
    """
    if isinstance(value, str):
        text = value[: 10 * longest]
    elif isinstance(value, bool | int | float) or value is None:
        text = repr(value)
    else:
        text = f"a {type(value).__name__}"
    text = "".join(x for x in " ".join(text.split()) if x.isprintable())
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def read(data: bytes) -> Message:
    """Converts bytes from `write`, or refuses any others; the arrays are read-only."""
    try:
        content = flax.serialization.msgpack_restore(data)
        numbered = content["arrays"]
        arrays = [numbered[str(i)] for i in range(len(numbered))]
        # may raise: an array has no truth value, say; all keys become strings
        about = json.loads(json.dumps(content["about"]))
    except Exception as error:  # whatever the bytes are; msgpack has no common type
        raise MessageError(
            f"these bytes are not a message of fedjax_muon ({type(error).__name__})"
        ) from error
    if not isinstance(about, dict) or not all(
        isinstance(a, np.ndarray) and a.dtype.names is None for a in arrays
    ):
        raise MessageError("these bytes are not a message of values and arrays")
    return Message(about, arrays)


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

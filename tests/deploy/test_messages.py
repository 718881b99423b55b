"""Messages survive the way, and anything else is refused."""

import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon.deploy import messages
from fedjax_muon.deploy.messages import LENGTH, MAGIC, Message, MessageError

TREE = {
    "half": jnp.asarray([1.5, -0.0, jnp.nan], jnp.bfloat16),
    "key": jax.random.key(7),
    "keys": jax.random.split(jax.random.key(3), 2),
    "scalar": jnp.float32(0.1),
    "empty": jnp.zeros((0, 3), jnp.int8),
    "flags": jnp.asarray([[True, False]]),
}


def written(numbers=2):
    return messages.write(Message({"round": 3}, [np.arange(numbers, dtype="f4")]))


def test_trees_with_keys_and_bfloat16_survive_to_the_bit():
    data = messages.write(Message({"round": 3}, messages.pack(TREE)))
    message = messages.read(data)
    assert message.about == {"round": 3}
    back = messages.unpack(message.arrays, jax.eval_shape(lambda: TREE))
    for ours, theirs in zip(jax.tree.leaves(TREE), jax.tree.leaves(back), strict=True):
        assert ours.dtype == theirs.dtype
        same = [np.asarray(messages.key_data(leaf)) for leaf in (ours, theirs)]
        assert same[0].tobytes() == same[1].tobytes()
        assert same[0].shape == same[1].shape
    # there are no bytes besides its header and arrays
    data = written(1000)
    (length,) = LENGTH.unpack_from(data, len(MAGIC))
    assert len(data) == len(MAGIC) + LENGTH.size + length + 4000


def crafted(header):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return MAGIC + LENGTH.pack(len(text)) + text


NONSENSE = [3, [["float32"]], [["object", [1]]], [["float32", [-1]]]]
NONSENSE += [[["float32", [0.5]]], [["float32", [True]]], [["float32", [1] * 40]]]


HEADERS = [b"{", b"\xff\xfe", b"[" * 5000, b"[]", {"about": 3, "arrays": []}]
HEADERS += [{"about": {}}, *({"about": {}, "arrays": arrays} for arrays in NONSENSE)]


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_makes_no_sense_is_refused(header):
    with pytest.raises(MessageError):
        messages.read(crafted(header))


def test_what_is_no_message_and_huge_arrays_are_refused():
    for cut in (0, 5, 11, 30, -1):
        with pytest.raises(MessageError):
            messages.read(written()[:cut])
    large = {"about": {}, "arrays": [["float64", [2**40, 2**40]]]}
    for data, said in (
        (written() + b"0", "cut or extended"),
        (pickle.dumps({"round": 3}), "no message"),
        (crafted(large), "cut or extended"),  # before they are allocated
        (MAGIC + LENGTH.pack(2**31), "more than there are"),
    ):
        with pytest.raises(MessageError, match=said):
            messages.read(data)
    with pytest.raises(MessageError, match="can't be sent"):
        messages.write(Message({}, [np.array([{}])]))


def test_another_schema_is_refused():
    arrays = messages.pack(TREE)
    for changed, text in (
        (arrays[:-1], "got nothing"),
        ([*arrays, arrays[0]], "must be nothing"),
        ([arrays[0], arrays[1][:, :1], *arrays[2:]], "got bool [1, 1]"),
        ([arrays[0].astype("f8"), *arrays[1:]], "float64"),
    ):
        with pytest.raises(MessageError, match="another schema") as error:
            messages.unpack(changed, TREE)
        assert text in str(error.value)


def test_the_digest_of_a_schema_tells_names_shapes_and_dtypes_apart():
    like = {"a": jnp.zeros(3), "b": jnp.zeros(2)}
    others = [
        {"a": jnp.zeros(3), "c": jnp.zeros(2)},
        {"a": jnp.zeros(3), "b": jnp.zeros(3)},
        {"a": jnp.zeros(3), "b": jnp.zeros(2, jnp.int32)},
        {"a": jnp.zeros(3)},
    ]
    digests = {messages.schema(tree) for tree in [like, *others]}
    assert len(digests) == 5
    assert messages.schema(jax.eval_shape(lambda: like)) == messages.schema(like)

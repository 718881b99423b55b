"""Messages survive the way, and anything else is refused."""

import pickle

import flax.serialization
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

from fedjax_muon.deploy import messages
from fedjax_muon.deploy.messages import Message, MessageError

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
    assert len(written(1000)) < 4000 + 100


NO_ARRAYS = [3, None, {"1": np.zeros(2)}, {"0": [1.0]}, {"0": np.float32(1)}]
CONTENTS = [3, [], {"about": {}}, {"about": 3, "arrays": {}}]
CONTENTS += [{"about": {}, "arrays": arrays} for arrays in NO_ARRAYS]
NO_VALUES = [np.ones(2), np.float32(1), b"3", 3j]  # of JSON
CONTENTS += [{"about": {"client": value}, "arrays": {}} for value in NO_VALUES]


@pytest.mark.parametrize("content", CONTENTS)
def test_content_that_makes_no_sense_is_refused(content):
    with pytest.raises(MessageError):
        messages.read(flax.serialization.msgpack_serialize(content))


def array(*described):
    """A message with an array of this shape, type and bytes, as flax has it."""
    one = msgpack.ExtType(1, msgpack.packb(described))
    return msgpack.packb({"about": {}, "arrays": {"0": one}})


@pytest.mark.parametrize(
    "data",
    [
        *(written()[:cut] for cut in (0, 5, 11, 30, -1)),
        written() + b"0",
        pickle.dumps({"round": 3}),
        b"\x91" * 5000,
        array([2**40, 2**40], "float64", b""),  # before it is allocated
        array([1], "object", bytes(8)),
        array([3], "float32", bytes(8)),
        array([1], ",".join(["f4"] * 9000), bytes(36000)),  # named by 400 kB
    ],
)
def test_what_is_no_message_is_refused(data):
    with pytest.raises(MessageError) as error:
        messages.unpack(messages.read(data).arrays, [jnp.zeros(2)])
    assert len(str(error.value)) < messages.LONGEST


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("late", "late"),
        ("a\x1b[31m\n\tb\x00\u202ec", "a[31m bc"),
        ("ab" * 10**6, f"{'ab' * 98}a..."),
        ([10**6 * "ab"], "a list"),
        (1 << 40, "1099511627776"),
        (None, "None"),
    ],
)
def test_what_others_send_is_shown_in_one_short_line(value, text):
    said = messages.plain(value)
    assert said == text
    about = messages.read(messages.refusal(3, value)).about
    assert about == {"client": 3, "refused": said}


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

"""RoBERTa against torch, from a checkpoint; what it drops and refuses."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packages import needs
from parity import differentiated, dropouts
from torch_roberta import CLASSES, IDS, SIZES, WIDTH, WORDS, checkpoint, forward, saved

from fedjax_muon import models
from fedjax_muon.models.roberta import Attention

torch = needs("torch")
pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
MODEL = models.RoBERTa(*SIZES)
SHALLOW = MODEL.clone(depth=1)  # costs less to compile


def loaded(file, model=MODEL):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, models.load_roberta(file, model))


def shapes(model, shape=(2, 6)):
    ids = jax.ShapeDtypeStruct(shape, jnp.int32)
    return jax.eval_shape(model.init, KEY, ids)["params"]


def shallow(folder):
    """The parameters of `SHALLOW` in float32."""
    params = jax.tree.map(np.float32, loaded(saved(folder, checkpoint())))
    del params["layer_1"]
    return params


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_logits_and_gradients_equal_torch(tmp_path):
    tensors = checkpoint()
    logits, gradient = differentiated(MODEL, loaded(saved(tmp_path, tensors)), IDS)
    leaves = {n: torch.tensor(a, requires_grad=True) for n, a in tensors.items()}
    expected = forward(leaves, IDS)
    close = partial(np.testing.assert_allclose, rtol=0, atol=1e-9)
    close(logits, expected.detach())
    torch.sin(expected).sum().backward()
    # the same names for gradients, so that the loader sorts them for us
    theirs = {name: leaf.grad.numpy() for name, leaf in leaves.items()}
    jax.tree.map(close, gradient, loaded(saved(tmp_path, theirs)))


def test_what_else_a_checkpoint_may_be(tmp_path):
    """Without prefix, without a head, with the rest of pretraining, by its folder."""
    tensors = checkpoint()
    expected = loaded(saved(tmp_path, tensors))
    bare = {name.removeprefix("roberta."): a for name, a in tensors.items()}
    saved(tmp_path, bare)
    assert_same(loaded(tmp_path), expected)
    further = {
        "lm_head.dense.weight": np.zeros((3, 3)),
        "roberta.pooler.dense.weight": np.zeros((3, 3)),
        "roberta.embeddings.position_ids": np.arange(3)[None],
    }
    encoder = {n: a for n, a in tensors.items() if not n.startswith("classifier.")}
    del expected["head"]
    assert_same(loaded(saved(tmp_path, encoder | further)), expected)


def test_half_precision_becomes_single(tmp_path):
    halves = {name: np.float16(a) for name, a in checkpoint().items()}
    found = models.load_roberta(saved(tmp_path, halves), MODEL)
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype(np.float32)}
    head = halves["classifier.dense.weight"].T
    np.testing.assert_array_equal(found["head"]["dense"]["kernel"], head)


def test_ids_as_floats_and_beyond_the_vocabulary(tmp_path):
    params = shallow(tmp_path)
    ids = np.where(IDS == 12, WORDS, IDS)  # in one sentence

    @jax.jit
    def run(params):
        apply = lambda ids: SHALLOW.apply({"params": params}, ids)
        return apply(IDS), apply(np.float32(IDS)), apply(ids)

    logits, as_floats, beyond = run(params)
    assert_same(as_floats, logits)
    unknown = np.isnan(beyond).all(axis=1)
    np.testing.assert_array_equal(unknown, [False, True, False, False])


def test_default_sizes_are_those_of_roberta_base():
    params = shapes(models.RoBERTa())
    others = {"words", "positions", "types", "norm", "head"}
    assert params.keys() == others | {f"layer_{i}" for i in range(12)}
    assert params["words"]["embedding"].shape == (50265, 768)
    assert params["positions"]["embedding"].shape == (514, 768)
    square, dense = 768 * 769, lambda a, b: a * b + b
    layer = 4 * square + dense(768, 3072) + dense(3072, 768) + 2 * 2 * 768
    embedded = (50265 + 514 + 1) * 768 + 2 * 768
    total = embedded + 12 * layer + square + dense(768, 2)
    assert total == 124_647_170
    assert sum(p.size for p in jax.tree.leaves(params)) == total


def test_initial_values():
    def some():  # the others cost time to compile
        params = MODEL.init(KEY, IDS)["params"]
        return {name: params[name] for name in ("words", "norm", "head")}

    params = jax.jit(some)()
    table = params["words"]["embedding"]
    assert math.isclose(np.std(table), 0.02, rel_tol=5 / math.sqrt(2 * table.size))
    norm, dense = params["norm"], params["head"]["dense"]
    assert np.all(norm["scale"] == 1)
    assert not np.any(norm["bias"])
    assert not np.any(dense["bias"])
    kernel = dense["kernel"]
    assert math.isclose(np.std(kernel), 0.02, rel_tol=5 / math.sqrt(2 * kernel.size))


def test_where_dropout_acts():
    seen = dropouts(lambda: shapes(MODEL))
    tokens, head = (2, 6, WIDTH), (2, WIDTH)
    assert seen == [(shape, 0.1) for shape in [tokens] + 4 * [tokens] + 2 * [head]]


def test_dropout_of_the_weights_of_attention():
    """Uniform weights 1/8 of one-hot values: each is 0 or doubled, on its own."""
    width, eye = 8, np.eye(8, dtype=np.float32)
    bias = np.zeros(8, np.float32)
    square = lambda kernel: {"kernel": kernel, "bias": bias}
    params = {name: square(0 * eye) for name in ("query", "key")}
    params |= {name: square(eye) for name in ("value", "out")}
    x, real = np.stack(2 * [eye]), np.ones((2, 8), bool)
    attention = Attention(heads=1, dropout=0.5)
    apply = partial(attention.apply, {"params": params}, x, real)
    run = jax.jit(lambda **rngs: apply(rngs=rngs))
    np.testing.assert_allclose(run(), np.full((2, 8, 8), 1 / width))
    weights = run(dropout=KEY)
    assert set(np.unique(weights)) == {0, 2 / width}
    assert not np.array_equal(weights[0], weights[1])


@pytest.mark.parametrize(
    ("sizes", "shape", "message"),
    [
        ({"depth": 0}, (2, 6), "RoBERTa's depth must be at least 1, got 0"),
        ({"heads": 3}, (2, 6), "heads must divide its width 8, got 3"),
        ({"padding": WORDS}, (2, 6), "padding must be an id from 0 to 12, got 13"),
        ({"dropout": 1.0}, (2, 6), r"dropout must lie in \[0, 1\)"),
        ({"position_count": 7}, (2, 6), r"N from 1 to 5, got shape \(2, 6\)"),
        *(({}, shape, "takes token ids") for shape in ((2,), (2, 0), (2, 3, 1))),
        ({}, (2, 11), "N from 1 to 10"),
    ],
)
def test_sizes_are_refused(sizes, shape, message):
    shapes(MODEL, (2, 10))  # as many as there are positions from the second on
    with pytest.raises(ValueError, match=message):
        shapes(MODEL.clone(**sizes), shape)


def test_missing_and_unexpected_tensors(tmp_path):
    tensors = checkpoint()
    lacks, has = "classifier.out_proj.bias", "encoder.layer.2.output.dense.bias"
    del tensors[lacks]
    tensors[f"roberta.{has}"] = np.zeros(3)
    message = f"depth 2: missing {lacks}; unexpected {has}$"
    with pytest.raises(ValueError, match=message):
        models.load_roberta(saved(tmp_path, tensors), MODEL)
    deeper = MODEL.clone(depth=3)
    with pytest.raises(ValueError, match=r"and \d+ more; unexpected nothing"):
        models.load_roberta(saved(tmp_path, checkpoint()), deeper)


def test_shapes_that_are_not_the_models(tmp_path):
    file = saved(tmp_path, checkpoint())
    message = rf"out_proj.bias must have shape \(5,\) .*got \({CLASSES},\)"
    with pytest.raises(ValueError, match=message):
        models.load_roberta(file, MODEL.clone(classes=5))
    message = r"intermediate.dense.weight must have shape \(9, 8\) .*got \(10, 8\)"
    tensors = checkpoint()
    for i in range(2):
        name = f"roberta.encoder.layer.{i}.intermediate.dense.bias"
        tensors[name] = tensors[name][:9]
    with pytest.raises(ValueError, match=message):
        models.load_roberta(saved(tmp_path, tensors), MODEL.clone(hidden=9))

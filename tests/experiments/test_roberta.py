"""RoBERTa against torch, from a checkpoint; what it drops and refuses; adapters."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packages import needs
from parity import differentiated, dropouts
from torch_roberta import CLASSES, IDS, SIZES, WIDTH, WORDS, checkpoint, forward, saved

from experiments.papers.pretrained.roberta import Attention, RoBERTa, load_roberta
from fedjax_muon import simulation, tasks
from fedjax_muon.algorithms import fedmuon_align
from fedjax_muon.core import tree
from fedjax_muon.data import Dataset
from fedjax_muon.tasks.lora import lora_classification
from fedjax_muon.transforms import muon

torch = needs("torch")
pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
MODEL = RoBERTa(*SIZES)
SHALLOW = MODEL.clone(depth=1)  # costs less to compile


def loaded(file, model=MODEL):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, load_roberta(file, model))


def shapes(model, shape=(2, 6)):
    ids = jax.ShapeDtypeStruct(shape, jnp.int32)
    return jax.eval_shape(model.init, KEY, ids)["params"]


def shallow(folder, kind=np.float32):
    """The parameters of `SHALLOW`."""
    params = jax.tree.map(kind, loaded(saved(folder, checkpoint())))
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
    found = load_roberta(saved(tmp_path, halves), MODEL)
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
    params = shapes(RoBERTa())
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
        load_roberta(saved(tmp_path, tensors), MODEL)
    deeper = MODEL.clone(depth=3)
    with pytest.raises(ValueError, match=r"and \d+ more; unexpected nothing"):
        load_roberta(saved(tmp_path, checkpoint()), deeper)


def test_shapes_that_are_not_the_models(tmp_path):
    file = saved(tmp_path, checkpoint())
    message = rf"out_proj.bias must have shape \(5,\) .*got \({CLASSES},\)"
    with pytest.raises(ValueError, match=message):
        load_roberta(file, MODEL.clone(classes=5))
    message = r"intermediate.dense.weight must have shape \(9, 8\) .*got \(10, 8\)"
    tensors = checkpoint()
    for i in range(2):
        name = f"roberta.encoder.layer.{i}.intermediate.dense.bias"
        tensors[name] = tensors[name][:9]
    with pytest.raises(ValueError, match=message):
        load_roberta(saved(tmp_path, tensors), MODEL.clone(hidden=9))


# ------------------------------------------------------------------------ adapters
RANK, ALPHA = 3, 5.0
PROJECTIONS = ("query", "value")
PLAIN = SHALLOW.clone(dropout=0.0)


def test_gradients_and_losses_of_adapters_equal_torch(tmp_path):
    draw = np.random.default_rng(1).normal
    pair = lambda: {"a": draw(size=(WIDTH, RANK)), "b": draw(size=(RANK, WIDTH))}
    pairs = {name: pair() for name in PROJECTIONS}
    y, weight = np.array([0, 2, 1, 1]), np.array([1.0, 0.5, 0.0, 2.0])
    with jax.enable_x64(True):
        start = shallow(tmp_path, np.float64)
        task = lora_classification(PLAIN, start, (6,), rank=RANK, alpha=ALPHA)
        params = {"adapters": {"layer_0": {"attention": pairs}}, "head": start["head"]}
        batch = tasks.Batch(jnp.asarray(IDS), jnp.asarray(y), jnp.asarray(weight))

        @jax.jit
        def run(task, params):
            scores = task.evaluate(params, batch.x, batch.y)
            return task.grad(params, batch, KEY), scores["loss"], scores["correct"]

        found = run(task, params)
        gradient, losses, correct = jax.tree.map(np.asarray, found)

    tensors = {name: torch.tensor(a) for name, a in checkpoint().items()}
    ours = jax.tree.map(lambda a: torch.tensor(a, requires_grad=True), pairs)
    for name, pair in ours.items():
        kernel = f"roberta.encoder.layer.0.attention.self.{name}.weight"
        added = (ALPHA / RANK) * (pair["a"] @ pair["b"]).T
        tensors[kernel] = tensors[kernel] + added
    head = {n: t.requires_grad_() for n, t in tensors.items() if n[:10] == "classifier"}
    logits, labels = forward(tensors, IDS, depth=1), torch.tensor(y)
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    (torch.tensor(weight) @ expected / weight.sum()).backward()
    close = partial(np.testing.assert_allclose, rtol=0, atol=1e-9)
    close(losses, expected.detach())
    np.testing.assert_array_equal(correct, logits.argmax(1) == labels)
    theirs = {"layer_0": {"attention": jax.tree.map(lambda t: t.grad, ours)}}
    jax.tree.map(close, gradient["adapters"], theirs)
    for place, name in (("dense", "dense"), ("out", "out_proj")):
        theirs = head[f"classifier.{name}.weight"].grad.T
        close(gradient["head"][place]["kernel"], theirs)
        theirs = head[f"classifier.{name}.bias"].grad
        close(gradient["head"][place]["bias"], theirs)


def questions(count=64):
    """Two classes of sentences: those full of word 3, and those full of 4."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, count)
    x = rng.integers(5, 13, (count, 6))
    x[:, 0], x[:, 1:4], x[:, 5] = 0, 3 + y[:, None], 1
    x = x.astype(np.int32)
    return Dataset(x, y, x, y, ("three", "four"))


def test_fedmuon_trains_adapters_and_head(tmp_path):
    model = PLAIN.clone(classes=2)
    encoder = {n: p for n, p in shallow(tmp_path).items() if n != "head"}
    before = jax.tree.map(lambda a: np.array(a, copy=True), encoder)
    task = lora_classification(model, encoder, (6,), rank=2)
    data, parts = questions(), np.array_split(np.arange(64), 4)
    algorithm = fedmuon_align(lr=0.05, rule=muon(0.9))
    sizes = {"cohort": 4, "local_steps": 4, "batch_size": 8}
    prepared = simulation.federate(algorithm, task, data, parts, **sizes)
    state = prepared.init(jax.random.key(1))
    start = jax.tree.map(lambda a: np.array(a, copy=True), state.params)

    @jax.jit  # compiles in half the time of `prepared.evaluate`
    def loss(task, params):
        return jnp.mean(task.evaluate(params, data.x_train, data.y_train)["loss"])

    first = loss(task, start)
    state, metrics = prepared.train_rounds(state, 40)
    assert not np.any(metrics.lost)
    assert abs(first - np.log(2)) < 0.05
    assert loss(task, state.params) < 0.05
    moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), start, state.params)
    assert all(jax.tree.leaves(moved))
    (logits,) = prepared.settings.task.grad.args
    for held in (encoder, logits.args[0]):
        jax.tree.map(np.testing.assert_array_equal, held, before)
    # A and B of two projections and the head in float32. FedMuon sends the parameters
    # and the momentum of matrices; the mean direction is received besides
    matrices = 2 * (2 * WIDTH * 2) + WIDTH * WIDTH + WIDTH * 2
    size, momentum = 4 * (matrices + WIDTH + 2), 4 * matrices
    assert tree.nbytes(state.params) == size
    down, up = 4 * (2 * size + momentum), 4 * (size + momentum)
    assert prepared.meter.bytes_after(1) == (down, up)

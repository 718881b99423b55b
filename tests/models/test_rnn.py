"""The recurrent network against a NumPy loop, and where federated learning runs it."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon import data, models
from fedjax_muon.data import text
from fedjax_muon.runs import metrics_csv
from tests.support.command import refused, run
from tests.support.parity import differentiated

KEY = jax.random.key(0)
V, E, H = 11, 5, 7
# one token, padding behind, padding between, no padding, nothing but padding
IDS = np.int32(
    [[3, 0, 0, 0, 0], [1, 2, 10, 0, 0], [4, 0, 5, 0, 0], [6, 7, 8, 9, 1], [0] * 5]
)
LENGTHS = [1, 3, 3, 5, 1]


def model_of(layers):
    return models.RNN(3, V, E, H, layers)


def shapes_of(model, ids=(1, 4)):
    return jax.eval_shape(model.init, KEY, jnp.zeros(ids))["params"]


def drawn(model, seed=0):
    """Parameters in float64, biases not zero."""
    draw = np.random.default_rng(seed).normal
    return jax.tree.map(lambda p: draw(size=p.shape) / 2, shapes_of(model))


def close(atol):
    return partial(np.testing.assert_allclose, rtol=0, atol=atol)


def simple_layer(p, xs):
    h, out = np.zeros(H), []
    for x in xs:
        h = np.tanh(x @ p["i"]["kernel"] + p["i"]["bias"] + h @ p["h"]["kernel"])
        out.append(h)
    return out


def numpy_logits(params, layers, layer=simple_layer, name="SimpleCell"):
    """Token by token and sentence by sentence, float64."""
    logits, head = [], params["head"]
    for sentence, length in zip(IDS, LENGTHS, strict=True):
        xs = [params["Embed_0"]["embedding"][token] for token in sentence[:length]]
        for i in range(layers):
            xs = layer(params[f"{name}_{i}"], xs)
        logits.append(xs[-1] @ head["kernel"] + head["bias"])
    return np.array(logits)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_logits_equal_a_numpy_loop(layers):
    model = model_of(layers)
    params = drawn(model)
    expected = numpy_logits(params, layers)
    with jax.enable_x64(True):
        close(1e-13)(jax.jit(model.apply)({"params": params}, IDS), expected)
        as_floats = model.apply({"params": params}, IDS.astype(np.float32))
        close(1e-13)(as_floats, expected)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_equal_differences_of_the_numpy_loop(layers):
    model = model_of(layers)
    params = drawn(model)
    _, gradient = differentiated(model, params, IDS)
    step = 1e-5
    for seed in range(3):
        direction = drawn(model, seed + 1)
        ends = []
        for move in (step, -step):
            moved = jax.tree.map(lambda p, d, t=move: p + t * d, params, direction)
            ends.append(np.sum(np.sin(numpy_logits(moved, layers))))
        slope = sum(jax.tree.leaves(jax.tree.map(np.vdot, gradient, direction)))
        # the third derivative, of order 100, times step^2 / 6, and 1e-15 / step
        np.testing.assert_allclose((ends[0] - ends[1]) / (2 * step), slope, atol=1e-7)


def test_padding_and_absent_words_have_no_gradient():
    model = model_of(2)
    ids = IDS[[0, 1, 3]]  # whose padding is all behind
    loss = lambda p: jnp.sum(model.apply({"params": p}, ids) ** 2)
    gradient = jax.jit(jax.grad(loss))(jax.tree.map(np.float32, drawn(model)))
    rows = np.any(np.asarray(gradient["Embed_0"]["embedding"]) != 0, axis=1)
    assert set(np.flatnonzero(rows)) == set(ids.ravel().tolist()) - {0}


@pytest.mark.slow
def test_inside_shard_map():
    model = model_of(2)
    params = jax.tree.map(np.float32, drawn(model))
    ids = IDS[:4]
    gradient = jax.grad(lambda p, ids: jnp.sum(model.apply({"params": p}, ids) ** 2))
    mesh = jax.make_mesh((4,), ("b",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, split = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("b")
    specs = {"in_specs": (whole, split), "out_specs": whole}
    found = jax.jit(jax.shard_map(gradient, mesh=mesh, **specs))(params, ids)
    expected = jax.jit(gradient)(params, ids)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), found, expected)


def test_default_sizes_are_the_papers():
    params = shapes_of(models.ALL["rnn"]())
    shapes = jax.tree.map(lambda p: p.shape, params)
    cell = lambda width: {
        "i": {"kernel": (width, 4096), "bias": (4096,)},
        "h": {"kernel": (4096, 4096)},
    }
    assert shapes == {
        "Embed_0": {"embedding": (text.VOCABULARY_SIZE, 300)},
        "SimpleCell_0": cell(300),
        "SimpleCell_1": cell(4096),
        "head": {"kernel": (4096, 2), "bias": (2,)},
    }
    assert sum(p.size for p in jax.tree.leaves(params)) == 61_407_234


def test_ids_beyond_the_vocabulary_give_nan():
    model = model_of(1)
    ids = np.array([[1, V, 2], [1, 2, V - 1]])
    logits = jax.jit(model.apply)({"params": drawn(model)}, ids)
    np.testing.assert_array_equal(np.all(np.isnan(logits), axis=1), [True, False])
    assert math.isfinite(logits[1, 0])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_layer(p, xs):
    """Hochreiter and Schmidhuber's cell with a forget gate."""
    h, c, out = np.zeros(H), np.zeros(H), []
    for x in xs:
        i, f, g, o = (
            x @ p[f"i{k}"]["kernel"] + h @ p[f"h{k}"]["kernel"] + p[f"h{k}"]["bias"]
            for k in "ifgo"
        )
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    return out


def gru_layer(p, xs):
    """The cell of Cho et al., with the reset after the product, as cuDNN's."""
    h, out = np.zeros(H), []
    for x in xs:
        given = {k: x @ p[f"i{k}"]["kernel"] + p[f"i{k}"]["bias"] for k in "rzn"}
        r = sigmoid(given["r"] + h @ p["hr"]["kernel"])
        z = sigmoid(given["z"] + h @ p["hz"]["kernel"])
        n = np.tanh(given["n"] + r * (h @ p["hn"]["kernel"] + p["hn"]["bias"]))
        h = (1 - z) * n + z * h
        out.append(h)
    return out


@pytest.mark.parametrize(
    ("make", "layer", "name"),
    [
        (models.lstm, lstm_layer, "OptimizedLSTMCell"),
        (models.gru, gru_layer, "GRUCell"),
    ],
)
def test_logits_of_cells_equal_a_numpy_loop(make, layer, name):
    model = make(3, vocabulary_size=V, embedding=E, hidden=H)
    params = drawn(model)
    expected = numpy_logits(params, 2, layer, name)
    with jax.enable_x64(True):
        close(1e-13)(jax.jit(model.apply)({"params": params}, IDS), expected)


SMALL = ("--cohort", "2", "--local-steps", "2", "--batch-size", "4")


@pytest.mark.slow
def test_cells_on_the_command_line(tmp_path, capsys):
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 9, size=(40, 6)).astype(np.int32)
    np.savez(tmp_path / "a.npz", x=ids, y=ids[:, -1] % 2, owner=[0, 1, 1, 2] * 10)
    assert data.from_npz(tmp_path / "a.npz").tokens == 9
    problem = f"{tmp_path}/a.npz:divide=by_owner,model=gru(embedding=3,hidden=5)"
    given = ("--problem", problem, *SMALL, "--rounds", "1")
    run("train", "fedavg", *given, "--directory", tmp_path / "run")
    rows = metrics_csv.read(tmp_path / "run" / "metrics.csv")
    assert np.isfinite(rows["train_loss"]).all()
    capsys.readouterr()
    for model in ("lstm", "gru"):
        said = refused(capsys, "train", "fedavg", "--problem", f"digits:model={model}")
        assert "rnn takes token ids of texts, but this dataset has numbers" in said

"""The LSTM and the GRU against NumPy loops, and on the command line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command import refused, run

from fedjax_muon import data, models
from fedjax_muon.reporting import metrics_csv

IDS = np.array([[3, 0, 0, 0], [1, 2, 10, 0], [6, 7, 8, 9]], np.int32)
LENGTHS = [1, 3, 4]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_layer(p, xs, width):
    """Hochreiter and Schmidhuber's cell with a forget gate."""
    h, c, out = np.zeros(width), np.zeros(width), []
    for x in xs:
        i, f, g, o = (
            x @ p[f"i{k}"]["kernel"] + h @ p[f"h{k}"]["kernel"] + p[f"h{k}"]["bias"]
            for k in "ifgo"
        )
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    return out


def gru_layer(p, xs, width):
    """The cell of Cho et al., with the reset after the product, as cuDNN's."""
    h, out = np.zeros(width), []
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
def test_logits_equal_a_numpy_loop(make, layer, name):
    model = make(3, vocabulary_size=11, embedding=5, hidden=7)
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4)))["params"]
    params = jax.tree.map(lambda p: rng.normal(size=p.shape) / 2, shapes)
    expected = []
    for sentence, length in zip(IDS, LENGTHS, strict=True):
        xs = [params["Embed_0"]["embedding"][token] for token in sentence[:length]]
        for i in range(2):
            xs = layer(params[f"{name}_{i}"], xs, 7)
        head = params["Dense_0"]
        expected.append(xs[-1] @ head["kernel"] + head["bias"])
    with jax.enable_x64(True):
        logits = jax.jit(model.apply)({"params": params}, IDS)
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-13)


def test_the_lstm_has_the_size_of_leafs():
    model = models.lstm(80, vocabulary_size=82)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4)))["params"]
    first, second = 4 * 256 * (8 + 256 + 1), 4 * 256 * (256 + 256 + 1)
    head = 80 * 257
    count = sum(p.size for p in jax.tree.leaves(shapes))
    assert count == 82 * 8 + first + second + head


SMALL = ("--cohort-size", "2", "--local-steps", "2", "--batch-size", "4")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lstm", "gru"])
def test_cells_on_the_command_line(model, tmp_path, capsys):
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 9, size=(40, 6)).astype(np.int32)
    np.savez(tmp_path / "a.npz", x=ids, y=ids[:, -1] % 2, owner=[0, 1, 1, 2] * 10)
    assert data.from_npz(tmp_path / "a.npz").tokens == 9
    given = ("--dataset", tmp_path / "a.npz", "--partition", "by_owner", *SMALL)
    given = (*given, "--model", model, "--rnn", "3", "5", "1", "--rounds", "2")
    run("train", "--algorithm", "fedmuon", *given, "--output", tmp_path / "run")
    rows = metrics_csv.read(tmp_path / "run" / "metrics.csv")
    assert np.isfinite(rows["train_loss"]).all()
    said = refused(capsys, "train", "--model", model)
    assert f"the model {model} does not fit digits; rnn, lstm and gru are for" in said

"""Files of parameters, used without this library: by NumPy alone."""

import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon.core.pair import Pair
from fedjax_muon.models import MLP, load_metadata, load_params, save_params
from tests.support.packages import needs

safetensors = needs("safetensors.numpy")
MODEL = MLP(3, (5, 4))
X = np.random.default_rng(0).normal(size=(7, 2, 3)).astype(np.float32)
PARAMS = MODEL.init(jax.random.key(0), X)["params"]
PAIR = Pair(PARAMS, {"a": jnp.float32(0.5), "b": jnp.arange(3)})
METADATA = {"classes": ["ill", "gesund ü"], "mean": [0.1, 1e-30], "none": None}


def forward(weights, x):
    """The perceptron in NumPy, by the names of its tensors."""
    x = x.reshape(len(x), -1)
    for layer in ("Dense_0", "Dense_1"):
        x = np.maximum(x @ weights[f"{layer}.kernel"] + weights[f"{layer}.bias"], 0)
    return x @ weights["head.kernel"] + weights["head.bias"]


@pytest.fixture
def path(tmp_path):
    return save_params(tmp_path / "model.safetensors", PARAMS)


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(partial(np.testing.assert_array_equal, strict=True), a, b)


def test_the_tensors_give_the_same_logits_in_numpy(path):
    logits = MODEL.apply({"params": PARAMS}, X)
    found = forward(safetensors.load_file(path), X)
    np.testing.assert_allclose(found, logits, rtol=1e-5, atol=1e-6)
    assert load_metadata(path) == {}


@pytest.mark.parametrize("params", [PARAMS, PAIR])
def test_parameters_and_metadata_come_back(tmp_path, params):
    path = tmp_path / "new" / "model.safetensors"
    save_params(path, params, metadata=METADATA)
    assert load_metadata(path) == METADATA
    shapes = jax.eval_shape(lambda: params)
    assert_same(load_params(path, like=shapes), params)


def changed(**leaves):
    return {**PARAMS, "Dense_1": {**PARAMS["Dense_1"], **leaves}}


FOUND = r"float32\[5, 4\], expected"
HALF = jnp.ones((5, 4), jnp.bfloat16)


@pytest.mark.parametrize(
    ("like", "difference"),
    [
        (changed(kernel=jnp.ones((5, 9))), rf"{FOUND} float32\[5, 9\]"),
        (changed(kernel=HALF), rf"{FOUND} bfloat16\[5, 4\]"),
        (changed(scale=jnp.ones(4)), r"missing, expected float32\[4\]"),
        ({**PARAMS, "Dense_1": {"bias": PARAMS["Dense_1"]["bias"]}}, f"{FOUND} none"),
    ],
)
def test_weights_of_another_model_are_refused(path, like, difference):
    message = rf"another model: Dense_1\.\w+ is {difference}"
    with pytest.raises(ValueError, match=message):
        load_params(path, like)


def test_existing_parameters_are_replaced_only_if_asked(path):
    other = jax.tree.map(lambda x: x + 1, PARAMS)
    with pytest.raises(ValueError, match="exists already; choose another name"):
        save_params(path, other)
    assert_same(load_params(path, PARAMS), PARAMS)
    save_params(path, other, overwrite=True)
    assert_same(load_params(path, PARAMS), other)
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file(path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_params(path, jax.tree.map(jnp.zeros_like, PARAMS), overwrite=True)
    monkeypatch.undo()
    assert_same(load_params(path, PARAMS), PARAMS)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_damaged_files_are_named(path, damage):
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-9], "empty": b"", "text": b"hello"}[damage])
    with pytest.raises(ValueError, match=r"model.safetensors: .* export it again"):
        load_params(path, PARAMS)


CLASH = {"a.b": jnp.ones(2), "a": {"b": jnp.zeros(2)}}


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("model.pt", PARAMS, r"end in \.safetensors, got '.*model\.pt'"),
        ("directory.safetensors", PARAMS, "is a directory; choose another name"),
        ("m.safetensors", CLASH, r"two parameters have the name a\.b"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, name, params, message):
    (tmp_path / "directory.safetensors").mkdir()
    with pytest.raises(ValueError, match=message):
        save_params(tmp_path / name, params, overwrite=True)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_params(tmp_path / "m.safetensors", params)

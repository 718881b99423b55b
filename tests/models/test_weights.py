"""Files of parameters, used without this library: by NumPy and Flax alone."""

import os
from functools import partial

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from error_lines import one_line
from packages import needs

from fedjax_muon.core.pair import Pair
from fedjax_muon.models import MLP, load_metadata, load_params, save_params

SLOW = pytest.mark.slow
ENDS = [".msgpack", pytest.param(".safetensors", marks=SLOW)]
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
    return x @ weights["Dense_2.kernel"] + weights["Dense_2.bias"]


def written(folder, end, **options):
    path = folder / f"model{end}"
    save_params(path, PARAMS, **options)
    return path


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(partial(np.testing.assert_array_equal, strict=True), a, b)


@SLOW
def test_safetensors_give_the_same_logits_in_numpy(tmp_path):
    weights = needs("safetensors.numpy").load_file(written(tmp_path, ".safetensors"))
    logits = MODEL.apply({"params": PARAMS}, X)
    np.testing.assert_allclose(forward(weights, X), logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("params", [PARAMS, PAIR])
def test_flax_reads_msgpack(tmp_path, params):
    save_params(tmp_path / "m.msgpack", params)
    data = (tmp_path / "m.msgpack").read_bytes()
    assert_same(flax.serialization.from_bytes(params, data), params)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("params", [PARAMS, PAIR])
def test_parameters_and_metadata_come_back(tmp_path, end, params):
    path = tmp_path / "new" / f"model{end}"
    save_params(path, params, metadata=METADATA)
    assert load_metadata(path) == METADATA
    shapes = jax.eval_shape(lambda: params)
    assert_same(load_params(path, like=shapes), params)


@pytest.mark.parametrize("end", ENDS)
def test_files_of_others_have_no_metadata(tmp_path, end):
    path = written(tmp_path, end)
    assert load_metadata(path) == {}
    if end == ".msgpack":
        path.with_name(f"{path.name}.json").unlink()
        assert load_metadata(path) == {}


def changed(**leaves):
    return {**PARAMS, "Dense_1": {**PARAMS["Dense_1"], **leaves}}


FOUND = r"float32\[5, 4\], expected"
HALF = jnp.ones((5, 4), jnp.bfloat16)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("like", "difference"),
    [
        (changed(kernel=jnp.ones((5, 9))), rf"{FOUND} float32\[5, 9\]"),
        (changed(kernel=HALF), rf"{FOUND} bfloat16\[5, 4\]"),
        (changed(scale=jnp.ones(4)), r"missing, expected float32\[4\]"),
        ({**PARAMS, "Dense_1": {"bias": PARAMS["Dense_1"]["bias"]}}, f"{FOUND} none"),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path, end, like, difference):
    path = written(tmp_path, end)
    message = rf"another model: Dense_1\.\w+ is {difference}"
    with pytest.raises(ValueError, match=message):
        load_params(path, like)


@pytest.mark.parametrize("end", ENDS)
def test_existing_parameters_are_replaced_only_if_asked(tmp_path, end):
    path = written(tmp_path, end, metadata=METADATA)
    other = jax.tree.map(lambda x: x + 1, PARAMS)
    with pytest.raises(ValueError, match="exists already; choose another name"):
        save_params(path, other)
    assert_same(load_params(path, PARAMS), PARAMS)
    save_params(path, other, overwrite=True)
    assert_same(load_params(path, PARAMS), other)
    names = {path.name, *([f"{path.name}.json"] if end == ".msgpack" else [])}
    assert {p.name for p in tmp_path.iterdir()} == names


@pytest.mark.parametrize("end", ENDS)
def test_a_directory_is_never_replaced(tmp_path, end):
    path = tmp_path / f"model{end}"
    path.mkdir()
    (path / "thesis.txt").write_text("")
    with pytest.raises(ValueError, match="is a directory; choose another name"):
        save_params(path, PARAMS, overwrite=True)
    assert (path / "thesis.txt").exists()


@pytest.mark.parametrize("end", ENDS)
def test_a_full_disk_leaves_the_old_file(tmp_path, end, monkeypatch):
    path = written(tmp_path, end)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_params(path, jax.tree.map(jnp.zeros_like, PARAMS), overwrite=True)
    monkeypatch.undo()
    assert_same(load_params(path, PARAMS), PARAMS)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_damaged_files_are_named(tmp_path, end, damage):
    path = written(tmp_path, end)
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-9], "empty": b"", "text": b"hello"}[damage])
    with pytest.raises(ValueError, match=rf"model{end}: expected .* export it again"):
        load_params(path, PARAMS)


@pytest.mark.parametrize("value", [1 + 2j, "text", 3])
def test_values_that_are_no_arrays_are_named(tmp_path, value):
    path = tmp_path / "model.msgpack"
    path.write_bytes(flax.serialization.msgpack_serialize({"a": {"b": value}}))
    kind = type(value).__name__
    with one_line(rf"a\.b must be an array, got a value of type {kind}", path):
        load_params(path, PARAMS)


def test_other_suffixes_and_missing_files_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"end in \.safetensors or \.msgpack, got 'model\.pt'"
    ):
        save_params("model.pt", PARAMS)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_params(tmp_path / "model.msgpack", PARAMS)


@SLOW
def test_names_that_would_be_the_same_are_refused(tmp_path):
    params = {"a.b": jnp.ones(2), "a": {"b": jnp.zeros(2)}}
    with pytest.raises(ValueError, match=r"two parameters have the name a\.b"):
        save_params(tmp_path / "m.safetensors", params)

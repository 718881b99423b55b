"""Checkpoints and their settings that are damaged, or were made to harm."""

import json
import shutil
import struct

import numpy as np
import pytest
from packages import needs

from fedjax_muon import models
from fedjax_muon.runs import pretrained
from fedjax_muon.runs.config import Config

safetensors = needs("safetensors.numpy")
checkpoints = needs("experiments.studies.tiny_checkpoints")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    place = tmp_path_factory.mktemp("checkpoints")
    checkpoints.write_roberta(place / "roberta")
    checkpoints.write_swin(place / "swin")
    return place


@pytest.fixture
def place(written, tmp_path):
    return shutil.copytree(written, tmp_path / "checkpoints")


def changed(folder, change) -> None:
    """Other tensors in a file; `change` gets a dictionary of them."""
    file = folder / "model.safetensors"
    tensors = dict(safetensors.load_file(file))
    change(tensors)
    safetensors.save_file(
        {name: np.ascontiguousarray(a) for name, a in tensors.items()}, file
    )


def read_roberta(place):
    model = models.roberta_of(place / "roberta")
    return models.load_roberta(place / "roberta", model)


def read_swin(place):
    return models.load_swin(place / "swin")


READ = {"roberta": read_roberta, "swin": read_swin}
NAMES = {
    "roberta": "roberta.encoder.layer.0.output.dense.bias",
    "swin": "layers.0.blocks.0.mlp.fc1.bias",
}


def refused(place, kind, message, file="model.safetensors") -> None:
    with pytest.raises(ValueError, match=message) as caught:
        READ[kind](place)
    assert str(place / kind / file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite(place, kind, value):
    changed(place / kind, lambda tensors: tensors[NAMES[kind]].fill(value))
    name = NAMES[kind].removeprefix("roberta.")
    refused(place, kind, f"{name} must have finite numbers, got float32")


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.bool_, np.complex64])
def test_weights_that_are_not_floats(place, kind, dtype):
    name = NAMES[kind]
    changed(place / kind, lambda tensors: tensors.update({name: dtype(tensors[name])}))
    refused(place, kind, f"must have finite numbers, got {np.dtype(dtype)}")


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3"])
def test_types_that_numpy_does_not_have(place, kind, dtype):
    """The parser raises `TypeError` and `AttributeError`."""
    file = place / kind / "model.safetensors"
    content = file.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    values = content[8 + size :]
    half = {"BF16": 2, "F8_E4M3": 4}[dtype]
    for entry in header.values():
        entry["dtype"] = dtype
        entry["data_offsets"] = [offset // half for offset in entry["data_offsets"]]
    text = json.dumps(header).encode()
    values = values[: len(values) // half]
    file.write_bytes(struct.pack("<Q", len(text)) + text + values)
    refused(place, kind, "expected tensors in the format of safetensors")


@pytest.mark.parametrize("kind", READ)
def test_one_tensor_by_two_names(place, kind):
    new = {"roberta": NAMES["roberta"].removeprefix("roberta."), "swin": "head.bias"}
    old = {"roberta": NAMES["roberta"], "swin": "head.fc.bias"}
    copy = lambda tensors: tensors.update({new[kind]: tensors[old[kind]]})
    changed(place / kind, copy)
    refused(place, kind, "a tensor with and without|head.fc.bias by two names")


@pytest.mark.parametrize("kind", READ)
def test_long_and_broken_names(place, kind):
    changed(place / kind, lambda tensors: tensors.update({"a\nb" * 2000: np.ones(1)}))
    refused(place, kind, "unexpected")


# -------------------------------------------------------------------- roberta


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 2**70},
        {"hidden_size": 16.0},
        {"hidden_size": "16"},
        {"hidden_size": True},
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 0},
        {"num_attention_heads": 3},
        {"num_attention_heads": -1},
        {"max_position_embeddings": 1},
        {"pad_token_id": 10**6},
        {"vocab_size": 1e400},
        {"layer_norm_eps": -1},
        {"layer_norm_eps": float("nan")},
        {"hidden_dropout_prob": 1.5, "attention_probs_dropout_prob": 1.5},
    ],
    ids=str,
)
def test_sizes_that_no_model_has(place, changes):
    file = place / "roberta" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    message = r"config.json: expected the sizes of a RoBERTa \(.*\); download it again"
    refused(place, "roberta", message, "config.json")


@pytest.mark.parametrize("content", ["[" * 200_000, "[]", "null", "3", "\0"])
def test_other_json_than_settings(place, content):
    (place / "roberta" / "config.json").write_text(content)
    refused(place, "roberta", "expected the sizes of a RoBERTa", "config.json")


def test_a_depth_that_the_file_does_not_have(place):
    """Tracing a thousand layers would take a minute."""
    file = place / "roberta" / "config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"num_hidden_layers": 999})
    )
    refused(place, "roberta", "does not match a RoBERTa of depth 999: missing encoder")


def test_vocabulary_and_settings_of_two_models(place):
    """Ids above the model's give NaN."""
    file = place / "roberta" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"vocab_size": 269}))
    config = Config(dataset="cola", model="roberta", checkpoint=place / "roberta")
    with pytest.raises(
        ValueError, match=r"vocab.json has 270 token ids, config.json 269"
    ):
        pretrained.dataset_of(config)


# ----------------------------------------------------------------------- swin


def renamed(old, new):
    def change(tensors):
        for name in [name for name in tensors if name.startswith(old)]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # its depth would be the length of a loop and the power of a side
        (renamed("layers.1.", "layers.999999999."), "does not match the others"),
        (renamed("layers.1.", "layers.40."), r"blocks of the stages and numbers \[\(0"),
        (renamed("layers.0.blocks.1", "layers.0.blocks.7"), "blocks of the stages and"),
        (renamed("layers.1.", "layers.²."), "does not match the others"),
    ],
)
def test_stages_and_blocks_are_counted(place, change, message):
    changed(place / "swin", change)
    refused(place, "swin", message)


def test_tensors_without_numbers(place):
    """Of any shape, they take no bytes in a file."""
    name = "layers.0.blocks.0.attn.relative_position_bias_table"
    empty = np.zeros((2**40, 0), np.float32)
    changed(place / "swin", lambda tensors: tensors.update({name: empty}))
    refused(place, "swin", r"must have finite numbers, got float32\[1099511627776, 0\]")


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("layers.0.blocks.0.attn.relative_position_bias_table", (127**2, 2), "window"),
        ("patch_embed.proj.weight", (1, 1, 64, 64), "its patch has 64, more than 32"),
    ],
)
def test_sizes_that_would_fill_the_memory(place, name, shape, message):
    large = np.zeros(shape, np.float32)
    changed(place / "swin", lambda tensors: tensors.update({name: large}))
    refused(place, "swin", f"not a Swin transformer as saved by timm: .*{message}")


def test_a_width_of_nothing(place):
    name = "patch_embed.proj.weight"
    empty = np.zeros((0, 3, 2, 2), np.float32)
    changed(place / "swin", lambda tensors: tensors.update({name: empty}))
    refused(place, "swin", "patch_embed.proj.weight must have finite numbers")

"""Checkpoints: tiny random ones against torch, trained, damaged, refused."""

import json
import math
import shutil
import struct
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packages import needs
from published import allow_small
from torch_roberta import saved

import fedjax_muon as fm
from experiments.papers.pretrained.byte_pairs import roberta_encoder
from experiments.papers.pretrained.problems import roberta, swin_tiny
from experiments.papers.pretrained.roberta import RoBERTa, load_roberta, roberta_of
from experiments.papers.pretrained.swin import load_swin, without_head
from fedjax_muon import data, tasks

pytestmark = pytest.mark.slow

torch = needs("torch")
safetensors = needs("safetensors.numpy")
functional = torch.nn.functional
checkpoints = needs("tiny_checkpoints")

WIDTH, RANK = 16, 2
WORDS = ("the hand", "on the sand", "a thing", "in the end", "red and round")
ROWS = [(WORDS[i % 5] + " " + WORDS[i % 3], i % 2) for i in range(40)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Checkpoints, and a tiny CoLA."""
    tiny = tmp_path_factory.mktemp("pretrained")
    checkpoints.write_roberta(tiny / "roberta", width=WIDTH)
    checkpoints.write_swin(tiny / "swin")
    cola = tiny / "CoLA"
    cola.mkdir()
    text = "".join(f"gj04\t{label}\t\t{sentence}\n" for sentence, label in ROWS)
    for file in ("train.tsv", "dev.tsv"):
        (cola / file).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        allow_small(patch, "cola")
        yield tiny


@pytest.fixture
def place(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "checkpoints")


# ------------------------------- Swin against timm's computation in torch, by its names

DEPTHS, HEADS, WINDOW, SIDE = (2, 1), (2, 3), 2, 8
IMAGES = np.random.default_rng(1).normal(size=(2, 5, 6, 3))  # to be resized


@pytest.fixture(scope="module")
def tensors(tiny):
    return safetensors.load_file(tiny / "swin" / "model.safetensors")


def windows(x):
    """[B, H, W, F] to [B H W / WINDOW^2, WINDOW^2, F]."""
    batch, height, width, features = x.shape
    x = x.view(batch, height // WINDOW, WINDOW, width // WINDOW, WINDOW, features)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW**2, features)


def together(side, shift):
    """Which places of each window of the rolled map were neighbours: by timm's three
    slices a side."""
    cuts = [slice(0, -WINDOW), slice(-WINDOW, -shift), slice(-shift, None)]
    region = torch.zeros(1, side, side, 1)
    for i, rows in enumerate(cuts):
        for j, columns in enumerate(cuts):
            region[:, rows, columns] = 3 * i + j
    region = windows(region)[..., 0]
    return region[:, :, None] == region[:, None, :]


def forward(tensors, images):
    """Logits [B, classes]."""
    t = {name: torch.tensor(np.float64(a)) for name, a in tensors.items()}
    both = lambda name: (t[f"{name}.weight"], t.get(f"{name}.bias"))
    dense = lambda x, name: functional.linear(x, *both(name))
    norm = lambda x, name: functional.layer_norm(x, x.shape[-1:], *both(name))
    x = torch.tensor(images).permute(0, 3, 1, 2)
    x = functional.interpolate(x, (SIDE, SIDE), mode="bilinear", align_corners=False)
    kernel, bias = both("patch_embed.proj")
    x = functional.conv2d(x, kernel, bias, stride=kernel.shape[-1])
    x = norm(x.permute(0, 2, 3, 1), "patch_embed.norm")
    places = [(i, j) for i in range(WINDOW) for j in range(WINDOW)]
    far = WINDOW - 1
    row = lambda a, b: (a[0] - b[0] + far) * (2 * far + 1) + a[1] - b[1] + far
    offsets = torch.tensor([[row(a, b) for b in places] for a in places])
    for stage, depth in enumerate(DEPTHS):
        if stage:
            x = torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1)
            down = f"layers.{stage}.downsample"
            x = dense(norm(x, f"{down}.norm"), f"{down}.reduction")
        batch, side, _, features = x.shape
        for i in range(depth):
            block = f"layers.{stage}.blocks.{i}"
            shift = WINDOW // 2 if i % 2 and side > WINDOW else 0
            y = torch.roll(norm(x, f"{block}.norm1"), (-shift, -shift), (1, 2))
            y = dense(windows(y), f"{block}.attn.qkv")
            y = y.reshape(*y.shape[:2], 3, HEADS[stage], -1).permute(2, 0, 3, 1, 4)
            scores = y[0] @ y[1].mT / math.sqrt(features / HEADS[stage])
            table = t[f"{block}.attn.relative_position_bias_table"]
            scores = scores + table[offsets].permute(2, 0, 1)
            if shift:
                same = together(side, shift).repeat(batch, 1, 1)[:, None]
                scores = scores.masked_fill(~same, -math.inf)
            y = (scores.softmax(-1) @ y[2]).transpose(1, 2).flatten(2)
            y = dense(y, f"{block}.attn.proj")
            count = side // WINDOW
            y = y.view(batch, count, count, WINDOW, WINDOW, features)
            y = y.permute(0, 1, 3, 2, 4, 5).reshape(x.shape)
            x = x + torch.roll(y, (shift, shift), (1, 2))
            y = functional.gelu(dense(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1"))
            x = x + dense(y, f"{block}.mlp.fc2")
    return dense(norm(x, "norm").mean((1, 2)), "head.fc")


def test_logits_equal_torch(tmp_path, tensors):
    double = {name: np.float64(a) for name, a in tensors.items()}
    with jax.enable_x64(True):
        model, params = load_swin(saved(tmp_path, double))
        run = jax.jit(lambda params: model.apply({"params": params}, IMAGES))
        logits = np.asarray(run(params))
    assert (model.depths, model.heads) == (DEPTHS, HEADS)
    assert (model.window, model.side, model.classes) == (WINDOW, SIDE, 5)
    np.testing.assert_allclose(logits, forward(tensors, IMAGES), rtol=0, atol=1e-9)


def test_half_precision_and_what_is_no_weight(tmp_path, tensors):
    old = {name: np.float16(tensor) for name, tensor in tensors.items()}
    old["layers.0.blocks.0.attn.relative_position_index"] = np.zeros((4, 4), np.int64)
    old["layers.0.blocks.1.attn_mask"] = np.zeros((4, 4, 4), np.float32)
    saved(tmp_path, old)
    model, params = load_swin(tmp_path)
    halves = {name: np.float32(np.float16(a)) for name, a in tensors.items()}
    other, expected = load_swin(saved(tmp_path, halves))
    assert model == other
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}
    jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_training_starts_at_the_checkpoint(tmp_path, tensors):
    model, params = load_swin(saved(tmp_path, tensors))
    tuned = model.clone(classes=3)
    task = tasks.classification(tuned, (5, 6, 3))
    start = tasks.starting_at(task, without_head(params))
    first, second = (start.init(jax.random.key(i)) for i in (0, 1))
    shapes = jax.tree.map(jnp.shape, jax.eval_shape(task.init, jax.random.key(0)))
    assert jax.tree.map(jnp.shape, first) == shapes
    same = partial(jax.tree.map, np.testing.assert_array_equal)
    same(without_head(first), without_head(params))
    same(without_head(second), without_head(params))
    assert np.any(first["head"]["kernel"] != second["head"]["kernel"])
    # held as arguments of programs
    assert len(jax.tree.leaves(start.init)) == len(jax.tree.leaves(params)) - 2
    with pytest.raises(ValueError, match="parameters must match the task's: head is"):
        tasks.starting_at(task, params)
    with pytest.raises(ValueError, match="task's: tail is not one of LayerNorm_0, "):
        tasks.starting_at(task, {"tail": params["head"]})


# ------------------------------------------------------------------- as problems
SIZES = {"cohort": 2, "local_steps": 2, "batch_size": 4}


def problem_of(tiny, **changes):
    given = {"data_dir": tiny, "checkpoint": tiny / "roberta", "clients": 2}
    given |= {"divide": fm.partition.iid, "rank": RANK, "max_tokens": 8}
    return roberta("cola", **(given | changes))


def test_adapters_and_head_are_trained_by_a_sweep(tiny, tmp_path):
    """Tokens, frozen weights, Matthews' correlation, and what is left behind."""
    problem, output = problem_of(tiny), tmp_path / "sweep"
    how = {"rounds": 2, "evaluate_every": 2, "validation": 0.25, "directory": output}
    swept = fm.sweep(fm.fedavg(), problem, {"lr": (0.1,)}, extend=False, **how, **SIZES)
    ((rows,),) = (point.runs for point in swept.points)
    for column in ("test_mcc", "validation_mcc"):
        assert np.all(np.abs(rows[column]) <= 1)
    assert "validation_mcc_mean" in (output / "points.csv").read_text()
    assert "MCC, %" in (output / "summary.md").read_text()
    # adapters of two projections, and the head
    matrices = 2 * (2 * WIDTH * RANK) + WIDTH * WIDTH + 2 * WIDTH
    assert rows["bytes_up"][-1] == 2 * 2 * 4 * (matrices + WIDTH + 2)
    words = json.loads((output / "identity.json").read_text())
    assert words["problem.checkpoint"] == "'roberta'"  # wherever it lies


def test_the_task_holds_the_checkpoint_and_the_ids_are_its(tiny):
    problem, folder = problem_of(tiny), tiny / "roberta"
    encoder = roberta_encoder(folder / "vocab.json", folder / "merges.txt", 8)
    expected = encoder.encode([sentence for sentence, _ in ROWS])
    np.testing.assert_array_equal(problem.dataset.x_train, expected)
    assert problem.dataset.tokens == 270
    frozen = load_roberta(folder / "model.safetensors", roberta_of(folder))
    (logits,) = problem.task.grad.args
    jax.tree.map(np.testing.assert_array_equal, logits.args[0], frozen)
    # by the file alone, which lies beside the others
    beside = problem_of(tiny, checkpoint=folder / "model.safetensors")
    np.testing.assert_array_equal(beside.dataset.x_train, expected)


def test_swin_starts_at_its_checkpoint(tiny, monkeypatch):
    """In all of its parameters, for images of another size and other classes."""
    x = np.random.default_rng(0).normal(size=(40, 4, 4, 3)).astype(np.float32)
    y = np.arange(40) % 3
    images = data.check(data.Dataset(x, y, x, y, ("a", "b", "c")))
    how = {"checkpoint": tiny / "swin", "clients": 2, "divide": fm.partition.iid}
    params = swin_tiny(images, **how).task.init(jax.random.key(0))
    _, expected = load_swin(tiny / "swin")
    assert params["head"]["kernel"].shape == (12, 3)
    del params["head"], expected["head"]
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    with pytest.raises(ValueError, match="must match the task's: patches is not one"):
        swin_tiny("digits", **how)  # of one channel


REFUSED = (
    ({"checkpoint": Path("no")}, "vocab.json does not exist; download"),
    ({"max_tokens": 3}, "length must be at least 5 tokens, got 3"),
    ({"rank": 0}, "rank must be at least 1, got 0"),
)


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_refusals(tiny, changes, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        problem_of(tiny, **changes)


@pytest.mark.parametrize(
    ("positions", "settings", "message"),
    [
        (4, {"max_position_embeddings": 4}, "N from 1 to 2, got shape"),
        (66, {"pad_token_id": 0}, r"the padding 1, config.json 270 and 0; take both"),
        # ids above the model's give NaN
        (66, {"vocab_size": 269}, r"vocab.json has 270 token ids .* config.json 269"),
    ],
)
def test_settings_that_do_not_fit(tiny, tmp_path, positions, settings, message):
    folder = checkpoints.write_roberta(tmp_path, positions=positions)
    rewrite(folder, **settings)
    with pytest.raises(ValueError, match=message):
        problem_of(tiny, checkpoint=folder)


def test_packages_that_are_not_there(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # as if not installed
    message = r'encoder needs tokenizers, .* pip install "tokenizers<0\.24,>=0\.23'
    with pytest.raises(ImportError, match=message):
        problem_of(tiny)


def rewrite(folder, **values):
    file = folder / "config.json"
    found = json.loads(file.read_text()) | values
    found = {name: value for name, value in found.items() if value is not None}
    file.write_text(json.dumps(found))


def test_tokens_are_in_files(place):
    (place / "roberta" / "merges.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"merges\.txt does not exist; downl"):
        problem_of(place)


def test_sizes_of_a_checkpoint(place):
    folder = place / "roberta"
    assert roberta_of(folder, 3).hidden == 32
    dropout = {"hidden_act": "gelu", "attention_probs_dropout_prob": 0.2}
    for changes, message in (
        ({"hidden_act": "relu"}, r"config\.json must say .*'hidden_act': 'gel"),
        (dropout, "one dropout for hidden layers and attention"),
        ({"hidden_size": None}, r"expected the sizes of a RoBERTa \(KeyErro"),
    ):
        rewrite(folder, **changes)
        with pytest.raises(ValueError, match=message):
            roberta_of(folder)
    (folder / "config.json").unlink()
    assert roberta_of(folder, 3) == RoBERTa(3)  # roberta-base


# --------------------------------------------- damaged, or made to harm
def changed(folder, change) -> None:
    """Other tensors in a file; `change` gets a dictionary of them."""
    file = folder / "model.safetensors"
    tensors = dict(safetensors.load_file(file))
    change(tensors)
    saved(folder, tensors)


def read_roberta(place):
    return load_roberta(place / "roberta", roberta_of(place / "roberta"))


READ = {"roberta": read_roberta, "swin": lambda place: load_swin(place / "swin")}
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
def test_files_without_tensors_and_no_files(place, kind):
    file = place / kind / "model.safetensors"
    file.write_bytes(b"no tensors")
    refused(place, kind, "expected tensors in the format of safetensors")
    file.unlink()
    start = "https://huggingface.co/ti" if kind == "swin" else ""
    message = f"model.safetensors does not exist; download .*{start}"
    with pytest.raises(FileNotFoundError, match=message):
        READ[kind](place)


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize(
    "value",
    [
        *np.float32([np.nan, np.inf, -np.inf]),
        *(dtype(0) for dtype in (np.int32, np.int8, np.bool_, np.complex64)),
    ],
)
def test_weights_that_are_no_finite_numbers(place, kind, value):
    name = NAMES[kind]
    full = lambda tensors: np.full_like(tensors[name], value, dtype=value.dtype)
    changed(place / kind, lambda tensors: tensors.update({name: full(tensors)}))
    place_of = name.removeprefix("roberta.")
    refused(place, kind, f"{place_of} must have finite numbers, got {value.dtype}")


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


def test_one_tensor_by_two_names(place):
    new = NAMES["roberta"].removeprefix("roberta.")
    copy = lambda tensors: tensors.update({new: tensors[NAMES["roberta"]]})
    changed(place / "roberta", copy)
    refused(place, "roberta", "a tensor with and without")


@pytest.mark.parametrize("kind", READ)
def test_long_and_broken_names(place, kind):
    changed(place / kind, lambda tensors: tensors.update({"a\nb" * 2000: np.ones(1)}))
    refused(place, kind, "unexpected")


@pytest.mark.parametrize(
    "changes",
    [
        *({"hidden_size": size} for size in (2**70, 16.0, "16", True)),
        *({"num_hidden_layers": depth} for depth in (10**9, 0)),
        *({"num_attention_heads": heads} for heads in (3, -1)),
        {"max_position_embeddings": 1},
        {"pad_token_id": 10**6},
        {"vocab_size": 1e400},
        *({"layer_norm_eps": epsilon} for epsilon in (-1, float("nan"))),
        {"hidden_dropout_prob": 1.5, "attention_probs_dropout_prob": 1.5},
    ],
    ids=str,
)
def test_sizes_that_no_model_has(place, changes):
    rewrite(place / "roberta", **changes)
    message = r"config.json: expected the sizes of a RoBERTa \(.*\); download it again"
    refused(place, "roberta", message, "config.json")


@pytest.mark.parametrize("content", ["[" * 200_000, "[]", "null", "3", "\0", "{"])
def test_other_json_than_settings(place, content):
    (place / "roberta" / "config.json").write_text(content)
    refused(place, "roberta", "expected the sizes of a RoBERTa", "config.json")


def test_a_depth_that_the_file_does_not_have(place):
    """Tracing a thousand layers would take a minute."""
    rewrite(place / "roberta", num_hidden_layers=999)
    refused(place, "roberta", "does not match a RoBERTa of depth 999: missing encoder")


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


TABLE = "layers.0.blocks.0.attn.relative_position_bias_table"
SECOND = TABLE.replace("layers.0", "layers.1")
PATCHES, PLACES = "patch_embed.proj.weight", "absolute_pos_embed"
NORM = "layers.1.blocks.0.norm2.bias"
UNFIT = "not a Swin transformer as saved by timm: .*"
NO_NUMBERS = "must have finite numbers"


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        # of any shape, tensors without numbers take no bytes in a file
        (TABLE, (2**40, 0), rf"{NO_NUMBERS}, got float32\[1099511627776, 0\]"),
        (PATCHES, (0, 3, 2, 2), f"{PATCHES} {NO_NUMBERS}"),
        # these would fill the memory
        (TABLE, (127**2, 2), f"{UNFIT}window"),
        (PATCHES, (1, 1, 64, 64), f"{UNFIT}its patch has 64, more than 32"),
        # of other networks
        (PATCHES, None, f"{UNFIT}'{PATCHES}' is missing"),
        (NORM, None, f"{UNFIT}'{NORM}' is missing"),
        (PLACES, (1, 16, 6), f"{UNFIT}unexpected {PLACES}, and 0 mo"),
        # made for windows of 2 in the first stage, and of 1 in the second
        (SECOND, (1, 3), rf"{UNFIT}{SECOND} has shape \(1, 3\)"),
    ],
)
def test_other_tensors_than_those_of_swin(place, name, shape, message):
    def change(tensors):
        if shape is None:
            del tensors[name]
        else:
            tensors[name] = np.zeros(shape, np.float32)

    changed(place / "swin", change)
    refused(place, "swin", message)

"""A pretrained Swin transformer against timm's computation in torch, by its names."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packages import needs

from fedjax_muon import models, tasks
from fedjax_muon.models.swin_checkpoint import without_head

torch = needs("torch")
safetensors = needs("safetensors.numpy")
functional = torch.nn.functional
checkpoints = needs("experiments.studies.tiny_checkpoints")
pytestmark = pytest.mark.slow

DEPTHS, HEADS, WINDOW, SIDE = (2, 1), (2, 3), 2, 8
IMAGES = np.random.default_rng(1).normal(size=(2, 5, 6, 3))  # to be resized


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    place = checkpoints.write_swin(tmp_path_factory.mktemp("swin"))
    return safetensors.load_file(place / "model.safetensors")


def saved(folder, tensors):
    file = folder / "model.safetensors"
    safetensors.save_file(
        {name: np.ascontiguousarray(a) for name, a in tensors.items()}, file
    )
    return file


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
    dense = lambda x, name: functional.linear(
        x, t[f"{name}.weight"], t.get(f"{name}.bias")
    )
    norm = lambda x, name: functional.layer_norm(
        x, x.shape[-1:], t[f"{name}.weight"], t[f"{name}.bias"]
    )
    x = torch.tensor(images).permute(0, 3, 1, 2)
    x = functional.interpolate(x, (SIDE, SIDE), mode="bilinear", align_corners=False)
    kernel = t["patch_embed.proj.weight"]
    x = functional.conv2d(
        x, kernel, t["patch_embed.proj.bias"], stride=kernel.shape[-1]
    )
    x = norm(x.permute(0, 2, 3, 1), "patch_embed.norm")
    places = [(i, j) for i in range(WINDOW) for j in range(WINDOW)]
    row = lambda a, b: (
        (a[0] - b[0] + WINDOW - 1) * (2 * WINDOW - 1) + (a[1] - b[1] + WINDOW - 1)
    )
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
        model, params = models.load_swin(saved(tmp_path, double))
        run = jax.jit(lambda params: model.apply({"params": params}, IMAGES))
        logits = np.asarray(run(params))
    assert (model.depths, model.heads) == (DEPTHS, HEADS)
    assert (model.window, model.side, model.classes) == (WINDOW, SIDE, 5)
    np.testing.assert_allclose(logits, forward(tensors, IMAGES), rtol=0, atol=1e-9)


def test_names_of_before_and_half_precision(tmp_path, tensors):
    """The authors', and of timm before 0.9; by the directory."""
    old = {}
    for name, tensor in tensors.items():
        name = name.replace("layers.1.downsample", "layers.0.downsample")
        old[name.replace("head.fc.", "head.")] = np.float16(tensor)
    old["layers.0.blocks.0.attn.relative_position_index"] = np.zeros((4, 4), np.int64)
    old["layers.0.blocks.1.attn_mask"] = np.zeros((4, 4, 4), np.float32)
    saved(tmp_path, old)
    model, params = models.load_swin(tmp_path)
    halves = {name: np.float32(np.float16(a)) for name, a in tensors.items()}
    other, expected = models.load_swin(saved(tmp_path, halves))
    assert model == other
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}
    jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_training_starts_at_the_checkpoint(tmp_path, tensors):
    model, params = models.load_swin(saved(tmp_path, tensors))
    tuned = model.clone(classes=3)
    task = tasks.classification(tuned, (5, 6, 3))
    start = tasks.starting_at(task, without_head(params))
    first, second = (start.init(jax.random.key(i)) for i in (0, 1))
    assert jax.tree.map(jnp.shape, first) == jax.tree.map(
        lambda a: a.shape, jax.eval_shape(task.init, jax.random.key(0))
    )
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


# ------------------------------------------------------------------- refusals


def test_no_file(tmp_path):
    message = r"model.safetensors does not exist; download .* https://huggingface.co/ti"
    with pytest.raises(FileNotFoundError, match=message):
        models.load_swin(tmp_path)


def test_no_safetensors(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="expected tensors in the format of safetens"):
        models.load_swin(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch_embed.proj.weight": None}, "'patch_embed.proj.weight' is missing"),
        ({"layers.1.blocks.0.norm2.bias": None}, "'layers.1.blocks.0.norm2.bias' is m"),
        ({"absolute_pos_embed": (1, 16, 6)}, "unexpected absolute_pos_embed, and 0 mo"),
        # made for windows of 2 in the first stage, and of 1 in the second
        (
            {"layers.1.blocks.0.attn.relative_position_bias_table": (1, 3)},
            r"layers.1.blocks.0.attn.relative_position_bias_table has shape \(1, 3\)",
        ),
    ],
)
def test_other_networks(tmp_path, tensors, changes, message):
    tensors = dict(tensors)
    for name, shape in changes.items():
        if shape is None:
            del tensors[name]
        else:
            tensors[name] = np.zeros(shape, np.float32)
    with pytest.raises(
        ValueError, match=f"not a Swin transformer as saved by timm: .*{message}"
    ):
        models.load_swin(saved(tmp_path, tensors))

"""Random checkpoints of a few thousand numbers, with the published names."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers.pre_tokenizers import ByteLevel

MARKS = ("<s>", "<pad>", "</s>", "<unk>")
MERGES = ("Ġ t", "h e", "Ġ a", "i n", "Ġt he", "r e", "o n", "n d", "Ġ s", "in g")


def _tensors(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Returns normal numbers that preserve the scale of their inputs."""
    rng, found = np.random.default_rng(seed), {}
    for name, shape in shapes.items():
        scale = 1 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.1
        mean = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
        found[name] = np.float32(mean + scale * rng.normal(size=shape))
    return found


def _dense(name: str, fan_in: int, fan_out: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (fan_out, fan_in), f"{name}.bias": (fan_out,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def write_vocabulary(folder: Path) -> int:
    """Writes vocab.json and merges.txt of all bytes and a few merges.

    Returns:
      The number of token ids.
    """
    merged = [merge.replace(" ", "") for merge in MERGES]
    pieces = [*MARKS, *sorted(ByteLevel.alphabet()), *merged]
    ids = {piece: i for i, piece in enumerate(pieces)}
    (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False))
    (folder / "merges.txt").write_text("\n".join(("#version: 0.2", *MERGES, "")))
    return len(ids)


def write_roberta(
    folder: Path,
    *,
    width: int = 16,
    depth: int = 1,
    heads: int = 2,
    hidden: int = 32,
    positions: int = 66,
    seed: int = 0,
) -> Path:
    """Writes the files of a directory of roberta-base, without a classification head.

    Returns:
      The directory, which may be new.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = write_vocabulary(folder)
    shapes = {
        "roberta.embeddings.word_embeddings.weight": (words, width),
        "roberta.embeddings.position_embeddings.weight": (positions, width),
        "roberta.embeddings.token_type_embeddings.weight": (1, width),
        **_norm("roberta.embeddings.LayerNorm", width),
    }
    for i in range(depth):
        layer = f"roberta.encoder.layer.{i}"
        for projection in ("query", "key", "value"):
            shapes |= _dense(f"{layer}.attention.self.{projection}", width, width)
        shapes |= _dense(f"{layer}.attention.output.dense", width, width)
        shapes |= _norm(f"{layer}.attention.output.LayerNorm", width)
        shapes |= _dense(f"{layer}.intermediate.dense", width, hidden)
        shapes |= _dense(f"{layer}.output.dense", hidden, width)
        shapes |= _norm(f"{layer}.output.LayerNorm", width)
    save_file(_tensors(shapes, seed), folder / "model.safetensors")
    sizes = {
        "vocab_size": words,
        "max_position_embeddings": positions,
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "intermediate_size": hidden,
        "pad_token_id": MARKS.index("<pad>"),
        "type_vocab_size": 1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "layer_norm_eps": 1e-5,
        "model_type": "roberta",
    }
    (folder / "config.json").write_text(json.dumps(sizes, indent=2) + "\n")
    return folder


def write_swin(
    folder: Path,
    *,
    classes: int = 5,
    patch: int = 2,
    window: int = 2,
    width: int = 6,
    depths: tuple[int, ...] = (2, 1),
    heads: tuple[int, ...] = (2, 3),
    expansion: int = 2,
    seed: int = 0,
) -> Path:
    """Writes model.safetensors of a Swin transformer by timm's names.

    Images have patch window 2^(stages - 1) pixels per side.

    Returns:
      The directory, which may be new.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {
        "patch_embed.proj.weight": (width, 3, patch, patch),
        "patch_embed.proj.bias": (width,),
        **_norm("patch_embed.norm", width),
    }
    for stage, (depth, number) in enumerate(zip(depths, heads, strict=True)):
        features = width * 2**stage
        if stage:
            down = f"layers.{stage}.downsample"
            shapes |= _norm(f"{down}.norm", 2 * features)
            shapes[f"{down}.reduction.weight"] = (features, 2 * features)
        for i in range(depth):
            block = f"layers.{stage}.blocks.{i}"
            table = ((2 * window - 1) ** 2, number)
            shapes |= _norm(f"{block}.norm1", features)
            shapes[f"{block}.attn.relative_position_bias_table"] = table
            shapes |= _dense(f"{block}.attn.qkv", features, 3 * features)
            shapes |= _dense(f"{block}.attn.proj", features, features)
            shapes |= _norm(f"{block}.norm2", features)
            shapes |= _dense(f"{block}.mlp.fc1", features, expansion * features)
            shapes |= _dense(f"{block}.mlp.fc2", expansion * features, features)
    last = width * 2 ** (len(depths) - 1)
    shapes |= _norm("norm", last) | _dense("head.fc", last, classes)
    save_file(_tensors(shapes, seed), folder / "model.safetensors")
    return folder

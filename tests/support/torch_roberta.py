"""RoBERTa by torch's functions, from tensors with the names of a checkpoint.

Written after transformers' `RobertaForSequenceClassification`, with its dropout off.
"""

import math
from typing import Any

import numpy as np
from packages import needs

# of `models.RoBERTa`, and of the checkpoint below
CLASSES, WORDS, PLACES, WIDTH, DEPTH, HEADS, HIDDEN = 3, 13, 12, 8, 2, 2, 10
SIZES = (CLASSES, WORDS, PLACES, WIDTH, DEPTH, HEADS, HIDDEN)

# padding behind, none, between, and nothing else: <s> 0, padding 1, </s> 2
IDS = np.array(
    [[0, 5, 6, 2, 1, 1], [0, 12, 7, 8, 9, 2], [0, 4, 1, 5, 2, 1], [1, 1, 1, 1, 1, 1]],
    np.int32,
)


def saved(folder, tensors):
    """A file of `tensors` in `folder`."""
    file = folder / "model.safetensors"
    ordered = {name: np.ascontiguousarray(a) for name, a in tensors.items()}
    needs("safetensors.numpy").save_file(ordered, file)
    return file


def checkpoint(seed=0) -> dict[str, np.ndarray]:
    """Normal tensors in float64, by the names of transformers."""
    rng = np.random.default_rng(seed)
    tensors = {}

    def draw(name, *shape):
        scale = 1 / math.sqrt(shape[-1]) if len(shape) > 1 else 1
        tensors[name] = scale * rng.normal(size=shape)

    def dense(name, fan_in, fan_out):
        draw(f"{name}.weight", fan_out, fan_in)
        draw(f"{name}.bias", fan_out)

    def norm(name):
        draw(f"{name}.weight", WIDTH)
        draw(f"{name}.bias", WIDTH)

    draw("roberta.embeddings.word_embeddings.weight", WORDS, WIDTH)
    draw("roberta.embeddings.position_embeddings.weight", PLACES, WIDTH)
    draw("roberta.embeddings.token_type_embeddings.weight", 1, WIDTH)
    norm("roberta.embeddings.LayerNorm")
    for i in range(DEPTH):
        layer = f"roberta.encoder.layer.{i}"
        for projection in ("query", "key", "value"):
            dense(f"{layer}.attention.self.{projection}", WIDTH, WIDTH)
        dense(f"{layer}.attention.output.dense", WIDTH, WIDTH)
        norm(f"{layer}.attention.output.LayerNorm")
        dense(f"{layer}.intermediate.dense", WIDTH, HIDDEN)
        dense(f"{layer}.output.dense", HIDDEN, WIDTH)
        norm(f"{layer}.output.LayerNorm")
    dense("classifier.dense", WIDTH, WIDTH)
    dense("classifier.out_proj", WIDTH, CLASSES)
    return tensors


def forward(tensors: dict[str, Any], ids: Any, depth: int = DEPTH) -> Any:
    """Logits [B, classes]; a token attends where the id is not 1."""
    torch = needs("torch")
    functional = torch.nn.functional
    ids = torch.tensor(ids, dtype=torch.int64)

    def dense(x, name):
        return functional.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def norm(x, name):
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        return functional.layer_norm(x, (WIDTH,), weight, bias, eps=1e-5)

    table = lambda name: tensors[f"roberta.embeddings.{name}_embeddings.weight"]
    mask = ids.ne(1).int()
    places = (torch.cumsum(mask, dim=1) * mask).long() + 1
    x = functional.embedding(ids, table("word"))
    x = x + functional.embedding(places, table("position"))
    x = x + functional.embedding(torch.zeros_like(ids), table("token_type"))
    x = norm(x, "roberta.embeddings.LayerNorm")
    hide = (1.0 - mask[:, None, None, :].double()) * torch.finfo(torch.float64).min
    for i in range(depth):
        layer = f"roberta.encoder.layer.{i}"

        def heads(x, name, layer=layer):
            y = dense(x, f"{layer}.attention.self.{name}")
            return y.view(*ids.shape, HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)

        query, key, value = (heads(x, name) for name in ("query", "key", "value"))
        scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS) + hide
        seen = (torch.softmax(scores, dim=-1) @ value).permute(0, 2, 1, 3)
        y = dense(seen.reshape(x.shape), f"{layer}.attention.output.dense")
        x = norm(y + x, f"{layer}.attention.output.LayerNorm")
        y = functional.gelu(dense(x, f"{layer}.intermediate.dense"))
        y = dense(y, f"{layer}.output.dense")
        x = norm(y + x, f"{layer}.output.LayerNorm")
    return dense(torch.tanh(dense(x[:, 0], "classifier.dense")), "classifier.out_proj")

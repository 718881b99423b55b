"""Networks on tokens in PyTorch's own layers: ViT, recurrent, and GPT."""

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from fedjax_muon import models

Layers = dict[str, Any]  # layers with a weight, by their names in Flax
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Vector(nn.Module):
    """A learned vector in front of all tokens."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.weight.expand(len(x), 1, -1), x], dim=1)


class Block(nn.Module):
    """Attention, then a network with one hidden layer, each after a normalization."""

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        attend: Attend = nn.functional.scaled_dot_product_attention,
        activation: Callable[[torch.Tensor], torch.Tensor] = nn.functional.gelu,
        epsilon: float = 1e-6,
    ):
        super().__init__()
        self.heads, self.attend, self.activation = heads, attend, activation
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.dense0, self.dense1 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm0 = nn.LayerNorm(width, eps=epsilon)
        self.norm1 = nn.LayerNorm(width, eps=epsilon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        y = self.norm0(x)
        heads = [split(layer(y)) for layer in (self.query, self.key, self.value)]
        y = self.attend(*heads)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.activation(self.dense0(self.norm1(x)))
        return x + self.dense1(y)


class ViT(nn.Module):
    """Patches, a class token, positions, blocks, and a head on the class token."""

    def __init__(self, classes: int, image, patch=4, width=192, depth=12, heads=3):
        super().__init__()
        height, wide, channels = image
        self.patch = patch
        self.patches = nn.Linear(patch * patch * channels, width)
        self.token = Vector(width)
        count = 1 + height // patch * (wide // patch)
        self.positions = nn.Embedding(count, width)
        blocks = [Block(width, heads, 4 * width) for _ in range(depth)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = self.patch
        squares = x.unflatten(3, (-1, p)).unflatten(2, (-1, p))  # b c h p w p
        squares = squares.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        x = self.token(self.patches(squares)) + self.positions.weight
        return self.head(self.norm(self.blocks(x)[:, 0]))


def vit_tiny(classes: int, image) -> tuple[nn.Module, Layers]:
    """Returns the network, and its layers by their names in Flax."""
    net = ViT(classes, image)
    layers: Layers = {
        "patches": net.patches,
        "class_token": net.token,
        "positions": net.positions,
    }
    for i, block in enumerate(net.blocks.children()):
        parts: dict[str, Any] = dict(block.named_children())
        for name in ("query", "key", "value", "out"):
            layers[f"Block_{i}/Attention_0/{name}"] = parts[name]
        for j in range(2):
            layers[f"Block_{i}/LayerNorm_{j}"] = parts[f"norm{j}"]
            layers[f"Block_{i}/Dense_{j}"] = parts[f"dense{j}"]
    return net, layers | {"LayerNorm_0": net.norm, "head": net.head}


class Recurrent(nn.Module):
    """One layer of tanh units, classified by its state after the last token."""

    def __init__(self, classes: int, vocabulary: int, embedding: int, hidden: int):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding)
        self.cell = nn.RNN(embedding, hidden, batch_first=True)
        # PyTorch's second bias is added to the first
        second: Any = self.cell.bias_hh_l0
        second.requires_grad_(False).zero_()
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.cell(self.embed(x))
        last = (x != 0).sum(1) - 1
        return self.head(states[torch.arange(len(x)), last])


def rnn(classes, vocabulary, embedding, hidden, layers):
    """Returns the recurrent network, and its layers.

    Raises:
      ValueError: If there is more than one layer.
    """
    if layers != 1:
        raise ValueError(f"the PyTorch version has one layer, not {layers}")
    net = Recurrent(classes, vocabulary, embedding, hidden)
    inner, outer = net.cell.weight_ih_l0, net.cell.weight_hh_l0
    return net, {
        "Embed_0": net.embed,
        "SimpleCell_0/i": SimpleNamespace(weight=inner, bias=net.cell.bias_ih_l0),
        "SimpleCell_0/h": SimpleNamespace(weight=outer, bias=None),
        "head": net.head,
    }


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention by two products and a softmax."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -math.inf).softmax(-1) @ value


ATTENTION: dict[str, Attend] = {
    "fused": partial(nn.functional.scaled_dot_product_attention, is_causal=True),
    "plain": plain,
}


class GPT(nn.Module):
    """GPT-2: tokens and positions, causal blocks, and the embedding as the head."""

    def __init__(self, model: models.GPT, attend: Attend):
        super().__init__()
        width = model.width
        gelu = partial(nn.functional.gelu, approximate="tanh")
        about = width, model.heads, 4 * width, attend, gelu, model.epsilon
        self.tokens = nn.Embedding(model.vocabulary, width)
        self.positions = nn.Embedding(model.context, width)
        self.blocks = nn.Sequential(*(Block(*about) for _ in range(model.depth)))
        self.norm = nn.LayerNorm(width, eps=model.epsilon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.tokens(x) + self.positions.weight[: x.shape[1]]
        return self.norm(self.blocks(y)) @ self.tokens.weight.T


def gpt(model: models.GPT, attention: str) -> tuple[nn.Module, Layers]:
    """Returns the network of a model in GPT-2's configuration, and its layers."""
    net = GPT(model, ATTENTION[attention])
    layers: Layers = {n: getattr(net, n) for n in ("tokens", "positions", "norm")}
    for i, block in enumerate(net.blocks.children()):
        parts: dict[str, Any] = dict(block.named_children())
        for name in ("query", "key", "value", "out"):
            layers[f"Block_{i}/attention/{name}"] = parts[name]
        layers |= {
            f"Block_{i}/attention_norm": parts["norm0"],
            f"Block_{i}/network_norm": parts["norm1"],
            f"Block_{i}/network/up": parts["dense0"],
            f"Block_{i}/network/down": parts["dense1"],
        }
    return net, layers

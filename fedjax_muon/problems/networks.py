"""Models of problems: functions of the dataset that return a Flax module."""

import functools
from collections.abc import Callable
from typing import Literal

import flax.linen as nn
from jax.typing import DTypeLike

from fedjax_muon import models
from fedjax_muon.core import check_choice, check_count
from fedjax_muon.data import Dataset
from fedjax_muon.data.dataset import TOKEN_TYPES
from fedjax_muon.models.convolution import Convolution, convolution as direct
from fedjax_muon.models.resnet import Norm

Model = Callable[[Dataset], nn.Module]
Dtype = DTypeLike | None


def mlp(
    dataset: Dataset,
    *,
    hidden: tuple[int, ...] = (64, 64),
    dtype: Dtype = None,
) -> nn.Module:
    """A multilayer perceptron, for any numbers.

    Args:
      hidden: Widths of the hidden layers.
      dtype: Precision that the model computes in, such as `jnp.bfloat16`.
    """
    for width in hidden:
        check_count("hidden widths", width)
    return models.MLP(_classes(dataset), tuple(hidden), dtype=dtype)


def linear(dataset: Dataset) -> nn.Module:
    """A linear model."""
    return mlp(dataset, hidden=())


def lenet(
    dataset: Dataset, *, dtype: Dtype = None, convolution: Convolution = direct
) -> nn.Module:
    """LeNet, of images of at least 12 x 12."""
    return models.LeNet(_classes(dataset), dtype, convolution)


def emnist_cnn(
    dataset: Dataset, *, dtype: Dtype = None, convolution: Convolution = direct
) -> nn.Module:
    """The LeNet of papers on EMNIST, of small images."""
    return models.EmnistCNN(_classes(dataset), dtype=dtype, convolution=convolution)


def resnet18(
    dataset: Dataset,
    *,
    norm: Norm = "group",
    dtype: Dtype = None,
    convolution: Convolution = direct,
) -> nn.Module:
    """ResNet-18 for CIFAR."""
    made = models.ResNet18(_classes(dataset), dtype=dtype, convolution=convolution)
    return made.clone(norm=norm)


def vit(dataset: Dataset, *, dtype: Dtype = None) -> nn.Module:
    """A small vision transformer."""
    return models.ViT(_classes(dataset), dtype=dtype)


def vit_tiny(dataset: Dataset, *, dtype: Dtype = None) -> nn.Module:
    """ViT-Tiny, of images."""
    return models.vit_tiny(_classes(dataset), dtype=dtype)


def rnn(
    dataset: Dataset,
    *,
    embedding: int = 32,
    hidden: int = 64,
    layers: int = 1,
    cell: Literal["simple", "lstm", "gru"] = "simple",
    dtype: Dtype = None,
) -> nn.Module:
    """A recurrent network, of token ids. Papers have sizes up to 300, 4096 and 2.

    Args:
      embedding: Width of the embedding.
      hidden: Width of the state.
      layers: Number of layers.
      cell: Kind of the recurrent cells.
      dtype: Precision that the model computes in.
    """
    sizes = {"embedding": embedding, "hidden": hidden, "layers": layers}
    for name, value in sizes.items():
        check_count(name, value)
    if not is_text(dataset):
        raise ValueError(
            "rnn takes token ids of texts, but this dataset has numbers; choose "
            "another model, such as problems.mlp"
        )
    make = CELLS[check_choice("cell", cell, CELLS)]
    classes, tokens = len(dataset.classes), dataset.tokens
    return make(classes, vocabulary_size=tokens, dtype=dtype, **sizes)


CELLS: dict[str, Callable[..., nn.Module]] = {
    "simple": models.RNN,
    "lstm": models.lstm,
    "gru": models.gru,
}
lstm = functools.partial(rnn, cell="lstm")
gru = functools.partial(rnn, cell="gru")


def is_text(dataset: Dataset) -> bool:
    """Whether the examples of a dataset are token ids."""
    return dataset.x_train.dtype in TOKEN_TYPES


def _classes(dataset: Dataset) -> int:
    if dataset.tokenizer is not None:
        raise ValueError(
            "this model has one output per example, but the dataset has windows of "
            "tokens; choose problems.gpt or llama, or a model of your own"
        )
    if is_text(dataset):
        raise ValueError(
            "this model takes numbers, but the dataset has token ids of texts; choose "
            "problems.rnn, lstm or gru, or a model of your own"
        )
    return len(dataset.classes) or 1  # of targets


def gpt(
    dataset: Dataset,
    *,
    width: int = 128,
    depth: int = 4,
    heads: int = 4,
    dtype: Dtype = None,
) -> nn.Module:
    """A language model with the layers of GPT-2, for windows of tokens.

    Args:
      width: Width of the model.
      depth: Number of blocks.
      heads: Number of heads of attention.
      dtype: Precision that the model computes in.
    """
    return models.GPT(*_windows(dataset), width, depth, heads, dtype=dtype)


def llama(
    dataset: Dataset,
    *,
    width: int = 128,
    depth: int = 4,
    heads: int = 4,
    key_heads: int | None = None,
    dtype: Dtype = None,
) -> nn.Module:
    """A language model with the layers of Llama, for windows of tokens.

    Args:
      width: Width of the model.
      depth: Number of blocks.
      heads: Number of heads of attention.
      key_heads: Number of heads of keys and values; by default, `heads`.
      dtype: Precision that the model computes in.
    """
    given = *_windows(dataset), width, depth, heads
    return models.llama(*given, key_heads=key_heads, dtype=dtype)


def _windows(dataset: Dataset) -> tuple[int, int]:
    """The vocabulary of a dataset, and the tokens of a window that a model reads."""
    if dataset.tokenizer is None:
        raise ValueError(
            "a language model takes windows of tokens, but this dataset has labeled "
            "examples; choose problems.text"
        )
    return dataset.tokens, dataset.x_train.shape[1] - 1

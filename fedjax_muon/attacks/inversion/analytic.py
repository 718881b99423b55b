"""Inversion in closed form: the first layer's gradient holds its input.

A dense layer z = x W + b has dW = x dz^T and db = dz of one example, hence

    x = dW db / |db|^2

whatever the loss and the layers above, for any multiple of the gradient and for any
linear combination over parameters of the same example, such as an innovation of STORM.
Of several examples it is a mean weighted by their db . sum(db). The true class of one
example under softmax cross-entropy is that of the least entry of the last bias'
gradient, p - onehot(y), of which no other is negative ("iDLG", Zhao et al. 2020,
arXiv:2001.02610). Noise is not modelled.
"""

import itertools
from typing import NamedTuple

import numpy as np

from fedjax_muon.attacks.inversion.releases import Restored


class Dense(NamedTuple):
    """What was released of a dense layer."""

    kernel: np.ndarray  # [inputs, outputs]
    bias: np.ndarray  # [outputs]


def analytic(release, shape: tuple[int, ...], size: int = 1) -> Restored:
    """The one example [*shape] and the label that explain a release, `size` times.

    `release` is of Flax's `Dense` layers, see `dense_layers`, the first of which takes
    the flattened example. With `size` examples all share one guess. The label of an
    innovation of STORM is right while the parameters move little, x always. Raises
    `ValueError` if there are no such layers, shapes do not agree or nothing was
    released of the first bias.
    """
    layers = dense_layers(release)
    x = first_layer_input(*layers[0])
    if x.size != np.prod(shape, dtype=int):
        raise ValueError(
            f"shape must have the {x.size} entries of the first layer's input, got "
            f"{shape}"
        )
    labels = np.zeros(len(layers[-1].bias))
    labels[last_layer_label(layers[-1].bias)] = 1
    return Restored(
        x=np.broadcast_to(x.reshape(shape), (size, *shape)),
        labels=np.broadcast_to(labels, (size, len(labels))),
    )


def dense_layers(release) -> list[Dense]:
    """Flax's layers Dense_0, Dense_1, ... of a release, in this order, in float64.

    Flax counts layers as a module makes them, which must be as it applies them. Raises
    `ValueError` if there are none, one has no bias, or one's outputs are not as many as
    the next one's inputs.
    """
    found = [name for name in release if name.startswith("Dense_")]
    found.sort(key=lambda name: int(name.removeprefix("Dense_")))
    if not found or any("bias" not in release[name] for name in found):
        raise ValueError(
            "analytic inversion needs layers Dense_0, Dense_1, ... with biases, got "
            f"{ {name: sorted(release[name]) for name in release} }"
        )
    wide = lambda leaf: np.asarray(leaf, np.float64)
    layers = [
        Dense(kernel=wide(release[name]["kernel"]), bias=wide(release[name]["bias"]))
        for name in found
    ]
    if any(len(a.bias) != len(b.kernel) for a, b in itertools.pairwise(layers)):
        raise ValueError(
            "layers Dense_0, Dense_1, ... must be applied in this order, got kernels "
            f"{[layer.kernel.shape for layer in layers]}"
        )
    return layers


def first_layer_input(kernel, bias) -> np.ndarray:
    """x = dW db / |db|^2 [inputs], from dW [inputs, outputs] and db [outputs].

    The least squares solution of dW = x db^T. Raises `ValueError` if db is zero or not
    finite.
    """
    kernel, bias = np.asarray(kernel, np.float64), np.asarray(bias, np.float64)
    square = bias @ bias
    if not (np.isfinite(square) and square > 0):
        raise ValueError(
            f"the bias' gradient must be finite and not zero, got norm {square**0.5}"
        )
    return kernel @ bias / square


def last_layer_label(bias) -> int:
    """The class of the least entry of the last bias' gradient [classes]."""
    return int(np.argmin(bias))

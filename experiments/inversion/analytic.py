"""Inversion in closed form, from the gradients of dense layers.

For one example, a dense layer z = x W + b has dW = x dz^T and db = dz, hence

    x = dW db / |db|^2

for any loss and any layers above, for any multiple of the gradient, and for any linear
combination over parameters of the same example, such as an innovation of STORM. For
several examples it is a mean weighted by their db . sum(db). The true class of one
example under softmax cross-entropy is that of the smallest entry of the last bias'
gradient, p - onehot(y), whose other entries are not negative ("iDLG", Zhao et al. 2020,
arXiv:2001.02610). Noise is not modeled.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from experiments.inversion.releases import Reconstruction


class Dense(NamedTuple):
    """The part of a release that belongs to one dense layer."""

    kernel: np.ndarray  # [inputs, outputs]
    bias: np.ndarray  # [outputs]


def analytic(release: Any, shape: tuple[int, ...], size: int = 1) -> Reconstruction:
    """Reconstructs the one example and the label that explain a release.

    The label of an innovation of STORM is correct while the parameters move little; the
    example is correct in any case.

    Args:
      release: Release of a network of Flax's `Dense` layers, see `dense_layers`; the
        first takes the flattened example.
      shape: Shape of an example.
      size: Number of examples in the batch, which all share one reconstruction.

    Returns:
      Examples, [size, *shape], and labels, [size, classes].
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
    return Reconstruction(
        x=np.broadcast_to(x.reshape(shape), (size, *shape)),
        labels=np.broadcast_to(labels, (size, len(labels))),
    )


def dense_layers(release: Any) -> list[Dense]:
    """Returns the layers Dense_0, Dense_1, ... of a release, in this order, in float64.

    Flax numbers layers in the order in which a module creates them, which must be the
    order in which it applies them.

    Args:
      release: Nested dictionary, as Flax's parameters.
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


def first_layer_input(kernel: ArrayLike, bias: ArrayLike) -> np.ndarray:
    """Returns x = dW db / |db|^2, the least-squares solution of dW = x db^T.

    Args:
      kernel: Gradient dW of the first kernel, [inputs, outputs].
      bias: Gradient db of the first bias, [outputs].
    """
    kernel, bias = np.asarray(kernel, np.float64), np.asarray(bias, np.float64)
    square = bias @ bias
    if not (np.isfinite(square) and square > 0):
        raise ValueError(
            f"the bias' gradient must be finite and not zero, got norm {square**0.5}"
        )
    return kernel @ bias / square


def last_layer_label(bias: ArrayLike) -> int:
    """Returns the class of the smallest entry of the last bias' gradient.

    Args:
      bias: Gradient of the last bias, [classes].
    """
    return int(np.argmin(bias))

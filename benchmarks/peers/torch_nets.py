"""The workloads' networks in PyTorch's own layers, with the same initial weights."""

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.peers.torch_tokens import Layers, rnn, vit_tiny
from benchmarks.workloads import Workload, arrays_of, parts_of, probed


class Residual(nn.Module):
    """A block of ResNet-18."""

    def __init__(self, before: int, width: int, stride: int, groups: int):
        super().__init__()
        convolution = partial(nn.Conv2d, bias=False)
        self.conv0 = convolution(before, width, 3, stride, 1)
        self.conv1 = convolution(width, width, 3, 1, 1)
        self.norm0 = nn.GroupNorm(groups, width)
        self.norm1 = nn.GroupNorm(groups, width)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            shortcut = convolution(before, width, 1, stride)
            self.around = nn.Sequential(shortcut, nn.GroupNorm(groups, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm0(self.conv0(x)).relu()
        return (self.norm1(self.conv1(y)) + self.around(x)).relu()


def resnet18(
    classes: int, groups: int = 32, widths: tuple[int, ...] = (64, 128, 256, 512)
) -> tuple[nn.Module, Layers]:
    """Returns the network, and its layers by their names in Flax."""
    stem = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
    layers: list[nn.Module] = [stem, nn.GroupNorm(groups, widths[0]), nn.ReLU()]
    names = ["stem", "GroupNorm_0"]
    twice = [width for width in widths for _ in range(2)]
    for i, (before, width) in enumerate(itertools.pairwise((widths[0], *twice))):
        layers.append(Residual(before, width, 1 if before == width else 2, groups))
        inside = ["Conv_0", "Conv_1", "GroupNorm_0", "GroupNorm_1"]
        inside += ["shortcut", "shortcut_norm"] if before != width else []
        names += [f"ResidualBlock_{i}/{name}" for name in inside]
    head = nn.Linear(widths[-1], classes)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), head]
    return _named(layers, [*names, "head"])


def emnist_cnn(classes: int, image) -> tuple[nn.Module, Layers]:
    """Returns the EMNIST network, and its layers."""
    height, width, channels = image
    flat = (height - 4) // 2 * ((width - 4) // 2) * 64
    layers = [
        *(nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(flat, 128), nn.ReLU()),
        nn.Linear(128, classes),
    ]
    return _named(layers, ["Conv_0", "Conv_1", "Dense_0", "head"])


def mlp(classes: int, image, features) -> tuple[nn.Module, Layers]:
    """Returns the multilayer perceptron, and its layers."""
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in itertools.pairwise((int(np.prod(image)), *features)):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    layers.append(nn.Linear(features[-1], classes))
    return _named(layers, [*(f"Dense_{i}" for i in range(len(features))), "head"])


def _named(layers: list[nn.Module], names: list[str]) -> tuple[nn.Module, Layers]:
    net = nn.Sequential(*layers)
    weighted = [m for m in net.modules() if hasattr(m, "weight")]
    return net, dict(zip(names, weighted, strict=True))


NETWORKS: dict[str, Callable[[Workload], tuple[nn.Module, Layers]]] = {
    "mlp": lambda workload: mlp(workload.classes, workload.example, (200, 200)),
    "emnist_cnn": lambda workload: emnist_cnn(workload.classes, workload.example),
    "resnet18": lambda workload: resnet18(*workload.arguments),
    "vit_tiny": lambda workload: vit_tiny(workload.classes, workload.example),
    "rnn": lambda workload: rnn(*workload.arguments),
}


def network(workload: Workload, weights: dict[str, np.ndarray]) -> nn.Module:
    """Returns the workload's model with these weights.

    Raises:
      ValueError: If the model is not one of `NETWORKS`.
    """
    if workload.model not in NETWORKS:
        raise ValueError(f"there is no PyTorch version of {workload.model} here")
    net, layers = NETWORKS[workload.model](workload)
    carry(layers, weights)
    return net


def carry(layers: Layers, weights: dict[str, np.ndarray]) -> None:
    """Copies Flax's weights into the layers."""
    channels = 0
    with torch.no_grad():
        for name, layer in layers.items():
            names = (f"{name}/kernel", f"{name}/scale", f"{name}/embedding", name)
            (kind,) = (n for n in names if n in weights)
            kernel = weights[kind]
            if kernel.ndim == 4:
                channels = kernel.shape[-1]
                kernel = kernel.transpose(3, 2, 0, 1)
            elif kind.endswith("kernel"):
                if channels and len(kernel) != channels:  # flattened space x channels
                    kernel = kernel.reshape(-1, channels, kernel.shape[-1])
                    kernel = kernel.swapaxes(0, 1).reshape(-1, kernel.shape[-1])
                channels, kernel = 0, kernel.T
            layer.weight.copy_(torch.tensor(kernel))
            bias = weights.get(f"{name}/bias")
            if bias is not None:
                layer.bias.copy_(torch.tensor(bias))


def examples(workload: Workload) -> tuple[torch.Tensor, torch.Tensor, list[np.ndarray]]:
    """Returns images (channels first) or texts, their labels, and clients' ids."""
    x, y = arrays_of(workload)
    if not workload.tokens:
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return torch.from_numpy(x), torch.from_numpy(y).long(), parts_of(workload)


@torch.no_grad()
def loss_of(
    workload: Workload, net: nn.Module, x: torch.Tensor, y: torch.Tensor
) -> float:
    """Returns the loss on some of the training examples."""
    some = probed(workload)
    return nn.functional.cross_entropy(net(x[some]), y[some]).item()


def batches(
    workload: Workload, part: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Returns the batches of a client: shuffled epochs over its examples."""
    count = workload.steps * workload.batch
    epochs = [rng.permutation(part) for _ in range(-(-count // len(part)))]
    return np.concatenate(epochs)[:count].reshape(workload.steps, workload.batch)

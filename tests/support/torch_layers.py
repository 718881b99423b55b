"""Layers of transformers of images by torch's functions, of our parameters."""

import math

from tests.support.packages import needs

torch = needs("torch")
functional = torch.nn.functional


def torch_norm(layer, x, epsilon=1e-5):
    scale, bias = layer["scale"], layer["bias"]
    return functional.layer_norm(x, x.shape[-1:], scale, bias, epsilon)


def torch_dense(layer, x):
    return functional.linear(x, layer["kernel"].T, layer.get("bias"))


def torch_patches(layer, x, side):
    """[B, H, W, C] to [B, H / side, W / side, F]."""
    kernel = layer["kernel"].reshape(side, side, 3, -1).permute(3, 2, 0, 1)
    x = functional.conv2d(x.permute(0, 3, 1, 2), kernel, layer["bias"], stride=side)
    return x.permute(0, 2, 3, 1)


def torch_attention(layers, x, heads, bias=0):
    """Of all places of x [B, N, F] to each other."""
    split = lambda y: y.unflatten(-1, (heads, -1)).transpose(1, 2)
    q, k, v = (split(torch_dense(layers[n], x)) for n in ("query", "key", "value"))
    weights = (q @ k.mT / math.sqrt(q.shape[-1]) + bias).softmax(-1)
    return torch_dense(layers["out"], (weights @ v).transpose(1, 2).flatten(2))

"""Flax modules from a batch of examples to logits, without batch statistics.

`ALL` names each constructor; all take `classes`, all else has a default. The RNN takes
token ids, the others images; the MLP takes any array of numbers. `ResNet18`, `ViT`,
`vit_tiny` and `swin_tiny` have the sizes that papers train on CIFAR, for which a CPU is
slow.

All take `dtype`, the numbers that layers compute in, such as `jnp.bfloat16`; by default
those of parameters and examples. Parameters and their gradients stay float32, as do the
statistics of normalisations and the softmax of attention; logits are of `dtype`.

`RoBERTa` is not in `ALL`: it is for ids of its own tokenizer, whose padding is 1, and
for weights that `load_roberta` reads; `lora` trains it. `load_swin` reads those of a
pretrained `Swin`.
"""

from collections.abc import Callable

import flax.linen as nn

from fedjax_muon.models.emnist_cnn import EmnistCNN
from fedjax_muon.models.lenet import LeNet
from fedjax_muon.models.mlp import MLP
from fedjax_muon.models.resnet import ResNet18
from fedjax_muon.models.rnn import RNN
from fedjax_muon.models.roberta import RoBERTa
from fedjax_muon.models.roberta_checkpoint import load_roberta, roberta_of
from fedjax_muon.models.swin import Swin, swin_tiny
from fedjax_muon.models.swin_checkpoint import load_swin
from fedjax_muon.models.vit import ViT, vit_tiny

ALL: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "lenet": LeNet,
    "emnist_cnn": EmnistCNN,
    "rnn": RNN,
    "resnet18": ResNet18,
    "vit": ViT,
    "vit_tiny": vit_tiny,
    "swin_tiny": swin_tiny,
}

__all__ = [
    "ALL",
    "MLP",
    "RNN",
    "EmnistCNN",
    "LeNet",
    "ResNet18",
    "RoBERTa",
    "Swin",
    "ViT",
    "load_roberta",
    "load_swin",
    "roberta_of",
    "swin_tiny",
    "vit_tiny",
]

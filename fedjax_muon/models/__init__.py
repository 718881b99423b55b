"""Flax modules that map a batch of examples to logits, without batch statistics.

`ALL` has the constructors by name. Each takes `classes`; all other arguments have
defaults. RNN, LSTM and GRU take token ids, the MLP any numeric arrays, and the others
images.
`ResNet18`, `ViT` and `vit_tiny` have the sizes that papers train on CIFAR; these are
slow on a CPU.

Models take `dtype`, the type of their computations, such as `jnp.bfloat16`; by default
it is that of the parameters and inputs. Parameters and gradients stay float32, as do
the statistics of normalization layers and the softmax of attention. Logits have the
type `dtype`. Networks with convolutions take `convolution`, a function with the
arguments of `lax.conv_general_dilated`, such as `models.convolution.by_patches`.

`GPT` and `llama` are language models, which map token ids to logits for every place.
`from_hugging_face` reads published ones, `to_hugging_face` writes them, and `generate`
samples tokens.

`from_nnx` converts a module of flax.nnx.

`save_params` and `load_params` are for parameters of any model, in files that other
programs read.
"""

from collections.abc import Callable

import flax.linen as nn

from fedjax_muon.models.from_nnx import from_nnx
from fedjax_muon.models.gpt import GPT, generate, llama
from fedjax_muon.models.hugging_face import from_hugging_face, to_hugging_face
from fedjax_muon.models.resnet import ResNet18
from fedjax_muon.models.rnn import RNN, gru, lstm
from fedjax_muon.models.small import MLP, EmnistCNN, LeNet
from fedjax_muon.models.vit import ViT, vit_tiny
from fedjax_muon.models.weights import load_metadata, load_params, save_params

ALL: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "lenet": LeNet,
    "emnist_cnn": EmnistCNN,
    "rnn": RNN,
    "lstm": lstm,
    "gru": gru,
    "resnet18": ResNet18,
    "vit": ViT,
    "vit_tiny": vit_tiny,
}

__all__ = [
    "ALL",
    "GPT",
    "MLP",
    "RNN",
    "EmnistCNN",
    "LeNet",
    "ResNet18",
    "ViT",
    "from_hugging_face",
    "from_nnx",
    "generate",
    "gru",
    "llama",
    "load_metadata",
    "load_params",
    "lstm",
    "save_params",
    "to_hugging_face",
    "vit_tiny",
]

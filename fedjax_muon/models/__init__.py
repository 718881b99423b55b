"""Flax modules from a batch of examples to logits, without batch statistics.

`ALL` names each constructor; all take `classes`, all else has a default. The RNN takes
token ids, the others images; the MLP takes any array of numbers.
"""

from fedjax_muon.models.emnist_cnn import EmnistCNN
from fedjax_muon.models.lenet import LeNet
from fedjax_muon.models.mlp import MLP
from fedjax_muon.models.rnn import RNN

ALL = {"mlp": MLP, "lenet": LeNet, "emnist_cnn": EmnistCNN, "rnn": RNN}

"""Problems: what is trained, on which data, and how the data are divided.

    problem = problems.classification("digits", clients=16, alpha=0.1)
    hospital = data.from_csv("hospital.csv", label="risk", owner="ward")
    problem = problems.classification(hospital)
    problem = problems.auc("breast_cancer", graph="ring")
    problem = problems.regression(data.from_csv("costs.csv", target="cost"))
    problem = problems.text("letters/", window=128)

A problem is a value, and every seed has its own clients. A server trains it, or agents
on a graph. A function that returns one is all that a new problem needs:

    @problems.named
    def hospital(ward: int = 3) -> problems.Problem:
        return problems.classification(my_dataset(ward), model=my_model)
"""

from fedjax_muon.problems.division import Divide, function_name, ratios
from fedjax_muon.problems.labeled import auc, classification, regression
from fedjax_muon.problems.networks import (
    Model,
    emnist_cnn,
    gpt,
    gru,
    lenet,
    linear,
    llama,
    lstm,
    mlp,
    resnet18,
    rnn,
    vit,
    vit_tiny,
)
from fedjax_muon.problems.problem import Parts, Problem, key_of, named
from fedjax_muon.problems.text import text

__all__ = [
    "Divide",
    "Model",
    "Parts",
    "Problem",
    "auc",
    "classification",
    "emnist_cnn",
    "function_name",
    "gpt",
    "gru",
    "key_of",
    "lenet",
    "linear",
    "llama",
    "lstm",
    "mlp",
    "named",
    "ratios",
    "regression",
    "resnet18",
    "rnn",
    "text",
    "vit",
    "vit_tiny",
]

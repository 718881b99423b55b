"""Workloads: models, and the clients that they are trained on.

Examples are drawn at random, with the shapes and counts of the original data: values do
not change the time of a round. Nothing here imports JAX, so that peers without it do
not have to load it.
"""

from typing import Any, NamedTuple

import numpy as np

LR = 0.1  # of FedAvg
STORED = 60_000  # largest number of examples in memory; larger workloads reuse them
PROBED = 500  # examples of all clients for the loss after the rounds
VOCABULARY = 8192


class Workload(NamedTuple):
    """Rounds of federated averaging, in which a cohort's clients take SGD steps."""

    about: str
    model: str  # of `fedjax_muon.models.ALL`
    arguments: tuple[Any, ...]  # of the model, the number of labels first
    example: tuple[int, ...]  # the shape of one; one axis means a text of tokens
    clients: int
    examples: int  # of a client; the mean if uneven
    cohort: int
    steps: int
    batch: int
    uneven: bool = False
    small: tuple[tuple[str, int], ...] = ()  # sizes for a CPU, which would take hours

    @property
    def classes(self) -> int:
        """The number of labels."""
        return self.arguments[0]

    @property
    def tokens(self) -> bool:
        """Whether examples are texts."""
        return len(self.example) == 1


SIZES = ("clients", "cohort", "steps", "batch")  # what the command line may change
MNIST, CIFAR = (28, 28, 1), (32, 32, 3)
FEW = (("clients", 4), ("cohort", 1), ("steps", 8))
WORKLOADS = {
    "w1": Workload(
        "EMNIST CNN, 30 local steps",
        "emnist_cnn",
        (10,),
        MNIST,
        clients=100,
        examples=600,
        cohort=10,
        steps=30,
        batch=20,
    ),
    "w2": Workload(
        "MLP 784-200-200-10, 30 local steps",
        "mlp",
        (10,),
        MNIST,
        clients=100,
        examples=600,
        cohort=10,
        steps=30,
        batch=20,
    ),
    "rnn": Workload(
        "recurrent network of 64 tanh units on texts of 48 tokens out of 8192",
        "rnn",
        (2, VOCABULARY, 32, 64, 1),
        (48,),
        clients=8,
        examples=512,
        cohort=8,
        steps=8,
        batch=64,
    ),
    # FLUTE's FEMNIST: 671,585 examples of 3,400 writers, one epoch in batches of 20;
    # that is 10 steps for the mean writer, and here for all
    "femnist": Workload(
        "FLUTE's FEMNIST: EMNIST CNN of 62 classes, one epoch of the mean writer",
        "emnist_cnn",
        (62,),
        MNIST,
        clients=3400,
        examples=198,
        cohort=10,
        steps=10,
        batch=20,
        uneven=True,
    ),
    # the published `simple_cnn` is the EMNIST network; both are without dropout here
    "cifar10": Workload(
        "pfl-research's CIFAR-10: its CNN, one epoch of 50 examples",
        "emnist_cnn",
        (10,),
        CIFAR,
        clients=1000,
        examples=50,
        cohort=50,
        steps=5,
        batch=10,
    ),
    "cifar100_resnet18": Workload(
        "ResNet-18 on CIFAR-100, 50 local steps of batch 50",
        "resnet18",
        (100,),
        CIFAR,
        clients=100,
        examples=500,
        cohort=10,
        steps=50,
        batch=50,
        small=FEW,
    ),
    "cifar100_vit_tiny": Workload(
        "ViT-Tiny on CIFAR-100, 50 local steps of batch 50",
        "vit_tiny",
        (100,),
        CIFAR,
        clients=100,
        examples=500,
        cohort=10,
        steps=50,
        batch=50,
        small=FEW,
    ),
}


def check_sizes(workload: Workload) -> None:
    """Raises `ValueError` for sizes that no round can have."""
    for name in SIZES:
        if getattr(workload, name) < 1:
            raise ValueError(
                f"{name} must be at least 1, got {getattr(workload, name)}"
            )
    if workload.cohort > workload.clients:
        raise ValueError(
            f"a cohort of {workload.cohort} needs as many clients, there are "
            f"{workload.clients}; ask for fewer with --cohort, or more with --clients"
        )


def stored(workload: Workload) -> int:
    """Returns the number of examples in memory."""
    return min(workload.clients * workload.examples, STORED)


def arrays_of(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Returns images with labels of a random linear map, or texts with random ones."""
    rng, number = np.random.default_rng(0), stored(workload)
    x: np.ndarray
    if workload.tokens:
        x = rng.integers(1, VOCABULARY, (number, *workload.example), np.int32)
        return x, rng.integers(0, workload.classes, number).astype(np.int32)
    x = rng.standard_normal((number, *workload.example), np.float32)
    flat = x.reshape(number, -1)
    rule = rng.standard_normal((flat.shape[1], workload.classes), np.float32)
    return x, (flat @ rule).argmax(1).astype(np.int32)


def sizes_of(workload: Workload) -> np.ndarray:
    """Returns every client's number of examples: equal, or log-normal."""
    if not workload.uneven:
        return np.full(workload.clients, workload.examples)
    draw = np.random.default_rng(1).lognormal(sigma=0.4, size=workload.clients)
    sizes = np.rint(draw / draw.mean() * workload.examples).astype(int)
    return np.maximum(sizes, 1)


def parts_of(workload: Workload) -> list[np.ndarray]:
    """Returns the ids of every client's examples, consecutive in memory.

    Ids start again from 0 if there are more examples than are stored.
    """
    sizes = sizes_of(workload)
    ends = np.cumsum(sizes)
    return np.split(np.arange(ends[-1]) % stored(workload), ends[:-1])


def probed(workload: Workload) -> slice:
    """Returns the examples for the loss after the rounds."""
    return slice(0, None, -(-stored(workload) // PROBED))

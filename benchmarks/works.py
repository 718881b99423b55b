"""What is measured: models, and the clients that they are trained on.

Data are drawn at random in the shapes and numbers of the works' own: their values do
not change how long a round takes. Nothing here needs JAX, which peers without it would
have to load.
"""

from typing import Any, NamedTuple

import numpy as np

LR = 0.1  # of FedAvg
STORED = 60_000  # examples that lie in memory at most; larger works share them
PROBED = 500  # examples, of all clients, that the loss after the rounds is taken of
VOCABULARY = 8192


class Work(NamedTuple):
    """Rounds of federated averaging: a cohort's clients make steps of SGD each."""

    about: str
    model: str  # of `fedjax_muon.models.ALL`
    arguments: tuple[Any, ...]  # of the model, the number of labels first
    example: tuple[int, ...]  # the shape of one; of integers: a text of tokens
    clients: int
    examples: int  # of a client, of the mean client if uneven
    cohort: int
    steps: int
    batch: int
    uneven: bool = False
    small: tuple[tuple[str, int], ...] = ()  # sizes instead, where a CPU takes hours

    @property
    def classes(self) -> int:
        """How many labels there are."""
        return self.arguments[0]

    @property
    def tokens(self) -> bool:
        """Whether examples are texts."""
        return len(self.example) == 1


SIZES = ("clients", "cohort", "steps", "batch")  # what the command line may change
MNIST, CIFAR = (28, 28, 1), (32, 32, 3)
FEW = (("clients", 4), ("cohort", 1), ("steps", 2))
WORKS = {
    "w1": Work(
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
    "w2": Work(
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
    "rnn": Work(
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
    # FLUTE's FEMNIST: 671,585 examples of 3,400 writers, one epoch in batches of 20,
    # which is 10 steps for the mean writer and here for all
    "femnist": Work(
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
    # the published `simple_cnn` is the EMNIST network, here too without its dropout
    "cifar10": Work(
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
    "cifar100_resnet18": Work(
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
    "cifar100_vit_tiny": Work(
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


def check_sizes(work: Work) -> None:
    """Raises `ValueError` for sizes that no round has."""
    for name in SIZES:
        if getattr(work, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(work, name)}")
    if work.cohort > work.clients:
        raise ValueError(
            f"a cohort of {work.cohort} needs as many clients, there are "
            f"{work.clients}; ask for fewer with --cohort, or more with --clients"
        )


def stored(work: Work) -> int:
    """How many examples lie in memory."""
    return min(work.clients * work.examples, STORED)


def arrays_of(work: Work) -> tuple[np.ndarray, np.ndarray]:
    """Images whose labels are those of a random linear map, or tokens with random
    labels."""
    rng, number = np.random.default_rng(0), stored(work)
    x: np.ndarray
    if work.tokens:
        x = rng.integers(1, VOCABULARY, (number, *work.example), np.int32)
        return x, rng.integers(0, work.classes, number).astype(np.int32)
    x = rng.standard_normal((number, *work.example), np.float32)
    flat = x.reshape(number, -1)
    rule = rng.standard_normal((flat.shape[1], work.classes), np.float32)
    return x, (flat @ rule).argmax(1).astype(np.int32)


def sizes_of(work: Work) -> np.ndarray:
    """Examples of every client: equal, or log-normal around the mean."""
    if not work.uneven:
        return np.full(work.clients, work.examples)
    draw = np.random.default_rng(1).lognormal(sigma=0.4, size=work.clients)
    sizes = np.rint(draw / draw.mean() * work.examples).astype(int)
    return np.maximum(sizes, 1)


def parts_of(work: Work) -> list[np.ndarray]:
    """The examples of every client, one after the other in memory; where there are
    more than are stored, they begin again."""
    sizes = sizes_of(work)
    ends = np.cumsum(sizes)
    return np.split(np.arange(ends[-1]) % stored(work), ends[:-1])


def probed(work: Work) -> slice:
    """The examples that the loss after the rounds is taken of."""
    return slice(0, None, -(-stored(work) // PROBED))

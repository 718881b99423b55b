"""The tracks of the board: a model, its clients, and the sizes of a round."""

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

import fedjax_muon as fm
from experiments.board import simulations
from experiments.board.simulations import Problem
from experiments.studies import client_privacy, natural_problems
from fedjax_muon.simulation import Simulation
from fedjax_muon.tasks import metrics


class Reach(enum.IntEnum):
    """The tracks that a method runs on, and the methods of a track."""

    DIGITS = 0  # the digits alone; all methods
    IMAGES = 1
    EVERYWHERE = 2


class Track(NamedTuple):
    """A task of the board; RULES.md lists them."""

    title: str
    problem: Callable[[Path | None], Problem]  # directory of the data
    sizes: dict[str, int]
    rounds: int
    evaluate_every: int
    # three learning rates of local steps, by the kind of their direction
    rates: dict[str, tuple[float, float, float]]
    reach: Reach
    table: str = "ENTRIES"  # of its methods, in entries.py
    baseline: str = "fedavg"  # whose score the target is a share of
    metric: str = "accuracy"  # the score
    simulate: Callable[..., Simulation] = simulations.federated


def _loaded(
    name: str, model: Any, held: int, parts: Callable[..., Any], data_dir: Path | None
) -> Problem:
    """The first test examples are for validation; at most 4,000 others are the test."""
    data = fm.data.load(name, data_dir=data_dir)
    validation = data.x_test[:held], data.y_test[:held]
    rest = slice(held, held + 4000)
    data = data._replace(x_test=data.x_test[rest], y_test=data.y_test[rest])
    draw = lambda seed: parts(data.y_train, key=jax.random.key(seed))
    return Problem(fm.tasks.classification(model, data), data, validation, draw)


def _dirichlet(labels: Any, *, key: jax.Array) -> Any:
    return fm.partition.dirichlet(labels, 16, alpha=0.1, min_size=10, key=key)


def _two_classes(labels: Any, *, key: jax.Array) -> Any:
    return fm.partition.labels_per_client(labels, 16, 2, key=key)


def digits(data_dir: Path | None) -> Problem:
    return _loaded("digits", fm.models.MLP(10, (64, 64)), 180, _dirichlet, data_dir)


def fashion(data_dir: Path | None) -> Problem:
    return _loaded("fashion_mnist", fm.models.LeNet(10), 2000, _dirichlet, data_dir)


def fashion_classes(data_dir: Path | None) -> Problem:
    return _loaded("fashion_mnist", fm.models.LeNet(10), 2000, _two_classes, data_dir)


def _natural(make: Callable[[], natural_problems.Problem]) -> Problem:
    problem = make()
    data, held = natural_problems.divided(problem.dataset)
    assert data.owners is not None
    parts = fm.partition.by_owner(data.owners)
    task = fm.tasks.classification(problem.model, data)
    return Problem(task, data, held, lambda seed: parts)


def heart(data_dir: Path | None) -> Problem:
    del data_dir
    return _natural(natural_problems.hospitals)


def plays(data_dir: Path | None) -> Problem:
    del data_dir
    return _natural(natural_problems.speakers)


def private(data_dir: Path | None) -> Problem:
    return _loaded("digits", client_privacy.Network(), 180, _hundred, data_dir)


def _hundred(labels: Any, *, key: jax.Array) -> Any:
    return fm.partition.dirichlet(
        labels, client_privacy.CLIENTS, alpha=1.0, min_size=1, key=key
    )


def ring(data_dir: Path | None) -> Problem:
    model = fm.models.MLP(2, (32,))
    problem = _loaded("a9a", model, 2000, _agents, data_dir)
    plain, data = problem.task, problem.data

    def evaluate(params: Any, x: Any, y: Any) -> Any:
        logits = model.apply({"params": params}, x)
        return plain.evaluate(params, x, y) | {"score": logits[:, 1] - logits[:, 0]}

    task = plain._replace(
        evaluate=evaluate, metrics={**plain.metrics, "auc": metrics.auc}
    )
    minimax = fm.tasks.auc(model, data, share=float(data.y_train.mean()))
    return problem._replace(task=task, minimax=minimax)


def _agents(labels: Any, *, key: jax.Array) -> Any:
    return fm.partition.dirichlet(labels, 16, alpha=0.3, min_size=64, key=key)


IMAGES = {"cohort": 8, "local_steps": 5, "batch_size": 32}
RATES = {
    "sgd": (0.03, 0.1, 0.3),
    "adam": (0.001, 0.003, 0.01),
    "muon": (0.01, 0.03, 0.1),
}
SMOOTH = {  # of logistic regression on standardized features
    "sgd": (0.003, 0.01, 0.03),
    "adam": (0.001, 0.003, 0.01),
    "muon": (0.001, 0.003, 0.01),
}
TEXT = {
    "sgd": (1.0, 3.0, 10.0),
    "adam": (0.003, 0.01, 0.03),
    "muon": (0.01, 0.03, 0.1),
}
PRIVATE = {
    "sgd": (0.1, 0.3, 1.0),
    "adam": (0.003, 0.01, 0.03),
    "muon": (0.03, 0.1, 0.3),
}
RING = {
    "sgd": (0.1, 0.3, 1.0),
    "muon": (0.01, 0.03, 0.1),
    "minimax": (0.3, 1.0, 3.0),
}
TRACKS = {
    "digits": Track(
        "Handwritten digits, Dirichlet(0.1)",
        digits,
        IMAGES,
        100,
        5,
        RATES,
        Reach.DIGITS,
    ),
    "fashion": Track(
        "Fashion-MNIST, Dirichlet(0.1)", fashion, IMAGES, 30, 3, RATES, Reach.IMAGES
    ),
    "fashion_classes": Track(
        "Fashion-MNIST, two classes per client",
        fashion_classes,
        IMAGES,
        30,
        3,
        RATES,
        Reach.IMAGES,
    ),
    "heart": Track(
        "Heart disease by hospital",
        heart,
        {"cohort": 4, "local_steps": 100, "batch_size": 4},
        15,
        1,
        SMOOTH,
        Reach.EVERYWHERE,
    ),
    "plays": Track(
        "Shakespeare's plays by speaker",
        plays,
        {"cohort": 8, "local_steps": 5, "batch_size": 8},
        40,
        2,
        TEXT,
        Reach.EVERYWHERE,
    ),
    "private": Track(
        "Handwritten digits with private clients, epsilon 8",
        private,
        {
            "cohort": client_privacy.EXPECTED,
            "local_steps": client_privacy.STEPS,
            "batch_size": client_privacy.BATCH,
        },
        30,
        3,
        PRIVATE,
        Reach.DIGITS,
        table="PRIVATE",
        simulate=simulations.private,
    ),
    "ring": Track(
        "Income on a ring of agents, test AUC",
        ring,
        {"batch_size": 32},
        200,
        10,
        RING,
        Reach.DIGITS,
        table="RING",
        baseline="dsgd",
        metric="auc",
        simulate=simulations.on_a_ring,
    ),
}

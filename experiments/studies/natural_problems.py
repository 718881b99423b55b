"""Federations of hospitals, and of the speakers of Shakespeare's plays."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import fedjax_muon as fm
from experiments.studies import heart_disease
from experiments.studies.heart_disease import HOSPITALS
from fedjax_muon.data import Dataset, natural
from fedjax_muon.data.loading import files_of

SHARE = 0.2  # of the training examples, which are held out for validation


class Problem(NamedTuple):
    """A data set with its model and its federation."""

    dataset: Dataset
    model: nn.Module
    cohort: int
    local_steps: int
    batch_size: int
    rounds: int
    weightings: tuple[str, ...]
    exponents: dict[str, range]  # of half decades, where grids begin
    tuning_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    # accuracies by name, from logits of inputs
    scores: Callable[[Callable[[np.ndarray], np.ndarray]], dict[str, float]]


class Logistic(nn.Module):
    """Logistic regression, which maps [B, d] to logits [B, 2], of which one is 0.

    So it has the parameters, the gradients and PyTorch's initialization of FLamby's.
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        bound = 1 / np.sqrt(x.shape[-1])
        init = nn.initializers.uniform(2 * bound)
        shifted = lambda key, shape, dtype: init(key, shape, dtype) - bound
        z = nn.Dense(1, kernel_init=shifted, bias_init=shifted)(x)
        return jnp.concatenate([jnp.zeros_like(z), z], axis=1)


def hospitals() -> Problem:
    """FLamby's Fed-Heart-Disease: 15 rounds of 100 steps with batches of 4."""
    patients = heart_disease.read_patients(heart_disease.file())
    train = patients.is_train
    own = np.empty_like(patients.x)
    for i in range(len(HOSPITALS)):
        ours = patients.hospital == i
        known = patients.x[ours & train]
        own[ours] = (patients.x[ours] - known.mean(0)) / (known.std(0, ddof=1) + 1e-9)
    known = patients.x[train]
    pooled = (patients.x - known.mean(0)) / known.std(0, ddof=1)
    dataset = Dataset(
        x_train=own[train],
        y_train=patients.y[train],
        x_test=pooled[~train],
        y_test=patients.y[~train],
        classes=heart_disease.CLASSES,
        owners=patients.hospital[train],
    )

    def scores(logits: Callable[[np.ndarray], np.ndarray]) -> dict[str, float]:
        right = logits(own[~train]).argmax(1) == patients.y[~train]
        place = patients.hospital[~train]
        each = {name: right[place == i].mean() for i, name in enumerate(HOSPITALS)}
        return {"hospitals": float(np.mean([*each.values()])), **each}

    return Problem(
        fm.data.check(dataset),
        Logistic(),
        cohort=4,
        local_steps=100,
        batch_size=4,
        rounds=15,
        weightings=("examples", "uniform"),
        exponents={"lr": range(-6, 0), "server_lr": range(-5, -1)},
        tuning_seeds=(100, 101, 102, 103, 104),
        seeds=(0, 1, 2, 3, 4),
        scores=scores,
    )


def speakers(number: int = 32, least: int = 2000) -> Problem:
    """A small LSTM for the next character, on some of the speakers.

    Args:
      number: Number of speakers, drawn at random.
      least: Fewest characters of a speaker.

    Returns:
      The problem.
    """
    every = natural.texts_of_speakers(files_of("plays").paths).values()
    texts = [text for text in every if len(text) >= least]
    drawn = np.random.default_rng(0).choice(len(texts), number, replace=False)
    dataset = fm.data.check(natural.dataset_of([texts[i] for i in sorted(drawn)]))
    model = fm.models.lstm(
        len(dataset.classes), vocabulary_size=dataset.tokens, hidden=64, layers=1
    )
    return Problem(
        dataset,
        model,
        cohort=8,
        local_steps=5,
        batch_size=8,
        rounds=40,
        weightings=("uniform",),
        exponents={"lr": range(-4, 0), "server_lr": range(-4, -1)},
        tuning_seeds=(100,),
        seeds=(0, 1, 2),
        scores=lambda logits: {},
    )


def divided(dataset: Dataset) -> tuple[Dataset, tuple[np.ndarray, np.ndarray]]:
    """Holds every fifth training example of each client out, for validation."""
    assert dataset.owners is not None
    parts = fm.partition.by_owner(dataset.owners)
    step = round(1 / SHARE)
    held = np.sort(np.concatenate([part[step - 1 :: step] for part in parts]))
    kept = np.setdiff1d(np.arange(len(dataset.y_train)), held)
    rest = fm.data.dataset.subset(dataset, kept)
    return rest, (dataset.x_train[held], dataset.y_train[held])

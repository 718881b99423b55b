"""Digits, a small model, and what leaks of them: for the tests of attacks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments import inversion
from experiments.studies.reconstruction import Sigmoids, images, innovation, plain
from fedjax_muon.tasks.classification import classification
from fedjax_muon.tasks.task import Batch

SOURCE = images("digits", None)
SHAPE, CLASSES = (8, 8, 1), 10
MODEL = Sigmoids(CLASSES)
TASK = classification(MODEL, SHAPE)
TRACED = []


def GRADIENT(params, x, labels):  # noqa: N802, constant but for the count
    TRACED.append(x.shape)
    return inversion.cross_entropy_gradient(MODEL)(params, x, labels)


LABELS = np.eye(CLASSES, dtype=np.float32)
DLG = inversion.deep_leakage(GRADIENT, SHAPE, CLASSES, restarts=2)
COSINE = inversion.cosine_matching(GRADIENT, SHAPE, steps=600)
INNOVATION = inversion.innovation(GRADIENT, 0.9)

init = jax.jit(TASK.init)
gradient = jax.jit(GRADIENT)
clipped = jax.jit(lambda limit, *rest: inversion.clipped(GRADIENT, limit)(*rest))
releasing = functools.cache(functools.partial(plain, TASK.grad))


def examples(size, first=0):
    rows = slice(first, first + size)
    x, y = jnp.asarray(SOURCE.x[rows]), jnp.asarray(SOURCE.y[rows])
    return Batch(x=x, y=y, weight=jnp.ones(size, jnp.float32))


@functools.cache
def told(sigma, count=1, first=0):
    """(parameters, the mean of `count` noisy gradients of one digit, the digit)."""
    batch, params = examples(1, first), init(key(first))
    points, release = releasing(sigma, count)(params, batch, batch, key(1))
    return points, release, batch


@functools.cache
def innovated():
    """(parameters now and before, an innovation without noise, its digit)."""
    batch, other, params = examples(1), examples(1, 7), init(key(5))
    points, release = innovation(TASK.grad, 0.0)(params, batch, other, key(0))
    return points, release, batch


def key(seed):
    return jax.random.key(seed)


def decibels(batch, restored):
    return inversion.score(batch.x, batch.y, restored).psnr


def baseline(batch):
    size = len(batch.y)
    return decibels(batch, inversion.mean_guess(SOURCE.x, SOURCE.y, CLASSES, size))


def by_hand(params, x, labels):
    """Gradients of single examples in NumPy: a list of {layer: {kernel, bias}}."""
    layers = jax.tree.map(np.float64, params)
    first, last = layers["Dense_0"], layers["Dense_1"]
    found = []
    for image, label in zip(np.float64(x), np.float64(labels), strict=True):
        flat = image.ravel()
        hidden = 1 / (1 + np.exp(-(flat @ first["kernel"] + first["bias"])))
        logits = hidden @ last["kernel"] + last["bias"]
        up = np.exp(logits) / np.exp(logits).sum() - label
        down = (last["kernel"] @ up) * hidden * (1 - hidden)
        pairs = {"Dense_0": (flat, down), "Dense_1": (hidden, up)}
        layer = lambda x, error: {"kernel": np.outer(x, error), "bias": error}
        found.append({name: layer(*pair) for name, pair in pairs.items()})
    return found


def mean_of(trees):
    return jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *trees)


def close(found, wanted, rtol=1e-5):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)

"""What is released, by hand and as the library releases it."""

import jax
import numpy as np
import optax
from leaks import (
    INNOVATION,
    LABELS,
    TASK,
    by_hand,
    clipped,
    close,
    examples,
    gradient,
    init,
    innovated,
    key,
    mean_of,
    told,
)

from experiments.studies.reconstruction import private
from fedjax_muon.core import tree


def test_what_is_released_by_hand():
    params, batch = init(key(3)), examples(3)
    soft = np.float32([[0.5, 0.5] + 8 * [0], 10 * [0.1], LABELS[4]])
    single = by_hand(params, batch.x, soft)
    close(gradient(params, batch.x, soft), mean_of(single))

    norms = [np.sqrt(sum((a**2).sum() for a in jax.tree.leaves(g))) for g in single]
    limit = float(np.sort(norms)[1])  # one is longer, one shorter
    short = [
        jax.tree.map(lambda a, n=n: a * min(1, limit / n), g)
        for n, g in zip(norms, single, strict=True)
    ]
    close(clipped(limit, params, batch.x, soft), mean_of(short))


def test_models_of_releases_are_what_the_library_releases():
    """The estimators without noise tell what the attacker computes from the truth."""
    params, release, batch = told(0.0)
    labels = LABELS[batch.y]
    close(release, gradient(params, batch.x, labels))
    points, release, batch = innovated()
    assert not np.array_equal(*(p["Dense_0"]["kernel"] for p in points))
    labels = LABELS[batch.y]
    single = (by_hand(p, batch.x, labels) for p in points)
    apart = lambda now, before: jax.tree.map(lambda a, b: a - 0.9 * b, now, before)
    wanted = mean_of([apart(*pair) for pair in zip(*single, strict=True)])
    # what is left of numbers ten times as large
    close(release, wanted, 1e-4)
    close(jax.jit(INNOVATION)(points, batch.x, labels), wanted, 1e-4)


def test_the_private_release():
    """Means of clipped gradients are within C, the noise has standard deviation
    z C / b."""
    params, batch = init(key(4)), examples(3)
    clean = clipped(1.0, params, batch.x, LABELS[batch.y])
    _, noisy = private(TASK.grad, 3, 0.006)(params, batch, batch, key(0))
    assert optax.tree.norm(clean) <= 1
    leaves = jax.tree.leaves(tree.sub(noisy, clean))
    noise = np.concatenate([np.ravel(leaf) for leaf in leaves])
    error = 1 / np.sqrt(2 * noise.size)  # of a standard deviation, relative
    assert abs(np.std(noise) / 0.002 - 1) < 5 * error

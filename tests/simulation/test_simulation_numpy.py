"""Simulations of real digits against loops in NumPy, and scores by scikit-learn."""

from functools import partial

import federation
import jax
import numpy as np
import optax
import pytest
from federation import Linear
from sklearn.metrics import accuracy_score, log_loss

from fedjax_muon import data, simulation, tasks
from fedjax_muon.algorithms import fedavg, fedmuon_correct
from fedjax_muon.data import partition
from fedjax_muon.linalg import newton_schulz as orthogonalize
from fedjax_muon.transforms import by_rank
from fedjax_muon.transforms import orthogonalize as matrices

EXACT = by_rank(matrices(orthogonalize.polar), optax.scale(10.0))


def polar(d):
    """U V^T over singular values that are not rounding errors of float32."""
    u, s, vt = np.linalg.svd(d, full_matrices=False)
    share = s / s[0]
    assert not np.any((share > 1e-6) & (share < 1e-4))  # it is clear which these are
    return (u * (share > 1e-5)) @ vt


def numpy_fedavg(x, ids, batches, weights, memory, lr):
    del ids, memory
    mean = [0, 0]
    for batch, weight in zip(batches, weights / weights.sum(), strict=True):
        local = x
        for step in batch:
            grad = federation.gradient(local, *step)
            local = [p - lr * g for p, g in zip(local, grad, strict=True)]
        mean = [m + weight * p for m, p in zip(mean, local, strict=True)]
    return mean


def numpy_fedmuon_correct(x, ids, batches, weights, memory, lr, fresh):
    """Takezawa et al. 2025, arXiv:2509.26337, Algorithm 1, lines 5 to 18."""
    total = len(memory["m"])
    c, moved, control = memory["c"], [0, 0], [0, 0]
    for i, batch in zip(ids, batches, strict=True):
        local, m, ci = x, memory["m"][i], memory["m"][i]
        for step in batch:
            grad = federation.gradient(local, *step)
            m = [(1 - fresh) * a + fresh * g for a, g in zip(m, grad, strict=True)]
            kernel, bias = (a - b + s for a, b, s in zip(m, ci, c, strict=True))
            local = [local[0] - lr * polar(kernel), local[1] - lr * 10 * bias]
        memory["m"][i] = m
        moved = [s + (p - q) / total for s, p, q in zip(moved, local, x, strict=True)]
        control = [s + (p - q) / total for s, p, q in zip(control, m, ci, strict=True)]
    memory["c"] = [s + d for s, d in zip(c, control, strict=True)]
    return [p + d for p, d in zip(x, moved, strict=True)]


slow = partial(pytest.param, marks=pytest.mark.slow)
SGD = fedavg(lr=0.1), partial(numpy_fedavg, lr=0.1)
MUON = (
    fedmuon_correct(lr=0.02, momentum=1 - 0.3, rule=EXACT),
    partial(numpy_fedmuon_correct, lr=0.02, fresh=0.3),
)


@pytest.mark.parametrize(
    ("algorithm", "loop", "weighting", "work"),
    [
        (*MUON, simulation.uniform, {"local_steps": 3}),
        slow(*SGD, simulation.by_examples, {"local_epochs": 1}),
        slow(*SGD, simulation.by_examples, {"local_steps": 3}),
    ],
    ids=["fedmuon_correct", "fedavg of an epoch", "fedavg by examples"],
)
def test_five_rounds_equal_a_loop_in_numpy(algorithm, loop, weighting, work):
    digits = data.load("digits")
    parts = partition.dirichlet(digits.y_train[:400], 7, 0.3, key=jax.random.key(0))
    sizes = np.array([len(part) for part in parts])
    assert sizes.min() < 24 < sizes.max()  # some repeat examples, some don't see all
    prepared = simulation.federate(
        algorithm,
        tasks.classification(Linear(10), (8, 8, 1)),
        digits,
        parts,
        cohort_size=4,
        batch_size=8,
        weighting=weighting,
        **work,
    )
    steps = [3 if "local_steps" in work else max(1, size // 8) for size in sizes]
    assert "local_steps" in work or len(set(steps)) > 3
    state = prepared.init(jax.random.key(7))
    x, key = federation.as_float64(state.params), jax.random.clone(state.key)
    memory = {"c": [0 * p for p in x], "m": [[0 * p for p in x] for _ in parts]}
    images = digits.x_train.reshape(-1, 64).astype(np.float64)
    start = x
    for index in range(5):
        ids = federation.cohort(prepared, key, index)
        rows = federation.rows(prepared, key, index, ids)
        assert all(np.isin(r, parts[i]).all() for r, i in zip(rows, ids, strict=True))
        rows = [each[: steps[i]] for each, i in zip(rows, ids, strict=True)]
        batches = [[(images[b], digits.y_train[b]) for b in each] for each in rows]
        weights = sizes[ids] if weighting is simulation.by_examples else np.ones(4)
        x = loop(x, ids, batches, weights, memory)
        state, metrics = prepared.train_round(state)
        assert not metrics.lost.any()
        for got, expected in zip(federation.as_float64(state.params), x, strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    assert max(np.abs(p - q).max() for p, q in zip(x, start, strict=True)) > 0.02


@pytest.mark.slow
def test_evaluation_equals_scikit_learn():
    digits = data.load("digits")
    parts = partition.dirichlet(digits.y_train[:1400], 5, 0.5, key=jax.random.key(1))
    parts[0] = np.append(parts[0], parts[1][:50])  # shared examples count twice
    prepared = simulation.federate(
        fedavg(lr=0.1),
        tasks.classification(Linear(10), (8, 8, 1)),
        digits,
        parts,
        cohort_size=2,
        local_steps=3,
        batch_size=20,
    )
    state, _ = prepared.train_rounds(prepared.init(jax.random.key(0)), 5)
    w, b = federation.as_float64(state.params)

    def scores(x, y):
        logits = x.reshape(len(x), 64).astype(np.float64) @ w + b
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        loss = log_loss(y, p, labels=np.arange(10))
        return loss, accuracy_score(y, logits.argmax(1))

    got = prepared.evaluate(state)
    each = [scores(digits.x_train[ids], digits.y_train[ids]) for ids in parts]
    used = np.concatenate(parts)
    expected = [
        *scores(digits.x_train[used], digits.y_train[used]),
        *scores(digits.x_test, digits.y_test),
        np.std([accuracy for _, accuracy in each]),
    ]
    assert expected[-1] > 0.01
    names = "train_loss", "train_accuracy", "test_loss", "test_accuracy"
    assert got.keys() == {*names, "client_accuracy_std"}  # no AUC of ten classes
    found = [got[name] for name in (*names, "client_accuracy_std")]
    np.testing.assert_allclose(np.array(found), expected, rtol=2e-6)

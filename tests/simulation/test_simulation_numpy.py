"""Simulations, and what is measured of them, against loops in NumPy."""

from functools import partial

import jax
import numpy as np
import optax
import pytest
from sklearn.metrics import accuracy_score, log_loss

import fedjax_muon as fm
from fedjax_muon import data, simulation, tasks
from fedjax_muon.algorithms import fedavg, fedmuon_correct
from fedjax_muon.data import client_tests, partition
from fedjax_muon.linalg import newton_schulz as orthogonalize
from fedjax_muon.simulation import client_accuracies
from fedjax_muon.simulation.batching import full_batch
from fedjax_muon.transforms import by_rank, orthogonalize as matrices
from fedjax_muon.wrappers.personalization import ditto, keep_own, params_of_clients
from tests.support import federation
from tests.support.federation import DATA, TASK, Linear, as_float64, cut

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
    """Takezawa et al. 2026, arXiv:2509.26337, Algorithm 1, lines 5 to 18."""
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
CORRECT = fedmuon_correct(lr=0.02, momentum=1 - 0.3, rule=EXACT)
MUON = CORRECT, partial(numpy_fedmuon_correct, lr=0.02, fresh=0.3)


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
    given = algorithm, tasks.classification(Linear(10), (8, 8, 1)), digits, parts
    how = {"cohort": 4, "batch_size": 8, "weighting": weighting} | work
    prepared = simulation.federate(*given, **how)
    steps = [3 if "local_steps" in work else max(1, size // 8) for size in sizes]
    assert "local_steps" in work or len(set(steps)) > 3
    state = prepared.init(jax.random.key(7))
    x, key = as_float64(state.params), jax.random.clone(state.key)
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
        for got, expected in zip(as_float64(state.params), x, strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    assert max(np.abs(p - q).max() for p, q in zip(x, start, strict=True)) > 0.02


@pytest.mark.slow
def test_evaluation_equals_scikit_learn():
    digits = data.load("digits")
    parts = partition.dirichlet(digits.y_train[:1400], 5, 0.5, key=jax.random.key(1))
    parts[0] = np.append(parts[0], parts[1][:50])  # shared examples count twice
    given = fedavg(lr=0.1), tasks.classification(Linear(10), (8, 8, 1)), digits, parts
    how = {"cohort": 2, "local_steps": 3, "batch_size": 20}
    prepared = simulation.federate(*given, **how)
    state, _ = prepared.train_rounds(prepared.init(jax.random.key(0)), 5)
    w, b = as_float64(state.params)

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
        min(accuracy for _, accuracy in each),
    ]
    assert expected[-2] > 0.01
    names = "train_loss", "train_accuracy", "test_loss", "test_accuracy"
    names += ("client_accuracy_std", "client_accuracy_min")
    assert got.keys() == {*names}  # no AUC of ten classes
    np.testing.assert_allclose([got[name] for name in names], expected, rtol=2e-6)


# ------------------------------------------------------ test examples of clients

FOUR_PARTS = cut([20, 25, 15, 20])
OWN = [np.array([0, 3, 5, 7, 9]), np.array([1, 2]), np.array([], int), np.arange(8, 20)]
KEY = jax.random.key(2)


def prepared(algorithm=None, **options):
    algorithm = fm.fedavg(0.3) if algorithm is None else algorithm
    how = {"cohort": 4, "local_steps": 3, "batch_size": 8} | options
    return fm.federate(algorithm, TASK, DATA, FOUR_PARTS, **how)


def accuracies(params, parts):
    """Of the clients that have test examples, by hand."""
    w, b = as_float64(params)
    right = (DATA.x_test.astype(float) @ w + b).argmax(1) == DATA.y_test
    return np.array([right[part].mean() for part in parts if len(part)])


@pytest.mark.parametrize("devices", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_columns_of_clients_are_those_of_a_loop(devices):
    simulation = prepared(test_parts=OWN, devices=jax.devices()[:devices])
    state, _ = simulation.train_rounds(simulation.init(KEY), 3)
    found = simulation.evaluate(state)
    each = accuracies(state.params, OWN)
    assert len(set(each.tolist())) == 3
    expected = {"std": each.std(), "min": each.min(), "median": np.median(each)}
    expected["p10"] = np.percentile(each, 10)
    for name, value in expected.items():
        column = found[f"client_test_accuracy_{name}"]
        np.testing.assert_allclose(column, value, rtol=1e-6)


def test_a_private_run_does_not_publish_them():
    noise = {"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-3}
    privacy = fm.privacy.ClientPrivacy(**noise, cohort=2, rounds=2)
    simulation = prepared(cohort=None, privacy=privacy, test_parts=OWN)
    found = simulation.evaluate(simulation.init(KEY))
    assert "test_accuracy" in found
    assert not any("client" in name for name in found)


def test_like_keeps_the_proportions_of_classes():
    rng = np.random.default_rng(0)
    labels, tested = rng.integers(0, 4, 900), rng.integers(0, 5, 400)  # 4 has no owner
    parts = fm.partition.dirichlet(labels, 6, 0.3, key=KEY)
    own = client_tests.like(parts, labels, tested, key=KEY)
    ids = np.concatenate(own)
    assert len(set(ids.tolist())) == len(ids)
    np.testing.assert_array_equal(np.sort(ids), np.flatnonzero(tested < 4))
    for label in range(4):
        total = (tested == label).sum()
        for part, test in zip(parts, own, strict=True):
            share = (labels[part] == label).sum() / (labels == label).sum()
            assert abs((tested[test] == label).sum() - share * total) < 1
    again = client_tests.like(parts, labels, tested, key=KEY)
    other = client_tests.like(parts, labels, tested, key=jax.random.key(3))
    assert all(np.array_equal(a, b) for a, b in zip(own, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(own, other, strict=True))


PERSONAL = {
    "no": lambda algorithm: algorithm,
    "keep_own": lambda algorithm: keep_own(algorithm, ["bias"]),
    "ditto": lambda algorithm: ditto(algorithm, personal_lr=0.3, pull=0.1),
}


def trained(kind, **options):
    how = {"local_steps": 4, "sampler": full_batch, "test_parts": OWN} | options
    simulation = prepared(PERSONAL[kind](fm.fedavg(0.3)), **how)
    return simulation, simulation.train_rounds(simulation.init(KEY), 5)[0]


def accuracy(kernel, bias, ids):
    logits = DATA.x_test[ids].astype(float) @ kernel + bias
    return np.mean(logits.argmax(1) == DATA.y_test[ids]) if len(ids) else np.nan


def descended(kernel, bias, ids, steps, lr):
    x, y = DATA.x_train[ids].astype(float), DATA.y_train[ids]
    for _ in range(steps):
        of_kernel, of_bias = federation.gradient((kernel, bias), x, y)
        kernel, bias = kernel - lr * of_kernel, bias - lr * of_bias
    return kernel, bias


@pytest.mark.parametrize("kind", ["keep_own", slow("no"), slow("ditto")])
def test_each_client_has_its_own_parameters(kind):
    simulation, state = trained(kind)
    clients = params_of_clients(state.params, state.training.client_states)
    found, later = [], []
    for i in range(4):
        ours = state.params
        if clients is not None:
            ours = jax.tree.map(lambda p, i=i: p[i], clients)
        kernel, bias = as_float64(ours)
        found.append(accuracy(kernel, bias, OWN[i]))
        tuned = descended(kernel, bias, FOUR_PARTS[i], 30, 0.5)
        later.append(accuracy(*tuned, OWN[i]))
    np.testing.assert_allclose(client_accuracies(simulation, state), found, rtol=1e-6)
    after = client_accuracies(simulation, state, steps=30, lr=0.5, key=KEY)
    np.testing.assert_allclose(after, later, rtol=1e-6)
    assert np.isnan(found[2])
    columns = simulation.evaluate(state)
    if kind == "no":
        assert not any(name.startswith("own_") for name in columns)
    else:
        mean, median = np.nanmean(found), np.nanmedian(found)
        np.testing.assert_allclose(columns["personal_accuracy_mean"], mean, rtol=1e-6)
        np.testing.assert_allclose(
            columns["personal_accuracy_median"], median, rtol=1e-6
        )
        np.testing.assert_allclose(columns["personal_accuracy_min"], np.nanmin(found))
    assert kind != "no" or not np.array_equal(found, later, equal_nan=True)


@pytest.mark.slow
def test_devices_agree_on_clients_accuracies():
    scored = lambda simulation, state: client_accuracies(simulation, state)
    alone = scored(*trained("keep_own"))
    divided = scored(*trained("keep_own", devices=jax.devices()[:2]))
    np.testing.assert_allclose(divided, alone, rtol=1e-6)

"""Accuracies of clients on test examples of their own, against loops in NumPy.

The parameters are the server's, or each client's own.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federation import DATA, TASK, cut

import fedjax_muon as fm
from fedjax_muon.data import client_tests
from fedjax_muon.personalization import ditto, keep_own, params_of_clients
from fedjax_muon.simulation.batching import full_batch
from fedjax_muon.simulation.own_accuracy import own_accuracies

PARTS = cut([20, 25, 15, 20])
OWN = [np.array([0, 3, 5, 7, 9]), np.array([1, 2]), np.array([], int), np.arange(8, 20)]
KEY = jax.random.key(2)


def prepared(**options):
    return fm.federate(
        fm.fedavg(0.3),
        TASK,
        DATA,
        PARTS,
        cohort_size=4,
        local_steps=3,
        batch_size=8,
        **options,
    )


def accuracies(params, parts):
    """Of the clients that have test examples, by hand."""
    w, b = (np.asarray(a, float) for a in jax.tree.leaves(params)[::-1])
    right = (DATA.x_test.astype(float) @ w + b).argmax(1) == DATA.y_test
    return np.array([right[part].mean() for part in parts if len(part)])


@pytest.mark.parametrize("devices", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_columns_of_clients_are_those_of_a_loop(devices):
    simulation = prepared(test_parts=OWN, devices=jax.devices()[:devices])
    state, _ = simulation.train_rounds(simulation.init(KEY), 3)
    found = simulation.evaluate(state)
    each = accuracies(state.params, OWN)
    assert len(set(each.tolist())) == 3
    expected = {
        "std": each.std(),
        "min": each.min(),
        "p10": np.percentile(each, 10),
        "median": np.median(each),
    }
    for name, value in expected.items():
        column = found[f"client_test_accuracy_{name}"]
        np.testing.assert_allclose(column, value, rtol=1e-6)


def test_other_test_sets_are_those_that_are_asked_for():
    simulation = prepared(test_parts=OWN)
    state = simulation.init(KEY)
    swapped = simulation.vary(test_parts=[np.arange(20), *OWN[2:], np.arange(2)])
    whole = accuracies(state.params, [np.arange(20), OWN[3], np.arange(2)])
    found = swapped.evaluate(state)["client_test_accuracy_median"]
    np.testing.assert_allclose(found, np.median(whole), rtol=1e-6)
    plain = prepared().evaluate(state)
    assert not any(name.startswith("client_test") for name in plain)


def test_a_private_run_does_not_publish_them():
    privacy = fm.privacy.ClientPrivacy(
        clip_norm=1.0, noise_multiplier=1.0, cohort_size=2, delta=1e-3, rounds=2
    )
    simulation = fm.federate(
        fm.fedavg(0.3),
        TASK,
        DATA,
        PARTS,
        local_steps=1,
        batch_size=8,
        privacy=privacy,
        test_parts=OWN,
    )
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


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (OWN[:3], "one for each of the 4 clients, got 3"),
        ([[], [], [], []], "a client test examples, got none"),
        ([[20], [], [], []], "ids of test examples, 0 to 19, got int64 from 20 to 20"),
        ([[0.5], [], [], []], "got float64 from 0.5 to 0.5"),
    ],
)
def test_wrong_parts_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        prepared(test_parts=parts)
    simulation = prepared(test_parts=OWN)
    with pytest.raises(ValueError, match=message):
        simulation.vary(test_parts=parts)
    assert jnp.asarray(simulation.own_tests.ids).size == 19


# ------------------------------------------------------- with their own parameters

PERSONAL = {
    "no": lambda algorithm: algorithm,
    "keep_own": lambda algorithm: keep_own(algorithm, ["bias"]),
    "ditto": lambda algorithm: ditto(algorithm, personal_lr=0.3, pull=0.1),
}


def trained(kind, **options):
    simulation = fm.federate(
        PERSONAL[kind](fm.fedavg(0.3)),
        TASK,
        DATA,
        PARTS,
        cohort_size=4,
        local_steps=4,
        batch_size=8,
        sampler=full_batch,
        test_parts=OWN,
        **options,
    )
    return simulation, simulation.train_rounds(simulation.init(KEY), 5)[0]


def linear(params):
    bias, kernel = (np.asarray(a, float) for a in jax.tree.leaves(params))
    return kernel, bias


def accuracy(kernel, bias, ids):
    logits = DATA.x_test[ids].astype(float) @ kernel + bias
    return np.mean(logits.argmax(1) == DATA.y_test[ids]) if len(ids) else np.nan


def descended(kernel, bias, ids, steps, lr):
    x, y = DATA.x_train[ids].astype(float), DATA.y_train[ids]
    for _ in range(steps):
        p = np.exp(x @ kernel + bias)
        error = (p / p.sum(1, keepdims=True) - np.eye(3)[y]) / len(ids)
        kernel, bias = kernel - lr * x.T @ error, bias - lr * error.sum(0)
    return kernel, bias


@pytest.mark.slow
@pytest.mark.parametrize("kind", PERSONAL)
def test_each_client_has_its_own_parameters(kind):
    simulation, state = trained(kind)
    clients = params_of_clients(state.params, state.training.client_states)
    found, later = [], []
    for i in range(4):
        ours = state.params
        if clients is not None:
            ours = jax.tree.map(lambda p, i=i: p[i], clients)
        kernel, bias = linear(ours)
        found.append(accuracy(kernel, bias, OWN[i]))
        tuned = descended(kernel, bias, PARTS[i], 30, 0.5)
        later.append(accuracy(*tuned, OWN[i]))
    np.testing.assert_allclose(own_accuracies(simulation, state), found, rtol=1e-6)
    after = own_accuracies(simulation, state, steps=30, lr=0.5, key=KEY)
    np.testing.assert_allclose(after, later, rtol=1e-6)
    assert np.isnan(found[2])
    columns = simulation.evaluate(state)
    if kind == "no":
        assert not any(name.startswith("own_") for name in columns)
    else:
        mean, median = np.nanmean(found), np.nanmedian(found)
        np.testing.assert_allclose(columns["own_accuracy_mean"], mean, rtol=1e-6)
        np.testing.assert_allclose(columns["own_accuracy_median"], median, rtol=1e-6)
        np.testing.assert_allclose(columns["own_accuracy_min"], np.nanmin(found))
    assert kind != "no" or not np.array_equal(found, later, equal_nan=True)


@pytest.mark.slow
def test_devices_agree():
    simulation, state = trained("keep_own", devices=jax.devices()[:2])
    alone = own_accuracies(*trained("keep_own"))
    np.testing.assert_allclose(own_accuracies(simulation, state), alone, rtol=1e-6)


@pytest.mark.slow
def test_what_is_missing_is_said():
    simulation, state = trained("no")
    with pytest.raises(TypeError, match="local steps need a key"):
        own_accuracies(simulation, state, steps=1)
    with pytest.raises(ValueError, match="steps must be at least 0"):
        own_accuracies(simulation, state, steps=-1)
    plain = fm.federate(
        fm.fedavg(), TASK, DATA, PARTS, cohort_size=2, local_steps=1, batch_size=4
    )
    with pytest.raises(ValueError, match="give federate test_parts"):
        own_accuracies(plain, plain.init(KEY))

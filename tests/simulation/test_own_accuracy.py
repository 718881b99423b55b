"""Accuracies of clients with their own parameters, against loops in NumPy."""

import jax
import numpy as np
import pytest
from federation import DATA, TASK, cut

import fedjax_muon as fm
from fedjax_muon.personalization import ditto, keep_own, params_of_clients
from fedjax_muon.simulation.batching import full_batch
from fedjax_muon.simulation.own_accuracy import own_accuracies

PARTS = cut([20, 25, 15, 20])
OWN = [np.array([0, 3, 5, 7, 9]), np.array([1, 2]), np.array([], int), np.arange(8, 20)]
KEY = jax.random.key(2)
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


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "kind", ["keep_own", *(pytest.param(kind, marks=SLOW) for kind in ("no", "ditto"))]
)
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

"""The numbers of local steps that clients take, as simulations count them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federation import DATA, TASK, cut

import fedjax_muon as fm
from fedjax_muon.core import Algorithm, Exchange, broadcast_params
from fedjax_muon.engine import plans

SIZES = [3, 9, 20, 48]
PARTS = cut(SIZES)


class Counts(NamedTuple):
    params: Any
    told: Any  # [rounds, N], the steps of every client
    mean: Any  # [rounds], the server's


class Told(NamedTuple):
    params: Any
    told: Any


def counting():
    """Clients tell their number of steps, and count the batches that they saw."""

    def client(objective, shared, seen, batches, round):
        step = lambda k, batch, key: (k + 1, ())
        k, _ = fm.local_steps(step, jnp.int32(0), batches, round)
        told = jnp.zeros(len(SIZES)).at[jnp.max(batches.client)].set(round.steps)
        change = jax.tree.map(jnp.zeros_like, shared.params)
        return Told(change, told), jnp.stack([k, jnp.int32(round.steps)])

    def server(state, total, round):
        told = state.told.at[round.index].set(total.told)
        return Counts(state.params, told, state.mean.at[round.index].set(round.steps))

    def init(params):
        return Counts(params, jnp.zeros((40, len(SIZES))), jnp.zeros(40))

    main = Exchange(broadcast_params, client, server, reduce_sum=True)
    return Algorithm(init, lambda params: jnp.zeros(2, jnp.int32), (main,))


def counted(rounds=40, **work):
    simulation = fm.federate(
        counting(), TASK, DATA, PARTS, cohort_size=4, batch_size=4, **work
    )
    state, _ = simulation.train_rounds(simulation.init(jax.random.key(3)), rounds)
    seen, told = np.asarray(state.training.client_states).T
    np.testing.assert_array_equal(seen, told)  # no batch beyond the own steps
    return jax.tree.map(np.asarray, state.training.server)


def test_epochs_are_those_of_the_clients_examples():
    found = counted(2, local_epochs=2, plan=plans.vmapped)
    steps = [max(1, 2 * n // 4) for n in SIZES]
    np.testing.assert_array_equal(found.told[:2], [steps, steps])
    np.testing.assert_allclose(found.mean[:2], np.mean(steps))


@pytest.mark.slow
def test_epochs_are_drawn_for_each_client_and_round():
    found = counted(local_epochs=(1, 3), weighting=fm.simulation.by_examples)
    epochs = found.told * 4 / SIZES
    for client in (2, 3):
        values, counts = np.unique(epochs[:, client], return_counts=True)
        np.testing.assert_array_equal(values, [1, 2, 3])
        assert counts.min() >= 5  # of 40 / 3
    assert len({tuple(row) for row in found.told.tolist()}) > 10
    shares = np.array(SIZES) / sum(SIZES)
    np.testing.assert_allclose(found.mean, found.told @ shares, rtol=1e-6)


@pytest.mark.slow
def test_every_client_has_its_own_number():
    found = counted(1, local_steps=[1, 2, 3, 9], devices=jax.devices()[:2])
    np.testing.assert_array_equal(found.told[0], [1, 2, 3, 9])
    same = fm.federate(
        fm.fedavg(0.1),
        TASK,
        DATA,
        PARTS,
        cohort_size=2,
        local_steps=[5, 5, 5, 5],
        batch_size=4,
    )
    assert same.setup.work.steps is None  # which compiles to a plain scan


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        ({}, TypeError, "either local_steps or local_epochs"),
        ({"local_steps": 1, "local_epochs": 1}, TypeError, "either local_steps"),
        ({"local_steps": [1, 2]}, ValueError, "one for each of the 4 clients, got 2"),
        ({"local_steps": [1, 2, 0, 1]}, ValueError, "local_steps must be at least 1"),
        ({"local_steps": [1, 2, 1.5, 1]}, ValueError, "local_steps must be an integer"),
        ({"local_epochs": 0}, ValueError, "local_epochs must be at least 1, got 0"),
        ({"local_epochs": (3, 2)}, ValueError, r"\(low, high\), got \(3, 2\)"),
        ({"local_epochs": (1, 2, 3)}, ValueError, r"\(low, high\), got \(1, 2, 3\)"),
        ({"local_epochs": 0.5}, ValueError, "local_epochs must be an integer"),
    ],
)
def test_wrong_numbers_are_refused(work, error, message):
    with pytest.raises(error, match=message):
        fm.federate(
            fm.fedavg(0.1), TASK, DATA, PARTS, cohort_size=2, batch_size=4, **work
        )


def test_privacy_does_not_cover_unequal_work():
    privacy = fm.privacy.ClientPrivacy(
        clip_norm=1.0, noise_multiplier=1.0, cohort_size=2, delta=1e-3, rounds=2
    )
    with pytest.raises(ValueError, match="different numbers of local steps"):
        fm.federate(
            fm.fedavg(0.1),
            TASK,
            DATA,
            PARTS,
            local_epochs=1,
            batch_size=4,
            privacy=privacy,
        )

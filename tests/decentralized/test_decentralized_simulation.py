"""Simulated agents against the same arithmetic in NumPy, with the same batches."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon.decentralized import ALL, dsgd, gradient_tracking, topology
from fedjax_muon.decentralized.mixing import dense, shifted, sparse
from fedjax_muon.decentralized.simulation import (
    batches as draw_batches,
    decentralize,
    keys_of,
)
from fedjax_muon.simulation import NonFiniteError, training
from fedjax_muon.simulation.evaluation import evaluate
from tests.support.federation import (
    DATA,
    NAMES,
    TASK,
    as_float64,
    assert_same_bits,
    cut,
    gradient,
)

SLOW = pytest.mark.slow
PARTS = cut([20, 9, 12, 25, 6])
WEIGHTS = topology.metropolis(topology.star(5))
LR = 0.2
SGD = dsgd(LR)


def simulated(algorithm=SGD, task=TASK, parts=PARTS, **changes):
    sizes = {"weights": WEIGHTS, "batch_size": 4, "first_size": 6}
    return decentralize(algorithm, task, DATA, parts, **sizes | changes)


@pytest.fixture(scope="module")
def plain():
    return simulated()


def trained(simulation, rounds, seed=3):
    state = simulation.init(jax.random.key(seed))
    return simulation.train_rounds(state, rounds)[0]


@pytest.mark.parametrize("mixer", [dense, pytest.param(sparse, marks=SLOW)])
def test_iterations_by_hand(mixer):
    """Two graphs in turn; every agent moves, then mixes with its neighbours."""
    graphs = np.stack([WEIGHTS, topology.metropolis(topology.ring(5))])
    simulation = simulated(weights=graphs, mixer=mixer)
    state = simulation.init(jax.random.key(3))
    init_key, key = jax.random.split(jax.random.key(3))
    start = as_float64(TASK.init(init_key))
    agents = [[leaf.copy() for leaf in start] for _ in PARTS]
    draw = partial(draw_batches, simulation.settings, simulation.clients)
    for t in range(4):
        batch_key, _ = keys_of(key)
        rows = draw(t == 0, batch_key, t)
        moved = []
        for i, params in enumerate(agents):
            ids = np.asarray(rows.ids)[i]
            assert len(ids) == (6 if t == 0 else 4)
            assert set(ids) <= set(PARTS[i])
            g = gradient(params, DATA.x_train[ids], DATA.y_train[ids])
            moved.append([p - LR * d for p, d in zip(params, g, strict=True)])
        agents = [
            [sum(w * m[k] for w, m in zip(row, moved, strict=True)) for k in range(2)]
            for row in graphs[t % 2]
        ]
        if t:
            state, metrics = simulation.train_rounds(state, 1)
            assert not np.asarray(metrics.lost).any()
        assert state.round == t
        for i, params in enumerate(agents):
            found = as_float64(jax.tree.map(lambda x, i=i: x[i], state.params))
            for a, b in zip(found, params, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-6)


def test_the_mean_is_scored_and_the_distance_from_it(plain):
    state = trained(plain, 2)
    mean = jax.tree.map(lambda x: x.mean(0), state.params)
    found = plain.evaluate(state)
    expected = evaluate(TASK, mean, plain.clients, plain.data.test)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)
    apart = [
        np.sum((np.asarray(state.params[a][b]) - np.asarray(mean[a][b])) ** 2)
        for a, b in NAMES
    ]
    np.testing.assert_allclose(found["consensus"], np.sqrt(sum(apart) / 5), rtol=1e-5)


def test_training_to_the_end_and_bytes_by_hand(plain):
    state, rows = training.run(
        plain, plain.init(jax.random.key(0)), rounds=5, evaluate_every=2
    )
    assert state.round == 5
    assert [row["round"] for row in rows] == [0, 2, 4, 5]
    params, links = 4 * (5 * 3 + 3), 2 * 4  # bytes; a star of five, both ways
    assert [row["bytes_up"] for row in rows] == [
        links * params * (1 + t) for t in (0, 2, 4, 5)
    ]
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    tracking = simulated(gradient_tracking(LR))
    assert tracking.meter.bytes_after(3).up == 2 * 4 * links * params


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (1, "round 1: not a finite message"),
        pytest.param(0, "round 0: the training loss is NaN", marks=SLOW),
    ],
)
def test_an_agent_that_is_not_finite_ends_training(first, message):
    def spoilt(params, batch, key):
        g = TASK.grad(params, batch, key)
        begun = (params["Dense_0"]["bias"] != 0).any()  # zeros at t = 0
        lost = (batch.client == 2) & (begun if first else True)
        return jax.tree.map(lambda x: jnp.where(lost, jnp.nan, x), g)

    simulation = simulated(task=TASK._replace(grad=spoilt))
    with pytest.raises(NonFiniteError, match=message):
        training.run(simulation, simulation.init(jax.random.key(0)), rounds=3)


@SLOW
@pytest.mark.parametrize("mixer", [dense, sparse])
def test_variants_share_programs_and_give_the_numbers_of_their_own(mixer):
    """Other data, other weights and another rate, without compiling anew."""
    first = simulated(dsgd(0.05), mixer=mixer)
    trained(first, 2)
    turned = np.roll(WEIGHTS, 1, (0, 1))  # another agent is in the middle of the star
    parts = [np.roll(part, 1)[::-1] for part in PARTS[::-1]]
    varied = first.at(parts=parts, weights=turned, hyper={"lr": LR})
    found = trained(varied, 3)
    assert first.compiled.rounds._cache_size() == 1
    alone = simulated(parts=parts, weights=turned, mixer=mixer)
    assert_same_bits(found, trained(alone, 3))
    assert_same_bits(trained(first.at(), 3), trained(first, 3))


def assert_close(found, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        jax.device_get(found),
        jax.device_get(expected),
    )


@SLOW
def test_devices_share_the_agents_in_one_program(caplog):
    # tracks, and draws noise
    algorithm = ALL["dpmixsgd_unclipped"].function(LR, beta=0.1, sigma=0.1)
    parts = cut([8, 10, 12, 6, 8, 9, 11, 8])
    sizes = {"parts": parts, "weights": topology.metropolis(topology.ring(8))}
    here = simulated(algorithm, **sizes)
    there = simulated(algorithm, **sizes, mixer=shifted, devices=jax.devices()[:4])
    expected = trained(here, 3)
    with jax.log_compiles():
        state = there.init(jax.random.key(3))
        for count in (1, 2):
            state, metrics = there.train_rounds(state, count)
            assert not np.asarray(metrics.lost).any()
        varied = trained(there.at(parts=parts[::-1]), 3)
    # not the size of a cache, which also grows without compiling
    messages = [record.getMessage() for record in caplog.records]
    rounds = "Compiling jit(run_rounds)"
    compiled = [text for text in messages if text.startswith(rounds)]
    assert len(compiled) == 1
    for leaf in jax.tree.leaves(state.training.agents):
        assert len(leaf.sharding.device_set) == 4
        assert leaf.sharding.shard_shape(leaf.shape) == (2, *leaf.shape[1:])
    plain = lambda state: (state.training, jax.random.key_data(state.key))
    assert_close(plain(state), plain(expected))
    assert_close(there.evaluate(state), here.evaluate(expected))
    assert there.meter.bytes_after(3) == here.meter.bytes_after(3)
    assert_close(plain(varied), plain(trained(here.at(parts=parts[::-1]), 3)))

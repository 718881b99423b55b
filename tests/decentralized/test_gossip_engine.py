"""Mixing, agents over devices, bytes, and what the engine refuses."""

import functools

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from fedjax_muon.core import Objective, tree
from fedjax_muon.decentralized import ALL, topology
from fedjax_muon.decentralized.engine import make, traffic
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.mixing import dense, shifted, sparse
from tests.oracles.gossip import draw_weights
from tests.support.gossip_cases import (
    FREE,
    LR,
    SIGMA,
    START,
    TRACE,
    WEIGHTS,
    M,
    pair,
    run,
)
from tests.support.traces import compilations

KEY = jax.random.key(1)
TORUS = nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 4, periodic=True))
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
# what an agent hears when all tell their batches
ECHO = Gossip(
    lambda objective, params, mix, batch, iteration: mix(batch),
    lambda objective, state, mix, batch, iteration: mix(batch),
)
NONE = Objective(lambda params, batch, key: params)  # gradients are never asked for
STAR = np.eye(6) / 2 + np.diag([0.0, *[0.4] * 5])
STAR[0, 1:] = STAR[1:, 0] = 0.1  # symmetric, rows sum to 1
SHIFT = np.roll(np.eye(6), 1, axis=1)  # directed: agent i hears i + 1
SEQUENCE = np.stack([draw_weights(5, 6), STAR, SHIFT, np.eye(6)])


def messages(agents, dtype="float32"):
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.standard_normal((agents, *shape)), dtype)
    return {"w": draw(3, 2), "s": draw()}


def received(mixer, agents, iterations, devices=()):
    """What agents hear at t = 0 and later, of the same messages in every iteration."""
    start, step = make(ECHO, NONE, mixer, agents, devices)
    told = messages(agents)
    state = jax.jit(start)((), told, KEY)
    step, seen = jax.jit(step), [state.agents]
    for _ in range(iterations - 1):
        state = step(state, told, KEY)
        seen.append(state.agents)
    assert compilations(step) <= 1
    return seen


def assert_mixed(seen, W):
    told = messages(len(W(0)))
    for t, found in enumerate(seen):
        for name, rows in told.items():
            want = np.tensordot(W(t), np.asarray(rows, np.float64), 1)
            np.testing.assert_allclose(found[name], want, atol=1e-6)


@pytest.mark.parametrize("mixer", [dense, sparse, shifted])
def test_weights_are_constant_or_sequences_that_repeat(mixer):
    assert_mixed(received(mixer(SHIFT), 6, 2), lambda t: SHIFT)
    assert_mixed(received(mixer(SEQUENCE), 6, 6), lambda t: SEQUENCE[t % 4])
    assert_mixed(received(mixer(list(SEQUENCE)), 6, 2), lambda t: SEQUENCE[t])


def test_weights_as_a_function_of_the_iteration():
    ring = lambda t: jnp.roll(jnp.eye(6), t, axis=1)
    seen = received(dense(ring), 6, 4)
    assert_mixed(seen, lambda t: np.roll(np.eye(6), t, axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("mixer", [dense, sparse, shifted])
def test_short_types_are_summed_in_long_ones(mixer):
    W = draw_weights(7, 40)
    start, _ = make(ECHO, NONE, mixer(W), 40)
    told = jnp.asarray(np.random.default_rng(0).standard_normal((40, 50)), jnp.bfloat16)
    found = jax.jit(start)((), told, KEY).agents
    assert found.dtype == jnp.bfloat16
    want = jnp.asarray(W @ np.asarray(told, np.float64), jnp.bfloat16)
    found, want = (np.asarray(x, np.float64) for x in (found, want))
    np.testing.assert_allclose(found, want, rtol=2**-7)


@pytest.mark.parametrize("mixer", [dense, sparse, shifted])
@pytest.mark.parametrize("devices", [4, pytest.param(2, marks=pytest.mark.slow)])
def test_agents_over_devices_hear_the_same(mixer, devices):
    sequence = np.stack([draw_weights(5, 8), draw_weights(6, 8)])
    seen = received(mixer(sequence), 8, 3, jax.devices()[:devices])
    assert_mixed(seen, lambda t: sequence[t % 2])


# directed: agent i hears i, i + 1 and i + 4, so that a shift the wrong way is seen
DIRECTED = 0.5 * np.eye(8) + 0.3 * np.roll(np.eye(8), 1, 1)
DIRECTED += 0.2 * np.roll(np.eye(8), 4, 1)


@pytest.mark.parametrize(
    ("W", "devices"),
    [
        (topology.metropolis(TORUS), 4),
        (DIRECTED, 2),
        slow(topology.metropolis(topology.ring(3)), 1),
        slow(topology.metropolis(topology.ring(4)), 4),
        slow(topology.metropolis(topology.ring(8)), 2),
        slow(topology.metropolis(TORUS), 2),
        slow(topology.metropolis(topology.exponential(8)), 4),
        slow(DIRECTED, 1),
        slow(DIRECTED, 4),
        slow(DIRECTED[:, [3, 0, 1, 2, 7, 4, 5, 6]], 4),
    ],
    ids=lambda value: len(value) if isinstance(value, np.ndarray) else None,
)
def test_shifts_are_the_product(W, devices):
    seen = received(shifted(W), len(W), 2, jax.devices()[:devices])
    assert_mixed(seen, lambda t: W)


@pytest.mark.slow
def test_only_rows_that_cross_are_sent():
    """Of a ring of 8 on 2 devices, two rows of 4: the last and the first."""
    ring = shifted(topology.metropolis(topology.ring(8)))
    start, _ = make(ECHO, NONE, ring, 8, jax.devices()[:2])
    lowered = jax.jit(start).lower((), jnp.zeros((8, 5)), KEY).as_text()
    sends = [line for line in lowered.splitlines() if "collective_permute" in line]
    assert len(sends) == 2
    assert all("(tensor<1x5xf32>) -> tensor<1x5xf32>" in line for line in sends)


@pytest.mark.slow
def test_a_method_over_devices_is_the_same_method():
    many = TRACE._replace(batches=[(b * 2)[:8] for b in TRACE.batches[:3]])
    weights, params, single = draw_weights(8, 8), pair(START), jnp.float32
    algorithm = ALL["dp_sgda_unclipped"].function(LR, sigma=SIGMA)
    here = run(algorithm, FREE, dense(weights), params, many, single)
    four = jax.devices()[:4]
    there = run(algorithm, FREE, sparse(weights), params, many, single, four)
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5)
    jax.tree.map(close, here, there)


def test_one_compiled_step_serves_all_iterations():
    start, step = make(ALL["dsgda"].function(LR), FREE, dense(WEIGHTS), M)
    batches = tuple(
        jnp.asarray(np.stack(leaf), jnp.float32)
        for leaf in zip(*TRACE.batches[1], strict=True)
    )
    params = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), pair(START))
    state = jax.jit(start)(params, batches, KEY)
    step = jax.jit(step, donate_argnums=0)
    for t in range(1, 5):
        assert int(state.index) == t
        state = step(state, batches, KEY)
    assert compilations(step) == 1


# bytes in units of the parameters: one message of a point, another of a track
UNITS = {"dsgd": 1, "dsgd_muon": 1, "dsgda": 1, "dp_sgda_unclipped": 1}
UNITS |= {"gradient_tracking": 2, "gradient_tracking_muon": 2, "demuon": 2}
UNITS |= {"suda": 3, "suda_muon": 5, "suda_muon_extra": 4, "suda_muon_gt": 5}
UNITS |= {"dm_hsgd": 2, "dpmixsgd_unclipped": 2}


def test_traffic_is_the_papers():
    params = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), pair(START))
    unit = 4 * (4 * 3 + 3 + 1 + 3 * 2 + 1)
    assert tree.nbytes(params) == unit
    first, batch = (
        tuple(jax.ShapeDtypeStruct(a.shape, jnp.float32) for a in TRACE.batches[t][0])
        for t in (0, 1)
    )
    assert first[0].shape != batch[0].shape
    sent = {
        name: traffic(method.function(), FREE, params, first, batch)
        for name, method in ALL.items()
    }
    assert sent == {name: (n * unit, n * unit) for name, n in UNITS.items()}

"""FedMuon-DA under noise without a variance: no gradient makes a step long."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon import engine
from fedjax_muon.core import Objective
from fedjax_muon.core.pair import Pair
from fedjax_muon.engine import plans
from fedjax_muon.minimax import fedmuon_da
from fedjax_muon.tasks.heavy_tails import alpha_stable, noisy

pytestmark = pytest.mark.slow

CLIENTS, STEPS, ROUNDS, LR = 8, 4, 40, 0.05


def quadratic(params, batch, key):
    """Descent in x and ascent in y towards zero."""
    del batch, key
    return params


def moves(**options):
    """Longest changes in one round of the kernel, the vector and the scalar."""
    objective = Objective(noisy(quadratic, alpha_stable(1.2)))
    algorithm = fedmuon_da(lr=LR, **options)
    start = Pair({"kernel": jnp.eye(6), "bias": jnp.ones(6)}, jnp.array(1.0))
    state = engine.init(algorithm, start, CLIENTS)
    run = engine.make_round(algorithm, objective, CLIENTS, plans.vmapped)
    cohort = jnp.arange(CLIENTS)
    batches = jnp.zeros((CLIENTS, STEPS))

    def body(state, key):
        before = state.server.params
        state, _ = run(state, cohort, batches, jnp.ones(CLIENTS), key)
        moved = jax.tree.map(jnp.subtract, state.server.params, before)
        return state, jax.tree.map(jnp.linalg.norm, moved)

    keys = jax.random.split(jax.random.key(0), ROUNDS)
    _, found = jax.jit(lambda state: jax.lax.scan(body, state, keys))(state)
    return jax.tree.map(np.max, found)


def test_steps_are_bounded_under_alpha_stable_noise():
    # Lemma B.1: at most lr for each of the local steps, times sqrt(n) for a matrix
    bound = STEPS * LR * 1.0001
    found = moves()
    assert 0.1 * bound < found.x["bias"] <= bound
    assert 0.1 * bound < found.y <= bound
    assert found.x["kernel"] <= 1.21 * 6**0.5 * bound  # singular values below 1.21


def test_without_normalized_vectors_they_are_not():
    found = moves(normalize_vectors=False)
    assert found.x["bias"] > 5 * STEPS * LR
    assert found.y <= STEPS * LR * 1.0001  # scalars have their sign in both forms


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_of_a_gradient_does_not_matter(scale):
    objective = Objective(
        lambda params, batch, key: jax.tree.map(lambda leaf: scale * leaf, params)
    )
    start = Pair({"bias": jnp.array([3.0, 4.0])}, jnp.array(1.0))
    algorithm = fedmuon_da(lr=LR)
    state = engine.init(algorithm, start, 1)
    run = engine.make_round(algorithm, objective, 1, plans.vmapped)
    given = jnp.arange(1), jnp.zeros((1, 1)), jnp.ones(1), jax.random.key(0)
    state, _ = run(state, *given)
    expected = np.array([3.0, 4.0]) - LR * np.array([0.6, 0.8])
    np.testing.assert_allclose(state.server.params.x["bias"], expected, rtol=1e-6)

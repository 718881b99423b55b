"""Correlated noise of clients' sums, as in DP-FTRL."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from test_correlated import matrix

from fedjax_muon.algorithms import ALL, fedavg
from fedjax_muon.attacks.canary_task import canary_data, canary_task
from fedjax_muon.privacy import (
    AdaptiveClip,
    Banded,
    Buffered,
    ClientPrivacy,
    Correlated,
    Poisson,
    report,
)
from fedjax_muon.simulation import training
from fedjax_muon.simulation.federated import federate
from fedjax_muon.simulation.rounds import cohort_of

BANDED, BUFFERED = Banded((0.8, 0.5, 0.1)), Buffered((0.9, 0.3), (0.2, 0.3))
ROUNDS = 6


def simulation_of(strategy, algorithm=None, **given):
    privacy = ClientPrivacy(
        **{
            "clip_norm": 1.0,
            "cohort_size": 2,
            "rounds": ROUNDS,
            "delta": 1e-2,
            "noise_multiplier": 1.0,
            "insecure_fixed_noise": True,
            "strategy": strategy,
        }
        | given
    )
    dataset, parts = canary_data((2,) * 9, owner=0)
    still = dataset._replace(x_train=0 * dataset.x_train)  # gradients are zero
    return federate(
        algorithm or fedavg(lr=0.1),
        canary_task(0.1),
        still,
        parts,
        local_steps=1,
        batch_size=2,
        privacy=privacy,
    )


def moves(simulation):
    """The server's moves, which are noise alone, [rounds, d]."""
    state = simulation.init(jax.random.key(0))
    seen = [np.concatenate(jax.tree.leaves(state.params))]
    for _ in range(ROUNDS):
        state, _ = training.train(simulation, state, rounds=1)
        seen.append(np.concatenate(jax.tree.leaves(state.params)))
    return np.diff(np.array(seen, np.float64), axis=0)


@pytest.mark.parametrize(
    ("strategy", "size"), slow_but(1, [(BANDED, 2), (BANDED, 9), (BUFFERED, 9)])
)
def test_moves_are_the_inverse_of_c_times_independent_noise(strategy, size):
    alone = moves(simulation_of(None, cohort_size=size))
    found = moves(simulation_of(strategy, cohort_size=size))
    expected = np.linalg.solve(matrix(strategy, ROUNDS), alone)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_an_adaptive_norm_scales_correlated_noise():
    """Also the count has correlated noise."""
    clip = AdaptiveClip(initial=1.0, count_noise=2.0)

    def run(strategy):
        """Moves over the clip norm, and noises of the count, [3, d + 1]."""
        simulation = simulation_of(strategy, clip_norm=clip)
        state, found = simulation.init(jax.random.key(0)), []
        for _ in range(3):
            x = np.concatenate(jax.tree.leaves(state.params))
            norm = float(state.training.server.clip)
            state, _ = training.train(simulation, state, rounds=1)
            move = np.concatenate(jax.tree.leaves(state.params)) - x
            rate = np.log(float(state.training.server.clip) / norm)
            found.append([*(move / norm), rate / -clip.lr])
        return np.array(found, np.float64)

    # without its mean, which the messages' own counts give
    alone, found = run(None), run(BANDED)
    expected = np.linalg.solve(matrix(BANDED, 3), alone[:, :-1])
    np.testing.assert_allclose(found[:, :-1], expected, rtol=2e-3, atol=1e-4)
    assert found[0, -1] != pytest.approx(alone[0, -1], rel=1e-3)


def test_clients_take_turns():
    setup = simulation_of(BANDED).setup
    keys = jax.random.split(jax.random.key(0), 3000)
    for t in range(4):
        draw = lambda key, t=t: cohort_of(setup, key, jnp.int32(t))
        ids, joins = map(np.asarray, jax.vmap(draw)(keys))
        counts = np.bincount(ids[joins], minlength=9) / len(keys)
        group = slice(3 * (t % 3), 3 * (t % 3) + 3)
        np.testing.assert_allclose(counts[group], 2 / 3, atol=0.05)
        counts[group] = 0
        assert not counts.any()


def test_the_statement_is_of_what_runs():
    spec = simulation_of(BANDED).guarantee.spec
    assert spec.sampling == Poisson(9, 2, cycle=3)
    (release,) = spec.releases.values()
    assert release.noise == Correlated(1.0, BANDED)
    calibrated = simulation_of(
        BUFFERED, cohort_size=9, noise_multiplier=None, epsilon=4.0
    )
    found = report(calibrated.guarantee.spec).epsilon
    assert found == pytest.approx(4.0, rel=1e-4)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"strategy": BUFFERED}, "use Cyclic sampling, or a banded strategy"),
        ({"strategy": Banded((1.0,) * 5)}, "larger than a group of 1"),
        ({"strategy": BANDED, "max_cohort": 4}, "at most the 3 clients that a round i"),
        (
            {"strategy": BANDED, "algorithm": ALL["fedmuon"].function(lr=0.1)},
            "without a prologue",
        ),
    ],
)
def test_what_does_not_fit_is_rejected(given, words):
    with pytest.raises(ValueError, match=words):
        simulation_of(**given)

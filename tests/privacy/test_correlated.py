"""Correlated noise: the matrices, their accounting, and what runs with them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy import matrix_factorization as matrices

from fedjax_muon.algorithms import fedavg
from fedjax_muon.core import Objective
from fedjax_muon.decentralized.estimators import split_noise_key
from fedjax_muon.decentralized.gossip import Iteration
from fedjax_muon.decentralized.private import correlated_gradient
from fedjax_muon.privacy.accounting import Pld, gaussian_epsilon
from fedjax_muon.privacy.client_mechanism import AdaptiveClip
from fedjax_muon.privacy.client_privacy import ClientPrivacy
from fedjax_muon.privacy.clipping import Each
from fedjax_muon.privacy.correlated import (
    Banded,
    banded,
    best_banded,
    buffered_toeplitz,
    prefix_errors,
)
from fedjax_muon.privacy.gaussian import add_normal
from fedjax_muon.privacy.guarantees import PrivacySpec, calibrated, report
from fedjax_muon.privacy.releases import Correlated, Inside, Release
from fedjax_muon.privacy.sampling import Cyclic, FullBatch, Poisson
from fedjax_muon.simulation import training
from fedjax_muon.simulation.batching import cyclic_poisson
from fedjax_muon.simulation.federated import federate
from tests.privacy import private_worlds
from tests.privacy.canaries import canary_data, canary_task
from tests.privacy.private_worlds import BUFFERED, Case
from tests.support.cases import slow_but

BANDED = Banded((0.8, 0.5, 0.1))
STRATEGIES = [Banded((1.0,)), BANDED, BUFFERED]


def matrix(strategy, steps):
    """C, from its definition."""
    c = np.zeros((steps, steps))
    for i, j in itertools.product(range(steps), repeat=2):
        k = i - j
        if isinstance(strategy, Banded):
            inside = 0 <= k < len(strategy.coefficients)
            c[i, j] = strategy.coefficients[k] if inside else 0.0
        elif k >= 0:
            pairs = zip(strategy.decay, strategy.scale, strict=True)
            c[i, j] = 1.0 if k == 0 else sum(s * d ** (k - 1) for d, s in pairs)
    return c


def spec_of(noise, sampling, steps=8, **further):
    release = Release(Each(1.0), noise)
    return PrivacySpec({"x": release}, sampling, steps, 1e-3, **further)


# ----------------------------------------------------------------------------- matrices
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_noise_is_the_inverse_of_c_times_independent_noise(strategy):
    steps = 9
    z = np.random.default_rng(0).normal(size=(steps, 2, 3))
    expected = np.linalg.solve(matrix(strategy, steps), z.reshape(steps, -1))
    memory = strategy.start({"a": jnp.zeros((2, 3))})
    found = []
    for one in z:
        w, memory = strategy.next({"a": jnp.asarray(one, jnp.float32)}, memory)
        found.append(np.asarray(w["a"]).ravel())
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(strategy.column(steps), matrix(strategy, steps)[:, 0])
    sums = np.tri(steps) @ np.linalg.inv(matrix(strategy, steps))
    errors = np.linalg.norm(sums, axis=1)
    np.testing.assert_allclose(prefix_errors(strategy, steps), errors)


@pytest.mark.slow
def test_found_matrices_have_less_noise():
    steps, separation = 60, 20
    few = banded(steps, 8)
    assert np.linalg.norm(few.coefficients) == pytest.approx(1)
    assert banded(steps, 1) == Banded((1.0,))
    mean = lambda s: np.sqrt(np.mean(prefix_errors(s, steps) ** 2))
    assert mean(few) < 0.75 * mean(Banded((1.0,)))
    long = buffered_toeplitz(steps, separation)
    z = 1.0
    noise = lambda s: z * mean(s) / report_multiplier(s, steps, separation)
    assert noise(long) < 0.6 * noise(Banded((1.0,)))
    with jax.numpy_rank_promotion("allow"):
        column = jnp.asarray(long.column(steps), jnp.float32)
        squares = matrices.toeplitz.per_query_error(strategy_coef=column)
    found = prefix_errors(long, steps) ** 2
    np.testing.assert_allclose(found, np.asarray(squares), rtol=1e-3)


# --------------------------------------------------------------------------- accounting
def report_multiplier(strategy, steps, separation):
    noise = Correlated(1.0, strategy)
    changes = np.zeros(steps)
    changes[::separation] = 0.05
    return noise.transcript_multiplier(changes, 1.0)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("separation", [2, 3, 5])
def test_the_worst_record_of_a_cycle(strategy, separation):
    """Over all offsets and all signs of the gradients of one record."""
    steps = 8
    c = matrix(strategy, steps)
    worst = 0.0
    for offset in range(separation):
        at = np.arange(offset, steps, separation)
        for signs in itertools.product((-1, 1), repeat=len(at)):
            worst = max(worst, np.linalg.norm(c[:, at] @ np.array(signs)))
    assert report_multiplier(strategy, steps, separation) == pytest.approx(1 / worst)
    sampling = Cyclic(2 * separation, 2)
    epsilon = report(spec_of(Correlated(3.0, strategy), sampling)).epsilon
    assert epsilon == pytest.approx(gaussian_epsilon(3.0 / worst, 1e-3))


def test_samplings_without_a_cycle_count_every_step():
    strategy = BANDED
    whole = np.linalg.norm(matrix(strategy, 8) @ np.ones(8))
    epsilon = report(spec_of(Correlated(9.0, strategy), FullBatch(10))).epsilon
    assert epsilon == pytest.approx(gaussian_epsilon(9.0 / whole, 1e-3))


def test_groups_amplify_like_a_small_data_set():
    """Choquette-Choo et al. 2023, Theorem 4."""
    strategy = Banded((0.8, 0.6))  # of norm 1
    sampling = Poisson(40, 2, max_batch=8, cycle=4)
    run = lambda noise: spec_of(noise, sampling, steps=10, accountant=Pld(1e-3))
    epsilon = lambda noise: report(run(noise)).epsilon
    found = epsilon(Correlated(0.9, strategy))
    alone = Pld(1e-3).epsilon(Poisson(10, 2, 8), 0.9, 3, 1e-3)
    assert found == pytest.approx(alone, rel=1e-9)
    louder = Banded((1.6, 1.2))  # twice the columns
    assert epsilon(Correlated(1.8, louder)) == pytest.approx(found, rel=1e-6)
    # one band is independent noise
    one, plain = (
        report(spec_of(noise, Poisson(40, 2))).epsilon
        for noise in (Correlated(0.9, Banded((1.0,))), Inside(0.9))
    )
    assert one == plain


# ------------------------------------------------------------------------ what is drawn
def assert_turns(draw, size, group, rate):
    """Every member of a group joins with the same probability, and no other."""
    keys = jax.random.split(jax.random.key(0), 4000)
    for t in range(5):
        drawn = np.asarray(jax.vmap(draw, (None, 0))(jnp.int32(t), keys)).ravel()
        counts = np.bincount(drawn[drawn >= 0], minlength=size) / len(keys)
        turn = slice(group * (t % 3), group * (t % 3) + group)
        np.testing.assert_allclose(counts[turn], rate, atol=0.05)
        counts[turn] = 0
        assert not counts.any()


def test_groups_take_turns():
    """Three of 4 examples; two of the 14 never take part."""
    sampler = cyclic_poisson(4, cycle=3)
    draw = lambda t, key: sampler(t)(key, 14, 1, 2, 16)
    assert_turns(draw, 14, group=4, rate=2 / 4)


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_estimates_are_those_of_the_paper(strategy):
    """A literal transcription: clipped gradients, and C^-1 times the same draws."""
    steps, size, clip, z = 6, 4, 0.7, 0.9
    rows = np.random.default_rng(0).normal(size=(steps, size, 3))
    estimator = correlated_gradient(
        clip, batch_size=size, strategy=strategy, noise_multiplier=z
    )
    objective = Objective(grad=None, example_grad=lambda params, batch, key: batch)
    draws, found, memory = [], [], None
    for t in range(steps):
        iteration = Iteration(jnp.int32(t), *jax.random.split(jax.random.key(t)))
        batch = jnp.asarray(rows[t], jnp.float32)
        if t == 0:
            g, memory = estimator.start(objective, jnp.zeros(3), batch, iteration)
        else:
            state = objective, memory, jnp.zeros(3), batch, iteration
            g, memory = estimator.update(*state)
        found.append(np.asarray(g))
        key = split_noise_key(iteration)[1]
        draws.append(add_normal(key, z * clip / size, jnp.zeros(3)))
    mean = np.zeros((steps, 3))
    for t, i in itertools.product(range(steps), range(size)):
        norm = np.sqrt((rows[t, i] ** 2).sum())
        mean[t] += rows[t, i] * min(1, clip / norm) / size
    noise = np.linalg.solve(matrix(strategy, steps), np.array(draws, np.float64))
    np.testing.assert_allclose(found, mean + noise, rtol=1e-5, atol=1e-6)


def simulation_of(name, strategy):
    case = Case(name, (12, 12, 12), batch=2, noise=1.0, rounds=5, strategy=strategy)
    return private_worlds.simulation_of(case)


def test_a_simulation_says_what_it_does():
    spec = simulation_of("dp_ftrl", Banded((0.8, 0.6))).guarantee.spec
    assert spec.sampling == Poisson(12, 2, max_batch=6, cycle=2)
    assert "2 groups of 6 records take turns" in str(spec.sampling)
    assert "correlated between steps (2 bands)" in report(spec).statement()
    assert "with fresh and independent noise" not in report(spec).statement()
    simulation = simulation_of("dp_ftrl_buffered", BUFFERED)
    assert simulation.guarantee.spec.sampling == Cyclic(12, 2)


@pytest.mark.slow
def test_the_noise_continues_after_an_interruption():
    simulation = simulation_of("dp_ftrl", Banded((0.8, 0.5, 0.1)))
    start = lambda: simulation.init(jax.random.key(0))
    whole, _ = training.run(simulation, start(), rounds=4)
    half, _ = training.run(simulation, start(), rounds=2)
    both, _ = training.run(simulation, half, rounds=2)
    jax.tree.map(np.testing.assert_array_equal, whole.params, both.params)


@pytest.mark.slow
def test_the_number_of_bands_has_least_noise():
    """By the noise that the accounting of a whole run needs, for all numbers."""
    steps, given = 24, {"epsilon": 6.0, "delta": 1e-3}
    found = best_banded(120, 6, steps, **given)
    noise = {}
    for bands in (1, 2, 4, 8, 16):
        sampling = Poisson(120, 6, cycle=bands)
        noisy = Correlated(1.0, banded(steps, bands))
        start = spec_of(noisy, sampling, steps, accountant=Pld(1e-2))
        (release,) = calibrated(start, 6.0, 1e-2).releases.values()
        errors = prefix_errors(release.noise.strategy, steps)
        noise[bands] = release.noise.multiplier * np.sqrt(np.mean(errors**2))
    assert noise[found.bands] <= 1.02 * min(noise.values())
    assert noise[found.bands] < 0.8 * noise[1]


# ------------------------------------------------------------------ clients' sums

ROUNDS = 6


def clients_with(strategy, algorithm=None, **given):
    usual = {"clip_norm": 1.0, "cohort": 2, "rounds": ROUNDS, "delta": 1e-2}
    usual |= {"noise_multiplier": 1.0, "insecure_fixed_noise": True}
    dataset, parts = canary_data((2,) * 9, owner=0)
    return federate(
        algorithm or fedavg(lr=0.1),
        canary_task(0.1),
        dataset._replace(x_train=0 * dataset.x_train),  # gradients are zero
        parts,
        local_steps=1,
        batch_size=2,
        privacy=ClientPrivacy(**usual | {"strategy": strategy} | given),
    )


def moves(simulation):
    """The server's moves, which are noise alone, [rounds, d]."""
    state = simulation.init(jax.random.key(0))
    seen = [np.concatenate(jax.tree.leaves(state.params))]
    for _ in range(ROUNDS):
        state, _ = training.run(simulation, state, rounds=1)
        seen.append(np.concatenate(jax.tree.leaves(state.params)))
    return np.diff(np.array(seen, np.float64), axis=0)


@pytest.mark.parametrize(
    ("strategy", "size"), slow_but(1, [(BANDED, 2), (BANDED, 9), (BUFFERED, 9)])
)
def test_moves_are_the_inverse_of_c_times_independent_noise(strategy, size):
    alone = moves(clients_with(None, cohort=size))
    found = moves(clients_with(strategy, cohort=size))
    expected = np.linalg.solve(matrix(strategy, ROUNDS), alone)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_an_adaptive_norm_scales_correlated_noise():
    """Also the count has correlated noise."""
    clip = AdaptiveClip(initial=1.0, count_noise=2.0)

    def run(strategy):
        """Moves over the clip norm, and noises of the count, [3, d + 1]."""
        simulation = clients_with(strategy, clip_norm=clip)
        state, found = simulation.init(jax.random.key(0)), []
        for _ in range(3):
            x = np.concatenate(jax.tree.leaves(state.params))
            norm = float(state.training.server.kept.clip)
            state, _ = training.run(simulation, state, rounds=1)
            move = np.concatenate(jax.tree.leaves(state.params)) - x
            rate = np.log(float(state.training.server.kept.clip) / norm)
            found.append([*(move / norm), rate / -clip.lr])
        return np.array(found, np.float64)

    # without its mean, which the messages' own counts give
    alone, found = run(None), run(BANDED)
    expected = np.linalg.solve(matrix(BANDED, 3), alone[:, :-1])
    np.testing.assert_allclose(found[:, :-1], expected, rtol=2e-3, atol=1e-4)
    assert found[0, -1] != pytest.approx(alone[0, -1], rel=1e-3)


def test_clients_take_turns():
    setup = clients_with(BANDED).settings

    def draw(t, key):
        ids, joins = setup.cohort.joined(key, t, 9)
        return jnp.where(joins, ids, -1)

    assert_turns(draw, 9, group=3, rate=2 / 3)


def test_the_statement_is_of_what_runs():
    spec = clients_with(BANDED).guarantee.spec
    assert spec.sampling == Poisson(9, 2, cycle=3)
    (release,) = spec.releases.values()
    assert release.noise == Correlated(1.0, BANDED)
    further = {"cohort": 9, "noise_multiplier": None, "epsilon": 4.0}
    spec = clients_with(BUFFERED, **further).guarantee.spec
    assert report(spec).epsilon == pytest.approx(4.0, rel=1e-4)

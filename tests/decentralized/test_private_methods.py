"""What is accounted for is what is run: bounds and noise of every private method."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon.core import Objective
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized import ALL
from fedjax_muon.decentralized.gossip import Iteration
from fedjax_muon.decentralized.private import PRIVATE, Mechanism
from fedjax_muon.decentralized.private_methods import ALL as PRIVATE_METHODS
from fedjax_muon.privacy import Cyclic, Inside, Poisson, gaussian_epsilon, report
from fedjax_muon.privacy.correlated import Banded
from fedjax_muon.privacy.guarantees import PrivacySpec, calibrated
from fedjax_muon.privacy.releases import Correlated

STRATEGY = Banded((1.0, 0.5))
M = Mechanism(
    clip_norm=2.0, change_clip_norm=0.3, beta=0.2, batch_size=4, strategy=STRATEGY
)
SIZE, NOISE = 4000, 0.7
START = jnp.zeros(SIZE)


def iteration(t):
    return Iteration(jnp.int32(t), *jax.random.split(jax.random.key(t)))


@functools.cache
def told(name, gradients=None):
    """What an agent of a method says at t = 0 and t = 1, from no gradient at all or
    from one huge example that turns round."""
    rows = jnp.zeros((2, SIZE))

    def example_grad(x, batch, key):
        del key
        if gradients is None:
            return rows
        return rows.at[0, 0].set(jnp.where(x[0] == 0, 1e3, -1e3) * batch)

    noise = NOISE if gradients is None else 0.0
    mean = lambda x, batch, key: example_grad(x, batch, key).mean(0)
    objective = Objective(mean, example_grad=example_grad)
    estimator = PRIVATE[name].estimator(M, noise)
    g0, memory = estimator.start(objective, START, 1.0, iteration(0))
    g1, _ = estimator.update(objective, memory, START + 1, 1.0, iteration(1))
    return np.asarray(g0), np.asarray(g1)


@pytest.mark.parametrize("name", PRIVATE)
def test_an_example_moves_the_release_by_no_more_than_is_said(name):
    release = PRIVATE[name].release(M, 1.0)
    g0, g1 = told(name, gradients="huge")
    np.testing.assert_allclose(abs(g0[0]), release.clip.sensitivity(1.0, 4), rtol=1e-5)
    fresh = g1 - (1 - release.beta) * g0  # d_1
    bound = release.clip.sensitivity(release.beta, 4)
    np.testing.assert_allclose(abs(fresh[0]), bound, rtol=1e-5)


@pytest.mark.parametrize("name", PRIVATE)
def test_the_noise_is_what_is_said(name):
    release = PRIVATE[name].release(M, NOISE)
    g0, g1 = told(name)
    if isinstance(release.noise, Inside):
        first = NOISE * release.clip.sensitivity(1.0, 4)
        later = NOISE * release.clip.sensitivity(release.beta, 4)
        g1 = g1 - (1 - release.beta) * g0
    elif isinstance(release.noise, Correlated):
        first = later = NOISE * release.clip.sensitivity(1.0, 4)
        (diagonal, below), w = STRATEGY.coefficients, (g0, g1)
        g0, g1 = diagonal * w[0], diagonal * w[1] + below * w[0]  # z = C w
    else:
        first = later = NOISE
    for values, sigma in ((g0, first), (g1, later)):
        assert abs(values.std() / sigma - 1) < 5 / np.sqrt(2 * SIZE)
        assert abs(values.mean()) < 5 * sigma / np.sqrt(SIZE)
    assert abs(np.corrcoef(g0, g1)[0, 1]) < 5 / np.sqrt(SIZE)


def calibrate(name, epsilon, sampling, steps):
    """What an agent releases, with the least noise for an epsilon."""
    released = {"estimate": PRIVATE[name].release(M, 1.0)}
    return calibrated(PrivacySpec(released, sampling, steps, 1e-3), epsilon)


def test_calibration_of_noise_on_the_output():
    spec = calibrate("dpmixsgd", 1.5, Cyclic(20, 4), 7)
    found = report(spec)
    assert 1.499 < found.epsilon <= 1.5
    # by hand: a record is in batches 0 and 5; STORM repeats it, larger from step 1 on
    v, largest = 0.0, (2 - M.beta) * M.clip_norm / 4
    total = 0.0
    for t in range(7):
        v = (1 - M.beta) * v + (largest if t in (0, 5) else 0.0)
        total += v**2
    noise = spec.releases["estimate"].noise.sigma
    by_hand = gaussian_epsilon(noise / np.sqrt(total), 1e-3)
    np.testing.assert_allclose(found.epsilon, by_hand, rtol=1e-6)


@pytest.mark.slow
def test_methods_of_the_same_sampling_get_the_same_multiplier():
    sampling = Poisson(20, 4)
    found = [
        calibrate(name, 2.0, sampling, 3).releases["estimate"].noise.multiplier
        for name in ("dp_sgda", "private_storm")
    ]
    assert found[0] == found[1] > 0.5


def adds_noise(algorithm):
    """Whether an agent's state depends on the key of the noise."""
    objective = Objective(lambda params, batch, key: params)
    params, mix = Pair(jnp.ones(3), jnp.ones(3)), lambda message: message
    states = []
    for seed in range(2):
        noise = jax.random.key(seed)
        at = Iteration(jnp.int32(0), jax.random.key(9), noise)
        state = algorithm.start(objective, params, mix, (), at)
        at = at._replace(index=at.index + 1)
        state = algorithm.step(objective, state, mix, (), at)
        states.append(jax.tree.leaves(state))
    return any((a != b).any() for a, b in zip(*states, strict=True))


def test_methods_without_a_guarantee_have_other_names_than_private_methods():
    assert not ALL.keys() & PRIVATE.keys()
    labels = {method.label for method in ALL.values()}
    assert not labels & {method.label for method in PRIVATE_METHODS.values()}
    assert PRIVATE.keys() == PRIVATE_METHODS.keys()
    noisy = {name for name, method in ALL.items() if adds_noise(method.function())}
    assert noisy == {"dp_sgda_unclipped", "dpmixsgd_unclipped"}
    assert all("no privacy" in ALL[name].label for name in noisy)

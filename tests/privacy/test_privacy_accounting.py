"""Epsilons against closed forms and published vectors."""

import math
import sys

import pytest
from scipy import integrate, stats

from fedjax_muon.privacy.accounting import (
    ADD_OR_REMOVE,
    REPLACE_ONE,
    Gaussian,
    Pld,
    calibrate_noise,
    gaussian_epsilon,
    joint_multiplier,
)
from fedjax_muon.privacy.sampling import Poisson
from tests.support.cases import slow_but
from tests.support.error_lines import refused

DELTA = 1e-5
A9A = Poisson(6512, 20)  # a9a, one of five agents
COARSE = Pld(1e-3)  # ten times faster, for what only compares


def gaussian_delta(multiplier, epsilon):
    """Balle and Wang 2018, Theorem 8."""
    half, tail = 1 / (2 * multiplier), epsilon * multiplier
    cdf = stats.norm.cdf
    return cdf(half - tail) - math.exp(epsilon) * cdf(-half - tail)


@pytest.mark.parametrize(("z", "epsilon"), [(1.0, 4.377178), (10.0, 0.340669)])
def test_one_gaussian(z, epsilon):
    found = gaussian_epsilon(z, DELTA)
    assert found == pytest.approx(epsilon, abs=6e-7)
    assert gaussian_delta(z, found) == pytest.approx(DELTA, 1e-6)


# Reference vectors: dp-accounting 0.6.0 called directly, discretisation 1e-4.
POISSON = [  # z; epsilon after 100 steps, and after 1000
    (0.8, [0.511710, 0.991303]),
    (0.5, [3.771672, 5.791059]),
    (0.6, [1.945045, 3.061742]),
    (0.7, [0.974847, 1.690285]),
    (1.0, [0.201493, 0.509320]),
    (2.0, [0.051625, 0.171600]),
]


@pytest.mark.parametrize(("z", "epsilons"), slow_but(1, POISSON))
def test_reference_poisson(z, epsilons):
    found = [Pld().epsilon(A9A, z, steps, DELTA) for steps in (100, 1000)]
    assert found == pytest.approx(epsilons, 1e-5)


LEVELS = [  # of noise, for epsilon 0.5, 1, 2 and 8
    (100, (0.8039, 0.6963, 0.5959, 0.3861)),
    (1000, (1.0101, 0.7983, 0.6712, 0.4551)),
]


@pytest.mark.parametrize(("steps", "levels"), slow_but(1, LEVELS))
def test_reference_calibration(steps, levels):
    for target, level in zip((0.5, 1.0, 2.0, 8.0), levels, strict=True):
        epsilon = lambda z: COARSE.epsilon(A9A, z, steps, DELTA)
        z = calibrate_noise(epsilon, target, 1e-4)
        assert z == pytest.approx(level, 1e-3)
        assert epsilon(z) <= target


ONE, TWO, FIRST = ADD_OR_REMOVE, REPLACE_ONE, Poisson(6512, 20, first_batch=6512)
MNIST = Poisson(60000, 256)
FIVE, TEN = Poisson(100, 5), Poisson(100, 10)  # cohorts of clients
REFERENCES = [  # sampling, z, steps, adjacency, first z; epsilon
    (FIVE, 1.0, 100, ONE, None, 3.502149),
    (FIVE, 0.5, 100, ONE, None, 18.1938),
    (FIVE, 2.0, 100, ONE, None, 1.097232),
    (TEN, 1.0, 100, ONE, None, 7.046603),
    (TEN, 2.0, 100, ONE, None, 2.337400),
    (TEN, 1.0, 500, ONE, None, 16.561775),
    (TEN, 2.0, 500, ONE, None, 5.555470),
    (A9A, 0.8, 1000, TWO, None, 1.215861),
    (A9A, 1.6, 1000, TWO, None, 0.426896),
    (Poisson(6512, 20, 40), 0.8, 1000, ONE, None, 1.166190),
    (Poisson(6512, 20, 48), 0.8, 1000, ONE, None, 0.991473),
    (Poisson(6512, 20, 64), 0.8, 1000, ONE, None, 0.991303),
    (FIRST, 0.8, 1000, ONE, 5.0, 1.192210),
    (MNIST, 1.1, 14040, ONE, None, 2.379644),
]


@pytest.mark.parametrize(
    ("sampling", "z", "steps", "adjacency", "first", "epsilon"), slow_but(3, REFERENCES)
)
def test_references(sampling, z, steps, adjacency, first, epsilon):
    found = Pld().epsilon(sampling, z, steps, DELTA, adjacency, first)
    assert found == pytest.approx(epsilon, 1e-5)


def test_one_sampled_step_against_quadrature():
    # removal: P = (1-q) N(0, z^2) + q N(1, z^2) against Q = N(0, z^2), the worse order
    q, z, epsilon = 0.1, 0.7, 1.0
    sampling = Poisson(100, 10)
    low, high = stats.norm(0, z).pdf, stats.norm(1, z).pdf

    def excess(x):
        return max((1 - q) * low(x) + q * high(x) - math.exp(epsilon) * low(x), 0)

    delta = integrate.quad(excess, -10, 12, points=[0, 1, 2], limit=200)[0]
    assert Pld().epsilon(sampling, z, 1, delta) == pytest.approx(epsilon, 1e-4)


def test_the_whole_data_is_the_gaussian_mechanism():
    everyone = Poisson(50, 50)
    exact = gaussian_epsilon(3.0 / math.sqrt(7), 1e-3)
    assert Pld().epsilon(everyone, 3.0, 7, 1e-3) == pytest.approx(exact, 1e-3)
    doubled = gaussian_epsilon(1.5 / math.sqrt(7), 1e-3)
    found = Pld().epsilon(everyone, 3.0, 7, 1e-3, REPLACE_ONE)
    assert found == pytest.approx(doubled, 1e-3)
    assert Gaussian().epsilon(3.0, 1e-3, REPLACE_ONE) == gaussian_epsilon(1.5, 1e-3)
    assert Gaussian().epsilon(3.0, 1e-3, ADD_OR_REMOVE) == gaussian_epsilon(3.0, 1e-3)


@pytest.mark.slow
def test_bounds_are_ordered():
    fine, coarse = (p.epsilon(A9A, 0.8, 300, DELTA) for p in (Pld(), COARSE))
    assert fine <= coarse < 1.01 * fine


def test_no_noise_is_no_privacy():
    assert gaussian_epsilon(0.0, DELTA) == math.inf
    assert COARSE.epsilon(A9A, 0.0, 10, DELTA) == math.inf
    assert joint_multiplier(1.0, 0.0) == 0.0


def test_multipliers_of_releases():
    assert joint_multiplier(0.7) == pytest.approx(0.7, 1e-12)
    assert joint_multiplier(3.0, 4.0) == pytest.approx(2.4, 1e-12)
    assert joint_multiplier(1.0, 2.0, 2.0) == pytest.approx(math.sqrt(1 / 1.5), 1e-12)


@pytest.mark.parametrize("target", [1e-3, 0.5, 1.0, 30.0])
def test_solving_for_a_known_function(target):
    level = calibrate_noise(lambda z: 1 / z**2, target)
    assert 1 / level**2 <= target
    assert level == pytest.approx(target**-0.5, 2e-5)
    level = calibrate_noise(lambda z: 0.0 if z > 3 else math.inf, target)
    assert level == pytest.approx(3, 1e-4)
    gaussian = calibrate_noise(lambda z: gaussian_epsilon(z, DELTA), target)
    assert gaussian_epsilon(gaussian, DELTA) == pytest.approx(target, 1e-4)


HALF = Poisson(100, 10, max_batch=16)
EXTREMES = [  # sampling, steps, delta, epsilon
    (Poisson(100, 10), 1000, 1e-5, 1e-3),
    (HALF, 20, 1e-3, 1e6),
    (Poisson(100, 1), 1000, 1e-10, 0.01),
    (Poisson(100, 1), 20, 1e-10, 100.0),
    (Poisson(100, 10), 1, 1e-5, 1e3),
    (HALF, 1000, 1e-5, 1e4),
]


@pytest.mark.parametrize(
    ("sampling", "steps", "delta", "target"), slow_but(3, EXTREMES)
)
def test_the_least_noise_of_extreme_epsilons(sampling, steps, delta, target):
    """Against an interval three times finer, which overestimates epsilon less."""
    epsilon = lambda pld: lambda z: pld.epsilon(sampling, z, steps, delta)
    level = calibrate_noise(epsilon(Pld()), target, rough=epsilon(COARSE))
    finer = epsilon(Pld(3e-5))
    assert finer(level) <= target < finer(0.999 * level)


# The epsilon of 1000 steps by exponentially tilted probabilities, each the mean of
# roundings up and down: the accountant must not claim less.
TILTED = [(0.1, 1.0, 1e-5, 25.2045), (0.1, 1.0, 1e-10, 35.5412)]
TILTED += [(0.01, 0.8, 1e-5, 3.1410), (0.01, 0.8, 1e-10, 5.9169)]


@pytest.mark.parametrize(("share", "z", "delta", "least"), slow_but(1, TILTED))
def test_small_deltas_are_not_optimistic(share, z, delta, least):
    found = COARSE.epsilon(Poisson(100, round(100 * share)), z, 1000, delta)
    assert least <= found <= 1.001 * least


def test_without_sampling_any_delta_and_epsilon_is_exact():
    for delta in (1e-300, 1e-12, 0.5):
        for target in (1e-3, 1.0, 1e6):
            z = calibrate_noise(lambda z, d=delta: gaussian_epsilon(z, d), target)
            assert gaussian_epsilon(z, delta) <= target
            assert target < gaussian_epsilon(0.999 * z, delta)
    assert calibrate_noise(lambda z: math.inf, math.inf) == 0


@pytest.mark.parametrize("target", [1e-3, 0.5, 1.0, 30.0])
def test_a_rough_epsilon_saves_evaluations(target):
    calls, exact = [], lambda z: 1 / z**2
    counted = lambda z: calls.append(z) or exact(z)
    for error in (0.0, 3e-4, -3e-4, 0.01):  # 0.01 at a target of 1e-3: no root
        calls.clear()
        level = calibrate_noise(
            counted, target, rough=lambda z, error=error: exact(z) + error
        )
        assert exact(level) <= target < exact(level * (1 - 1e-5))
        assert len(calls) <= 4 or error > target
    for useless in (lambda z: 7.0, lambda z: 9 / z, lambda z: math.inf):
        level = calibrate_noise(exact, target, rough=useless)
        assert exact(level) <= target < exact(level * (1 - 1e-5))


def test_without_the_library_one_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    for call, *given in (
        (gaussian_epsilon, 1.0, DELTA),
        (Pld().epsilon, A9A, 1.0, 9, DELTA),
    ):
        said = r'pip install "dp-accounting<0\.7,>=0\.6"'
        refused(said, call, *given, error=ImportError)


@pytest.mark.slow
def test_a_tail_bound_that_overflows_is_no_warning():
    """Warnings are errors here. One order of the bound on the sum's tail overflows."""
    sampling = Poisson(814, 256, max_batch=768)
    run = (sampling, 1.0, 201, 1e-5, ADD_OR_REMOVE)
    assert Pld(0.01).epsilon(*run) == pytest.approx(Pld(0.003).epsilon(*run), 1e-3)

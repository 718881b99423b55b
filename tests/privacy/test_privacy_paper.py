"""Theorem 3 of DPMixSGD with its constant: sums, readings and refusals."""

import math

import pytest
from refusals import refused

from fedjax_muon.privacy.paper import (
    MOMENTS_CONSTANT,
    dp_sgda_sigma,
    mean_reading,
    neighbor_reading,
    smallest_constant,
    theorem_3_constant,
    theorem_3_sigma,
    theorem_3_sum,
)


def test_the_sum_of_theorem_3():
    for steps in (1, 2, 7, 100):
        assert theorem_3_sum(steps) == sum(16 * t**2 + 4 for t in range(1, steps + 1))
    assert theorem_3_sum(100) == pytest.approx(5.414e6, 1e-4)
    assert theorem_3_sum(1000) == pytest.approx(5.34134e9, 1e-6)


@pytest.mark.parametrize(
    ("steps", "theta", "gamma", "sigma", "precision"),
    [
        (100, 0.01, 1 / 30000, 9.4e5, 6e-3),  # two digits are published
        (100, 1.0, 1e-5, 9986.5, 1e-5),
        (1000, 1.0, 1e-5, 3.137e5, 2e-4),
    ],
)
def test_reference_sigmas(steps, theta, gamma, sigma, precision):
    found = theorem_3_sigma(steps, 5, theta, gamma, MOMENTS_CONSTANT)
    assert found == pytest.approx(sigma, precision)


def test_sigma_without_a_constant():
    sigma = theorem_3_sigma(100, 5, 0.01, 1 / 30000, 1.0)
    assert sigma == pytest.approx(1.7e5, 0.03)
    steeper = theorem_3_sigma(100, 5, 0.01, 1 / 30000, 1.0, 3.0)
    assert steeper == pytest.approx(3 * sigma)


def test_a_constant_can_be_read_off_a_known_sigma():
    c = theorem_3_constant(1.0, 100, 5, 0.01, 1 / 30000)
    assert 1e-6 < c < 1e-5
    assert theorem_3_sigma(100, 5, 0.01, 1 / 30000, c) == pytest.approx(1.0, 1e-12)
    quarter = theorem_3_sigma(100, 20, 0.02, 1 / 30000, c)
    assert quarter == pytest.approx(0.25, 1e-12)


@pytest.mark.parametrize(("agents", "neighbor"), [(5, 1.6354), (20, 3.3794)])
def test_reference_readings(agents, neighbor):
    sigma = theorem_3_sigma(100, agents, 1.0, 1e-5, MOMENTS_CONSTANT)
    mean = mean_reading(sigma, 100, agents, 1e-5)
    assert mean.epsilon == pytest.approx(0.71796, abs=6e-6)
    seen = neighbor_reading(sigma, 100, agents, 1e-5)
    assert seen.epsilon == pytest.approx(neighbor, abs=6e-5)
    assert seen.rho == pytest.approx(agents * mean.rho, 1e-12)


@pytest.mark.parametrize("theta", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("gamma", [1e-5, 1 / 30000, 0.1])
def test_the_smallest_constant_gives_theta_exactly(theta, gamma):
    constant = smallest_constant(theta, gamma)
    assert constant > 4
    sigma = theorem_3_sigma(50, 7, theta, gamma, constant, 2.0)
    assert mean_reading(sigma, 50, 7, gamma, 2.0).epsilon == pytest.approx(theta, 1e-12)


def test_the_moments_constant_is_enough_up_to_the_logarithm():
    assert smallest_constant(1e-9, 1e-5) == pytest.approx(4.0, 1e-6)
    assert smallest_constant(1.0, 1e-5) < MOMENTS_CONSTANT


def test_no_epsilon_without_its_conditions():
    mean, seen = (f(10.0, 10, 5, 1e-5) for f in (mean_reading, neighbor_reading))
    for reading in (mean, seen):
        said = " ".join(reading.holds_if)
        for word in ("clipped", "t = 0", "x or y alone", "replaced"):
            assert word in said
        assert reading.gamma == 1e-5
    assert "secure aggregation" in " ".join(mean.holds_if)
    assert "secure aggregation" not in " ".join(seen.holds_if)
    assert "mean" in mean.view
    assert "every message" in seen.view


def test_dp_sgda():
    expected = 2 * 3 * math.sqrt(100 * math.log(1e5)) / (6512 * 0.5)
    found = dp_sgda_sigma(100, 6512, 0.5, 1e-5, 2.0, 3.0)
    assert found == pytest.approx(expected, 1e-12)


def test_refusals():
    refused("steps", theorem_3_sum, 0)
    refused("steps", theorem_3_sum, 1.5, error=TypeError)
    refused("agents", theorem_3_sigma, 9, 0, 1, 0.1, 1)
    refused("theta", theorem_3_sigma, 9, 2, 0, 0.1, 1)
    refused("gamma", theorem_3_sigma, 9, 2, 1, 1.0, 1)
    refused("gamma", theorem_3_sigma, 9, 2, 1, 0.0, 1)
    refused("constant", theorem_3_sigma, 9, 2, 1, 0.1, 0)
    refused("lipschitz", theorem_3_sigma, 9, 2, 1, 0.1, 1, 0)
    refused("sigma", theorem_3_constant, 0.0, 9, 2, 1, 0.1)
    refused("theta", smallest_constant, -1.0, 0.1)
    refused("sigma", mean_reading, 0.0, 9, 2, 0.1)
    refused("agents", mean_reading, 1.0, 9, 0, 0.1)
    refused("lipschitz", mean_reading, 1.0, 9, 2, 0.1, -1)
    refused("steps", dp_sgda_sigma, 0, 9, 1, 0.1)
    refused("examples", dp_sgda_sigma, 9, 0, 1, 0.1)
    refused("epsilon", dp_sgda_sigma, 9, 9, 0, 0.1)
    refused("delta", dp_sgda_sigma, 9, 9, 1, 2.0)
    refused("constant", dp_sgda_sigma, 9, 9, 1, 0.1, 0)
    refused("lipschitz", dp_sgda_sigma, 9, 9, 1, 0.1, 1, 0)

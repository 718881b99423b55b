"""Theorem 3 of DPMixSGD, and its constant."""

import pytest

from experiments.papers.theorem_3 import (
    MOMENTS_CONSTANT,
    mean_epsilon,
    neighbor_epsilon,
    smallest_constant,
    theorem_3_sigma,
    theorem_3_sum,
)


def test_the_sum_of_theorem_3():
    for steps in (1, 2, 7, 100):
        assert theorem_3_sum(steps) == sum(16 * t**2 + 4 for t in range(1, steps + 1))
    assert theorem_3_sum(100) == pytest.approx(5.414e6, 1e-4)
    assert theorem_3_sum(1000) == pytest.approx(5.34134e9, 1e-6)


@pytest.mark.parametrize(
    ("steps", "theta", "gamma", "constant", "sigma", "precision"),
    [  # two digits are published of some
        (100, 0.01, 1 / 30000, MOMENTS_CONSTANT, 9.4e5, 6e-3),
        (100, 0.01, 1 / 30000, 1.0, 1.7e5, 0.03),
        (100, 1.0, 1e-5, MOMENTS_CONSTANT, 9986.5, 1e-5),
        (1000, 1.0, 1e-5, MOMENTS_CONSTANT, 3.137e5, 2e-4),
    ],
)
def test_reference_sigmas(steps, theta, gamma, constant, sigma, precision):
    found = theorem_3_sigma(steps, 5, theta, gamma, constant)
    assert found == pytest.approx(sigma, precision)
    steeper = theorem_3_sigma(steps, 5, theta, gamma, constant, 3.0)
    assert steeper == pytest.approx(3 * found)


@pytest.mark.parametrize(("agents", "neighbor"), [(5, 1.6354), (20, 3.3794)])
def test_reference_epsilons(agents, neighbor):
    sigma = theorem_3_sigma(100, agents, 1.0, 1e-5, MOMENTS_CONSTANT)
    mean = mean_epsilon(sigma, 100, agents, 1e-5)
    assert mean == pytest.approx(0.71796, abs=6e-6)
    assert neighbor_epsilon(sigma, 100, 1e-5) == pytest.approx(neighbor, abs=6e-5)


@pytest.mark.parametrize("theta", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("gamma", [1e-5, 1 / 30000, 0.1])
def test_the_smallest_constant_gives_theta_exactly(theta, gamma):
    constant = smallest_constant(theta, gamma)
    assert constant > 4
    sigma = theorem_3_sigma(50, 7, theta, gamma, constant, 2.0)
    assert mean_epsilon(sigma, 50, 7, gamma, 2.0) == pytest.approx(theta, 1e-12)

"""Epsilons between the bounds of an independent numerical accountant.

None is below what the best attack reaches, and none is more than `TOLERANCE` above.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
from cases import slow_but
from oracles.accountant import Interval, Steps, epsilon_interval

from fedjax_muon.privacy import (
    Banded,
    Correlated,
    Each,
    FullBatch,
    Inside,
    Poisson,
    PrivacySpec,
    Release,
    gaussian_epsilon,
    guarantees,
    report,
)
from fedjax_muon.privacy.composition import composed_epsilon, cost_of

DELTA, TOLERANCE = 1e-5, 1e-3
A9A = Poisson(6512, 20)  # one of five agents
SMALL = Poisson(91, 16)  # of breast_cancer, one of five agents
Q = 16 / 91
BANDED = Banded((0.8, 0.5, 0.1))


class Run(NamedTuple):
    """Our epsilon, and what the run does, for the oracle."""

    epsilon: Callable[[], float]
    parts: tuple[Steps, ...]
    h: float = 2e-5


def spec(noise, sampling, steps):
    return PrivacySpec({"x": Release(Each(1.0), noise)}, sampling, steps, DELTA)


def single(noise, sampling, steps):
    return lambda: report(spec(noise, sampling, steps)).epsilon


TWO = {"x": Release(Each(1.0), Inside(6.0)), "y": Release(Each(2.0), Inside(8.0))}
SEVERAL = (
    spec(Inside(4.0), SMALL, 101),
    spec(Inside(6.0, 5.0), SMALL, 51),
    spec(Inside(60.0), FullBatch(91), 100),
)
RUNS = {
    "one Gaussian": Run(lambda: gaussian_epsilon(1.0, DELTA), (Steps(1.0),), 1e-4),
    "full batches": Run(single(Inside(20.0), FullBatch(91), 100), (Steps(2.0),), 5e-5),
    "Poisson": Run(single(Inside(4.0), SMALL, 101), (Steps(4.0, Q, 101),)),
    "rare batches": Run(single(Inside(0.8), A9A, 1000), (Steps(0.8, 20 / 6512, 1000),)),
    "little noise": Run(single(Inside(1.0), SMALL, 20), (Steps(1.0, Q, 20),), 5e-5),
    # 34 turns of the first of three groups of 30; the columns of C have norm 0.9^(1/2)
    "cycle": Run(
        single(Correlated(2.0, BANDED), Poisson(91, 16, cycle=3), 101),
        (Steps(2.0 / math.sqrt(0.9), 16 / 30, 34),),
        5e-5,
    ),
    "full first batch": Run(
        single(Inside(4.0, 9.0), Poisson(91, 16, first_batch=91), 101),
        (Steps(9.0), Steps(4.0, Q, 100)),
    ),
    "first multiplier": Run(
        single(Inside(4.0, 3.0), SMALL, 101), (Steps(3.0, Q), Steps(4.0, Q, 100))
    ),
    # sensitivities do not matter: multipliers are relative to them
    "x and y": Run(
        lambda: report(PrivacySpec(TWO, SMALL, 101, DELTA)).epsilon,
        (Steps((6.0**-2 + 8.0**-2) ** -0.5, Q, 101),),
    ),
    "several runs": Run(
        lambda: composed_epsilon([cost_of(one) for one in SEVERAL], DELTA),
        (Steps(4.0, Q, 101), Steps(5.0, Q), Steps(6.0, Q, 50), Steps(6.0)),
    ),
}


QUICK = ("one Gaussian", "full batches", "little noise")


def within(epsilon: float, bounds: Interval) -> bool:
    return bounds.low <= epsilon <= bounds.high + TOLERANCE


@pytest.mark.parametrize("name", slow_but(QUICK, RUNS))
def test_epsilons_are_those_of_the_oracle(name):
    epsilon, parts, h = RUNS[name]
    bounds = epsilon_interval(parts, DELTA, h)
    assert bounds.high - bounds.low < 1e-4  # the oracle is sharper than the claim
    assert within(epsilon(), bounds)


@pytest.mark.parametrize("noise", [0.7, 1.0, 5.0])
def test_the_oracle_contains_the_closed_form_of_one_gaussian(noise):
    """Balle and Wang 2018, Theorem 8."""
    bounds = epsilon_interval([Steps(noise)], DELTA, 1e-4)

    def delta(epsilon):
        half, tail = 1 / (2 * noise), epsilon * noise
        normal = lambda x: math.erfc(-x / math.sqrt(2)) / 2
        return normal(half - tail) - math.exp(epsilon) * normal(-half - tail)

    assert delta(bounds.low) >= DELTA >= delta(bounds.high)


def test_equal_steps_of_full_batches_are_one_gaussian():
    """The FFT against one step, whose noise is smaller by the root of their number."""
    several = epsilon_interval([Steps(10.0, count=25)], DELTA, 5e-5)
    one = epsilon_interval([Steps(2.0)], DELTA, 5e-5)
    assert several.low <= one.high
    assert one.low <= several.high


def accounted(change):
    """A fault that accounts for another specification."""

    def plant(patch):
        plain = guarantees._epsilon
        other = lambda spec, *given: plain(change(spec), *given)
        patch.setattr(guarantees, "_epsilon", other)

    return plant


def more_noise(patch):
    plain = guarantees.step_multipliers
    more = lambda spec: tuple(1.001 * z for z in plain(spec))
    patch.setattr(guarantees, "step_multipliers", more)


replace = dataclasses.replace
FAULTS = {
    "fewer steps": accounted(lambda spec: replace(spec, steps=spec.steps - 1)),
    "half the rate": accounted(
        lambda spec: replace(spec, sampling=replace(spec.sampling, examples=182))
    ),
    "more noise": more_noise,
    "one step more": accounted(lambda spec: replace(spec, steps=spec.steps + 1)),
}


@pytest.mark.parametrize("fault", slow_but(1, FAULTS))
def test_wrong_accounting_is_found(fault, monkeypatch):
    epsilon, parts, h = RUNS["Poisson"]
    FAULTS[fault](monkeypatch)
    assert not within(epsilon(), epsilon_interval(parts, DELTA, h))

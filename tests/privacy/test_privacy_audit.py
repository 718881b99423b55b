"""Lower bounds of epsilon: against direct computations, and how often they are true."""

import math
from fractions import Fraction

import numpy as np
import pytest
from refusals import refused
from scipy import optimize, stats

from fedjax_muon.privacy import audit
from fedjax_muon.privacy.audit import Errors

PHI = stats.norm.cdf


def gaussian_delta(epsilon, mu):
    """Balle and Wang 2018, Theorem 8."""
    far = PHI(-mu / 2 - epsilon / mu)
    return PHI(mu / 2 - epsilon / mu) - math.exp(epsilon) * far


def test_errors_by_hand():
    found = audit.errors([0.0, 1.0, 2.0], [[1.0, 3.0], [0.5, 1.5]], 1.0)
    assert found == Errors(1, 3, 2, 4)  # one of 3 above 1, two of 4 not above


@pytest.mark.parametrize("events", [0, 1, 7, 49, 50])
def test_clopper_pearson_is_scipys(events):
    interval = stats.binomtest(events, 50).proportion_ci(0.95, method="exact")
    found = audit.clopper_pearson(events, 50, 0.975)
    np.testing.assert_allclose(found, interval.high, rtol=1e-8)


def test_mu_is_that_of_the_trade_off_curve():
    """Bounds of both rates lie on the curve Phi(Phi^-1(1 - x) - mu)."""
    positive = stats.binomtest(30, 200).proportion_ci(0.9, method="exact").high
    negative = stats.binomtest(12, 100).proportion_ci(0.9, method="exact").high
    gap = lambda mu: PHI(stats.norm.ppf(1 - positive) - mu) - negative
    by_hand = optimize.brentq(gap, 0, 10)
    found = audit.gdp_bound(Errors(30, 200, 12, 100), 0.9)
    np.testing.assert_allclose(found, by_hand, rtol=1e-6)


def test_attacks_that_know_nothing_prove_nothing():
    """An absolute value in place of the sign would make something of all of these."""
    for found in (
        Errors(500, 1000, 500, 1000),
        Errors(0, 1000, 1000, 1000),
        Errors(1000, 1000, 0, 1000),
        Errors(900, 1000, 900, 1000),
        Errors(1000, 1000, 1000, 1000),
        Errors(0, 1, 0, 1),
    ):
        assert audit.gdp_bound(found) == 0.0
        assert audit.gaussian_epsilon_bound(found, 1e-5) == 0.0
        assert audit.epsilon_bound(found, 1e-5) == 0.0


def test_epsilon_of_mu():
    found = Errors(5, 1000, 10, 1000)
    epsilon = audit.gaussian_epsilon_bound(found, 1e-5)
    delta = gaussian_delta(epsilon, audit.gdp_bound(found))
    np.testing.assert_allclose(delta, 1e-5, rtol=1e-5)


def test_epsilon_without_gaussians_by_hand():
    # both rates end at 1 - 0.025^(1/100) or so
    none = 1 - 0.025 ** (1 / 100)
    some = stats.binomtest(60, 100).proportion_ci(0.95, method="exact").high
    by_hand = math.log((1 - 0.01 - some) / none)
    for found in (Errors(0, 100, 60, 100), Errors(60, 100, 0, 100)):
        np.testing.assert_allclose(audit.epsilon_bound(found, 0.01), by_hand)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("threshold", [0.5, 0.9])
def test_bounds_are_true_as_often_as_they_say(mu, threshold):
    """The exact probability over both numbers of errors, for a Gaussian mechanism."""
    number, delta, confidence = 20, 1e-3, 0.9
    true = optimize.brentq(lambda e: gaussian_delta(e, mu) - delta, 0, 50)
    rates = stats.norm.sf(threshold * mu), PHI(threshold * mu - mu)
    false = {"gdp": 0.0, "any": 0.0}
    for i, p in enumerate(stats.binom.pmf(np.arange(number + 1), number, rates[0])):
        for j, q in enumerate(stats.binom.pmf(np.arange(number + 1), number, rates[1])):
            found = Errors(i, number, j, number)
            false["gdp"] += p * q * (audit.gdp_bound(found, confidence) > mu)
            above = audit.epsilon_bound(found, delta, confidence) > true
            false["any"] += p * q * above
    assert max(false.values()) <= 1 - confidence
    assert false["gdp"] > 0  # not by being vacuous


def test_a_threshold_of_other_worlds_keeps_the_bound_true():
    rng = np.random.default_rng(1)
    mu, delta = 1.5, 1e-5
    true = optimize.brentq(lambda e: gaussian_delta(e, mu) - delta, 0, 50)
    bound = lambda found: audit.epsilon_bound(found, delta)
    bounds = []
    for _ in range(20):
        absent, present = rng.normal([[0.0], [mu]], size=(2, 500))
        level = audit.best_threshold(absent[:250], present[:250], bound)
        bounds.append(bound(audit.errors(absent[250:], present[250:], level)))
    assert max(bounds) < true
    assert np.mean(bounds) > 0.5


def test_the_best_threshold_by_hand():
    absent, present = np.arange(0.0, 100.0), np.arange(80.0, 180.0)
    bound = lambda found: -(found.false_positives + found.false_negatives)
    level = audit.best_threshold(absent, present, bound)
    assert 79 <= level < 100
    everything = [audit.errors(absent, present, x) for x in np.arange(-1.0, 181.0)]
    assert bound(audit.errors(absent, present, level)) == max(map(bound, everything))


def test_guesses_by_hand():
    scores = [5.0, -3.0, 0.1, 2.0, -1.0, 4.0]
    included = [True, True, False, False, False, False]
    # the largest two: right, wrong; the smallest two: wrong, right
    assert audit.correct_guesses(scores, included, 4) == 2
    assert audit.correct_guesses(scores, included, 2) == 1
    assert audit.correct_guesses(scores, included, 6) == 3


def by_definition(m, r, v, right: Fraction, delta: Fraction) -> Fraction:
    """Theorem 5.2 in exact fractions."""
    mass = [math.comb(r, k) * right**k * (1 - right) ** (r - k) for k in range(r + 1)]
    windows = [sum(mass[max(0, v - i) : v], Fraction(0)) / i for i in range(1, m + 1)]
    return min(Fraction(1), sum(mass[v:], Fraction(0)) + 2 * m * delta * max(windows))


@pytest.mark.parametrize("correct", [0, 1, 9, 14, 15])
@pytest.mark.parametrize("odds", [1, 3, 20])
def test_p_value_in_fractions(correct, odds):
    exact = by_definition(20, 15, correct, Fraction(odds, odds + 1), Fraction(1, 1000))
    found = audit.one_run_p_value(20, 15, correct, math.log(odds), 1e-3)
    np.testing.assert_allclose(found, float(exact), rtol=1e-9)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_every_smaller_epsilon_is_refuted(delta):
    for m, r, v in ((100, 60, 50), (1000, 500, 500), (40, 40, 30)):
        bound = audit.one_run_bound(m, r, v, delta)
        assert bound > 0.1
        below = np.linspace(0, bound * (1 - 1e-6), 50)
        p = [audit.one_run_p_value(m, r, v, epsilon, delta) for epsilon in below]
        assert max(p) < 0.05
        just = audit.one_run_p_value(m, r, v, bound * (1 + 1e-6), delta)
        np.testing.assert_allclose(just, 0.05, rtol=1e-4)
    assert audit.one_run_bound(100, 60, 30, delta) == 0.0


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (1.0, 0.002), (3.0, 0.005)])
def test_one_run_bounds_are_true_as_often_as_they_say(epsilon, delta):
    """Randomised response that tells the truth outright with probability delta."""
    rng = np.random.default_rng(2)
    m, r, runs = 100, 50, 1500
    known, wrong = {}, 0
    for coins in rng.random((runs, m)) < 0.5:
        honest = rng.random(m) < 1 / (1 + math.exp(-epsilon))
        scores = np.where(coins == honest, 1.0, -1.0)
        outright = rng.random(m) < delta
        scores[outright] = np.where(coins, 2.0, -2.0)[outright]
        right = audit.correct_guesses(scores, coins, r)
        if right not in known:
            known[right] = audit.one_run_bound(m, r, right, delta)
        wrong += known[right] > epsilon
    assert wrong / runs <= 0.05
    assert max(known.values()) > 0.2 * epsilon


def test_bad_input_is_refused():
    refused("absent must be scores.*none", audit.errors, [], [1.0], 0.0)
    refused("present must be scores.*NaN", audit.errors, [1.0], [np.nan], 0.0)
    refused("present must be scores", audit.best_threshold, [1.0], [], len)
    limit, few = audit.clopper_pearson, Errors(0, 9, 0, 9)
    refused("trials must be at least 1", limit, 0, 0, 0.9)
    refused("events must be at least 0", limit, -1, 4, 0.9)
    refused("events must be at most the 4", limit, 5, 4, 0.9)
    refused("confidence must lie in", limit, 1, 4, 1.0)
    refused("confidence must lie in", audit.gdp_bound, few, 0.0)
    refused("delta must lie in", audit.epsilon_bound, few, 1.0)
    guesses, four = audit.correct_guesses, [1.0] * 4
    refused("one entry for each canary", guesses, [1.0], [1, 0], 2)
    refused("must be even", guesses, four, [1] * 4, 3)
    refused("at most the 4 can", guesses, four, [1] * 4, 6)
    refused("guesses must be at l", guesses, four, [1] * 4, 0)
    refused("correct must be at most", audit.one_run_p_value, 9, 6, 7, 1.0, 0.0)
    refused("guesses at most canar", audit.one_run_p_value, 9, 10, 7, 1.0, 0.0)
    refused("epsilon must lie in", audit.one_run_p_value, 9, 6, 5, -1.0, 0.0)
    refused("delta must lie in", audit.one_run_bound, 9, 6, 5, 1.0)
    refused("confidence must lie in", audit.one_run_bound, 9, 6, 5, 0.0, 1.5)

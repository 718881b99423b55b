"""Audits: lower bounds of epsilon, the methods as they run, and mistakes in them."""

import csv
import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from error_lines import refused
from scipy import optimize, stats

from experiments.studies import audit as study, flaws
from experiments.studies.flaws import CASES, CLAIM, STEPS, Flaw
from fedjax_muon import audits
from fedjax_muon.audits import Errors
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized.gossip import Iteration
from fedjax_muon.decentralized.private import PRIVATE
from fedjax_muon.privacy import Poisson, PrivacySpec, report

PHI = stats.norm.cdf


def gaussian_delta(epsilon, mu):
    """Balle and Wang 2018, Theorem 8."""
    far = PHI(-mu / 2 - epsilon / mu)
    return PHI(mu / 2 - epsilon / mu) - math.exp(epsilon) * far


def test_errors_by_hand():
    found = audits.errors([0.0, 1.0, 2.0], [[1.0, 3.0], [0.5, 1.5]], 1.0)
    assert found == Errors(1, 3, 2, 4)  # one of 3 above 1, two of 4 not above


@pytest.mark.parametrize("events", [0, 1, 7, 49, 50])
def test_clopper_pearson_is_scipys(events):
    interval = stats.binomtest(events, 50).proportion_ci(0.95, method="exact")
    found = audits.clopper_pearson(events, 50, 0.975)
    np.testing.assert_allclose(found, interval.high, rtol=1e-8)


def test_mu_is_that_of_the_trade_off_curve():
    """Bounds of both rates lie on the curve Phi(Phi^-1(1 - x) - mu)."""
    positive = stats.binomtest(30, 200).proportion_ci(0.9, method="exact").high
    negative = stats.binomtest(12, 100).proportion_ci(0.9, method="exact").high
    gap = lambda mu: PHI(stats.norm.ppf(1 - positive) - mu) - negative
    by_hand = optimize.brentq(gap, 0, 10)
    found = audits.gdp_bound(Errors(30, 200, 12, 100), 0.9)
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
        assert audits.gdp_bound(found) == 0.0
        assert audits.gaussian_epsilon_bound(found, 1e-5) == 0.0
        assert audits.epsilon_bound(found, 1e-5) == 0.0


def test_epsilon_of_mu():
    found = Errors(5, 1000, 10, 1000)
    epsilon = audits.gaussian_epsilon_bound(found, 1e-5)
    delta = gaussian_delta(epsilon, audits.gdp_bound(found))
    np.testing.assert_allclose(delta, 1e-5, rtol=1e-5)


def test_epsilon_without_gaussians_by_hand():
    # both rates end at 1 - 0.025^(1/100) or so
    none = 1 - 0.025 ** (1 / 100)
    some = stats.binomtest(60, 100).proportion_ci(0.95, method="exact").high
    by_hand = math.log((1 - 0.01 - some) / none)
    for found in (Errors(0, 100, 60, 100), Errors(60, 100, 0, 100)):
        np.testing.assert_allclose(audits.epsilon_bound(found, 0.01), by_hand)


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
            false["gdp"] += p * q * (audits.gdp_bound(found, confidence) > mu)
            above = audits.epsilon_bound(found, delta, confidence) > true
            false["any"] += p * q * above
    assert max(false.values()) <= 1 - confidence
    assert false["gdp"] > 0  # not by being vacuous


def test_a_threshold_of_other_worlds_keeps_the_bound_true():
    rng = np.random.default_rng(1)
    mu, delta = 1.5, 1e-5
    true = optimize.brentq(lambda e: gaussian_delta(e, mu) - delta, 0, 50)
    bound = lambda found: audits.epsilon_bound(found, delta)
    lower = []
    for _ in range(20):
        absent, present = rng.normal([[0.0], [mu]], size=(2, 500))
        level = audits.best_threshold(absent[:250], present[:250], bound)
        lower.append(bound(audits.errors(absent[250:], present[250:], level)))
    assert max(lower) < true
    assert np.mean(lower) > 0.5


def test_the_best_threshold_by_hand():
    absent, present = np.arange(0.0, 100.0), np.arange(80.0, 180.0)
    bound = lambda found: -(found.false_positives + found.false_negatives)
    level = audits.best_threshold(absent, present, bound)
    assert 79 <= level < 100
    everything = [audits.errors(absent, present, x) for x in np.arange(-1.0, 181.0)]
    assert bound(audits.errors(absent, present, level)) == max(map(bound, everything))


def test_guesses_by_hand():
    scores = [5.0, -3.0, 0.1, 2.0, -1.0, 4.0]
    included = [True, True, False, False, False, False]
    # the largest two: right, wrong; the smallest two: wrong, right
    assert audits.correct_guesses(scores, included, 4) == 2
    assert audits.correct_guesses(scores, included, 2) == 1
    assert audits.correct_guesses(scores, included, 6) == 3


def by_definition(m, r, v, right: Fraction, delta: Fraction) -> Fraction:
    """Theorem 5.2 in exact fractions."""
    mass = [math.comb(r, k) * right**k * (1 - right) ** (r - k) for k in range(r + 1)]
    windows = [sum(mass[max(0, v - i) : v], Fraction(0)) / i for i in range(1, m + 1)]
    return min(Fraction(1), sum(mass[v:], Fraction(0)) + 2 * m * delta * max(windows))


@pytest.mark.parametrize("correct", [0, 1, 9, 14, 15])
@pytest.mark.parametrize("odds", [1, 3, 20])
def test_p_value_in_fractions(correct, odds):
    exact = by_definition(20, 15, correct, Fraction(odds, odds + 1), Fraction(1, 1000))
    found = audits.one_run_p_value(20, 15, correct, math.log(odds), 1e-3)
    np.testing.assert_allclose(found, float(exact), rtol=1e-9)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_every_smaller_epsilon_is_refuted(delta):
    for m, r, v in ((100, 60, 50), (1000, 500, 500), (40, 40, 30)):
        bound = audits.one_run_bound(m, r, v, delta)
        assert bound > 0.1
        below = np.linspace(0, bound * (1 - 1e-6), 50)
        p = [audits.one_run_p_value(m, r, v, epsilon, delta) for epsilon in below]
        assert max(p) < 0.05
        just = audits.one_run_p_value(m, r, v, bound * (1 + 1e-6), delta)
        np.testing.assert_allclose(just, 0.05, rtol=1e-4)
    assert audits.one_run_bound(100, 60, 30, delta) == 0.0


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
        right = audits.correct_guesses(scores, coins, r)
        if right not in known:
            known[right] = audits.one_run_bound(m, r, right, delta)
        wrong += known[right] > epsilon
    assert wrong / runs <= 0.05
    assert max(known.values()) > 0.2 * epsilon


def test_bad_input_is_refused():
    refused("absent must be at least 1 scores.*none", audits.errors, [], [1.0], 0.0)
    refused("present must be .* scores.*NaN", audits.errors, [1.0], [np.nan], 0.0)
    refused("present must be at least 1 scores", audits.best_threshold, [1.0], [], len)
    limit, few = audits.clopper_pearson, Errors(0, 9, 0, 9)
    refused("trials must be at least 1", limit, 0, 0, 0.9)
    refused("events must be at least 0", limit, -1, 4, 0.9)
    refused("events must be at most the 4", limit, 5, 4, 0.9)
    refused("confidence must lie in", limit, 1, 4, 1.0)
    refused("confidence must lie in", audits.gdp_bound, few, 0.0)
    refused("delta must lie in", audits.epsilon_bound, few, 1.0)
    guesses, four = audits.correct_guesses, [1.0] * 4
    refused("one entry for each canary", guesses, [1.0], [1, 0], 2)
    refused("must be even", guesses, four, [1] * 4, 3)
    refused("at most the 4 can", guesses, four, [1] * 4, 6)
    refused("guesses must be at l", guesses, four, [1] * 4, 0)
    refused("correct must be at most", audits.one_run_p_value, 9, 6, 7, 1.0, 0.0)
    refused("guesses at most canar", audits.one_run_p_value, 9, 10, 7, 1.0, 0.0)
    refused("epsilon must lie in", audits.one_run_p_value, 9, 6, 5, -1.0, 0.0)
    refused("delta must lie in", audits.one_run_bound, 9, 6, 5, 1.0)
    refused("confidence must lie in", audits.one_run_bound, 9, 6, 5, 0.0, 1.5)


QUICK = {"xla_backend_optimization_level": 0}  # to compile
WORLDS, CANARIES = 1000, 256
SAMPLED = [label for label, c in CASES.items() if isinstance(c.sampling, Poisson)]
OTHERS = [label for label in CASES if label not in SAMPLED]
# noise of the output, and noise inside; test_planted_faults has the other methods
KINDS = ("DPMixSGD (clipped), cyclic", "Private STORM (split), every batch")
MISTAKES = [(label, name) for label in KINDS for name in flaws.flaws(CASES[label])]
FLAWED = [(label, name) for label, name in MISTAKES if name != "correct"]


def bound(label, name, worlds=WORLDS):
    seed = list(CASES).index(label)
    case = CASES[label]
    return study.multi_run(case, flaws.flaws(case)[name], worlds, seed)


@pytest.mark.slow
@pytest.mark.parametrize("label", OTHERS)
def test_correct_mechanisms_stay_below_the_claim(label):
    assert CLAIM / 2 < bound(label, "correct", 2 * WORLDS) <= CLAIM


@pytest.mark.slow
@pytest.mark.parametrize(("label", "name"), FLAWED)
def test_every_mistake_is_found(label, name):
    assert bound(label, name) > CLAIM


@pytest.mark.slow
@pytest.mark.parametrize("label", SAMPLED)
def test_under_poisson_sampling(label):
    """By errors alone, half of the worlds for the threshold: it takes more of them."""
    assert 0 < bound(label, "correct", 2 * WORLDS) <= CLAIM
    for name in ("noise / 10", "no clip", "clean at t = 0", "reused key"):
        assert bound(label, name, 2 * WORLDS) > CLAIM


@pytest.mark.slow
@pytest.mark.parametrize("name", ["correct", "noise / 10", "no clip", "reused key"])
def test_in_one_run(name):
    case = CASES[OTHERS[0]]
    found = study.one_run(case, flaws.flaws(case)[name], CANARIES)
    if name == "correct":
        assert 0 < found <= CLAIM
    else:
        assert found > CLAIM


@pytest.mark.slow
@pytest.mark.parametrize("label", CASES)
def test_the_canary_is_the_worst_case(label):
    """Without noise it leaves what the accounting says one record may leave."""
    case = CASES[label]
    weights = np.zeros((WORLDS, 2, STEPS))
    weights[:, 1] = flaws.pattern(case)
    found = flaws.run(case, Flaw(noise=0.0), weights.reshape(-1, STEPS, 1), 0)
    trace = flaws.traces(case) / flaws.deviations(case)
    np.testing.assert_allclose(found[0, 0], 0, atol=1e-4)
    np.testing.assert_allclose(found[1, 0], trace, atol=1e-4)
    release = PRIVATE[case.method].release(flaws.MECHANISM, flaws.claimed_noise(case))
    spec = PrivacySpec({"g": release}, case.sampling, steps=STEPS, delta=flaws.DELTA)
    assert CLAIM * 0.999 < report(spec).epsilon <= CLAIM
    if label in OTHERS:  # where all that counts is the norm of the trace
        changes = case.sampling.changes(release.clip, release.beta, STEPS)
        whole = 1 / release.noise.transcript_multiplier(changes, release.beta)
        # t = 0, where a cycle begins, is accounted for like later steps
        least = 1.0 if case.inside else 0.85
        assert least * whole * 0.9999 < np.linalg.norm(trace) <= whole * 1.0001


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted({case.method for case in CASES.values()}))
def test_without_a_flaw_it_is_the_library(method):
    noise = 0.8
    rows = jnp.arange(12.0).reshape(4, 3)
    objective = flaws.of_examples(lambda x, batch, key: batch * rows - x[None])

    def told(algorithm):
        mix = lambda message: message
        at = lambda t: Iteration(jnp.int32(t), *jax.random.split(jax.random.key(t)))
        first, second = at(0), at(1)

        @functools.partial(jax.jit, compiler_options=QUICK)
        def compiled():
            state = algorithm.start(objective, jnp.zeros(3), mix, 1.0, first)
            return algorithm.step(objective, state, mix, 2.0, second).params

        return compiled()

    plain = PRIVATE[method].build(flaws.MECHANISM, noise, lr=flaws.LR)
    ours = flaws.build(method, Flaw(), noise)
    np.testing.assert_allclose(told(ours), told(plain), rtol=1e-6)


def test_planted_rows():
    grad = lambda x, batch, key: Pair(jnp.ones((2, 3)) * batch, jnp.zeros((2,)))
    canaries = Pair(jnp.array([[10.0, 0, 0], [0, 20.0, 0]]), jnp.array([1.0, 2.0]))
    here = Pair(jnp.array([1.0, 2.0, 3.0]), jnp.float32(4.0))
    planted = audits.Planted(5.0, jnp.array([0.0, -1.0]), here)
    gradients = lambda x: audits.plant(grad, canaries)(x, planted, jax.random.key(0))
    now = gradients(here)
    examples = [[5.0] * 3] * 2
    np.testing.assert_array_equal(now.x, [*examples, [0, 0, 0], [0, -20, 0]])
    np.testing.assert_array_equal(now.y, [0, 0, 0, -2])
    for other in (here._replace(y=jnp.float32(4.5)), here._replace(x=here.x + 1e-6)):
        before = gradients(other)
        np.testing.assert_array_equal(before.x, [*examples, [0, 0, 0], [0, 20, 0]])
        np.testing.assert_array_equal(before.y, [0, 0, 0, 2])


def test_what_was_told_is_found_from_parameters():
    rng = np.random.default_rng(0)
    told = rng.normal(size=(5, 3, 4))  # worlds, iterations, agents
    W = flaws.WEIGHTS
    x, v, before = np.zeros((5, 4)), np.zeros((5, 4)), np.zeros((5, 4))
    params, tracks = [x], []
    for t in range(3):
        v = (v + told[:, t] - before) @ W.T
        before = told[:, t]
        x = (x - 0.3 * v) @ W.T
        params.append(x)
        tracks.append(v)
    found = audits.moves_from_params(np.stack(params, 1), W, 0.3)
    np.testing.assert_allclose(found, np.stack(tracks, 1), atol=1e-12)
    estimates = audits.estimates_from_tracked(found, W)
    np.testing.assert_allclose(estimates, told, atol=1e-12)


def test_bad_input_of_attacks_is_refused():
    point, singular, one = np.zeros((3, 2)), np.full((2, 2), 0.5), np.ones(3)
    said = "cannot be recovered from singular weights"
    refused(said, audits.moves_from_params, point, singular, 0.1)
    refused(said, audits.estimates_from_tracked, point, singular)
    refused("lr must lie in", audits.moves_from_params, point, np.eye(2), 0.0)
    said = "pattern must not be all zeros"
    refused(said, audits.matched_filter, one, np.zeros(3))
    for q in (0.0, 1.0):
        refused("probability must lie in", audits.likelihood_ratio, one, one, q)
    grad, canaries = lambda x, batch, key: batch, jnp.ones((2, 3))
    said = r"same number K of canaries, got \[2, 3\]"
    refused(said, audits.plant, grad, Pair(canaries, jnp.ones(3)))
    gradients, three = audits.plant(grad, canaries), jnp.zeros(3)
    planted = audits.Planted(jnp.ones((1, 3)), jnp.ones(3), three)
    said = r"each of 2 canaries, got shape \(3,\)"
    refused(said, gradients, three, planted, jax.random.key(0))


def test_what_storm_remembers():
    changes, beta = np.array([[1.0, 0, 2.0, -1.0], [0, 1.0, 0, 0]]), 0.3
    g, by_hand = np.zeros(2), []
    for t in range(4):
        g = 0.7 * g + changes[:, t]
        by_hand.append(g)
    found = audits.storm_estimates(changes, beta)
    np.testing.assert_allclose(found, np.stack(by_hand, 1), atol=1e-14)
    np.testing.assert_allclose(audits.innovations(found, beta), changes, atol=1e-14)


def test_scores_are_ratios_of_densities():
    rng = np.random.default_rng(0)
    seen, pattern, q = rng.normal(size=(6, 5)), rng.normal(size=5), 0.3
    normal = stats.norm.logpdf
    both = normal(seen - pattern).sum(-1) - normal(seen).sum(-1)
    norm = np.linalg.norm(pattern)
    found = norm * audits.matched_filter(seen, pattern) - norm**2 / 2
    np.testing.assert_allclose(found, both, atol=1e-12)
    mixed = np.log((1 - q) + q * np.exp(normal(seen - pattern) - normal(seen)))
    found = audits.likelihood_ratio(seen, pattern, q)
    np.testing.assert_allclose(found, mixed.sum(-1), atol=1e-12)
    found = audits.largest_difference([[0.0, 3.0, 1.0], [0.0, 1.0, -4.0]])
    np.testing.assert_array_equal(found, [3, 5])


@pytest.mark.slow
def test_the_report(tmp_path):
    rows = [
        study.Row("A", "correct", 3.0, 2.5, 1.0),
        study.Row("A", "no clip", 3.0, 16.0, 4.0),
        study.Row("B", "correct", 3.0, 0.0, 3.1),
        study.Row("B", "reused key", 3.0, 2.0, 3.0),
    ]
    both, one = "ALARM: many runs, one run", "ALARM: one run"
    assert [row.verdict for row in rows] == ["no alarm", both, one, "no alarm"]
    for words in (
        "Of 2 correct mechanisms 1 raise an alarm",
        "Of 2 mistakes many runs find 1, and one run finds 1",
        "Found by neither: reused key (B).",
    ):
        assert words in study.summary(rows)
    assert f"| A | no clip | 3 | 16.00 | 4.00 | {both} |" in study.table(rows)
    study.write(rows, ["a", "b"], tmp_path)
    with (tmp_path / "audit.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [float(row["many"]) for row in found] == [2.5, 16.0, 0.0, 2.0]
    assert found[1]["verdict"] == both
    assert (tmp_path / "audit.md").read_text() == "a\nb"
    assert (tmp_path / "audit.png").read_bytes()[1:4] == b"PNG"

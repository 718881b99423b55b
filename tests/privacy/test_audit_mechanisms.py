"""Audits of the private methods as the engine runs them, and of mistakes in them."""

import csv
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused
from scipy import stats

from experiments.studies import audit, flaws
from experiments.studies.flaws import CASES, CLAIM, STEPS, Flaw
from fedjax_muon.attacks import canary
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized.gossip import Iteration
from fedjax_muon.decentralized.private import PRIVATE
from fedjax_muon.privacy import Poisson, PrivacySpec, report

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
    return audit.multi_run(case, flaws.flaws(case)[name], worlds, seed)


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
    found = audit.one_run(case, flaws.flaws(case)[name], CANARIES)
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
    planted = canary.Planted(5.0, jnp.array([0.0, -1.0]), here)
    gradients = lambda x: canary.plant(grad, canaries)(x, planted, jax.random.key(0))
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
    found = canary.moves_from_params(np.stack(params, 1), W, 0.3)
    np.testing.assert_allclose(found, np.stack(tracks, 1), atol=1e-12)
    estimates = canary.estimates_from_tracked(found, W)
    np.testing.assert_allclose(estimates, told, atol=1e-12)


def test_bad_input_is_refused():
    point, singular, one = np.zeros((3, 2)), np.full((2, 2), 0.5), np.ones(3)
    said = "cannot be recovered from singular weights"
    refused(said, canary.moves_from_params, point, singular, 0.1)
    refused(said, canary.estimates_from_tracked, point, singular)
    refused("lr must lie in", canary.moves_from_params, point, np.eye(2), 0.0)
    said = "pattern must not be zero everywhere"
    refused(said, canary.matched_filter, one, np.zeros(3))
    for q in (0.0, 1.0):
        refused("probability must lie in", canary.likelihood_ratio, one, one, q)
    grad, canaries = lambda x, batch, key: batch, jnp.ones((2, 3))
    said = r"same number K of canaries, got \[2, 3\]"
    refused(said, canary.plant, grad, Pair(canaries, jnp.ones(3)))
    gradients, three = canary.plant(grad, canaries), jnp.zeros(3)
    planted = canary.Planted(jnp.ones((1, 3)), jnp.ones(3), three)
    said = r"each of 2 canaries, got shape \(3,\)"
    refused(said, gradients, three, planted, jax.random.key(0))


def test_what_storm_remembers():
    changes, beta = np.array([[1.0, 0, 2.0, -1.0], [0, 1.0, 0, 0]]), 0.3
    g, by_hand = np.zeros(2), []
    for t in range(4):
        g = 0.7 * g + changes[:, t]
        by_hand.append(g)
    found = canary.storm_estimates(changes, beta)
    np.testing.assert_allclose(found, np.stack(by_hand, 1), atol=1e-14)
    np.testing.assert_allclose(canary.innovations(found, beta), changes, atol=1e-14)


def test_scores_are_ratios_of_densities():
    rng = np.random.default_rng(0)
    seen, pattern, q = rng.normal(size=(6, 5)), rng.normal(size=5), 0.3
    normal = stats.norm.logpdf
    both = normal(seen - pattern).sum(-1) - normal(seen).sum(-1)
    norm = np.linalg.norm(pattern)
    found = norm * canary.matched_filter(seen, pattern) - norm**2 / 2
    np.testing.assert_allclose(found, both, atol=1e-12)
    mixed = np.log((1 - q) + q * np.exp(normal(seen - pattern) - normal(seen)))
    found = canary.likelihood_ratio(seen, pattern, q)
    np.testing.assert_allclose(found, mixed.sum(-1), atol=1e-12)
    found = canary.largest_difference([[0.0, 3.0, 1.0], [0.0, 1.0, -4.0]])
    np.testing.assert_array_equal(found, [3, 5])


@pytest.mark.slow
def test_the_report(tmp_path):
    rows = [
        audit.Row("A", "correct", 3.0, 2.5, 1.0),
        audit.Row("A", "no clip", 3.0, 16.0, 4.0),
        audit.Row("B", "correct", 3.0, 0.0, 3.1),
        audit.Row("B", "reused key", 3.0, 2.0, 3.0),
    ]
    both, one = "ALARM: many runs, one run", "ALARM: one run"
    assert [row.verdict for row in rows] == ["no alarm", both, one, "no alarm"]
    for words in (
        "Of 2 correct mechanisms 1 raise an alarm",
        "Of 2 mistakes many runs find 1, and one run finds 1",
        "Found by neither: reused key (B).",
    ):
        assert words in audit.summary(rows)
    assert f"| A | no clip | 3 | 16.00 | 4.00 | {both} |" in audit.table(rows)
    audit.write(rows, ["a", "b"], tmp_path)
    with (tmp_path / "audit.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [float(row["many"]) for row in found] == [2.5, 16.0, 0.0, 2.0]
    assert found[1]["verdict"] == both
    assert (tmp_path / "audit.md").read_text() == "a\nb"
    assert (tmp_path / "audit.png").read_bytes()[1:4] == b"PNG"

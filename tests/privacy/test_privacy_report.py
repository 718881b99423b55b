"""What a run promises: epsilon of a specification, its statement, its calibration."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest

from fedjax_muon.privacy.accounting import (
    REPLACE_ONE,
    Pld,
    gaussian_epsilon,
    joint_multiplier,
)
from fedjax_muon.privacy.client_privacy import client_spec
from fedjax_muon.privacy.clipping import Each, Split
from fedjax_muon.privacy.guarantees import PrivacySpec, calibrated, report
from fedjax_muon.privacy.releases import Inside, Output, Release
from fedjax_muon.privacy.sampling import Cyclic, FullBatch, Poisson
from tests.support.error_lines import refused

DELTA = 1e-5
# a clip of one's own that bounds nothing
UNBOUNDED = SimpleNamespace(sensitivity=lambda beta, batch: math.inf)
CYCLE = Cyclic(6512, 20)
A9A, FIRST = Poisson(6512, 20), Poisson(6512, 20, first_batch=6512)
COARSE = Pld(1e-3)


def spec(noise, sampling, clip=None, beta=0.1, steps=1000, **further):
    release = Release(clip or Each(1.0), noise, beta)
    return PrivacySpec({"x": release}, sampling, steps, DELTA, **further)


def epsilon(*args, **further):
    return report(spec(*args, **further)).epsilon


# sigma = .1, .5, 1, 2: an added or removed record, a replaced one; sigma for 1 and 8.
OUTPUT = {
    (100, 0.1): (11.1191, 1.7106, 0.7970, 0.3741),
    (100, 0.01): (48.7679, 6.0176, 2.7055, 1.2495),
    (1000, 0.1): (27.3714, 3.7342, 1.7094, 0.7965),
    (1000, 0.01): (145.1314, 14.3533, 6.1368, 2.7566),
}
REPLACED = {
    (100, 0.1): (27.3955, 3.7369, 1.7106, 0.7970),
    (100, 0.01): (141.2925, 14.0535, 6.0176, 2.7055),
    (1000, 0.1): (74.295, 8.4465, 3.7342, 1.7094),
    (1000, 0.01): (469.2169, 36.2889, 14.3533, 6.1368),
}
LEVELS = {
    (100, 0.1): (0.813072, 0.130817),
    (100, 0.01): (2.448742, 0.393983),
    (1000, 0.1): (1.625097, 0.261465),
    (1000, 0.01): (4.979349, 0.801138),
}


@pytest.mark.parametrize(("steps", "beta"), OUTPUT)
def test_reference_noise_on_the_output(steps, beta):
    added, replaced, levels = (t[steps, beta] for t in (OUTPUT, REPLACED, LEVELS))
    for sigma, one, two in zip((0.1, 0.5, 1.0, 2.0), added, replaced, strict=True):
        run = spec(Output(sigma), CYCLE, beta=beta, steps=steps)
        assert report(run).epsilon == pytest.approx(one, 1e-4)
        run = dataclasses.replace(run, adjacency=REPLACE_ONE)
        assert report(run).epsilon == pytest.approx(two, 1e-4)
    for target, level in zip((1.0, 8.0), levels, strict=True):
        run = spec(Output(1.0), CYCLE, beta=beta, steps=steps)
        found = calibrated(run, target)
        assert found.releases["x"].noise.sigma == pytest.approx(level, 2e-5)
        assert report(found).epsilon <= target


def test_joint_releases_share_the_loss():
    x = Release(Each(1.0), Inside(1.1313708), 0.1)
    y = Release(Split(3.0, 0.2), Inside(1.1313708), 0.5)
    run = PrivacySpec({"x": x, "y": y}, A9A, 1000, DELTA)
    assert report(run).epsilon == pytest.approx(0.991303, 1e-5)
    assert "x, y together" in report(run).statement()
    x, y = Release(Each(1.0), Output(1.0), 0.1), Release(Each(2.0), Output(2.0), 0.1)
    run = PrivacySpec({"x": x, "y": y}, CYCLE, 1000, DELTA)
    alone = epsilon(Output(1.0 / math.sqrt(2)), CYCLE)
    assert report(run).epsilon == pytest.approx(alone, 1e-9)


def test_calibration_keeps_the_ratio_of_the_noises():
    x, y = Release(Each(1.0), Output(1.0), 0.1), Release(Each(2.0), Output(3.0), 0.2)
    found = calibrated(PrivacySpec({"x": x, "y": y}, CYCLE, 1000, DELTA), 2.0)
    sigmas = [release.noise.sigma for release in found.releases.values()]
    assert sigmas[1] == pytest.approx(3 * sigmas[0], 1e-12)
    assert report(found).epsilon == pytest.approx(2.0, 1e-4)
    run = spec(Inside(2.0, first_multiplier=8.0), FIRST, steps=50)
    found = calibrated(dataclasses.replace(run, accountant=COARSE), 1.5)
    noise = found.releases["x"].noise
    assert noise.first_multiplier == pytest.approx(4 * noise.multiplier, 1e-12)
    assert 1.499 < report(found).epsilon <= 1.5


def test_noise_inside_without_sampling_counts_participations():
    exact = gaussian_epsilon(2.0 / math.sqrt(4), DELTA)  # 1000 steps, once in 325
    assert epsilon(Inside(2.0), CYCLE) == pytest.approx(exact, 1e-9)
    assert epsilon(Inside(2.0), CYCLE, clip=Split(1.0, 0.1)) == pytest.approx(exact)
    apart = gaussian_epsilon((4 / 4 + 1 / 9) ** -0.5, DELTA)
    later = Cyclic(6512, 20, first_batch=600)
    found = epsilon(Inside(2.0, first_multiplier=3.0), later)
    assert found == pytest.approx(apart, 1e-9)
    every = gaussian_epsilon(20.0 / math.sqrt(1000), DELTA)
    assert epsilon(Inside(20.0), FullBatch(6512)) == pytest.approx(every, 1e-9)


def test_noise_on_the_output_with_other_patterns():
    full = gaussian_epsilon(0.5 * 6512 / math.sqrt(1000), DELTA)
    assert epsilon(Output(0.5), FullBatch(6512)) == pytest.approx(full, 1e-9)
    whole = epsilon(Output(1.0), Cyclic(6512, 20, first_batch=6512))
    assert whole > epsilon(Output(1.0), CYCLE, steps=999)


def test_without_clipping_epsilon_is_infinite_and_says_why():
    for noise, sampling in ((Output(5.0), CYCLE), (Inside(5.0), A9A)):
        run = spec(noise, sampling, clip=UNBOUNDED)
        found = report(run)
        assert found.epsilon == math.inf
        assert "NO differential privacy" in found.statement()
        assert "x is not clipped" in found.statement()
        refused(r"no factor makes.*x is not clipped", calibrated, run, 1.0)
    x = Release(Each(1.0), Output(1.0), 0.1)
    y = Release(UNBOUNDED, Output(1.0), 0.1)
    found = report(PrivacySpec({"x": x, "y": y}, CYCLE, 9, DELTA))
    assert found.epsilon == math.inf
    assert any("y is not clipped" in caveat for caveat in found.caveats)
    assert not any("x is not clipped" in caveat for caveat in found.caveats)


def test_without_noise_epsilon_is_infinite_and_says_why():
    first = Inside(1.0, first_multiplier=0.0)
    for run in (spec(Output(0.0), CYCLE), spec(Inside(0.0), A9A), spec(first, FIRST)):
        assert report(run).epsilon == math.inf
        assert "x is released without noise" in report(run).statement()
        refused("without noise", calibrated, run, 1.0)


def test_the_statement_says_it_all():
    cut = Poisson(6512, 20, max_batch=64)
    found = report(spec(Inside(0.8), cut, accountant=COARSE))
    lines = found.statement().splitlines()
    assert lines[0].startswith(f"({found.epsilon:.4g}, 1e-05)-differential privacy")
    assert lines[0].endswith("for one example of one agent")
    said = found.statement()
    for part in (
        "1000 steps",
        "added or removed",
        "all other agents may collude",
        "probability 20/6512, at most 64 of them",
        "privacy loss distribution, interval 0.001",
        "step 0 included",
        "expected batch size",
        "coins of the sampling",
        "floating-point",
    ):
        assert part in said
    cyclic = report(spec(Output(1.0), Cyclic(6512, 20, first_batch=6512))).statement()
    assert "once in 325 steps; a first batch of 6512 without sampling" in cyclic
    assert "exact Gaussian mechanism" in cyclic
    assert "coins of the sampling" not in cyclic
    assert "all 99" in report(spec(Output(1.0), FullBatch(99))).statement()
    replaced = spec(Output(1.0), CYCLE, adjacency=REPLACE_ONE)
    assert "replaced by another" in report(replaced).statement()


def test_where_a_records_parts_must_cancel_it_is_said():
    """The bounds telescope: sharply, if g(x_t) is the same at t and at t + 1 only."""
    say = lambda *what, **more: "no dropout" in report(spec(*what, **more)).statement()
    sampling = FullBatch(6512)
    assert say(Output(9.0), sampling)
    assert not say(Output(9.0), CYCLE)  # never in consecutive batches
    assert not say(Output(9.0), sampling, beta=1.0)  # without a memory
    assert not say(Inside(9.0), sampling)  # nothing is repeated


def test_an_infinite_epsilon_is_a_run_without_noise_and_says_so():
    statement = report(calibrated(spec(Output(1.0), CYCLE), math.inf)).statement()
    assert statement.startswith("NO differential privacy (epsilon = inf)")
    assert "is released without noise" in statement
    assert "independent noise" not in statement


RUN: dict[str, Any] = {"rounds": 100, "noise_multiplier": 1.0, "delta": 1e-5}
RUN |= {"prologue": False, "private_states": False}


def test_full_participation_is_one_gaussian_mechanism():
    found = report(client_spec(FullBatch(100), **{**RUN, "noise_multiplier": 8.0}))
    assert found.epsilon == pytest.approx(gaussian_epsilon(0.8, 1e-5))
    with_prologue = RUN | {"prologue": True, "prologue_noise_multiplier": 5.0}
    spec = client_spec(FullBatch(9), **with_prologue)
    together = gaussian_epsilon(joint_multiplier(5.0, *[1.0] * 100), 1e-5)
    assert spec.steps == 101
    assert report(spec).epsilon == pytest.approx(together)
    assert report(calibrated(spec, 2.0)).epsilon == pytest.approx(2.0, rel=1e-4)


def test_a_prologue_is_one_more_release_of_all_clients():
    few = {**RUN, "rounds": 3, "delta": 1e-3, "prologue": True}
    spec = client_spec(Poisson(100, 5), **few, prologue_noise_multiplier=3.0)
    whole_first = Poisson(100, 5, first_batch=100)
    by_hand = Pld().epsilon(whole_first, 1.0, 4, 1e-3, first_multiplier=3.0)
    assert report(spec).epsilon == by_hand
    # of no fewer than the prologue alone, of no more than everything unsampled
    assert gaussian_epsilon(3.0, 1e-3) < by_hand
    assert by_hand < gaussian_epsilon(joint_multiplier(3.0, 1.0, 1.0, 1.0), 1e-3)


def test_the_statement_of_clients():
    text = report(client_spec(FullBatch(100), **RUN)).statement()
    for words in (
        "for one client with all its examples",
        "the noisy sums of clipped messages",
        "one client is added or removed",
        "sums are divided by the expected cohort size",
        "every model that the server broadcasts is seen; the server and the channels",
        "the server keeps single messages, and who took part, to itself",
        "training loss, is not published",
    ):
        assert words in text
    for word in ("record", "batch", "agent"):
        assert word not in text
    first, second = text.splitlines()[0], " ".join(text.splitlines()[1:3])
    assert first == (
        "This run protects each client from everybody who sees what is released."
    )
    odds = math.exp(report(client_spec(FullBatch(100), **RUN)).epsilon)
    assert f"is at most {odds:.4g} times as likely with its examples as" in second
    assert second.endswith(f"plus a probability of {RUN['delta']:g}.")
    loud = report(client_spec(FullBatch(100), **RUN | {"noise_multiplier": 0.0}))
    assert loud.statement().startswith("NO differential privacy")
    sampled = report(client_spec(Poisson(100, 5), **RUN)).statement()
    assert "every client joins a cohort independently" in sampled

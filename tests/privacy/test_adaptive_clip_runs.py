"""Simulations with an adaptive clip norm: checkpoints, accounting, and refusals."""

import dataclasses
import math
from typing import Any

import pytest
from federation import assert_same_bits, federation
from private_rounds import KEY, SIZES
from refusals import refused

from fedjax_muon.algorithms import fedavg, fedmuon
from fedjax_muon.privacy import AdaptiveClip, ClientPrivacy, Poisson, cost_of
from fedjax_muon.privacy.client_accounting import client_spec
from fedjax_muon.privacy.client_mechanism import PrivateServer, private_clients
from fedjax_muon.simulation import checkpoint

PRIVACY = ClientPrivacy(
    clip_norm=AdaptiveClip(quantile=0.6, initial=0.3, count_noise=0.9),
    cohort_size=3,
    rounds=4,
    delta=1e-2,
    noise_multiplier=1.2,
    insecure_fixed_noise=True,
)


def simulation_of(privacy=PRIVACY, **given):
    return federation(privacy=privacy, cohort_size=None, **given)


@pytest.fixture(scope="module")
def prepared():
    return simulation_of()


@pytest.fixture(scope="module")
def fixed():
    return simulation_of(dataclasses.replace(PRIVACY, clip_norm=0.3))


@pytest.mark.slow
def test_a_simulation_goes_on_from_a_checkpoint(prepared, tmp_path):
    state, _ = prepared.train_rounds(prepared.init(KEY), 2)
    mark = checkpoint.fingerprint({}, state)
    with checkpoint.open_checkpoints(tmp_path) as checkpoints:
        checkpoint.save(checkpoints, 2, state, mark)
        norm = float(state.training.server.clip)
        expected, _ = prepared.train_rounds(state, 2)  # donates what was saved
        got, _ = checkpoint.restore(checkpoints, expected, mark)
    assert isinstance(got.training.server, PrivateServer)
    assert float(got.training.server.clip) == norm
    assert_same_bits(prepared.train_rounds(got, 2)[0], expected)
    assert float(expected.training.server.clip) not in (norm, 0.3)


def test_one_more_number_each_way(prepared, fixed):
    less, more = fixed.bytes_after(2), prepared.bytes_after(2)
    # two rounds of three clients, 4 bytes of float32
    assert more.up - less.up == 2 * 3 * 4
    assert more.down - less.down == 2 * 3 * 4


def test_the_guarantee_is_that_of_a_fixed_norm_and_says_what_is_adapted(
    prepared, fixed
):
    adaptive, plain = prepared.guarantee, fixed.guarantee
    # all of the noise multiplier is in the accounting, whatever the norm
    assert cost_of(adaptive.spec) == cost_of(plain.spec)
    assert adaptive.report().delta == plain.report().delta
    for words in (
        "noisy counts of messages that were short enough",
        "adapted by a private quantile",
        "(quantile 0.6); the noise of the count, 0.9, and that of the sum, 1.61 clip",
    ):
        assert words in adaptive.statement()
        assert words not in plain.statement()


def test_epsilon_decides_the_noise_of_both():
    privacy = dataclasses.replace(
        PRIVACY,
        clip_norm=AdaptiveClip(count_noise=4.0),
        cohort_size=6,  # all of them
        noise_multiplier=None,
        epsilon=6.0,
        insecure_fixed_noise=False,
    )
    simulation = simulation_of(privacy)
    report = simulation.guarantee.report()
    assert report.epsilon == pytest.approx(6.0, rel=1e-3)
    (release,) = simulation.guarantee.spec.releases.values()
    noise = privacy.clip_norm.noise(release.noise.multiplier, 6)
    # the noise of the algorithm that runs is that of the accounting
    recipe = simulation.setup.algorithm.recipe.arguments
    assert recipe["noise_multiplier"] == release.noise.multiplier
    assert recipe["clip_norm"] == privacy.clip_norm
    whole = 1 / math.hypot(1 / noise.message, 0.5 / noise.below)
    assert whole == pytest.approx(release.noise.multiplier)


# --------------------------------------------------------------------- refusals

FACTS: dict[str, Any] = {"rounds": 3, "delta": 1e-5, "private_states": False}
WRAP = {"clip_norm": AdaptiveClip(), "noise_multiplier": 0.05, **SIZES}
wrapped = lambda *given, **changes: lambda: private_clients(*given, **WRAP | changes)
WRONG = {
    r"quantile must lie in \[0, 1\]": lambda: AdaptiveClip(quantile=1.5),
    "initial must lie in": lambda: AdaptiveClip(initial=0.0),
    r"lr must lie in \(0": lambda: AdaptiveClip(lr=0.0),
    r"count_noise must lie in \(0": lambda: AdaptiveClip(count_noise=0.0),
    # a cohort of 2 has count noise of 0.1
    r"\(cohort / 20\) must be above 0.1, .*, got 0.1; give AdaptiveClip a larger": (
        wrapped(fedavg(), noise_multiplier=0.2)
    ),
    "count_noise must be above 0.6": lambda: simulation_of(
        dataclasses.replace(PRIVACY, clip_norm=AdaptiveClip(count_noise=0.6))
    ),
    "has a prologue; give a number as clip_norm": wrapped(fedmuon()),
    "this one has a prologue": lambda: simulation_of(algorithm=fedmuon()),
    "has several exchanges in a round; give a number": wrapped(
        fedavg()._replace(exchanges=fedavg().exchanges * 2)
    ),
    "without a prologue, got prologue=True": lambda: client_spec(
        Poisson(100, 5),
        **FACTS,
        noise_multiplier=1.0,
        prologue=True,
        adaptive_clip=True,
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_not_private_or_not_defined_is_refused(message):
    refused(message, WRONG[message])


def test_a_norm_for_a_part_cannot_be_adaptive():
    made = wrapped(fedavg(), clip_norm={"params": AdaptiveClip()})
    refused("clip_norm of params must be a number", made, error=TypeError)

"""What a federated run with private clients promises."""

from typing import Any

import pytest

from fedjax_muon.privacy import (
    Cyclic,
    FixedSize,
    FullBatch,
    Pld,
    Poisson,
    calibrated,
    gaussian_epsilon,
    joint_multiplier,
    report,
)
from fedjax_muon.privacy.client_accounting import client_spec

RUN: dict[str, Any] = {
    "rounds": 100,
    "noise_multiplier": 1.0,
    "delta": 1e-5,
    "prologue": False,
    "private_states": False,
}


@pytest.mark.parametrize(
    ("sampling", "noise", "epsilon"),
    [
        # dp-accounting 0.6.0, PLD of T Poisson-sampled Gaussian mechanisms
        (Poisson(100, 5), 1.0, 3.502149),
        (Poisson(100, 10), 2.0, 2.337400),
    ],
)
def test_reference_values(sampling, noise, epsilon):
    found = report(client_spec(sampling, **{**RUN, "noise_multiplier": noise}))
    assert found.epsilon == pytest.approx(epsilon, rel=1e-3)


def test_full_participation_is_one_gaussian_mechanism():
    found = report(client_spec(FullBatch(100), **{**RUN, "noise_multiplier": 8.0}))
    assert found.epsilon == pytest.approx(gaussian_epsilon(0.8, 1e-5))
    spec = client_spec(
        FullBatch(9), **RUN | {"prologue": True}, prologue_noise_multiplier=5.0
    )
    together = gaussian_epsilon(joint_multiplier(5.0, *[1.0] * 100), 1e-5)
    assert spec.steps == 101
    assert report(spec).epsilon == pytest.approx(together)
    assert report(calibrated(spec, 2.0)).epsilon == pytest.approx(2.0, rel=1e-4)


def test_a_prologue_is_one_more_release_of_all_clients():
    few = {**RUN, "rounds": 3, "delta": 1e-3, "prologue": True}
    spec = client_spec(Poisson(100, 5), **few, prologue_noise_multiplier=3.0)
    by_hand = Pld().epsilon(
        Poisson(100, 5, first_batch=100), 1.0, 4, 1e-3, first_multiplier=3.0
    )
    assert report(spec).epsilon == by_hand
    # of no fewer than the prologue alone, of no more than everything unsampled
    assert gaussian_epsilon(3.0, 1e-3) < by_hand
    assert by_hand < gaussian_epsilon(joint_multiplier(3.0, 1.0, 1.0, 1.0), 1e-3)


def test_the_statement():
    text = report(client_spec(FullBatch(100), **RUN)).statement()
    for words in (
        "for one client with all its examples",
        "the noisy sums of clipped messages",
        "one record is added or removed",
        "every model that the server broadcasts is seen; the server and the channels",
        "the server keeps single messages, and who took part, to itself",
        "training loss, is not published",
    ):
        assert words in text
    silent = report(client_spec(Poisson(100, 5), **{**RUN, "noise_multiplier": 0.0}))
    assert silent.epsilon == float("inf")
    assert "NO differential privacy" in silent.statement()


def test_where_cohorts_are_cut_short_clients_must_forget():
    cut = Poisson(100, 5, max_batch=20)
    assert client_spec(cut, **RUN).sampling == cut
    remembering = {**RUN, "private_states": True}
    roomy = Poisson(100, 5, max_batch=100)
    assert client_spec(roomy, **remembering).sampling == roomy
    with pytest.raises(ValueError, match="clients that keep states need room for all"):
        client_spec(cut, **remembering)


@pytest.mark.parametrize(
    ("sampling", "changes", "error", "message"),
    [
        (FixedSize(100, 5), {}, ValueError, r"Poisson\(N, S\) or FullBatch\(N\), got"),
        (Cyclic(100, 5), {}, ValueError, "use poisson_cohorts, or full participation"),
        (Poisson(100, 5, first_batch=100), {}, ValueError, "use prologue=True"),
        (
            Poisson(100, 5),
            {"prologue_noise_multiplier": 1.0},
            ValueError,
            "a prologue, got 1",
        ),
        (Poisson(100, 5), {"delta": 0.01}, ValueError, "delta must lie in"),
        (Poisson(100, 5), {"rounds": 0}, ValueError, "rounds must be at least 1"),
        (
            Poisson(100, 5),
            {"noise_multiplier": -1.0},
            ValueError,
            "multiplier must lie in",
        ),
    ],
)
def test_what_cannot_be_accounted_for_is_refused(sampling, changes, error, message):
    with pytest.raises(error, match=message):
        client_spec(sampling, **{**RUN, **changes})

"""Audits of prepared simulations: every planted fault is found, and nothing else."""

import secrets

import jax
import numpy as np
import pytest

from fedjax_muon.decentralized.private import PRIVATE
from fedjax_muon.privacy.clipping import Each
from fedjax_muon.privacy.guarantees import PrivacySpec
from fedjax_muon.privacy.releases import Inside, Release
from fedjax_muon.privacy.sampling import Poisson
from tests.privacy import audits, private_worlds
from tests.privacy.canaries import chunks, run_keys as run_keys_of
from tests.privacy.planted_faults import FAULTS
from tests.privacy.private_worlds import CASES
from tests.support.cases import slow_but

SEEDS, WORLDS = 10, 200  # one chunk of worlds
QUICK = ("no clip", "one release less", "clip after the mean")  # of the faults
# faults that take all of their worlds to be found
SUBTLE = {"twice the clip", "one release less", "memory forgotten"}
SUBTLE |= {"half the sampling rate", "a count without cost", "later releases forgotten"}
SUBTLE |= {"noise of the initial norm", "the first entry of a column"}
SUBTLE |= {"cohorts of all groups", "clip of the batch's mean"}
SUBTLE |= {"counted for the mean of 4 agents"}


@pytest.fixture(autouse=True)
def run_keys(monkeypatch):
    """Run keys that are the same in every run of these tests."""
    words = np.random.default_rng(0)
    monkeypatch.setattr(secrets, "token_bytes", words.bytes)


def check_seeds(worlds):
    both = worlds.run_both(0, SEEDS * WORLDS)
    pairs = zip(*(chunks(seen, WORLDS) for seen in both), strict=True)
    found = [audits.audited(worlds.record, *pair) for pair in pairs]
    assert found == [[]] * SEEDS


# ---------------------------------------------------------------------------- no faults
@pytest.mark.parametrize("method", slow_but(("dpmixsgd",), PRIVATE))
def test_methods_on_a_problem_raise_no_alarm(method):
    check_seeds(private_worlds.on_problem(method))


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["usual", *private_worlds.CLIENTS])
def test_clients_raise_no_alarm(setting):
    check_seeds(private_worlds.clients(**private_worlds.CLIENTS.get(setting, {})))


OTHERS = ("unequal agents", "rare batches", "full batches", "prologue", "two runs")


@pytest.mark.filterwarnings("ignore:messages have params")
@pytest.mark.slow
@pytest.mark.parametrize("setting", OTHERS)
def test_other_settings_raise_no_alarm(setting):
    assert private_worlds.audit_case(setting, 1, 1000) == []


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dp_sgda", "dp_ftrl", "dpmixsgd"])
def test_the_canary_is_the_worst_case(method):
    """It leaves what the claim says, when it takes part."""
    case = CASES[method]
    worlds = private_worlds.agents(case._replace(noise=1e-3))
    absent, present = worlds.run_both(0, 20)
    joins = present.signal / worlds.record.pattern
    assert np.isclose(joins, 0, atol=0.05).any() == PRIVATE[method].amplified
    together = np.isclose(joins, 0, atol=0.05) | np.isclose(joins, 1, atol=0.05)
    assert together.all()
    assert np.abs(absent.signal).max() < 10  # noise alone


# ------------------------------------------------------------------------------- faults
@pytest.mark.filterwarnings("ignore:messages have params")
@pytest.mark.parametrize("name", slow_but(QUICK, FAULTS))
def test_every_fault_is_found(name, monkeypatch):
    fault = FAULTS[name]
    fault.plant(monkeypatch)
    count = fault.worlds if name in SUBTLE else 500
    refuted = private_worlds.audit_case(fault.setting, 0, count)
    assert refuted
    assert not fault.profile or any(test.startswith("profile") for test in refuted)


# ------------------------------------------------------------------- audits themselves
SAMPLED = PrivacySpec(
    {"x": Release(Each(1.0), Inside(1.0))}, Poisson(8, 2), 8, delta=1e-3
)


@pytest.mark.parametrize("sensitivity", [1, 2])
def test_twice_the_sensitivity_is_found_and_the_claimed_one_is_not(sensitivity):
    rng, scores = np.random.default_rng(0), []
    for present in (0, 1):
        joins = present * (rng.random((4000, 8)) < 1 / 4)
        seen = rng.normal(size=joins.shape) + sensitivity * joins
        scores.append(np.log1p(-0.25 + 0.25 * np.exp(seen - 0.5)).sum(1))
    claimed = audits.claimed_epsilons(SAMPLED)
    assert audits.refutes_profile(*scores, claimed, 1e-3) == (sensitivity == 2)


def test_worlds_have_different_run_keys():
    worlds = private_worlds.agents(CASES["secret"])
    keys = run_keys_of(worlds.simulation, 5)
    assert len(np.unique(jax.random.key_data(keys), axis=0)) == 5
    fixed = private_worlds.agents(CASES["dp_sgda"])
    assert run_keys_of(fixed.simulation, 5) is None

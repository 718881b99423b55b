"""Audits of prepared simulations: every planted fault is found, and nothing else."""

import dataclasses
import math
import secrets

import jax
import numpy as np
import private_worlds
import pytest
from cases import slow_but
from error_lines import refused
from planted_faults import FAULTS
from private_worlds import CASES
from scipy import stats

from experiments.audits import (
    agents as agent_audits,
    clients as client_audits,
    findings as profiles,
)
from experiments.audits.findings import audited, batch_law
from experiments.audits.worlds import chunks, run_keys as run_keys_of
from fedjax_muon import audits
from fedjax_muon.decentralized.private import PRIVATE
from fedjax_muon.privacy.clipping import Each
from fedjax_muon.privacy.guarantees import PrivacySpec, report
from fedjax_muon.privacy.releases import Inside, Output, Release
from fedjax_muon.privacy.sampling import Cyclic, FullBatch, Poisson

SEEDS, WORLDS = 10, 200  # one chunk of worlds
QUICK = ("no clip", "one release less", "clip after the mean")  # of the faults
# faults that take all of their worlds to be found
SUBTLE = {"twice the clip", "one release less", "memory forgotten"}
SUBTLE |= {"half the sampling rate", "a count without cost", "later releases forgotten"}
SUBTLE |= {"noise of the initial norm", "the first entry of a column"}
SUBTLE |= {"cohorts of all groups"}


@pytest.fixture(autouse=True)
def run_keys(monkeypatch):
    """Run keys that are the same in every run of these tests."""
    words = np.random.default_rng(0)
    monkeypatch.setattr(secrets, "token_bytes", words.bytes)


def alarms(findings):
    return [finding.detail for finding in findings if finding.alarm]


def check_seeds(worlds):
    both = worlds.run_both(0, SEEDS * WORLDS)
    pairs = zip(*(chunks(seen, WORLDS) for seen in both), strict=True)
    found = [alarms(audited(worlds.record, *pair)) for pair in pairs]
    assert found == [[]] * SEEDS


# ---------------------------------------------------------------------------- no faults
@pytest.mark.parametrize("method", slow_but(("dpmixsgd",), PRIVATE))
def test_methods_of_the_command_raise_no_alarm(method):
    check_seeds(private_worlds.command(method))


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["usual", *private_worlds.CLIENTS])
def test_clients_raise_no_alarm(setting):
    check_seeds(private_worlds.clients(**private_worlds.CLIENTS.get(setting, {})))


def test_audits_of_clients_that_do_not_fit_are_refused():
    clients = private_worlds.clients
    refused("one clip norm for whole messages", clients, clip_norm={"params": 1.0})
    simulation = clients().simulation
    adaptive = dataclasses.replace(
        simulation.setup.privacy, clip_norm=private_worlds.ADAPTIVE
    )
    setup = simulation.setup._replace(privacy=adaptive)
    other = dataclasses.replace(simulation, setup=setup)
    said = r"use canary_data\(\.\.\., alone=True\)"
    refused(said, client_audits.client_worlds, other)


OTHERS = ("unequal agents", "rare batches", "full batches", "prologue", "two runs")


@pytest.mark.filterwarnings("ignore:messages have params")
@pytest.mark.slow
@pytest.mark.parametrize("setting", OTHERS)
def test_other_settings_raise_no_alarm(setting):
    assert alarms(private_worlds.audit_case(setting, 1, 1000)) == []


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
    found = private_worlds.audit_case(fault.setting, 0, count)
    refuted = [finding.test for finding in found if finding.alarm]
    assert refuted
    assert not fault.profile or any(test.startswith("profile") for test in refuted)


# ----------------------------------------------------------------------------- profiles
def spec_of(sampling, noise, steps=5):
    return PrivacySpec({"x": Release(Each(1.0), noise)}, sampling, steps, delta=1e-3)


@pytest.mark.parametrize(
    "spec",
    [
        spec_of(Poisson(8, 2), Inside(1.0)),
        spec_of(Cyclic(8, 2), Output(1.0)),
        spec_of(FullBatch(8), Inside(3.0)),
    ],
)
def test_the_claimed_profile_contains_the_claim(spec):
    claimed = profiles.claimed_deltas(spec)
    epsilons, deltas = zip(*claimed.items(), strict=True)
    assert list(deltas) == sorted(deltas, reverse=True)
    epsilon = report(spec).epsilon
    at = np.interp(epsilon, epsilons, np.log(deltas))
    assert at == pytest.approx(math.log(spec.delta), abs=0.2)  # between two points


def test_profiles_compose():
    alone = spec_of(FullBatch(8), Inside(2.0), steps=1)
    twice = spec_of(FullBatch(8), Inside(2.0), steps=2)
    both = profiles.claimed_deltas(alone, alone)
    assert both == pytest.approx(profiles.claimed_deltas(twice))
    sampled = spec_of(Poisson(8, 2), Inside(1.0))
    more = profiles.claimed_deltas(alone, sampled)
    for epsilon, delta in profiles.claimed_deltas(alone).items():
        assert more[epsilon] > delta
    silent = spec_of(FullBatch(8), Inside(0.0))
    assert set(profiles.claimed_deltas(silent).values()) == {1.0}


def test_twice_the_sensitivity_is_found_where_one_point_is_not_enough():
    """The mechanism is that of a Poisson sample, with half of the claimed noise."""
    spec, rng = spec_of(Poisson(8, 2), Inside(1.0), steps=8), np.random.default_rng(0)
    scores = []
    for present in (0, 1):
        joins = present * (rng.random((4000, 8)) < 1 / 4)
        seen = rng.normal(size=joins.shape) + 2 * joins
        scores.append(np.log1p(-0.25 + 0.25 * np.exp(seen - 0.5)).sum(1))
    claimed = profiles.claimed_deltas(spec)
    assert profiles.refuted_profile("", *scores, claimed, 1e-3).alarm
    half = [score[:2000] for score in scores], [score[2000:] for score in scores]
    bound = lambda found: audits.epsilon_bound(found, spec.delta, 0.999)
    level = audits.best_threshold(*half[0], bound)
    assert bound(audits.errors(*half[1], level)) < report(spec).epsilon


def test_noise_is_tested_in_all_directions():
    rng = np.random.default_rng(0)
    white = rng.normal(size=(500, 20))
    assert not profiles.refuted_noise(white, 1e-3).alarm
    reused = white.copy()
    reused[:, 7] = -0.6 * white[:, 1] + 0.8 * white[:, 2]
    assert profiles.refuted_noise(reused, 1e-3).alarm
    said = "more worlds than the 20 dimensions"
    refused(said, profiles.refuted_noise, white[:20], 1e-3)


def test_laws_and_residuals():
    values = np.random.default_rng(0).normal(size=1000)
    assert not profiles.refuted_law("law", values, stats.norm.cdf, 1e-3).alarm
    assert profiles.refuted_law("law", values + 0.2, stats.norm.cdf, 1e-3).alarm
    assert not profiles.refuted_energy("rest", values, 1e-3).alarm
    assert profiles.refuted_energy("rest", 1.2 * values, 1e-3).alarm
    said = "scores without NaN"
    refused(said, profiles.refuted_energy, "rest", [1.0, np.nan], 1e-3)


def test_the_law_of_cut_batches():
    """The mean number of records in a batch, the canary included."""
    for room in (None, 3, 8):
        sampling = Poisson(8, 2, room)
        record = agent_audits.agent_record(spec_of(sampling, Inside(1.0)), 8, steps=5)
        others, joins = batch_law(record, steps=5)
        assert others.sum() == pytest.approx(1)
        kept = np.minimum(np.arange(9), room or 8)
        mean = kept @ stats.binom.pmf(np.arange(9), 8, 1 / 4)
        assert others @ np.arange(8) + joins == pytest.approx(mean)
        assert joins == pytest.approx(mean / 8)


def test_a_learned_score_finds_shared_noise():
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(200, 1))
    absent = np.concatenate([shared, shared], 1)
    present = absent + np.array([0.1, 0.0])
    weights = profiles.linear_score(absent, present)
    assert weights[0] == pytest.approx(-weights[1], rel=0.01)


def test_worlds_have_different_run_keys():
    worlds = private_worlds.agents(CASES["secret"])
    keys = run_keys_of(worlds.simulation, 5)
    assert len(np.unique(jax.random.key_data(keys), axis=0)) == 5
    fixed = private_worlds.agents(CASES["dp_sgda"])
    assert run_keys_of(fixed.simulation, 5) is None

"""The fastest plan is measured."""

import math

import chex
import jax
import pytest

from fedjax_muon import simulation
from fedjax_muon.algorithms import fedavg
from fedjax_muon.engine.plans import mapped, vmapped
from fedjax_muon.privacy import ClientPrivacy
from fedjax_muon.simulation import tuning
from fedjax_muon.simulation.memory import Memory
from fedjax_muon.simulation.tuning import tune
from tests.support import federation

PLANS = ("vmapped", "chunked with chunk_size 3", "mapped")
SIX = {"cohort": 6}


def timer(monkeypatch, *seconds):
    """Measurements of the three plans that take these seconds; returns their count."""
    taken = iter(seconds)
    calls = []
    measure = lambda *given: calls.append(given) or next(taken)
    monkeypatch.setattr(tuning, "_measured", measure)
    return calls


def params_after(simulation, rounds):
    state, _ = simulation.train_rounds(simulation.init(jax.random.key(3)), rounds)
    return state.params


@pytest.mark.slow
def test_real_measurements_choose_a_plan_of_the_same_numbers():
    one = federation.federation(**SIX)
    tuned = tune(one, seconds=0.001, repeats=1)
    assert tuple(tuned.seconds) == PLANS
    assert all(0 < s < 10 for s in tuned.seconds.values())
    assert tuned.plan == min(PLANS, key=tuned.seconds.get)
    found = params_after(one, 3), params_after(tuned.simulation, 3)
    chex.assert_trees_all_close(*found, rtol=1e-5)


def test_simulations_are_compared_with_one_another(monkeypatch):
    timer(monkeypatch, 2, 3, 4, 2, 2, 1)
    one, other = federation.federation(**SIX), federation.federation(**SIX)
    tuned = tune({"float32": one, "half": other})
    assert tuned.plan == "half, mapped"
    assert tuned.simulation.settings.plan is mapped
    assert tuned.simulation.settings.task is other.settings.task
    named = [f"{name}, {plan}" for name in ("float32", "half") for plan in PLANS]
    assert list(tuned.seconds) == named


@pytest.mark.slow
def test_private_rounds_are_measured_beyond_those_accounted_for():
    noise = {"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-2}
    privacy = ClientPrivacy(**noise, cohort=3, rounds=2)
    given = fedavg(lr=0.1), federation.TASK, federation.DATA, federation.PARTS
    how = {"local_steps": 1, "batch_size": 2, "privacy": privacy}
    one = simulation.federate(*given, **how)
    tuned = tune(one, seconds=0.05, repeats=1).simulation
    assert tuned.guarantee == one.guarantee
    tuned.train_rounds(tuned.init(jax.random.key(0)), 2)


@pytest.mark.parametrize(
    ("seconds", "best"),
    [((2, 1, 3), 1), ((1, 2, 3), 0), ((3, 2, 1), 2), ((math.inf, math.inf, 9), 2)],
)
def test_the_fastest_plan_is_chosen(monkeypatch, seconds, best):
    timer(monkeypatch, *seconds)
    one = federation.federation(**SIX)
    tuned = tune(one)
    assert (tuned.plan, tuple(tuned.seconds.values())) == (PLANS[best], seconds)
    plan = tuned.simulation.settings.plan
    assert plan is {0: vmapped, 2: mapped}.get(best, plan)


@pytest.mark.slow
def test_plans_that_do_not_fit_are_left_out(monkeypatch):
    needs = iter([Memory(0, 0, 2000), None, Memory(0, 0, 500)])
    monkeypatch.setattr(tuning, "memory_of", lambda _: next(needs))
    monkeypatch.setattr(tuning, "limit_of", lambda _: 1000)
    tuned = tune(federation.federation(**SIX), seconds=0.001, repeats=1)
    assert [math.isinf(s) for s in tuned.seconds.values()] == [True, True, False]
    assert tuned.plan == "mapped"
    monkeypatch.setattr(tuning, "memory_of", lambda _: None)
    with pytest.raises(ValueError, match="no plan fits in memory; use fewer clients"):
        tune(federation.federation(**SIX))

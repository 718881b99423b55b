"""Several runs together, and single ones, against other accountants."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import dp_accounting
import numpy as np
import pytest

from fedjax_muon.decentralized.private import PRIVATE, Mechanism
from fedjax_muon.privacy import accounting, guarantees, ledger
from fedjax_muon.privacy.accounting import REPLACE_ONE, Pld, gaussian_epsilon
from fedjax_muon.privacy.clipping import Each
from fedjax_muon.privacy.correlated import Banded
from fedjax_muon.privacy.guarantees import PrivacySpec, report
from fedjax_muon.privacy.ledger import Cost, composed_epsilon, cost_of
from fedjax_muon.privacy.releases import Correlated, Inside, Output, Release
from fedjax_muon.privacy.sampling import Cyclic, FullBatch, Poisson
from tests.oracles.accountant import Interval, Steps, epsilon_interval
from tests.support.cases import slow_but

DELTA = 1e-5
# a clip of one's own that bounds nothing
UNIT = "one example of one agent"
SMALL = Poisson(91, 16)  # of breast_cancer, one of five agents
CUT = Poisson(91, 16, max_batch=24)
relations = dp_accounting.NeighboringRelation


def gaussian(z, relation="ADD_OR_REMOVE_ONE", unit=UNIT):
    return Cost(z, unit, relation, DELTA)


def steps(z, sampling=SMALL, relation="ADD_OR_REMOVE_ONE", count=101, first=None):
    return Cost(z, UNIT, relation, DELTA, sampling, count, first)


def spec(noise, sampling, clip=None, **further):
    release = Release(clip or Each(1.0), noise, 0.1)
    return PrivacySpec({"x": release}, sampling, 101, DELTA, **further)


QUICK = ("Poisson", "cyclic", "two streams")  # of single runs


def directly(relation, *events):
    accountant = dp_accounting.pld.PLDAccountant(relation)
    for event in events:
        accountant.compose(event)
    return accountant.get_epsilon(DELTA)


def poisson_event(z, count):
    normal = dp_accounting.GaussianDpEvent(z)
    event = dp_accounting.PoissonSampledDpEvent(16 / 91, normal)
    return dp_accounting.SelfComposedDpEvent(event, count)


TWO = {"x": Release(Each(1.0), Inside(6.0)), "y": Release(Each(2.0), Inside(8.0))}
SINGLE = {
    "Poisson": spec(Inside(4.0), SMALL),
    "cut": spec(Inside(4.0), CUT),
    "first batch": spec(Inside(4.0, 9.0), Poisson(91, 16, first_batch=91)),
    "first noise": spec(Inside(4.0, 3.0), SMALL),
    "replaced": spec(Inside(8.0), SMALL, adjacency=REPLACE_ONE),
    "two streams": PrivacySpec(TWO, SMALL, 101, DELTA),
    "cyclic": spec(Output(0.5), Cyclic(91, 16)),
    "cyclic replaced": spec(Output(0.5), Cyclic(91, 16), adjacency=REPLACE_ONE),
    "full batch": spec(Inside(30.0), FullBatch(91)),
}


@pytest.mark.parametrize("name", slow_but(QUICK, SINGLE))
def test_one_run_costs_what_its_report_says(name):
    run = SINGLE[name]
    epsilon = report(run).epsilon
    assert math.isfinite(epsilon)
    assert composed_epsilon([cost_of(run)], DELTA) == pytest.approx(epsilon, 1e-12)


@pytest.mark.parametrize("relation", ["ADD_OR_REMOVE_ONE", "REPLACE_ONE"])
def test_gaussians_alone_are_exact(relation):
    factor = {"ADD_OR_REMOVE_ONE": 1, "REPLACE_ONE": 2}[relation]
    costs = [gaussian(z, relation) for z in (12.0, 15.0, 20.0)]
    joint = 1 / math.sqrt(12.0**-2 + 15.0**-2 + 20.0**-2)
    exact = gaussian_epsilon(joint / factor, DELTA)
    assert composed_epsilon(costs, DELTA) == pytest.approx(exact, 1e-12)
    # nine runs with three times the noise cost as much as one
    nine = composed_epsilon([gaussian(6.0, relation)] * 9, DELTA)
    assert nine == pytest.approx(gaussian_epsilon(2.0 / factor, DELTA), 1e-9)
    # and so do those of privacy loss distributions
    found = composed_epsilon([*costs, steps(1e5, relation=relation)], DELTA)
    assert exact * (1 - 1e-6) <= found <= exact * (1 + 1e-3)


def test_runs_together_against_the_library():
    truncated = dp_accounting.TruncatedSubsampledGaussianDpEvent(91, 16 / 91, 24, 5.0)
    costs = [steps(4.0), gaussian(5.0), steps(5.0, CUT), steps(4.0), gaussian(7.0)]
    costs.append(steps(6.0, Poisson(91, 16, first_batch=91), first=8.0))
    expected = directly(
        relations.REPLACE_SPECIAL,
        poisson_event(4.0, 101),
        poisson_event(4.0, 101),
        dp_accounting.GaussianDpEvent(5.0),
        dp_accounting.GaussianDpEvent(7.0),
        dp_accounting.SelfComposedDpEvent(truncated, 101),
        dp_accounting.GaussianDpEvent(8.0),
        poisson_event(6.0, 100),
    )
    assert composed_epsilon(costs, DELTA) == pytest.approx(expected, 1e-6)
    assert composed_epsilon(costs, DELTA / 100) > expected


def test_replaced_records_against_the_library():
    relation = "REPLACE_ONE"
    costs = [steps(9.0, relation=relation), gaussian(8.0, relation)]
    expected = directly(
        relations.REPLACE_ONE,
        poisson_event(9.0, 101),
        # the library doubles the sensitivity under this relation itself
        dp_accounting.GaussianDpEvent(8.0),
    )
    assert composed_epsilon(costs, DELTA) == pytest.approx(expected, 1e-6)
    assert expected > gaussian_epsilon(8.0 / 2, DELTA)


def test_a_zeroed_record_is_one_that_is_added_or_removed():
    """Which relation of the library the events are composed under does not matter."""
    events = poisson_event(4.0, 101), dp_accounting.GaussianDpEvent(5.0)
    added = directly(relations.ADD_OR_REMOVE_ONE, *events)
    assert added == directly(relations.REPLACE_SPECIAL, *events)
    found = composed_epsilon([steps(4.0), gaussian(5.0)], DELTA)
    assert found == pytest.approx(added, 1e-9)  # in another order
    # a cut that cuts nothing
    uncut = [steps(4.0, Poisson(91, 16, max_batch=91)), gaussian(5.0)]
    assert composed_epsilon(uncut, DELTA) == pytest.approx(added, 1e-9)


@pytest.mark.slow
def test_another_run_never_costs_less():
    costs = [gaussian(9.0), gaussian(9.0), gaussian(1e4), steps(1e4), steps(4.0)]
    # the noise of one is so little that losses get a coarser interval
    costs += [steps(4.0), steps(1e5, CUT), gaussian(0.12), gaussian(2.0)]
    found = [composed_epsilon(costs[: n + 1], DELTA) for n in range(len(costs))]
    assert found == sorted(found)
    assert composed_epsilon(reversed(costs), DELTA) == found[-1]
    assert composed_epsilon([], DELTA) == 0.0


@pytest.mark.parametrize("where", ["gaussian", "step", "first step"])
def test_runs_with_little_noise_fit_in_memory(where, monkeypatch):
    for name in ("STEP_POINTS", "POINTS"):  # less exact, and faster
        monkeypatch.setattr(accounting, name, 1e5)
    z = 0.01

    def checked(finest, turns):
        """A distribution of 10^8 losses would take gigabytes."""
        found = accounting.interval_of(finest, turns)
        assert found * 1e5 >= z**-2 / 2
        return found

    monkeypatch.setattr(ledger, "interval_of", checked)
    costs = {
        "gaussian": [gaussian(z), steps(20.0)],
        "step": [steps(z, count=1)],
        "first step": [steps(20.0, Poisson(91, 16, first_batch=91), first=z)],
    }
    found = composed_epsilon(costs[where], DELTA)
    exact = gaussian_epsilon(z, DELTA)
    assert found < 1.01 * exact
    if where != "step":  # which is amplified
        assert found >= exact


# noise of the four private methods for epsilon 1 and 4, of one in five agents
A9A = {"poisson": (0.69233, 0.49259), "cyclic": (0.203269, 0.0589088)}


DEFAULT = ("dp_sgda", "dpmixsgd", "dpmixsgd_inside", "private_storm")


@pytest.mark.slow
def test_the_default_comparison_on_a9a_costs_far_more_than_its_largest_epsilon():
    mechanism = Mechanism(0.2, 0.02, beta=0.1, batch_size=16)
    costs = []
    for method in (PRIVATE[name] for name in DEFAULT):
        kind = "poisson" if method.amplified else "cyclic"
        sampled = Poisson(6512, 16, max_batch=48)
        sampling = sampled if method.amplified else Cyclic(6512, 16)
        for epsilon, noise in zip((1.0, 4.0), A9A[kind], strict=True):
            release = method.release(mechanism, noise)
            accountant = Pld(1e-3) if method.amplified else None  # ten times faster
            further = {"accountant": accountant}
            run = PrivacySpec({"x, y": release}, sampling, 201, DELTA, **further)
            assert report(run).epsilon == pytest.approx(epsilon, 1e-3)
            costs.append(cost_of(run))
    together = composed_epsilon(costs * 3, DELTA)  # three seeds
    assert together == pytest.approx(10.0253, 1e-3)
    # the largest epsilon, and their sum, which holds without any accounting
    assert 2 * 4.0 < together < 3 * 4 * (1.0 + 4.0)


def test_costs_are_json():
    groups = Poisson(91, 16, cycle=3)
    grouped = cost_of(run_of(Correlated(0.9, BANDED), groups, 101))
    assert grouped.sampling == groups
    sampling = Poisson(np.int64(91), np.int32(16))
    cost = Cost(np.float64(4.0), UNIT, "REPLACE_ONE", DELTA, sampling, np.int64(5))
    for one in (*map(cost_of, SINGLE.values()), grouped, cost):
        text = json.dumps(one.to_record(), allow_nan=False)
        assert Cost.from_record(json.loads(text)) == one


def test_a_run_without_noise_costs_everything():
    silent = cost_of(spec(Inside(0.0), SMALL))
    for costs in ([silent], [silent, steps(4.0)], [gaussian(4.0), silent]):
        assert composed_epsilon(costs, DELTA) == math.inf
    assert Cost.from_record(silent.to_record()) == silent


# ------------------------------------------------- against an independent accountant

# no epsilon is below what the best attack reaches, and none is more than this above
TOLERANCE = 1e-3
RARE = Poisson(6512, 20)  # of a9a, one of five agents
Q = 16 / 91
BANDED = Banded((0.8, 0.5, 0.1))


class Run(NamedTuple):
    """Our epsilon, and what the run does, for the oracle."""

    epsilon: Callable[[], float]
    parts: tuple[Steps, ...]
    h: float = 2e-5


def run_of(noise, sampling, steps):
    return PrivacySpec({"x": Release(Each(1.0), noise)}, sampling, steps, DELTA)


def single(noise, sampling, steps):
    return lambda: report(run_of(noise, sampling, steps)).epsilon


SEVERAL = (
    run_of(Inside(4.0), SMALL, 101),
    run_of(Inside(6.0, 5.0), SMALL, 51),
    run_of(Inside(60.0), FullBatch(91), 100),
)
RUNS = {
    "one Gaussian": Run(lambda: gaussian_epsilon(1.0, DELTA), (Steps(1.0),), 1e-4),
    "full batches": Run(single(Inside(20.0), FullBatch(91), 100), (Steps(2.0),), 5e-5),
    "Poisson": Run(single(Inside(4.0), SMALL, 101), (Steps(4.0, Q, 101),)),
    "rare batches": Run(
        single(Inside(0.8), RARE, 1000), (Steps(0.8, 20 / 6512, 1000),)
    ),
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


def within(epsilon: float, bounds: Interval) -> bool:
    return bounds.low <= epsilon <= bounds.high + TOLERANCE


FEW = ("one Gaussian", "full batches", "little noise")


@pytest.mark.parametrize("name", slow_but(FEW, RUNS))
def test_epsilons_are_those_of_the_oracle(name):
    epsilon, parts, h = RUNS[name]
    bounds = epsilon_interval(parts, DELTA, h)
    assert bounds.high - bounds.low < 1e-4  # the oracle is sharper than the claim
    assert within(epsilon(), bounds)


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

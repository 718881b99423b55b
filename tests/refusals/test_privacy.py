"""What samplings, noises, costs and specifications of private runs refuse."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

from fedjax_muon import engine
from fedjax_muon.algorithms import fedavg, fedmuon
from fedjax_muon.decentralized.private import PRIVATE, Mechanism
from fedjax_muon.privacy import AdaptiveClip, Poisson
from fedjax_muon.privacy.accounting import (
    ADD_OR_REMOVE,
    REPLACE_ONE,
    Adjacency,
    Gaussian,
    Pld,
    calibrate_noise,
    joint_multiplier,
)
from fedjax_muon.privacy.client_mechanism import private_clients
from fedjax_muon.privacy.client_privacy import client_spec
from fedjax_muon.privacy.clipping import Each
from fedjax_muon.privacy.correlated import (
    Banded,
    BufferedToeplitz,
    banded,
    best_banded,
)
from fedjax_muon.privacy.guarantees import PrivacySpec, calibrated, report
from fedjax_muon.privacy.ledger import Cost, Entry, composed_epsilon, cost_of
from fedjax_muon.privacy.releases import Correlated, Inside, Output, Release
from fedjax_muon.privacy.sampling import Cyclic, FullBatch
from tests.support.error_lines import refused_with

DELTA = 1e-5
A9A, CYCLE = Poisson(6512, 20), Cyclic(6512, 20)
CUT = Poisson(91, 16, max_batch=24)
# a clip of one's own that bounds nothing
UNBOUNDED = SimpleNamespace(sensitivity=lambda beta, batch: math.inf)
ONE_BAND, TWO_BANDS = (Correlated(1.0, Banded(c)) for c in ((1.0,), (1.0, 0.5)))
LONG = Correlated(1.0, BufferedToeplitz((0.9, 0.3), (0.2, 0.3)))
BARE = Mechanism(1.0, 0.2, beta=0.1, batch_size=2)
COST = Cost(4.0, "one example of one agent", "ADD_OR_REMOVE_ONE", DELTA)
SAMPLED = replace(COST, sampling=Poisson(91, 16), steps=101)
OF_CLIENTS = replace(COST, unit="one client with all its examples")
REPLACED, RECORD = replace(COST, adjacency="REPLACE_ONE"), COST.to_record()
SEVERAL = Adjacency("k records", 3.0, "K")
RUN: dict[str, Any] = {"rounds": 100, "noise_multiplier": 1.0, "delta": DELTA}
RUN |= {"prologue": False, "private_states": False}


def spec(noise, sampling, clip=None, steps=9, delta=DELTA, **further):
    releases = {"x": Release(clip or Each(1.0), noise, 0.1)}
    return PrivacySpec(releases, sampling, steps, delta, **further)


def told(noise, sampling, accountant=None, clip=None):
    return lambda: report(spec(noise, sampling, clip, accountant=accountant))


def without_memory(noise, sampling):
    releases = {"x": Release(Each(1.0), noise)}
    return lambda: report(PrivacySpec(releases, sampling, 8, 1e-3))


def wrap(algorithm=None, **given):
    fine = {"clip_norm": 1.0, "noise_multiplier": 1.0, "clients": 5, "cohort": 2}
    return lambda: private_clients(algorithm or fedavg(), **fine | given)


def begun(limits):
    private = wrap(fedmuon(), clip_norm=limits)
    return lambda: engine.init(private(), {"w": jnp.ones((2, 2))}, 5)


def breaking():
    """An epsilon that falls to 0 while it is solved for."""
    count = itertools.count()
    return lambda z: 1 / z if next(count) < 9 else 0.0


epsilon = lambda sampling, *given: lambda: Pld().epsilon(sampling, *given)
least = lambda exact, target: lambda: calibrate_noise(exact, target)
account = lambda sampling, **given: lambda: client_spec(sampling, **RUN | given)
changed = lambda cost, **given: lambda: replace(cost, **given)
composed = lambda *costs: lambda: composed_epsilon(costs, DELTA)
REFUSED = [
    # accountants
    ("use Pld", lambda: Gaussian().check(A9A, ADD_OR_REMOVE)),
    ("of at most 24 only", epsilon(CUT, 1, 9, DELTA, REPLACE_ONE)),
    ("does not cover Cyclic", epsilon(CYCLE, 0.8, 9, DELTA)),
    ("does not cover FullBatch", epsilon(FullBatch(6512), 0.8, 9, DELTA)),
    ("multiplier must lie in", epsilon(A9A, -1.0, 9, DELTA)),
    ("delta must be at least 3e-11", epsilon(A9A, 1.0, 1000, 1e-12)),
    ("interval must lie in", lambda: Pld(0.0)),
    ("needs at least one multiplier", joint_multiplier),
    ("epsilon must lie in", least(lambda z: 1 / z, 1e-5)),
    ("was not found", least(breaking(), 0.7)),
    ("no noise level reaches", least(lambda z: 7.0, 1.0)),
    ("no noise level reaches", least(lambda z: math.inf, 1.0)),
    # samplings
    ("batch must be at most 100, the", lambda: Poisson(100, 101)),
    ("batch must be at least 1, got 0", lambda: Cyclic(100, 0)),
    ("batch must be a whole number", lambda: Poisson(100, True)),
    ("first_batch must be at most 6512", lambda: Cyclic(6512, 20, first_batch=10000)),
    ("not a Poisson sample", lambda: Poisson(6512, 20, first_batch=500)),
    ("not a Poisson sample", lambda: Poisson(6512, 20, first_batch=10000)),
    ("max_batch must be at least 20, got 19", lambda: Poisson(6512, 20, max_batch=19)),
    ("at least 2 batches, got batch 51", lambda: Cyclic(100, 51)),
    ("larger than a group of 3", lambda: Poisson(10, 4, cycle=3)),
    ("begins with the first", lambda: Poisson(10, 2, first_batch=10, cycle=2)),
    # specifications
    ("noise on the output repeats", told(Output(1.0), A9A)),
    ("noise on the output repeats", told(Output(1.0), A9A, clip=UNBOUNDED)),
    ("use Cyclic sampling, or noise Inside", told(Output(1.0), A9A, Pld())),
    ("use Pld", told(Output(1.0), A9A, Gaussian())),
    ("must not be treated as", told(Inside(1.0), CYCLE, Pld())),
    ("use Cyclic sampling", lambda: calibrated(spec(Output(1.0), A9A), 1.0)),
    ("delta must lie in (0, 0.00015", lambda: spec(Output(1.0), CYCLE, delta=1 / 6512)),
    ("steps must be at least 1", lambda: spec(Output(1.0), CYCLE, steps=0)),
    ("at least one stream", lambda: PrivacySpec({}, CYCLE, 9, DELTA)),
    ("beta must lie in", lambda: Release(Each(1.0), Output(1.0), 0.0)),
    ("sigma must lie in", lambda: Output(-1.0)),
    ("first_multiplier must lie", lambda: Inside(1.0, first_multiplier=math.inf)),
    # correlated noise
    ("coefficients must have at least one", lambda: Banded(())),
    ("c_0 must lie in (0, infinity)", lambda: Banded((0.0, 1.0))),
    ("coefficients must lie in", lambda: Banded((1.0, -0.1))),
    ("a decay and a scale", lambda: BufferedToeplitz((0.5,), ())),
    ("decay must lie in", lambda: BufferedToeplitz((1.5,), (0.1,))),
    ("bands must be at most 4, the number of steps, got 5", lambda: banded(4, 5)),
    ("at most 5, the agent", lambda: best_banded(5, 6, 24, epsilon=6.0, delta=1e-3)),
    ("without memory", lambda: Release(Each(1.0), ONE_BAND, beta=0.5)),
    ("use Poisson sampling with cycle=2", without_memory(TWO_BANDS, Poisson(40, 2))),
    ("Cyclic sampling, or a banded", without_memory(LONG, Poisson(40, 2))),
    ("the same noise", without_memory(Inside(1.0, 2.0), Poisson(40, 2, cycle=2))),
    ("strategy of its mechanism", lambda: PRIVATE["dp_ftrl"].release(BARE, 1.0)),
    # clients
    ("use fm.poisson, or full participation", account(CYCLE)),
    ("use prologue=True", account(Poisson(100, 5, first_batch=100))),
    ("clients that keep states need room", account(CUT, private_states=True)),
    ("needs an algorithm with a prologue", account(A9A, prologue_noise_multiplier=1.0)),
    ("delta must lie in", account(A9A, delta=0.01)),
    ("clip_norm of params must lie in", wrap(clip_norm={"params": -1.0})),
    ("of params must be a number", wrap(clip_norm={"params": AdaptiveClip()})),
    ("noise_multiplier must lie in", wrap(noise_multiplier=-1.0)),
    ("cohort must lie in [1, 5], got 6", wrap(cohort=6)),
    ("all messages, momentum, params; got", begun({"params": 1.0})),
    ("all messages, momentum, params; got", begun({"momentum": 1.0, "c": 1.0})),
    # costs of runs, and their ledger
    ("the same unit", composed(COST, OF_CLIENTS)),
    ("the same adjacency", composed(COST, REPLACED)),
    ("delta must lie in (0, 1)", lambda: composed_epsilon([], 0.0)),
    ("is not clipped", lambda: cost_of(spec(Inside(1.0), A9A, UNBOUNDED))),
    ("got Adjacency", lambda: cost_of(spec(Output(1.0), CYCLE, adjacency=SEVERAL))),
    ("use Cyclic", lambda: cost_of(spec(Output(1.0), A9A))),
    ("multiplier must lie in", changed(SAMPLED, multiplier=math.nan)),
    ("first_multiplier must lie in", changed(SAMPLED, first_multiplier=-1.0)),
    ("adjacency must be one of", changed(SAMPLED, adjacency="K")),
    ("drop max_batch, or", changed(REPLACED, sampling=CUT, steps=5)),
    ("use Gaussian", changed(SAMPLED, sampling=Cyclic(91, 16))),
    ("one Gaussian mechanism has no steps", changed(COST, steps=2)),
    ("unit must be a string", changed(COST, unit=3)),
    ("multiplier must be a number", changed(COST, multiplier="4")),
    ("unexpected keyword argument 'x'", lambda: Cost.from_record(RECORD | {"x": 1})),
    ("missing 4 required positional", lambda: Cost.from_record({})),
    ("run must be a string", lambda: Entry.now(3, "", COST)),
    ("time must be a string", lambda: Entry("a", "", COST, 3.0)),
    ("clients must be a digest", lambda: Entry.now("b", "", OF_CLIENTS)),
    ("clients must be a digest", lambda: Entry.now("b", "", COST, clients="these")),
]


@pytest.mark.parametrize(("said", "call"), REFUSED)
def test_what_can_not_be_accounted_for_is_refused(said, call):
    refused_with(said, call)

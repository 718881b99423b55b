"""One mechanism decides sampling, clip and noise; its guarantee is what runs."""

import functools
import math
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_muon import data, models, partition
from fedjax_muon.algorithms import fedavg, fedmuon, scaffold
from fedjax_muon.core import Hyper, recorded, tree, value_at
from fedjax_muon.decentralized import dp_sgda, dpmixsgd, dsgd, topology
from fedjax_muon.decentralized.estimators import fresh
from fedjax_muon.decentralized.gossip import Estimator, Gossip
from fedjax_muon.decentralized.private import PRIVATE, PrivateAgents
from fedjax_muon.decentralized.private_methods import ExamplePrivacy
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.privacy import Cyclic, FullBatch, Poisson
from fedjax_muon.privacy.client_mechanism import norms_of_sums, private_clients
from fedjax_muon.privacy.client_privacy import SUMS, ClientPrivacy
from fedjax_muon.privacy.correlated import Banded, BufferedToeplitz
from fedjax_muon.simulation import cohort_loss
from fedjax_muon.simulation.batching import always, shuffled_epochs
from fedjax_muon.simulation.cohorts import PoissonDraw
from fedjax_muon.simulation.federated import federate
from fedjax_muon.simulation.sweeps import Cell, run_cells
from fedjax_muon.simulation.training import run
from fedjax_muon.tasks import auc, classification
from tests.support.error_lines import refused

KEY = jax.random.key(0)
CANCER = data.load("breast_cancer")
AGENTS = partition.iid(CANCER.y_train, 5, key=KEY)
WEIGHTS = topology.metropolis(topology.ring(5))
TASK = auc(models.MLP(2, ()), CANCER.x_train.shape[1:], share=0.6)
AGENT = ExamplePrivacy(rounds=5, epsilon=2.0)
CLIENT = ClientPrivacy(
    clip_norm=0.5, cohort=4, rounds=3, delta=1e-3, noise_multiplier=1.0
)
SPLIT = {"params": 0.5, "momentum": 0.05}
BUFFERED = BufferedToeplitz((0.9, 0.3), (0.2, 0.3))
NOISE = "ignore:the noise in the sum"
CLIENTS = partition.iid(CANCER.y_train, 20, key=KEY)
CLASSES = classification(models.MLP(2, (4,)), CANCER)


def agents(privacy=AGENT, algorithm=None, parts=AGENTS, **given):
    algorithm = algorithm or dpmixsgd(lr=0.1)
    given = {"weights": WEIGHTS, "privacy": privacy, "batch_size": 16} | given
    return decentralize(algorithm, TASK, CANCER, parts, **given)


def private(make, **given):
    """The noise of DPMixSGD in another algorithm."""
    make = functools.partial(make, lr=0.1, **given)
    return PrivateAgents(make, PRIVATE["dpmixsgd"])


def clients(privacy=CLIENT, algorithm=None, **given):
    sizes = {"local_steps": 2, "batch_size": 8, "privacy": privacy} | given
    return federate(algorithm or fedavg(lr=0.1), CLASSES, CANCER, CLIENTS, **sizes)


@functools.cache
def usual(make):
    """A simulation without changes, made and compiled once."""
    return make()


class Ball(NamedTuple):
    params: Any
    velocity: Any
    memory: Any


@recorded
def heavy_ball(
    lr: Hyper = 0.1,
    *,
    decay: Hyper = 0.5,
    peeks: int = 0,
    estimates: int = 1,
    estimator: Estimator = fresh(),
) -> Gossip:
    """A method of a user's own, and two ways in which it may not be private."""

    def advance(x, v, estimate, mix, iteration):
        g, memory = estimate
        v = tree.add(tree.scale(v, decay), g)
        return Ball(mix(tree.sub_scaled(x, value_at(lr, iteration), v)), v, memory)

    def start(objective, x, mix, batch, iteration):
        for _ in range(peeks):
            objective.grad(x, batch, iteration.key)
        for _ in range(estimates):
            estimate = estimator.start(objective, x, batch, iteration)
        return advance(x, tree.zeros_like(x), estimate, mix, iteration)

    def step(objective, state, mix, batch, iteration):
        x, v, memory = state
        estimate = estimator.update(objective, memory, x, batch, iteration)
        return advance(x, v, estimate, mix, iteration)

    return Gossip(start, step)


# ------------------------------------------------------------------- what is derived
def test_a_method_of_ones_own_is_private_as_well():
    mine = agents(algorithm=private(heavy_ball, decay=0.0))
    assert mine.guarantee.spec == usual(agents).guarantee.spec
    fixed = replace(AGENT, insecure_fixed_noise=True)
    runs = [agents(fixed, private(method)) for method in (dsgd, heavy_ball)]
    moved = [run.train_rounds(run.init(KEY), 2)[0].params for run in runs]
    flat = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(a)]) for a in moved]
    assert not np.allclose(flat[0], flat[1])
    plain = agents(fixed, private(heavy_ball, decay=0.0))
    last = plain.train_rounds(plain.init(KEY), 2)[0].params
    for a, b in zip(jax.tree.leaves(last), jax.tree.leaves(moved[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)  # without a memory it is D-SGD


def test_the_noise_of_agents_is_that_of_epsilon():
    simulation = usual(agents)
    report = simulation.guarantee.report()
    assert report.epsilon == pytest.approx(2.0, rel=1e-3)
    assert report.epsilon <= 2.0
    assert report.steps == 6  # t = 0 included
    assert simulation.guarantee.spec.sampling == Cyclic(91, 16)
    (release,) = simulation.guarantee.spec.releases.values()
    noise = float(simulation.run.numbers["noise_scale"])
    assert noise == pytest.approx(release.noise.sigma, rel=1e-6)


@pytest.mark.parametrize(("make", "privacy"), [(agents, AGENT), (clients, CLIENT)])
def test_an_infinite_epsilon_clips_and_adds_no_noise(make, privacy):
    none = {"noise_multiplier": None} if privacy is CLIENT else {}
    simulation = make(replace(privacy, epsilon=math.inf, **none))
    (release,) = simulation.guarantee.spec.releases.values()
    assert release.noise.smallest == 0
    assert simulation.guarantee.statement().startswith("NO differential privacy")
    refused("epsilon must lie in", replace, privacy, epsilon=1e8, **none)


@pytest.mark.slow
def test_all_agents_are_accounted_for_and_the_worst_one_is_stated():
    sizes, parts = (20, 60), np.split(np.arange(80), [20])
    amplified = ExamplePrivacy(rounds=1, delta=1e-4, noise_scale=1.0, max_batch=12)
    given = {"weights": topology.metropolis(topology.complete(2)), "batch_size": 10}
    guarantee = agents(amplified, dp_sgda(lr=0.1), parts, **given).guarantee
    specs = [amplified.bound(dp_sgda(), 10, 20)._spec(size) for size in sizes]
    alone = [replace(guarantee, spec=spec).report().epsilon for spec in specs]
    assert guarantee.report().epsilon == max(alone)
    assert guarantee.spec.sampling == Poisson(sizes[int(np.argmax(alone))], 10, 12)


@pytest.mark.filterwarnings("ignore:messages have params", NOISE)
def test_facts_of_clients_are_read_from_the_algorithm():
    for algorithm, room in ((fedavg(lr=0.1), 14), (scaffold(lr=0.1), None)):
        spec = clients(algorithm=algorithm).guarantee.spec
        assert (spec.steps, spec.sampling) == (3, Poisson(20, 4, room))
    full, cut = replace(CLIENT, cohort=20), replace(CLIENT, max_cohort=8)
    assert clients(full).guarantee.spec.sampling == FullBatch(20)
    assert clients(cut).guarantee.spec.sampling == Poisson(20, 4, 8)
    refused("need room for all clients", clients, cut, scaffold(lr=0.1))


@pytest.mark.slow
def test_a_cohort_is_cut_where_it_costs_nothing():
    asked = replace(CLIENT, noise_multiplier=None, epsilon=2.0)
    cut, whole = (
        clients(each).guarantee for each in (asked, replace(asked, max_cohort=20))
    )
    sampling = cut.spec.sampling
    beyond = stats.binom.sf(sampling.max_batch, 20, 4 / 20)
    assert 0 < beyond <= 1e-3 * CLIENT.delta / CLIENT.rounds
    assert 1.999 < cut.report().epsilon <= 2
    multipliers = [g.spec.releases[SUMS].noise.multiplier for g in (cut, whole)]
    assert multipliers[0] == pytest.approx(multipliers[1], rel=1e-4)
    assert f"noise multiplier {multipliers[0]:.4g}" in cut.statement()


@pytest.mark.filterwarnings(NOISE)
def test_fields_of_messages_that_share_a_clip_are_named():
    with pytest.warns(UserWarning, match="messages have params, momentum, which share"):
        clients(algorithm=fedmuon(lr=0.1))
    clients(replace(CLIENT, clip_norm=SPLIT), fedmuon(lr=0.1))  # without a warning


@pytest.mark.parametrize("strategy", [None, Banded((1.0, 0.5))])
def test_noise_far_above_all_messages_warns_before_training(strategy):
    """At twice the norm of all clipped messages, in sums over all rounds."""
    rounds, size = 16, 30 * 4 + 4 + 4 * 2 + 2
    c = np.eye(rounds) + (0 if strategy is None else 0.5 * np.eye(rounds, k=-1))
    spread = np.linalg.inv(c).sum(0)
    largest = 2 * rounds * 4 / (np.sqrt(size) * np.linalg.norm(spread))
    private = replace(CLIENT, rounds=rounds, strategy=strategy)
    for factor, warned in ((0.99, False), (1.01, True)):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            clients(replace(private, noise_multiplier=factor * largest))
        said = " ".join(str(each.message) for each in seen)
        assert ("clipped messages of 4 clients have at most 2, so 16" in said) == warned
        assert ("fewer than 134 parameters" in said) == warned


def test_noise_is_compared_field_by_field():
    norms = {"params": 0.5, "control": 0.1}
    params = CLASSES.init(KEY)
    found = norms_of_sums(scaffold(lr=0.1), params, norms, 3.0, 4)
    np.testing.assert_allclose(
        found, [3 * np.sqrt(2 * 134 * (0.5**2 + 0.1**2)), 4 * np.hypot(0.5, 0.1)]
    )


@pytest.mark.filterwarnings("ignore:messages have params", NOISE)
def test_a_prologue_is_one_more_release():
    with_prologue = fedmuon(lr=0.1)
    assert with_prologue.prologue
    guarantee = clients(algorithm=with_prologue).guarantee
    assert guarantee.spec.steps == 4
    assert guarantee.spec.sampling == Poisson(20, 4, 14, first_batch=20)
    without = usual(clients).guarantee
    assert guarantee.report().epsilon > without.report().epsilon


def test_cohorts_are_poisson_samples():
    cohort = usual(clients).settings.cohort
    assert (cohort.draw, cohort.size) == (PoissonDraw(14), 4)


# ------------------------------------------------------------------- keys of the noise
def estimates(simulation):
    """What agents send at t = 0, where those of all runs have the same gradients."""
    sent = simulation.init(KEY).training.agents.estimate
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(sent)])


@pytest.mark.slow
def test_the_clean_gradient_does_not_come_back_from_two_epsilons():
    # x_i = g_i + s_i n, with the same n: g = (s_2 x_1 - s_1 x_2) / (s_2 - s_1)
    def attack(fixed: bool) -> float:
        run = replace(AGENT, insecure_fixed_noise=fixed)
        runs = [replace(run, epsilon=e) for e in (1.0, 4.0)]
        simulations = [agents(run) for run in runs]
        scales = [float(s.run.numbers["noise_scale"]) for s in simulations]
        first, second = map(estimates, simulations)
        guess = (scales[1] * first - scales[0] * second) / (scales[1] - scales[0])
        silent = replace(runs[0], epsilon=None, noise_scale=1e-9)
        return float(np.abs(guess - estimates(agents(silent))).max())

    assert attack(fixed=True) < 1e-5  # it works on noise from the seed
    assert attack(fixed=False) > 0.1


def test_fixed_noise_is_reproducible_and_without_privacy():
    fixed = agents(replace(AGENT, insecure_fixed_noise=True))
    np.testing.assert_array_equal(estimates(fixed), estimates(fixed))
    assert math.isinf(fixed.guarantee.report().epsilon)
    assert "NO differential privacy" in fixed.guarantee.statement()
    assert "drawn from the seed" in fixed.guarantee.statement()


@pytest.mark.parametrize("make", [agents, clients])
def test_noise_of_two_runs_of_one_seed_differs(make):
    simulation = usual(make)
    ends = [simulation.train_rounds(simulation.init(KEY), 2)[0] for _ in range(2)]
    a, b = (jax.tree.leaves(state.params)[0] for state in ends)
    assert not jnp.array_equal(a, b)
    a, b = (jax.random.key_data(state.key) for state in ends)
    assert not jnp.array_equal(a, b)


# ------------------------------------------------------------------------ what leaves
@pytest.mark.parametrize("make", [agents, clients])
def test_training_metrics_are_not_published(make):
    simulation = usual(make)
    _, history = run(simulation, simulation.init(KEY), rounds=2)
    assert not any(name.startswith(("train", "client")) for name in history[-1])
    assert "test_loss" in history[-1]
    state, why = simulation.init(KEY), "has no cohorts|does not publish training losses"
    with pytest.raises(ValueError, match=why):
        cohort_loss(simulation, state)
    privacy = simulation.settings.privacy
    loud = make(replace(privacy, publish_training_metrics=True))
    _, history = run(loud, loud.init(KEY), rounds=2)
    assert "train_loss" in history[-1]
    assert "the guarantee does not hold for them" in loud.guarantee.statement()


@pytest.mark.parametrize("make", [agents, clients])
def test_no_more_rounds_than_the_guarantee_covers(make):
    simulation = usual(make)
    rounds = simulation.guarantee.rounds
    state, _ = simulation.train_rounds(simulation.init(KEY), rounds)
    refused(f"the noise is for {rounds} rounds", simulation.train_rounds, state, 1)


# --------------------------------------------------------------------------- refusals


WRONG = {
    "privacy decides first_size": lambda: agents(first_size=16),
    "privacy decides sampler": lambda: agents(sampler=always(shuffled_epochs)),
    "privacy decides cohort": lambda: clients(cohort=4),
    "needs batch_size, such as": lambda: agents(batch_size=None),
    "give cohort, such as cohort=8": lambda: clients(None),
    "use Cyclic sampling, or a banded strategy": lambda: clients(
        replace(CLIENT, strategy=BUFFERED)
    ),
    "larger than a group of 3": lambda: clients(
        replace(CLIENT, strategy=Banded((1.0,) * 6))
    ),
    "at most the 6 clients that a round is drawn from, got 7": lambda: clients(
        replace(CLIENT, strategy=Banded((1.0,) * 3), max_cohort=7)
    ),
    "without a prologue": lambda: clients(
        replace(CLIENT, strategy=Banded((1.0, 0.5)), clip_norm=SPLIT), fedmuon(lr=0.1)
    ),
    "decentralized.PrivateAgents makes, got dsgd": lambda: agents(
        algorithm=dsgd(lr=0.1)
    ),
    "is a private method; give it privacy, an ExamplePrivacy": lambda: agents(
        None, dp_sgda(lr=0.1)
    ),
    "computes a gradient itself": lambda: agents(
        algorithm=private(heavy_ball, peeks=1)
    ),
    "once per iteration, but heavy_ball did 2 times": lambda: agents(
        algorithm=private(heavy_ball, estimates=2)
    ),
    "once per iteration, but it did 0 times": lambda: agents(
        algorithm=PrivateAgents(
            lambda estimator: dsgd(lr=0.1)._replace(
                start=lambda objective, x, *_: Ball(x, (), ()), recipe=None
            ),
            PRIVATE["dp_sgda"],
        )
    ),
    "use weighting=uniform": lambda: clients(weighting=lambda sizes: 1.0 * sizes),
    "is private already": lambda: clients(
        algorithm=private_clients(
            fedavg(lr=0.1), clip_norm=1.0, noise_multiplier=1.0, clients=20, cohort=4
        )
    ),
    "give either epsilon or noise_scale": lambda: replace(AGENT, noise_scale=1.0),
    "give either epsilon or noise_multiplier": (
        lambda: replace(CLIENT, noise_multiplier=None)
    ),
    "guarantee of a private simulation depends": lambda: usual(agents).at(
        {"noise_scale": 0.0}
    ),
    "depends on its run; make another one": lambda: usual(clients).at(parts=CLIENTS),
    "a sweep releases all of its cells": lambda: list(
        run_cells(usual(clients), [Cell({}, KEY, CLIENTS)], rounds=1)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_would_make_the_statement_untrue_is_refused(message):
    refused(message, WRONG[message], error=(TypeError, ValueError))

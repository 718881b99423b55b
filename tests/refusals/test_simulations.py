"""Mistakes in the arguments of simulations, as a user makes them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_muon as fm
from fedjax_muon import aggregators as bad, clocks, simulation
from fedjax_muon.ahead_of_time import compile_for
from fedjax_muon.algorithms import fedmuon_correct
from fedjax_muon.privacy.client_mechanism import private_clients
from fedjax_muon.simulation.arguments import check_parts
from fedjax_muon.simulation.batching import clients_of
from tests.support import federation
from tests.support.error_lines import refused_with
from tests.support.federation import DATA, PARTS, TASK, Linear


def start(prepared):
    return prepared.init(jax.random.key(8))


KEY = jax.random.key(0)
SIZES = {"cohort": 2, "local_steps": 1, "batch_size": 4}
OWNER = np.arange(len(DATA.x_train)) % 3
WEIGHTS = np.full((6, 6), 1 / 6)


def federate(algorithm=None, task=TASK, data=DATA, parts=PARTS, **changes):
    algorithm = fm.fedavg(lr=0.1) if algorithm is None else algorithm
    return fm.federate(algorithm, task, data, parts, **(SIZES | changes))


def decentralize(algorithm, **changes):
    how = {"weights": WEIGHTS, "batch_size": 3} | changes
    return fm.decentralize(algorithm, TASK, DATA, PARTS, **how)


def epochs(count):
    return {"local_steps": None, "local_epochs": count}


def ruled(rule, **changes):
    return {"algorithm": fm.robust(fm.fedavg(), rule), "cohort": 4, **changes}


def arriving(make, *given):
    return {"cohort": make(*given)}


def timed(clock):
    """With a clock."""
    return {"cohort": fm.timed(2, clock)}


def away(client):
    return clocks.absent(clocks.constant(), {client: [(0.0, 2.0)]})


def changed(**parts):
    return {"data": DATA._replace(**parts)}


WITH_NAN = changed(x_train=np.array(DATA.x_train))
WITH_NAN["data"].x_train[7, 0] = np.nan
DEEPER = fm.tasks.classification(fm.models.MLP(3, (4,)), DATA)


def missing(name):
    """The message of an attribute that `fm` does not have."""
    with pytest.raises(AttributeError) as error:
        getattr(fm, name)
    raise ValueError(str(error.value))


def accuracies(prepared, **given):
    return simulation.client_accuracies(prepared, start(prepared), **given)


OWN = [[0], [1], [2], [], [], []]
(EXCHANGE,) = fm.fedavg().exchanges
ONE_VALUE = fm.fedavg()._replace(
    exchanges=(EXCHANGE._replace(client=lambda *given: {"params": given[1]}),)
)
ONE = {"noise_multiplier": 1.0, "clients": 6, "cohort": 2}
RECORD = {"round": 0, "client": 0, "start": 0, "seconds": 0.0}
SIMULATION, DSGD = federate(), fm.decentralized.dsgd(lr=0.1)
FOUR = federate(fm.scaffold(), parts=PARTS[:4])
AGENTS, FOURTH, COHORT = decentralize(DSGD), np.full((4, 4), 0.25), {"cohort": 3}
PRIVATE = private_clients(fm.fedavg(), clip_norm=1.0, **ONE)
CLIENTS = fm.privacy.ClientPrivacy(
    clip_norm=1.0, noise_multiplier=1.0, delta=1e-3, cohort=2, rounds=2
)
# what the message says: the arguments of `federate`, or another call
MISTAKES = {
    "call it first: fedavg": {"algorithm": fm.fedavg},
    "simulate it with decentralize": {"algorithm": DSGD},
    "the algorithm comes first, then the task": {"algorithm": "fedavg"},
    "task must be a Task, got Linear; make one of the model": {"task": Linear(3)},
    "task must be a Task, got Algorithm; see": {"task": fm.fedavg()},
    "dataset must be a data.Dataset, got tuple": {"data": (DATA.x_train, DATA.y_train)},
    "if it names the owner of every example, use": {"parts": OWNER},
    "plan must be a function, got 'vmapped'": {"plan": "vmapped"},
    "sampler must be a function, got 'full_batch'": {"sampler": "full_batch"},
    "weighting must be a function, got 'examples'": {"weighting": "examples"},
    "cohort must be at least 1, got 0": {"cohort": 0},
    "between 1 and the number of clients, 6, got 7": {"cohort": 7},
    "local_steps must be at least 1, got 0": {"local_steps": 0},
    "batch_size must be at least 1, got 0": {"batch_size": 0},
    "dropout must lie in [0, 1), got 1": lambda: fm.sampled(3, dropout=1.0),
    "made by fm.sampled, fm.poisson, fm.timed, fm.buffered or fm.fedasync, got True": {
        "cohort": True
    },
    "or fm.fedasync, got <function buffered": {"cohort": fm.buffered},
    "cohort must be at least 1, got -1": lambda: fm.timed(-1, clocks.constant()),
    "give cohort, such as cohort=8, or privacy": {"cohort": None},
    "control variates or bounds each client's part": {
        "algorithm": fedmuon_correct(lr=0.2, rule=optax.identity()),
        "weighting": simulation.by_examples,
    },
    "at least one client": {"parts": []},
    "client 1 has no examples": {"parts": [PARTS[0], PARTS[1][:0]]},
    "batch_size must be a whole number, got '4'": {"batch_size": "4"},
    "y_test must be 20 integers": changed(y_test=DATA.y_test[:5]),
    "x_train has NaN or infinity in 1 of 80 examples, first in example 7": WITH_NAN,
    "simulate it with federate": lambda: decentralize(fm.fedavg()),
    "mixer must be a function, got 'dense'": lambda: decentralize(DSGD, mixer="dense"),
    "a model must be made first, as Linear": (
        lambda: fm.tasks.classification(Linear, DATA)
    ),
    "keyword argument 'learning_rate'; it takes lr, rule": (
        lambda: fm.fedavg(learning_rate=0.1)
    ),
    "key must be a typed key": lambda: SIMULATION.init(0),
    "rounds must be a whole number, got '30'": (
        lambda: fm.run(SIMULATION, start(SIMULATION), rounds="30")
    ),
    "fm.train(method, problem) trains a method": (
        lambda: fm.run(fm.fedavg(), None, rounds=3)
    ),
    "train a simulation with fm.run": lambda: fm.train(SIMULATION, None, rounds=3),
    "count must be at least 0, got -1": (
        lambda: SIMULATION.train_rounds(start(SIMULATION), -1)
    ),
    "rounds must be at least 0, got -1": lambda: SIMULATION.meter.bytes_after(-1),
    "has 6 clients, got 5 parts": lambda: SIMULATION.at(parts=PARTS[:5]),
    "must be an optax transformation, such as transforms.muon(), got 'muon'": {
        "algorithm": fm.fedavg(rule="muon")
    },
    "call it first: muon(...)": {"algorithm": fm.fedavg(rule=fm.transforms.muon)},
    "for Muon use transforms.muon()": {
        "algorithm": fm.fedavg(rule=optax.contrib.scale_by_muon())
    },
    "needs more than gradients and parameters, but a local step has nothing else (": {
        "algorithm": fm.fedavg(rule=optax.contrib.sophia(1e-3))
    },
    "missing 1 required keyword-only argument: 'value'); give a rule without extra": {
        "algorithm": fm.fedavg(
            rule=optax.chain(optax.scale_by_adam(), optax.scale_by_polyak())
        )
    },
    "rule is SAM, which needs a second gradient": {
        "algorithm": fm.fedavg(rule=optax.contrib.sam(optax.sgd(-1.0), optax.sgd(-1.0)))
    },
    "rule can't be applied to parameters: 'dict' object has no attribute 'fast'": {
        "algorithm": fm.fedavg(rule=optax.lookahead(optax.sgd(-1.0), 5, 0.5))
    },
    "client must return a tuple (message, client state), got dict": (
        lambda: federate(ONE_VALUE).train_round(start(federate(ONE_VALUE)))
    ),
    "has no 'velocity'; it has": {
        "algorithm": fm.fedavg(rule=optax.trace(0.9), averaged_state=("velocity",))
    },
    "names must be a tuple, such as ('trace',)": {
        "algorithm": fm.fedavg(rule=optax.trace(0.9), averaged_state="trace")
    },
    "write (main,) with a comma": {
        "algorithm": fm.fedavg()._replace(exchanges=fm.fedavg().exchanges[0])
    },
    "lr must be a number or a schedule, got True": lambda: fm.fedavg(lr=True),
    "clip_norm must be a number, got True": (
        lambda: private_clients(fm.fedavg(), clip_norm=True, **ONE)
    ),
    "such as median(), got median; call it first: median(...)": (
        lambda: fm.robust(fm.fedavg(), fm.aggregators.median)
    ),
    "aggregator must be a function such as median(), got [<": (
        lambda: fm.aggregators.chain([fm.aggregators.median()])
    ),
    "such as alie(), got mimic; call it first: mimic(...)": (
        lambda: fm.attack(fm.fedavg(), fm.attacks.mimic, [1])
    ),
    "clients must be ids of clients, from 0 on, got 3": (
        lambda: fm.attack(fm.fedavg(), fm.attacks.mimic(), 3)
    ),
    "there is no client 6 among 6 parts": (
        lambda: fm.attacks.flip_labels(DATA, PARTS, [6])
    ),
    "every client, got 'flipped'": (
        lambda: fm.attacks.flip_labels(DATA, "flipped", [1])
    ),
    "test_parts must be a list with an array of ids for every client, got 'tested'": {
        "test_parts": "tested"
    },
    "a dataset is loaded by name, such as 'digits', got None": (
        lambda: fm.data.load(None)
    ),
    "compressor must be a Compressor, such as quantize(8), got None": (
        lambda: fm.compress(fm.fedavg(), None)
    ),
    "got quantize; call it first: quantize(...)": (
        lambda: fm.compress_broadcasts(fm.fedavg(), fm.quantize)
    ),
    "rest must be a Compressor": (
        lambda: fm.compression.truncated_svd(1, rest="quantize")
    ),
    "rank must be a whole number, got True": (
        lambda: fm.compression.power_iteration(True)
    ),
    "record must have rows (round, client, start, seconds), got {'round': 0": (
        lambda: fm.replayed(fm.buffered(2, 1), [RECORD])
    ),
    "arrivals must come from buffered or fedasync, got 'arrivals.csv'": (
        lambda: fm.replayed("arrivals.csv", fm.buffered(2, 1))
    ),
    "from an earlier round of a simulation, got dict": (
        lambda: SIMULATION.train_round({"params": 0})
    ),
    "client_states['Dense_0']['bias'] is float32[4, 3] and must be float32[6, 3]": (
        lambda: federate(fm.scaffold()).train_round(start(FOUR))
    ),
    "state.training.server.control['Dense_0']['bias'] is missing and must be": (
        lambda: FOUR.train_round(start(SIMULATION))
    ),
    "but params['Dense_0']['bias'] is missing and must be float32[3]": (
        lambda: SIMULATION.init(jax.random.key(0), params={"w": jnp.zeros((4, 3))})
    ),
    "another number of clients: state.training.server.params": (
        lambda: SIMULATION.train_round(start(federate(task=DEEPER)))
    ),
    "did you mean 'fedmuon'": lambda: missing("fedmoun"),
    "'dsgd' is in fedjax_muon.decentralized": lambda: missing("dsgd"),
    "'fedmuon_da' is in fedjax_muon.minimax": lambda: missing("fedmuon_da"),
    "'dpmixsgd' is in fedjax_muon.decentralized": lambda: missing("dpmixsgd"),
    "names example 80": lambda: SIMULATION.at(parts=[*PARTS[:5], np.array([80])]),
    # work
    "either local_steps or local_epochs": {"local_epochs": 1},
    "one for each of the 6 clients, got 2": {"local_steps": [1, 2]},
    "local_steps must be at least 1": {"local_steps": [1, 2, 0, 1, 1, 1]},
    "local_epochs must be at least 1, got 0": epochs(0),
    "(low, high), got (3, 2)": epochs((3, 2)),
    "local_epochs must be a whole": epochs(0.5),
    "different numbers of local steps": epochs(1)
    | {"privacy": CLIENTS, "cohort": None},
    # cohorts and rounds
    "full participation only; use a cohort of all 6": {"algorithm": fm.stem()},
    "evaluate_every must be at least 1, got 0": (
        lambda: fm.run(SIMULATION, start(SIMULATION), rounds=1, evaluate_every=0)
    ),
    "rounds must be at least 1, got 0": lambda: fm.run(SIMULATION, None, rounds=0),
    "room must be at least 2, got 1": {"cohort": fm.poisson(2, 1)},
    "at most 6, the number of clients, got 7": {"cohort": fm.poisson(2, 7)},
    "prologue must be at most 6, the number": {"cohort": fm.sampled(2, prologue=7)},
    "so all clients take part in it, got prologue=2; leave it out": {
        "algorithm": fm.ef21_muon(),
        "cohort": fm.buffered(2, 1, prologue=2),
    },
    "begin in the prologue, so all clients": {
        "algorithm": fm.fedmuon(synced=False),
        "cohort": fm.poisson(2, prologue=5),
    },
    "(clients, cohort) (6, 2), got (6, 3)": {"algorithm": PRIVATE} | COHORT,
    "several devices": {"split_examples": True},
    # robust rules
    "trimmed_mean with 2 bad messages needs at least 5": ruled(bad.trimmed_mean(2)),
    "krum with 2 bad messages needs at least 6": ruled(bad.krum(2)),
    "krum averages 5 messages, but a round has 4": ruled(bad.krum(0, chosen=5)),
    "needs at least 3 messages in a round, got 2": ruled(
        bad.chain(bad.bucketing(2), bad.trimmed_mean(1))
    ),
    "use weighting=uniform": ruled(bad.median(), weighting=simulation.by_examples),
    "leave out one of them": lambda: private_clients(
        fm.robust(fm.fedavg(), bad.median()), clip_norm=1.0, **ONE
    ),
    "and secure_sums add messages up": lambda: fm.robust(PRIVATE, bad.median()),
    # arrivals and clocks
    "a buffer of 3 never fills with concurrency=2": lambda: fm.buffered(2, 3),
    "concurrency=7 of 6 clients": arriving(fm.buffered, 7, 3),
    "max_staleness must": lambda: fm.buffered(3, 2, max_staleness=-1),
    "weight must": lambda: fm.fedasync(3, weight=1.5),
    "needs the messages of all": arriving(fm.buffered, 3, 2) | {"algorithm": fm.stem()},
    "not changes of parameters alone": (
        arriving(fm.fedasync, 3) | {"algorithm": fm.scaffold()}
    ),
    "no client meets the deadline of 1 seconds; the fastest needs": {
        "cohort": fm.timed(2, clocks.constant(2.0), deadline=1.0)
    },
    "deadline must lie in (0, infinity), got 0": lambda: fm.timed(
        2, clocks.constant(), deadline=0
    ),
    "clock must be a function, such as fm.clocks.constant(), got 3": (
        lambda: fm.buffered(3, 2, 3)
    ),
    "the clock has no key; give it one": timed(partial(clocks.lognormal, 1.0)),
    "the clock has 2 clients, but the simulation has 6": timed(
        clocks.measured([1.0, 2.0])
    ),
    "leave and return need asynchronous rounds": timed(away(1)),
    "client 6 is away, but there are 6 clients": timed(away(6)),
    "(1, 3)": epochs((1, 3)) | timed(clocks.constant()),
    # clients' own test examples
    "one part for each of the 6 clients, got 3": {"test_parts": [[0], [1], [2]]},
    "a client test examples, got none": {"test_parts": [[]] * 6},
    "0 to 19, got int64 from 20 to 20": {"test_parts": [[20]] + [[]] * 5},
    "local steps need a key": lambda: accuracies(federate(test_parts=OWN), steps=1),
    "steps must be at least 0": lambda: accuracies(federate(test_parts=OWN), steps=-1),
    "give federate test_parts": lambda: accuracies(SIMULATION),
    "leaves one side without the class": lambda: fm.data.hold_out(DATA, 0.001),
    "the validation share must be in (0, 1), got 1": lambda: fm.data.hold_out(DATA, 1),
    "holds ids of examples, got float64": (
        lambda: clients_of(DATA.x_train, DATA.y_train, [np.array([0.0, 1.0])])
    ),
    "give a chip (v4, v5e, v5p, v6e)": lambda: compile_for(SIMULATION, "v5e:axb"),
    # agents
    "weights are for 4 agents, but there": lambda: decentralize(DSGD, weights=FOURTH),
    "divide the 6 agents equally, got 4 devices": (
        lambda: decentralize(DSGD, devices=jax.devices()[:4])
    ),
    "W has 6 components that do not exchange": (
        lambda: decentralize(DSGD, weights=np.eye(6))
    ),
    "batch_size must be at most 3": lambda: decentralize(DSGD, batch_size=4),
    "first_size must be at least 1, got 0": lambda: decentralize(DSGD, first_size=0),
    "no hyperparameter 'beta'; it has lr": lambda: AGENTS.at(hyper={"beta": 0.1}),
    "agents of a decentralized simulation have": lambda: fm.tune(AGENTS),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_refused_by_name(message):
    given = MISTAKES[message]
    call = given if callable(given) else partial(federate, **given)
    refused_with(message, call)


def test_what_is_printed_fits_two_lines():
    assert str(fm.fedmuon()) == "fedmuon(lr=0.01, momentum=0.9, synced=True)"
    assert str(DSGD).startswith("dsgd(lr=0.1, rule=identity")
    first, second = str(SIMULATION).splitlines()
    assert first.startswith("Simulation of fedavg(lr=0.1")
    assert second.split()[:2] == ["6", "clients"]
    assert max(len(first), len(second)) < 100


@pytest.mark.slow
def test_examples_in_float64_are_those_in_float32():
    wide = DATA._replace(x_train=DATA.x_train.astype(float), x_test=np.float64(DATA[2]))
    ends = []
    for data in (DATA, wide):
        simulation = federate(fm.fedavg(rule=optax.identity()), data=data)
        state, _ = simulation.train_round(simulation.init(jax.random.key(1)))
        ends.append(state.params)
    jax.tree.map(np.testing.assert_array_equal, *ends)


POSTPONED = """
from __future__ import annotations
import fedjax_muon as fm
from fedjax_muon.core import Hyper, recorded
@recorded
def mine(lr: Hyper = 0.1, *, other: fm.Hyper = 0.5, steps: int = 3):
    return fm.fedavg(lr=lr)
"""


def test_hyper_parameters_of_postponed_annotations_are_found():
    names: dict = {}
    exec(POSTPONED, names)
    assert fm.core.numbers_of(names["mine"](lr=0.3)) == {"lr": 0.3, "other": 0.5}


WHO = [[0, 2, 4], [1, 3, 5]]
PARTITIONS = {
    "lists": WHO,
    "tuples": tuple(map(tuple, WHO)),
    "sets": list(map(set, WHO)),
    "ranges": [range(0, 6, 2), range(1, 6, 2)],
    "rows": np.array(WHO),
    "arrays": [jnp.array(ids) for ids in WHO],
    "objects": np.array([*map(np.array, WHO), None], object)[:2],
    "numbers": {1: WHO[1], 0: WHO[0]},
    "names": {"zoe": WHO[0], "adam": set(WHO[1])},
    "a generator": (ids for ids in WHO),
}


@pytest.mark.parametrize("form", PARTITIONS)
def test_a_partition_may_have_any_form(form):
    found = check_parts(PARTITIONS[form])
    assert [ids.tolist() for ids in found] == WHO
    assert all(ids.dtype.kind == "i" for ids in found)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ("train", "parts must be a list"),
        (np.arange(4), "got one array; if it names the owner"),
        ([0, 1], "whole numbers, for every client, got 0 for client 0"),
        ([[0], [0.5]], r"got \[0.5\] for client 1"),
        ([[True, False]], r"for client 0; of a mask, give np.flatnonzero\(mask\)"),
        ([[0], [[1], [2, 3]]], r"got \[\[1\], \[2, 3\]\] for client 1"),
        ([[0], []], "client 1 has no examples"),
        ([[0], {-1}], "names example -1, but there are only 0 to"),
        ([], "at least one client"),
    ],
)
def test_what_is_no_partition_is_refused(parts, said):
    with pytest.raises((TypeError, ValueError), match=said):
        federation.federation(parts=parts, cohort=1)

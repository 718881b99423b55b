"""Training on examples that stay on disk, with the bits of training in memory."""

import functools
import math
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon import data, simulation
from fedjax_muon.data.dataset import OnDisk
from fedjax_muon.simulation import batching, host_states, reading
from fedjax_muon.simulation.memory import memory_of
from tests.support import federation
from tests.support.error_lines import refused, refused_with
from tests.support.federation import PARTS, assert_same_bits, cut, trained

RNG = np.random.default_rng(3)
BYTES = RNG.integers(0, 256, (95, 6, 6, 1), np.uint8)
LABELS = BYTES[:, 0, 0, 0] // 86
SGD = fm.fedavg(lr=0.1)
CASES = {
    "fedavg": (SGD, {}),
    "scaffold": (fm.scaffold(lr=0.1), {}),  # states of clients
    "fedmuon": (fm.fedmuon(lr=0.03), {}),  # a prologue of all clients
    "a part is asked first": (
        fm.fedmuon(lr=0.03),
        {"cohort": fm.sampled(3, prologue=4)},
    ),
    "padding": (SGD, {"sampler": batching.full_batch}),
    "unequal work": (SGD, {"local_steps": None, "local_epochs": (1, 2)}),
    "poisson": (SGD, {"cohort": fm.poisson(2, dropout=0.3)}),
    "deadline": (
        SGD,
        {"cohort": fm.timed(3, fm.clocks.constant(), deadline=50.0)},
    ),
    "by examples": (
        SGD,
        {"plan": fm.engine.plans.vmapped, "weighting": simulation.by_examples},
    ),
}


def arrays_of(x=BYTES):
    owner = np.zeros(75, int)
    for client, part in enumerate(PARTS):
        owner[part] = client  # whose examples may lie anywhere
    train = {"x": x[:75], "y": LABELS[:75], "owner": owner}
    return train | {"x_test": x[75:], "y_test": LABELS[75:]}


def write(folder: Path, **arrays) -> Path:
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A dataset in memory, and the same on disk."""
    place, arrays = tmp_path_factory.mktemp("examples"), arrays_of()
    folder, archive = write(place / "scans", **arrays), place / "scans.npz"
    np.savez(archive, **arrays)
    return data.from_npz(archive)._replace(name="scans"), data.mapped(folder)


def model(dataset):
    return fm.models.MLP(3, (8,))


def pair(both, algorithm=SGD, task=None, **changes):
    """A simulation in memory, and the same on disk."""
    task = task or fm.tasks.classification(model(both[0]), both[0])
    make = functools.partial(federation.federation, algorithm, task=task, **changes)
    return [make(data=each) for each in both]


SLOW = {"unequal work", "poisson", "deadline", "by examples", "padding"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in CASES]
)
def test_the_bits_are_those_of_memory(both, name):
    algorithm, changes = CASES[name]
    results = []
    for prepared in pair(both, algorithm, **changes):
        state = prepared.init(jax.random.key(3))
        state, metrics = prepared.train_rounds(state, 3)
        state, _ = prepared.train_round(state)
        loss = simulation.cohort_loss(prepared, state)
        results.append((state, metrics, loss, prepared.evaluate(state)))
    assert_same_bits(*results)


@pytest.mark.parametrize("large", [2**30, 1])
def test_states_of_clients_stay_on_the_host(both, large, monkeypatch):
    monkeypatch.setattr(host_states, "LARGE", large)
    memory, disk = pair(both, fm.scaffold(lr=0.1))
    one, other = (each.init(jax.random.key(3)) for each in (memory, disk))
    rows = jax.tree.leaves(other.training.client_states)
    kind = np.ndarray if large > 1 else np.memmap  # of a temporary file
    assert all(type(row) is kind and not row.any() for row in rows)
    ids = np.asarray(disk.compiled.drawn(disk.run, other.key, 0)[0])
    other, _ = disk.train_round(other)
    for row in jax.tree.leaves(other.training.client_states):
        assert set(np.flatnonzero(row.reshape(len(PARTS), -1).any(1))) == set(ids)
    # a state whose arrays can't be written, such as one from a checkpoint
    other, _ = disk.train_rounds(jax.tree.map(jax.numpy.asarray, other), 2)
    one, _ = memory.train_rounds(one, 3)
    assert_same_bits(one, other)


def test_initial_states_that_are_not_zero(both):
    mine = fm.keep_own(fm.fedavg(lr=0.1), ["head"])
    results = []
    for prepared in pair(both, mine):
        state = trained(prepared, 0, 3)
        results.append((state, fm.simulation.cohort_loss(prepared, state)))
    assert_same_bits(*results)


@pytest.mark.parametrize("plan", [fm.engine.plans.vmapped, fm.engine.plans.chunked(2)])
def test_plans_take_the_states_of_a_cohort(both, plan):
    results = [trained(each, 0, 3) for each in pair(both, fm.scaffold(0.1), plan=plan)]
    assert_same_bits(*results)


def test_other_clients_and_no_rounds(both):
    parts = cut([5, 5, 30, 5, 15, 15], seed=3)
    results = []
    for prepared in pair(both):
        other = prepared.at({"lr": 0.3}, parts=parts)
        state = trained(other, 3, 3)
        scores = other.evaluate(state)
        results.append((other.train_rounds(state, 0)[0], scores))
    assert_same_bits(*results)


def test_tasks_know_the_numbers_of_examples(both):
    task = fm.tasks.classification(model(both[0]), both[0])
    kept = task.grad

    def grad(params, batch, key):
        return kept(params, batch._replace(weight=1.0 * batch.ids), key)

    one, other = pair(both, task=task._replace(grad=grad))
    assert_same_bits(trained(one, 0, 2), trained(other, 0, 2))
    plain = trained(pair(both)[0], 0, 2)
    kernels = [x.params["head"]["kernel"] for x in (trained(other, 0, 2), plain)]
    assert np.abs(np.subtract(*kernels)).max() > 1e-3


@pytest.fixture
def read(monkeypatch):
    """The ids that are read, and by which thread."""
    found, get = [], OnDisk.__getitem__

    def recorded(self, at):
        if np.size(at):
            found.append((threading.current_thread(), np.asarray(at)))
        return get(self, at)

    monkeypatch.setattr(OnDisk, "__getitem__", recorded)
    return found


def test_a_round_reads_its_batches_alone_and_a_thread_those_of_the_next(both, read):
    prepared = pair(both)[1]
    key = jax.random.key(5)
    state = prepared.init(key)
    assert not read  # without a prologue
    state, _ = prepared.train_rounds(state, 3)
    state, _ = prepared.train_rounds(state, 2)
    prepared._thread.shutdown()
    expected = []
    for index in range(6):  # one more than the rounds
        ids = federation.cohort(prepared, state.key, index)
        rows = federation.rows(prepared, state.key, index, ids)
        expected.append(np.unique(rows[rows >= 0]).tolist())
    assert [sorted(set(ids.tolist())) for _, ids in read] == expected
    assert all(len(ids) == len(set(ids.tolist())) for _, ids in read)
    threads = {thread for thread, _ in read[1:]}
    assert len(threads) == 1
    assert threads != {read[0][0]} == {threading.main_thread()}


def test_evaluations_read_the_examples_that_they_score_once(both, read):
    prepared = pair(both)[1]
    few = prepared.data.task._replace(scored=prepared.data.task.scored.__class__(10))
    few = fm.federate(SGD, few, both[1], PARTS, cohort=3, local_steps=2, batch_size=4)
    state = few.init(jax.random.key(0))
    few.evaluate(state), few.evaluate(state)
    places = np.linspace(0, 74, 10, dtype=int)
    assert [ids.tolist() for _, ids in read] == [np.concatenate(PARTS)[places].tolist()]


def test_the_memory_has_the_examples_of_two_rounds(both):
    in_memory, on_disk = map(memory_of, pair(both))
    assert on_disk.state == in_memory.state
    # 24 examples of 36 numbers in each of two rounds, and 1 for its shape; the 75 of
    # evaluations are in both
    more = (2 * 24 + 1) * 36 * 4
    assert on_disk.examples - in_memory.examples == more - 74 * 4


def records_of(directory):
    text = (directory / "metrics.csv").read_text().splitlines()
    at = text[0].split(",").index("seconds")
    return [line.split(",")[:at] for line in text]


def test_runs_resume_with_the_bits_of_memory(both, tmp_path):
    how = {"cohort": 3, "local_steps": 2, "batch_size": 4, "evaluate_every": 1}
    how["progress"] = False
    problems = [fm.problems.classification(each, model=model) for each in both]
    one, other = tmp_path / "memory", tmp_path / "disk"
    first = fm.train(SGD, problems[0], rounds=4, directory=one, **how)
    fm.train(SGD, problems[1], rounds=2, directory=other, **how)
    second = fm.train(SGD, problems[1], rounds=4, directory=other, **how)
    assert records_of(one) == records_of(other)
    assert_same_bits(first.state.params, second.state.params)
    changed = write(tmp_path / "scans", **arrays_of(BYTES ^ 1))
    problem = fm.problems.classification(data.mapped(changed), model=model)
    with pytest.raises(ValueError, match="another run: its data differ"):
        fm.train(SGD, problem, rounds=4, directory=other, **how)


@pytest.mark.slow
def test_comparisons_and_plans_are_those_of_memory(both):
    how = {"cohort": 3, "local_steps": 2, "batch_size": 4, "progress": False}
    methods = {"a": SGD, "b": fm.scaffold(lr=0.1)}
    tables = []
    for each in both:
        problem = fm.problems.classification(each, model=model)
        result = fm.compare(methods, problem, rounds=3, seeds=[0, 1], **how)
        rows = [{**row, "seconds": 0} for row in result.rows]
        tables.append(rows)
    assert tables[0] == tables[1]
    tuned = fm.tune(pair(both)[1], seconds=0.01)
    expected = trained(pair(both)[0], 0, 2)
    federation.assert_close(trained(tuned.simulation, 0, 2).params, expected.params)


def test_what_does_not_fit_is_refused(both, monkeypatch):
    on_disk = both[1]
    task = fm.tasks.classification(model(on_disk), on_disk)
    make = functools.partial(federation.federation, data=on_disk, task=task)
    private = {
        "privacy": fm.privacy.ClientPrivacy(epsilon=math.inf, cohort=3, rounds=2)
    }
    clock = fm.clocks.constant()
    for words, changes in {
        "do not work with privacy": private | {"cohort": None},
        "do not work with devices": {"devices": jax.devices()[:2]},
        "do not work with asynchronous rounds": {"cohort": fm.buffered(4, 2, clock)},
    }.items():
        refused_with(words, functools.partial(make, **changes))
    problem = fm.problems.classification(on_disk, model=model, divide=fm.partition.iid)
    agents = functools.partial(
        fm.train, fm.decentralized.dsgd(lr=0.1), problem, batch_size=2
    )
    refused_with("as agents do", agents)
    search = functools.partial(
        fm.compare, [fm.fedavg], problem, rounds=2, progress=False
    )
    refused_with("give every method its rates", search)
    tested = make().at(test_parts=[np.arange(3)] * 6)
    state = tested.init(jax.random.key(0))
    assert simulation.client_accuracies(tested, state).shape == (6,)
    key = jax.random.key(0)
    refused(
        "leave out steps",
        simulation.client_accuracies,
        *(tested, state),
        steps=1,
        key=key,
    )
    monkeypatch.setattr(reading, "MOST", 3500)  # 24 examples of 36 numbers, 3456 bytes
    make()
    refused_with("batches of 3 clients are up to", lambda: make(batch_size=5))
    muon = functools.partial(make, fm.fedmuon(lr=0.1), cohort=1, batch_size=5)
    refused_with("batches of 6 clients are up to", muon)


def test_an_example_that_is_not_finite_ends_the_round_that_reads_it(tmp_path):
    x = BYTES.astype(np.float32)
    given = {"mean": np.array([127.0]), "std": np.array([70.0])}
    folder = write(tmp_path / "scans", **arrays_of(x), **given)
    stored = np.load(folder / "x.npy", mmap_mode="r+")
    stored[PARTS[0]] = np.nan  # of client 0, who takes part later
    stored.flush()
    prepared = pair((data.mapped(folder),) * 2)[1]
    state = prepared.init(jax.random.key(1))
    when = [
        0 in federation.cohort(prepared, state.key, index) for index in range(9)
    ].index(True)
    assert when > 0
    state, _ = prepared.train_rounds(state, when)
    refused(r"example \d+ of .*x.npy has NaN", prepared.train_round, state)

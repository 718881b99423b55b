"""Problems as values: their clients, tests and graphs, and what is refused."""

import functools
import hashlib
from functools import partial
from pathlib import Path

import jax
import networkx as nx
import numpy as np
import pytest

from fedjax_muon import data, partition, problems, tasks
from fedjax_muon.core.recipe import in_words
from fedjax_muon.decentralized.topology import GRAPHS
from fedjax_muon.models import MLP


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("table") / "wards.csv"
    wards, risks = ["north", "south", "east"], ["low", "high"]
    rows = [f"{rng.normal()},{wards[i % 3]},{risks[i % 2]}" for i in range(60)]
    path.write_text("\n".join(["age,ward,risk", *rows]))
    return path


OWNED = data.from_arrays(
    np.random.default_rng(0).normal(size=(60, 2)),
    np.arange(60) % 2,
    owners=np.arange(60) // 2 % 4,
)
CASES = {  # arguments, and a digest of the clients, their tests and the graph
    "defaults": ({}, "bc4a97fbebe0"),
    "alpha": ({"alpha": 1.0, "clients": 5}, "57335dc8da23"),
    "iid": ({"divide": partition.iid}, "2019ae516c62"),
    "shards": (
        {"divide": partial(partition.shards, shards_per_client=3)},
        "e64994600e3a",
    ),
    "client tests": ({"client_tests": True}, "3a9cd3bc39bc"),
    "a share": ({"train_share": 0.5}, "aaf4066ec21b"),
    "a ring": ({"graph": "ring"}, "b05560f02c5a"),
    "a dense graph": (
        {"graph": partial(GRAPHS["erdos_renyi"], connectivity=0.9)},
        "81c191f63425",
    ),
    "owners": (
        {"dataset": "wards.csv", "client_tests": True},
        "189cccb39ff3",
    ),
    "shared examples": (
        {"divide": partial(partition.dirichlet_per_client, alpha=0.1)},
        "aacce802dba3",
    ),
    "positives": ({"positives": 0.2}, "7f40d61492f7"),
    "ratios": ({"divide": problems.ratios, "positives": None}, "efc2622166b3"),
    "auc": ({"client_tests": True}, "d5b88a4697e2"),
}


@pytest.mark.parametrize("case", CASES)
def test_seeds_have_the_clients_that_they_had(case, table, monkeypatch):
    monkeypatch.chdir(table.parent)
    arguments, known = CASES[case]
    if arguments.get("dataset") == "wards.csv":
        wards = data.from_csv("wards.csv", label="risk", owner="ward")
        arguments = {**arguments, "dataset": wards}
    make = problems.auc if case in ("positives", "ratios", "auc") else None
    problem = (make or problems.classification)(**arguments)
    digest = hashlib.sha256()
    for seed in (0, 2**32 - 1):
        parts = problem.parts(seed)
        for ids in (*parts, *(problem.tests(seed, parts) or ())):
            digest.update(np.asarray(ids, np.int64).tobytes() + b"|")
        if case != "owners":
            digest.update((problem.mixing(seed, len(parts)) > 0).tobytes())
    assert digest.hexdigest()[:12] == known
    assert problem.sizes["cohort"] == min(8, len(problem.parts(0)))


def test_titles_say_how_clients_differ():
    assert problems.classification().name == "digits, 16 clients by dirichlet (0.1)"
    name = "breast_cancer, 8 clients by iid, 10% positives"
    assert problems.auc().name == name
    owned = problems.classification(OWNED)
    assert owned.name == "your data, clients by owner"
    assert owned.call["dataset"] == OWNED.name
    assert problems.classification(data.load("digits")).call["dataset"] == "digits"


def test_owners_are_the_clients_unless_the_examples_are_divided_in_another_way():
    whole = problems.classification(OWNED)
    assert [set(OWNED.owners[part]) for part in whole.parts(0)] == [{0}, {1}, {2}, {3}]
    divided = problems.classification(OWNED, divide=partition.iid, clients=3)
    assert len(divided.parts(0)) == 3
    assert len(problems.auc(OWNED).parts(0)) == 4
    assert len(whole.varied(divide=partition.iid).parts(0)) == 16


def test_a_share_of_the_training_examples_is_of_all_classes_and_always_the_same():
    opened = lambda share: problems.classification(train_share=share).dataset
    whole, part, again = map(opened, (1.0, 0.25, 0.25))
    np.testing.assert_array_equal(part.x_train, again.x_train)
    counts, few = np.bincount(whole.y_train), np.bincount(part.y_train)
    assert np.abs(few - counts / 4).max() <= 1
    rows = {row.tobytes() for row in whole.x_train}
    assert all(row.tobytes() in rows for row in part.x_train)
    assert len({row.tobytes() for row in part.x_train}) == len(part.x_train)
    np.testing.assert_array_equal(part.x_test, whole.x_test)


def test_handed_on_data_keep_their_name():
    named = OWNED._replace(name="wards")
    rest, _ = data.hold_out(named, 0.2)
    less = problems.classification(named, train_share=0.5).dataset
    for made in (rest, data.standardize(data.check(named)), less):
        assert made.name == "wards"


def test_held_out_examples_are_no_clients():
    problem = problems.classification(divide=partition.iid)
    tuned = problem.with_validation(0.2)
    rest, held = data.hold_out(problem.dataset, 0.2)
    np.testing.assert_array_equal(tuned.validation[0], held[0])
    assert sum(map(len, tuned.parts(0))) == len(rest.y_train)
    assert tuned.with_validation() is tuned


def test_the_public_task_has_the_share_of_all_positives():
    problem = problems.auc(model=partial(problems.mlp, hidden=()))
    shared = problem.public_task(problem.dataset)
    x, y = problem.dataset.x_train[:4], problem.dataset.y_train[:4]
    batch = tasks.Batch(x, y, np.ones(4))
    params, key = problem.task.init(jax.random.key(0)), jax.random.key(0)
    shared.grad(params, batch, key)  # without shares of the clients
    with pytest.raises((TypeError, ValueError)):
        problem.task.grad(params, batch, key)


def test_a_problem_of_a_users_own_is_one_function():
    @problems.named
    def hospital(ward: int = 3) -> problems.Problem:
        x = np.random.default_rng(ward).normal(size=(40, 2))
        dataset = data.from_arrays(x, np.arange(40) % 2)
        return problems.classification(
            dataset, clients=4, divide=partition.iid, model=lambda data: MLP(2, (ward,))
        )

    problem = hospital(ward=5)
    assert in_words(problem.call["ward"]) == "5"
    assert in_words(problem.call["problem"]).endswith("hospital")
    assert problem.name == "your data, 4 clients by iid"
    assert len(problem.parts(0)) == 4
    params = problem.task.init(jax.random.key(0))
    assert params["Dense_0"]["bias"].shape == (5,)
    logits = problem.model.apply({"params": params}, problem.dataset.x_test)
    assert logits.shape == (len(problem.dataset.y_test), 2)
    graph = problems.classification(graph=lambda agents, key: nx.path_graph(agents))
    assert np.count_nonzero(graph.mixing(0, 4)) == 10


def flat(dataset):
    return lambda x: x


WRONG = {  # arguments of `classification`: what the error says
    "alpha must lie in (0, infinity), got -1": {"alpha": -1},
    "alpha is for the division by": {"alpha": 0.5, "divide": partition.iid},
    "so clients=3 and alpha=0.5 would have no": {
        "dataset": OWNED,
        "clients": 3,
        "alpha": 0.5,
    },
    "so clients=2 would have no effect; leave it out, or give divide=": {
        "dataset": OWNED,
        "clients": 2,
        "divide": partition.by_owner,
    },
    "unknown dataset 'digit'; did you mean 'digits'": {"dataset": "digit"},
    "dataset must be a Dataset, or a name": {"dataset": 3},
    'give fedjax_muon.data.from_csv("a/b.csv", label=': {"dataset": "a/b.csv"},
    'give fedjax_muon.data.from_npz("b.npz")': {"dataset": Path("b.npz")},
    'give fedjax_muon.data.from_folder("scans/")': {"dataset": "scans/"},
    "model must be a function, such as": {"model": "lenet"},
    "rnn takes token ids": {"model": problems.rnn},
    "LeNet takes images": {"model": problems.lenet},
    "flat must return a flax.linen module": {"model": flat},
    "hidden widths must be at least 1": {"model": partial(problems.mlp, hidden=(0,))},
    "unknown graph 'rings'; did you mean ring?": {"graph": "rings"},
    "graph must be a function": {"graph": 3},
    "does not say which clients its examples": {"divide": partition.by_owner},
    "shards is called as shards(labels": {"divide": partition.shards},
    "clients must be at least 1, got 0": {"clients": 0},
    "train_share must lie in (0, 1], got 2": {"train_share": 2},
    "the augmentation _crop_and_flip does not fit": {
        "augment": tasks.augmentation.crop_and_flip(),
        "dataset": data.from_arrays(
            np.random.default_rng(0).normal(size=(40, 2)), [0, 1] * 20
        ),
    },
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_problems_are_refused_when_they_are_made(said):
    with pytest.raises((ValueError, TypeError, FileNotFoundError)) as refused:
        problems.classification(**WRONG[said])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


DIVISIONS = {  # functions that divide examples: what the error says
    "must return a list of 16 arrays of ids, one for each client, got 1": (
        lambda labels, clients, key: [np.arange(4)]
    ),
    "got NoneType": lambda labels, clients, key: None,
    "names example 9999, but there are only 0 to 1436": (
        lambda labels, clients, key: [np.array([9999])] * clients
    ),
    "shares must have one number for each of the 16 clients, got 8": problems.ratios,
}


@pytest.mark.parametrize("said", DIVISIONS)
def test_wrong_divisions_are_refused(said):
    problem = problems.classification(divide=DIVISIONS[said])
    with pytest.raises(ValueError, match="^[^\n]*" + said.replace("[", r"\[")):
        problem.parts(0)


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5, True])
def test_wrong_seeds_are_refused(seed):
    with pytest.raises((ValueError, TypeError), match=r"^a seed must"):
        problems.classification().parts(seed)


def test_texts_and_numbers_need_other_models():
    x = np.random.default_rng(0).integers(1, 9, (40, 5))
    texts = data.from_arrays(x, np.arange(40) % 2, text=True)
    divide = {"divide": partition.iid, "clients": 2}
    problem = problems.classification(texts, **divide)
    assert problem.task.init(jax.random.key(0))["Embed_0"]["embedding"].shape == (9, 32)
    gru = functools.partial(problems.gru, hidden=3, embedding=2)
    problem = problems.classification(texts, model=gru, **divide)
    with pytest.raises(ValueError, match="takes numbers, but the dataset has token"):
        problems.classification(texts, model=problems.mlp, **divide)
    with pytest.raises(ValueError, match="unknown cell 'grus'; did you mean gru"):
        problems.rnn(texts, cell="grus")

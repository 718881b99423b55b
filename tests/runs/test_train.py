"""Training of a method on a problem, in a directory or without one."""

import contextlib
import dataclasses
import json
import shutil
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon import clocks, data, partition, problems
from fedjax_muon.decentralized import dsgd
from fedjax_muon.decentralized.private_methods import ExamplePrivacy
from fedjax_muon.models import MLP
from fedjax_muon.privacy import ClientPrivacy
from fedjax_muon.runs import hints, metrics_csv, record, trackers
from fedjax_muon.runs.train import train
from tests.support.cases import slow_but
from tests.support.command import assert_same_but_for_seconds

SIZES = {"cohort": 3, "local_steps": 2, "batch_size": 8}
TINY = {"clients": 6, "model": partial(problems.mlp, hidden=(4,))}
PRIVACY = ClientPrivacy(
    clip_norm=0.5,
    cohort=3,
    rounds=4,
    delta=0.01,
    epsilon=8.0,
    insecure_fixed_noise=True,
)
LATE = fm.buffered(4, 2, partial(clocks.lognormal, 1.0))
EVERY = {"rounds": 4, "evaluate_every": 2, "seed": 3, "progress": False}

# the method, its problem and its settings; and the last loss and score, as first
# computed on a Xeon by the command line that came before
CASES = {
    "fedavg": (fm.fedavg(lr=0.1), {}, SIZES, (2.19282, 0.1472222)),
    "fedmuon": (fm.fedmuon(), {"alpha": 1.0}, SIZES, (2.30937, 0.1333333)),
    "scaffold": (
        fm.scaffold(lr=0.1),
        {"client_tests": True},
        {"cohort": 3, "batch_size": 8, "local_epochs": (1, 2)},
        (1.787833, 0.3777778),
    ),
    "dsgd": (
        dsgd(lr=0.1),
        {"divide": partition.iid},
        {"batch_size": 8},
        (2.207721, 0.1638889),
    ),
    "local_sgda": (
        fm.minimax.ALL["local_sgda"].function(),
        {},
        SIZES,
        (0.6655813, 0.7123016),
    ),
    "fedavg buffered": (
        fm.fedavg(lr=0.1),
        {},
        {"cohort": LATE, "local_steps": 2, "batch_size": 8},
        (2.227644, 0.1527778),
    ),
    "fedavg private": (
        fm.fedavg(lr=0.1),
        {},
        {"local_steps": 2, "batch_size": 8, "privacy": PRIVACY},
        (2.364561, 0.1416667),  # of the clients of seed 0
    ),
    "dpmixsgd private": (
        fm.decentralized.dpmixsgd(lr=0.1),
        {"divide": partition.iid, "clients": 3},
        {
            "batch_size": 8,
            "privacy": ExamplePrivacy(epsilon=8.0, rounds=4, insecure_fixed_noise=True),
        },
        (0.7589379, 0.5393518),
    ),
}


AUC = ("local_sgda", "dpmixsgd private")  # agents know the share of all positives


def problem_of(case):
    make = problems.auc if case in AUC else problems.classification
    return make(**{**TINY, **CASES[case][1]})


@pytest.mark.filterwarnings("ignore:messages have params")
@pytest.mark.parametrize("case", CASES)
def test_runs_have_the_numbers_that_they_had(case, tmp_path):
    method, _, how, known = CASES[case]
    given = {"ledger": tmp_path / "ledger.json"} if "private" in case else {}
    given |= {**EVERY, **how, "directory": tmp_path / "new"}
    result = train(method, problem_of(case), **given)
    last = result.records[-1]
    score = last["test_auc" if case in AUC else "test_accuracy"]
    assert (last["test_loss"], score) == pytest.approx(known, rel=2e-6)
    assert (tmp_path / "new/clients.csv").exists() == (case == "scaffold")
    assert result.state.round == 4
    assert [row["round"] for row in result.records] == [0, 2, 4]


# --------------------------------------------------------------------- one directory


class KilledError(Exception):
    """As a process that ends here."""


@pytest.fixture
def dies(monkeypatch):
    """Makes training end before it writes the row of a round, once for each given."""

    def before(*rounds, every=0.0):
        left, real = [*rounds], metrics_csv.append

        def append(path, row):
            if left and row["round"] == left[0]:
                left.pop(0)
                raise KilledError
            real(path, row)

        monkeypatch.setattr(record, "SECONDS_BETWEEN_CHECKPOINTS", every)
        monkeypatch.setattr(metrics_csv, "append", append)

    return before


def fedavg(place, lr=0.1, problem=None, **how):
    problem = problem or problem_of("fedavg")
    options = {**EVERY, **SIZES, **how, "directory": place}
    return train(fm.fedavg(lr=lr), problem, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of six rounds without an interrupt."""
    place = tmp_path_factory.mktemp("whole") / "run"
    fedavg(place, rounds=6)
    return place


def test_what_is_killed_twice_and_resumed_has_the_same_numbers(whole, tmp_path, dies):
    place = tmp_path / "run"
    dies(2, 6)
    for _ in range(2):
        with pytest.raises(KilledError):
            fedavg(place, rounds=6)
    result = fedavg(place, rounds=6)
    assert_same_but_for_seconds(place / "metrics.csv", whole / "metrics.csv")
    assert result.records == metrics_csv.parsed((place / "metrics.csv").read_text())
    names = "identity.json about.json versions.json metrics.csv checkpoints"
    assert {path.name for path in place.iterdir()} == set(names.split())


def test_more_rounds_extend_a_run(whole, tmp_path):
    place = tmp_path / "run"
    fedavg(place, rounds=3)
    assert [row["round"] for row in fedavg(place, rounds=6).records] == [0, 2, 4, 6]
    assert_same_but_for_seconds(place / "metrics.csv", whole / "metrics.csv")
    with pytest.raises(ValueError, match="is from round 6, but the run has 2 rounds"):
        fedavg(place, rounds=2)


def test_without_a_directory_nothing_is_written(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = fedavg(None, rounds=6)
    known = metrics_csv.parsed((whole / "metrics.csv").read_text())
    untimed = lambda rows: [{**row, "seconds": 0} for row in rows]
    assert untimed(result.records) == untimed(known)
    assert result.state.round == 6
    assert not [*tmp_path.iterdir()]


WIDTH = 4  # that a function of a user's own reads


def small(dataset):
    return problems.mlp(dataset, hidden=(4,))


def wide(dataset):
    return problems.mlp(dataset, hidden=(5,))


def of_width(dataset):
    return problems.mlp(dataset, hidden=(WIDTH,))


DIFFERENT = {  # what is named: the arguments of a run
    "its method.lr is 0.1, not 0.2": {"lr": 0.2},
    "its problem.alpha is 0.1, not 0.5": {
        "problem": problems.classification(**TINY, alpha=0.5)
    },
    "its seed is 3, not 4": {"seed": 4},
    "its local_steps is 2, not 3": {"local_steps": 3},
    "its evaluate_every is 2, not 1": {"evaluate_every": 1},
    "its drop_nonfinite is False, not True": {"drop_nonfinite": True},
}


@pytest.mark.parametrize("said", DIFFERENT)
def test_a_directory_with_another_run_is_refused_by_what_differs(said, whole):
    before = (whole / "identity.json").read_bytes()
    with pytest.raises(ValueError, match=f"has another run: {said}; choose another"):
        fedavg(whole, **{"rounds": 6, **DIFFERENT[said]})
    assert (whole / "identity.json").read_bytes() == before


def test_other_code_of_a_users_function_is_another_run(tmp_path, monkeypatch):
    of = lambda model: problems.classification(**{**TINY, "model": model})
    train_one = lambda name, model: fedavg(tmp_path / name, problem=of(model), rounds=1)
    for model in (small, of_width):
        train_one(model.__name__, model)
    monkeypatch.setattr(wide, "__qualname__", "small")
    monkeypatch.setitem(globals(), "WIDTH", 5)
    with pytest.raises(ValueError, match=r"its task is .*\(4\).*, not .*\(5\)"):
        train_one("small", wide)
    with pytest.raises(ValueError, match=r"its task is|test_train differs; choose"):
        train_one("of_width", of_width)
    monkeypatch.setitem(globals(), "WIDTH", 4)
    train_one("of_width", of_width)


def test_a_run_that_fails_before_its_first_record_leaves_the_directory(tmp_path, dies):
    for method, place in (fedavg, tmp_path / "a"), (private, tmp_path / "b"):
        dies(0)
        with pytest.raises(KilledError):
            method(place)
        if method is fedavg:
            fedavg(place, lr=0.3)  # another run
        else:  # this one is charged
            with pytest.raises(ValueError, match="has another run: its batch_size"):
                private(place, batch_size=4)
    dies(2)
    with pytest.raises(KilledError):
        fedavg(tmp_path / "c")
    with pytest.raises(ValueError, match=r"has another run: its method\.lr is 0\.1"):
        fedavg(tmp_path / "c", lr=0.3)


def with_other_data(problem):
    x = problem.dataset.x_train.copy()
    x[0] += 1
    return dataclasses.replace(problem, dataset=problem.dataset._replace(x_train=x))


def test_other_data_are_another_run(whole):
    with pytest.raises(ValueError, match="another run: its data differ; choose"):
        fedavg(whole, problem=with_other_data(problem_of("fedavg")))


@problems.named
def hospital(ward: int = 3) -> problems.Problem:
    """A problem of a user's own."""
    x = np.random.default_rng(ward).normal(size=(40, 2)).astype(np.float32)
    dataset = data.from_arrays(x, np.arange(40) % 2)
    return problems.classification(
        dataset, clients=4, divide=partition.iid, model=lambda data: MLP(2, (3,))
    )


def test_a_problem_of_a_users_own_is_one_function(tmp_path):
    how = {**EVERY, "batch_size": 4, "directory": tmp_path / "run"}
    first = train(fm.fedavg(lr=0.1), hospital(), **how)
    assert train(fm.fedavg(lr=0.1), hospital(ward=3), **how).records == first.records
    with pytest.raises(ValueError, match=r"its problem.ward is 3, not 4; choose"):
        train(fm.fedavg(lr=0.1), hospital(ward=4), **how)
    words = json.loads((tmp_path / "run" / "identity.json").read_text())
    assert "code of tests.runs.test_train" in words


def test_trackers_get_every_record_once(tmp_path, monkeypatch, dies):
    told = []

    @contextlib.contextmanager
    def tracker(run, about):
        told.append(about)
        yield lambda state, record: told.append(record)
        told.append("finished")

    monkeypatch.setitem(trackers.TRACKERS, "list", ("json", tracker))
    dies(4)
    with pytest.raises(KilledError):
        fedavg(tmp_path / "run", log=("list",))
    again = len(told)
    fedavg(tmp_path / "run", log=("list",))
    config, *rows, status = told[again:]
    assert config["method"] == "fedavg"
    assert config["method.lr"] == "0.1"
    assert [row["round"] for row in rows] == [0, 2, 4]
    assert status == "finished"


def test_used_directories_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is already used, and not by a run"):
        fedavg(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


WRONG = {  # what is said: the arguments of `train`
    "rounds must be at least 1, got 0": {"rounds": 0},
    "unknown option 'batchsize'; did you mean batch_size?": {"batchsize": 3},
    "the problem decides weights; leave it out": {"weights": 1},
    "mixer needs a graph of agents, but fedavg": {"mixer": 1},
    "a ledger and a budget are for private runs": {"budget": 1.0},
    "unknown tracker 'wand'": {"log": ("wand",)},
    "a seed must lie in": {"seed": -1},
    "privacy must be a ClientPrivacy, got int": {"privacy": 3},
    "cohort must be a number of clients, or made by": {"cohort": "8"},
    "problem must be a Problem, such as problems.classif": {"problem": fm.fedavg()},
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_runs_are_refused_and_leave_nothing(said, tmp_path):
    with pytest.raises((ValueError, TypeError), match=r"^[^\n]*" + said) as refused:
        fedavg(tmp_path / "run", **WRONG[said])
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_methods_without_a_server_need_a_graph():
    problem = problem_of("dsgd")
    alone = problem.__class__(**{**vars(problem), "weights": None})
    with pytest.raises(ValueError, match="has no graph for agents"):
        train(dsgd(lr=0.1), alone)


# ---------------------------------------------------------------------------- private

SECRET = ClientPrivacy(clip_norm=0.5, cohort=3, rounds=4, delta=0.01, epsilon=8.0)


def private(place, problem=None, **how):
    book = {"ledger": place.parent / "ledger.json", "directory": place}
    sizes = {"local_steps": 2, "batch_size": 8, "privacy": SECRET}
    options = {**EVERY, **book, **sizes, **how}
    return train(fm.fedavg(lr=0.1), problem or problem_of("fedavg"), **options)


@pytest.mark.filterwarnings("ignore:messages have params")
def test_a_private_run_that_is_killed_is_charged_once_and_not_copied(tmp_path, dies):
    place, copy = tmp_path / "run", tmp_path / "copy"
    dies(2)
    with pytest.raises(KilledError):
        private(place)
    shutil.copytree(place, copy)
    folders = [tmp_path / "ledger.secret", *(tmp_path / "ledger.secret").iterdir()]
    assert {folder.stat().st_mode & 0o077 for folder in folders} == {0}
    text = (place / "identity.json").read_text()
    assert not {"data", "clients"} & json.loads(text).keys()  # which would be guessed
    result = private(place)
    assert result.state.round == 4
    with pytest.raises(ValueError, match="or a copy of the run was finished"):
        private(copy)
    entries = json.loads((tmp_path / "ledger.json").read_text())["entries"]
    assert [entry["label"] for entry in entries] == [
        "fedavg at epsilon 8 on digits, 6 clients by dirichlet (0.1), seed 3"
    ]
    assert "(8, 0.01)-differential privacy" in (place / "privacy.txt").read_text()
    assert [row["round"] for row in private(place).records] == [0, 2, 4]
    with pytest.raises(ValueError, match="the noise is for 4 rounds"):
        private(place, rounds=5)
    with pytest.raises(ValueError, match="another run: its data differ; choose"):
        private(place, problem=with_other_data(problem_of("fedavg")), ledger=None)
    assert [path.name for path in (tmp_path / "ledger.secret").glob("*/*")] == [
        "identity.json"
    ]


@pytest.mark.filterwarnings("ignore:messages have params")
def test_private_clients_are_the_same_for_all_seeds(tmp_path):
    problem = problem_of("fedavg")
    runs = [private(tmp_path / f"run{seed}", seed=seed) for seed in (3, 4)]
    orders = [run.simulation.run.partition.order for run in runs]
    np.testing.assert_array_equal(*orders)
    said = (tmp_path / "run4" / "privacy.txt").read_text()
    assert (
        "the run of this job and 1 other that the ledger has seen, composed: (1" in said
    )
    fewer = problems.classification(problem.dataset, **{**TINY, "clients": 5})
    place = tmp_path / "fewer"
    refused = pytest.raises(ValueError, match=r"with other clients, so no budget")
    with refused:
        private(place, fewer, budget=1e9)
    private(place, fewer)
    said = (place / "privacy.txt").read_text()
    assert "composed: NO differential privacy together" in said
    assert "they divide the examples among clients in 2 ways" in said
    assert "each way:   by itself, at most (1" in said


@pytest.mark.filterwarnings("ignore:messages have params", "ignore:the noise in the")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "are taken from the private ones, since none were given; give"),
        ({"owners": True}, "are taken from the private ones"),
        ({"test": True}, None),
    ],
)
def test_scores_of_private_examples_are_warned_of(given, said, tmp_path):
    """Without test examples, they are a fifth of those that should be protected."""
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    y = np.arange(60) % 2
    options = {"owners": np.arange(60) % 6} if "owners" in given else {}
    options |= {"test": (x[:9], y[:9])} if "test" in given else {}
    dataset = data.from_arrays(x, y, **options)
    owned = "owners" in given
    how = {"model": TINY["model"]} if owned else {**TINY, "divide": partition.iid}
    made = problems.classification(dataset, **how)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        private(tmp_path / "run", made, batch_size=4)
    found = [str(each.message) for each in seen if "test scores" in str(each.message)]
    assert bool(found) == bool(said)
    assert not said or (said in found[0] and "\n" not in found[0])


@pytest.mark.filterwarnings("ignore:messages have params")
def test_a_private_run_that_is_not_paid_does_not_begin(tmp_path):
    with pytest.raises(ValueError, match="it would be 8"):
        private(tmp_path / "run", budget=2.0)
    assert not (tmp_path / "run").exists()
    private(tmp_path / "run", budget=9.0)
    with pytest.raises(ValueError, match="spent epsilon 8; with 1 more"):
        private(tmp_path / "more", budget=9.0)
    with pytest.raises(ValueError, match="need a directory; add directory"):
        private(tmp_path / "run", directory=None, ledger=None)


WHOLE = (np.int64, np.int32, np.array, jnp.asarray)


@pytest.mark.parametrize("whole", slow_but(WHOLE[:1], WHOLE))
def test_numbers_of_numpy_and_jax_go_on_with_a_run(whole, tmp_path):
    def trained(whole, number):
        problem = problems.classification(
            "digits", clients=whole(4), alpha=number(0.5), model=TINY["model"]
        )
        how = {"rounds": whole(2), "seed": whole(1), "evaluate_every": whole(1)}
        how |= {"local_steps": whole(2), "batch_size": whole(8)}
        cohort = fm.sampled(whole(2), dropout=number(0.125))
        method = fm.fedmuon(lr=number(0.125))
        how |= {"directory": tmp_path / "a", "progress": False, "cohort": cohort}
        return train(method, problem, **how).records

    assert trained(int, float) == trained(whole, np.float32)


def test_grids_and_seeds_are_any_numbers(tmp_path):
    problem = problems.classification("digits", **TINY)
    how = {"rounds": 1, "progress": False, "extend": np.bool_(False), **SIZES}
    grids = [np.array([0.25, 0.5]), (x / 4 for x in (1, 2)), jnp.array([0.25, 0.5])]
    found = [
        fm.sweep([fm.fedavg], problem, {"lr": rates}, seeds=seeds, **how)
        for rates, seeds in zip(
            grids, (np.arange(1), range(1), [jnp.int32(0)]), strict=True
        )
    ]
    points = [each["FedAvg"].points for each in found]
    assert [[dict(p.hyper) for p in each] for each in points] == 3 * [
        [{"lr": 0.25}, {"lr": 0.5}]
    ]
    for bad in (np.ones((2, 2)), np.float64(0.1), np.array(0.1), np.array([1.0, 1.0])):
        with pytest.raises(
            ValueError, match=r"one or more (numbers, each once|values)"
        ):
            fm.sweep([fm.fedavg], problem, {"lr": bad}, **how)
    with pytest.raises(ValueError, match="one or more numbers, each once, got 1"):
        fm.compare({"A": fm.fedavg()}, problem, seeds=np.int64(1))


def test_privacy_takes_numbers_of_numpy():
    made = ClientPrivacy(
        clip_norm=np.float32(0.5),
        cohort=jnp.int32(3),
        rounds=np.int64(4),
        delta=np.float64(0.01),
        epsilon=np.float32(8.0),
        insecure_fixed_noise=np.bool_(True),
    )
    assert made == PRIVACY
    assert type(made.cohort) is int


@pytest.mark.parametrize("swept", [False, True])
def test_other_versions_are_said_and_noted(swept, tmp_path):
    problem, place = problems.classification("digits", **TINY), tmp_path / "a"

    def run(rounds):
        how = {"rounds": 1 if swept else rounds, "progress": False, **SIZES}
        if swept:
            grid = {"lr": tuple(0.1 * x for x in range(1, 1 + rounds))}
            fm.sweep([fm.fedavg], problem, grid, directory=place, extend=False, **how)
        else:
            train(fm.fedavg(lr=0.1), problem, directory=place, **how)

    run(1)
    path = (place / "FedAvg" if swept else place) / "versions.json"
    first = json.loads(path.read_text())
    path.write_text(json.dumps({**first, "jax": "0.4", "python": "3.9"}))
    with pytest.warns(
        UserWarning, match=f"python 3.9, now .*jax 0.4, now {jax.__version__}"
    ):
        run(2)
    noted = json.loads(path.read_text())
    assert noted == {**first, "jax": "0.4", "python": "3.9", "later": [first]}
    run(3)  # by the same versions again
    assert json.loads(path.read_text()) == noted
    path.write_text("[")
    with pytest.raises(ValueError, match="expected versions of packages"):
        run(4)


@pytest.mark.parametrize("method", [fm.fedmuon, fm.fedavg])
def test_a_long_prologue_is_said_before_it_begins(method, monkeypatch, capsys):
    monkeypatch.setattr(hints, "MANY", 6)
    problem, how = problems.classification(**TINY), {**SIZES, "rounds": 1}
    cohort = fm.sampled(3, prologue=5)
    train(method(lr=0.1), problem, **how)
    assert "before round 0" not in capsys.readouterr().err  # it takes moments
    monkeypatch.setattr(hints, "SPEED", 1)
    train(method(lr=0.1), problem, **how)
    said = "before round 0, 6 clients compute a gradient each, for more than 5 s; "
    said += "cohort=fm.sampled(3, prologue=200) asks fewer\n"
    assert (said in capsys.readouterr().err) == (method is fm.fedmuon)
    train(method(lr=0.1), problem, **{**how, "cohort": cohort})
    assert "before round 0" not in capsys.readouterr().err


def test_huge_pages_are_advised_for_large_models_where_linux_gives_them(
    tmp_path, monkeypatch
):
    path, advised = tmp_path / "enabled", lambda size: [*hints._huge_pages(size, path)]
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert advised(2**24) == []  # of other systems
    path.write_text("always [madvise] never")
    (line,) = advised(2**24)
    assert line.endswith("set GLIBC_TUNABLES=glibc.malloc.hugetlb=1")
    assert advised(2**24 - 1) == []
    path.write_text("[always] madvise never")
    assert advised(2**24) == []
    path.write_text("always [madvise] never")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    assert advised(2**24) == []


def test_a_rate_that_needs_no_search_is_said_with_what_one_gains(capsys):
    problem = problems.classification(**TINY)
    how = {"rounds": 3, "local_steps": 5, "batch_size": 8, "cohort": 4}
    given = train(fm.fedmuon(lr=fm.cosine(0.03)), problem, **how)
    assert "without lr" not in capsys.readouterr().err
    plain = train(fm.fedmuon, problem, **how)
    said = capsys.readouterr().err
    assert "fedmuon's rate falls from 0.03 to 0 by a cosine; a search gained" in said
    assert "this run" not in said
    losses = lambda result: [record["train_loss"] for record in result.records]
    assert losses(plain) == losses(given)
    train(fm.fedmuon, problem, **{**how, "cohort": 3, "local_steps": 2})
    said = capsys.readouterr().err
    assert "3 clients per round (measured: 4 to 20), 2 local steps (" in said
    train(partial(fm.fedmuon, momentum=0.5), problem, **how)
    train(partial(fm.fedmuon, lr=0.1), problem, **how)
    train(fm.fedavg, problem, **how)
    assert "without lr" not in capsys.readouterr().err
    private = {"rounds": 4, "local_steps": 5, "batch_size": 8, "privacy": PRIVACY}
    with warnings.catch_warnings(action="ignore"):  # that little is learned
        train(fm.fedmuon, problem, **private)
    assert "privacy (not measured), so search lr" in capsys.readouterr().err

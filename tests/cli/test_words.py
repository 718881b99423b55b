"""Words of the command line, and the values that they stand for."""

import functools
import inspect
import re
from pathlib import Path
from typing import Literal

import optax
import pytest

import fedjax_muon as fm
from fedjax_muon.cli import call, names, old
from fedjax_muon.cli.main import COMMANDS
from fedjax_muon.cli.names import TABLES, value_of
from fedjax_muon.core.recipe import described
from fedjax_muon.linalg import newton_schulz
from fedjax_muon.wrappers import aggregators, attacks
from tests.support.command import refused, run

# texts and their values, by the annotation of an argument
VALUES = [
    (float, "1e-3", 0.001),
    (int, "3", 3),
    (bool, "True", True),
    (float | None, "none", None),
    (str | None, "None", None),
    (str | None, "ring", "ring"),
    (str, "1", "1"),
    (str, "'a, b'", "a, b"),
    (Path, "a/b", Path("a/b")),
    (Literal["ring", "star"], "star", "star"),
    (tuple[int, ...], "1,5", (1, 5)),
    (tuple[int, ...], "(1, 5)", (1, 5)),
    (tuple[int, ...], "[]", ()),
    (tuple[float, ...] | float, "0.5", 0.5),
    (tuple[int, int], "[4,6]", (4, 6)),
    (tuple[str, ...], "[a,b]", ("a", "b")),
    (inspect.Parameter.empty, "0.5", 0.5),
    (inspect.Parameter.empty, "north", "north"),
]
KEYWORD = inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize(("kind", "text", "value"), VALUES)
def test_what_a_text_may_be_is_what_the_annotation_says(kind, text, value):
    found = value_of(text, inspect.Parameter("x", KEYWORD, annotation=kind), "--x")
    assert (found, type(found)) == (value, type(value))


ROBUST = fm.robust(fm.fedavg(), aggregators.median())
METHODS = {  # what a text of a method makes
    "fedavg": fm.fedavg(),
    "fedavg:0.3": fm.fedavg(lr=0.3),
    "fedavg:lr=0.3,server_lr=0.5": fm.fedavg(lr=0.3, server_lr=0.5),
    "fedavg(lr=0.3, server_lr=0.5)": fm.fedavg(lr=0.3, server_lr=0.5),
    "fedavg:rule=trace(0.9)": fm.fedavg(rule=optax.trace(0.9)),
    "fedavg:rule=trace:0.9": fm.fedavg(rule=optax.trace(0.9)),
    "fedmuon:synced=false": fm.fedmuon(synced=False),
    "fedmuon:lr=cosine:0.03": fm.fedmuon(lr=fm.cosine(0.03)),
    "fedmuon:polar=newton_schulz:steps=3": fm.fedmuon(
        polar=functools.partial(newton_schulz.orthogonalize, steps=3)
    ),
    "compress:robust(fedavg,median),top_k:0.1,feedback=1": fm.compress(
        ROBUST, fm.top_k(0.1), feedback=1.0
    ),
    "attack(robust(fedavg, median), sign_flip, clients=[1,2])": fm.attack(
        ROBUST, attacks.sign_flip(), clients=(1, 2)
    ),
    "fedavg(lr=0.1, rule=chain(ema(0.9, debias=False), scale_by_sign))": fm.fedavg(
        lr=0.1, rule=optax.chain(optax.ema(0.9, debias=False), optax.scale_by_sign())
    ),
}


@pytest.mark.parametrize("text", METHODS)
def test_a_method_reads_as_in_python(text):
    found = names.made(names.called(text, "method"))
    assert described(found) == described(METHODS[text])


PROBLEMS = {  # what a text of a problem gives to `classification`
    "digits:alpha=0.5,clients=32": {"dataset": "digits", "alpha": 0.5, "clients": 32},
    "mnist:model=resnet18:norm=batch": {
        "dataset": "mnist",
        "model": ("resnet18", {"norm": "batch"}),
    },
    "tfds:glue/sst2:alpha=1": {"dataset": "tfds:glue/sst2", "alpha": 1.0},
    "fashion_mnist:data_dir=../data,model=none": {
        "dataset": ("load", {"name": "fashion_mnist", "data_dir": "../data"}),
        "model": None,
    },
    "../my.csv:label=risk,alpha=2,owner=bank": {
        "dataset": (
            "from_csv",
            {"path": "../my.csv", "label": "risk", "owner": "bank"},
        ),
        "alpha": 2.0,
    },
    "scans/:size=[32,16],owner='(.*)_',clients=3": {
        "dataset": (
            "from_folder",
            {"path": "scans/", "size": (32, 16), "owner": "(.*)_"},
        ),
        "clients": 3,
    },
    "my.csv:separator=;,decimal=',',header=3": {
        "dataset": (
            "from_csv",
            {"path": "my.csv", "separator": ";", "decimal": ",", "header": 3},
        )
    },
    "classification:my.npz": {"dataset": ("from_npz", {"path": "my.npz"})},
    "classification:clients=3,dataset=my.npz": {
        "dataset": ("from_npz", {"path": "my.npz"}),
        "clients": 3,
    },
    "classification(from_csv(my.csv,label=risk),alpha=2)": {
        "dataset": ("from_csv", {"path": "my.csv", "label": "risk"}),
        "alpha": 2.0,
    },
    "classification:from_csv(my.csv)": {"dataset": ("from_csv", {"path": "my.csv"})},
    "classification(load(digits),alpha=2)": {
        "dataset": ("load", {"name": "digits"}),
        "alpha": 2.0,
    },
}


@pytest.mark.parametrize("text", PROBLEMS)
def test_a_dataset_is_a_problem(text):
    found = names.called(text, "problem")
    kwargs = {k: _as_pair(each) for k, each in found.kwargs.items()}
    assert (found.function, kwargs) == (fm.problems.classification, PROBLEMS[text])


def _as_pair(value):
    is_call = isinstance(value, names.Call)
    return (value.function.__name__, value.kwargs) if is_call else value


def test_a_dataset_is_a_problem_of_every_function_that_takes_one():
    found = names.called("auc:my.csv,label=risk,clients=3", "problem")
    again = names.called("auc(from_csv(my.csv, label=risk), clients=3)", "problem")
    assert found == again
    assert _as_pair(found.kwargs["dataset"])[0] == "from_csv"


def test_a_deployed_app_says_what_reads_its_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 3},{i},{i % 2}" for i in range(30)]
    Path("own.csv").write_text("\n".join(["ward,age,risk", *rows]))
    run("deploy", "app", "fedavg", "--problem", "own.csv:label=risk,owner=ward")
    said = Path("app", "experiment.py").read_text()
    path = str(Path("own.csv").absolute())
    read = f"from_csv(path={path!r}, label='risk', owner='ward')"
    assert f"problem = classification(dataset={read})\n" in said


def test_no_word_is_of_a_reader_and_of_a_problem():
    """So that each word has one owner."""
    problems = (fm.problems.classification, fm.problems.auc)
    words = {name for each in problems for name in inspect.signature(each).parameters}
    for reader in TABLES["reader"].values():
        assert not words & inspect.signature(reader).parameters.keys()


def test_options_are_arguments_of_one_function():
    words = "fedmuon:lr=0.03 --rounds 7 --cohort timed:3,lognormal:1.0,deadline=3"
    found = call.parsed("train", words.split())
    assert found.keys() == {"method", "rounds", "cohort"}
    assert found["method"].kwargs == {"lr": 0.03}
    assert names.made(found["cohort"]).deadline == 3.0
    found = call.parsed("compare", ["fedavg", "fedmuon", "--grid", "lr=0.1,0.2"])
    assert [each.name for each in found["methods"]] == ["fedavg", "fedmuon"]
    assert found["grid"] == {"lr": (0.1, 0.2)}
    words = "fedavg --grid problem.alpha=0.1,1,cohort=[4,sampled(2)] --no-extend"
    found = call.parsed("sweep", words.split())
    assert names.made(found["grid"])["cohort"] == (4, fm.sampled(2))
    assert found["extend"] is False
    assert [each.name for each in call.parsed("sweep", ["minimax"])["methods"]] == [
        *fm.minimax.ALL
    ]


# -------------------------------------------------------------------- every default
FUNCTIONS = [
    (table, name, value)
    for table, known in TABLES.items()
    for name, value in known.items()
    if callable(value) and table not in ("methods", "algorithm", "server_rule", "args")
]


@pytest.mark.parametrize("table", TABLES)
def test_every_default_is_the_value_of_its_text(table):
    wrong = []
    for name, function in TABLES[table].items():
        given = names.parameters(function, table) if callable(function) else {}
        for parameter in given.values():
            text = names.text_of(parameter.default, parameter.name)
            if text is not None and parameter.default is not parameter.empty:
                found = names.made(value_of(text, parameter, name))
                wrong += [] if found == parameter.default else [(name, parameter, text)]
    assert wrong == []


def test_the_help_says_what_every_option_of_a_method_is():
    silent = {}
    for name, method in names.METHODS.items():
        texts, options = (
            call.texts_of(method.function),
            names.parameters(method.function),
        )
        if missing := [option for option in options if not texts.get(option)]:
            silent[name] = missing
    assert silent == {}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_shows_every_argument_of_a_command(command, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = call.help_of(command, [])
    assert max(map(len, text.splitlines())) <= 100
    shown = re.findall(r"^  (\S+)$", text, re.MULTILINE)
    function = inspect.signature(call.function_of(command)).parameters
    known = {**call.places_of(command), **call.options_of(command)}
    assert len(shown) == len(known)
    assert function.keys() - {"how"} <= known.keys()
    assert "  -\n" not in text


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "--version",
        "compare fedavg scaffold --help",
        "sweep all --help",
        "train dpmixsgd --privacy ExamplePrivacy:epsilon=8 --help",
        "train fedavg --problem nowhere.csv --help",
        "list buffered dirichlet fedmuon digits mlp",
    ],
)
def test_help_needs_no_data_and_makes_nothing(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(*words.split())
    assert capsys.readouterr().out
    assert not [*tmp_path.iterdir()]


# ------------------------------------------------------------------ how it was before
OLD = {  # words, and how their last option is written now
    "train feddyn --alpha 0.01": "feddyn:alpha=0.01, or --problem digits:alpha=0.01",
    "train fedavg --lr 0.1": "fedavg:lr=0.1",
    "train fedmuon --polar exact": "fedmuon:polar=exact",
    "compare fedavg fedmuon --lr 0.1": "fedavg:lr=0.1, or fedmuon:lr=0.1",
    "compare fedavg fedmuon --lr 0.1,0.2": "--grid lr=0.1,0.2",
    "sweep fedavg --lr 0.1,0.2": "--grid lr=0.1,0.2",
    "train fedavg --problem auc:clients=3 --model lenet": (
        "--problem auc:clients=3,model=lenet"
    ),
    "train fedavg --dataset mnist": "--problem mnist",
    "train fedavg --client-tests": "--problem digits:client_tests=true",
    "train fedavg --label risk": "--problem FILE.csv:label=risk",
    "train fedavg --image-size 4,4": "--problem FOLDER/:size=[4,4]",
    "train fedavg --data-dir x": "--problem fashion_mnist:data_dir=x",
    "train fedavg --hidden 64,32": "--problem digits:model=mlp:hidden=[64,32]",
    "train muloco --window 64": "--problem text:FILE,window=64",
    "train fedavg --epsilon 8": "--privacy ClientPrivacy:epsilon=8",
    "train dpmixsgd --epsilon 8": "--privacy ExamplePrivacy:epsilon=8",
    "train fedavg --dropout 0.1": "--cohort sampled:8,dropout=0.1",
    "train fedavg --concurrency 3": "--cohort buffered:10,concurrency=3",
    "train fedavg --clock constant": "--cohort timed:8,clock=constant",
    "train fedavg --with compress:top_k:0.1": "compress:fedavg,top_k:0.1",
    "train fedavg --with ditto": "ditto:fedavg",
    "train fedavg --compressor top_k:0.1": "compress:fedavg,compressor=top_k:0.1",
    "train fedavg --tune": "fm.tune in Python, and --plan",
    "compare fedavg --quick": "--no-search",
    "train fedavg --num-processes 2": "--distributed, with JAX_NUM_PROCESSES=2",
    "export a b.safetensors --trust mine": "",
}


@pytest.mark.parametrize("words", OLD)
def test_an_old_option_is_refused_with_its_new_spelling(
    words, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, *words.split())
    assert said.startswith("unknown option --")
    if OLD[words]:
        assert said.endswith(f"; write {OLD[words]}")
    assert not [*tmp_path.iterdir()]


def test_the_command_to_resume_is_refused(capsys):
    assert "with the same --directory" in refused(capsys, "resume", "runs/a")


@pytest.mark.parametrize("option", old.PLACES)
def test_every_new_spelling_has_an_argument_of_the_old_name(option):
    new = old.PLACES[option].replace("METHOD", "fedavg")
    head = [each for each in re.split(r"[^\w]", new) if each]
    owners = [
        table[name] for name in head for table in TABLES.values() if name in table
    ]
    owners += [fm.problems.classification, *TABLES["reader"].values()]
    known = [inspect.signature(each).parameters for each in owners if callable(each)]
    assert any(option in each for each in known), new

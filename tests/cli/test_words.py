"""Words of the command line, and the values that they stand for."""

import functools
import inspect
import re
from pathlib import Path
from typing import Literal

import optax
import pytest
from command import run

import fedjax_muon as fm
from fedjax_muon.cli import helping, names
from fedjax_muon.cli.commands import parsed_compare, parsed_train
from fedjax_muon.cli.main import COMMANDS
from fedjax_muon.cli.names import METHODS, SUPPLIED, TABLES, value_of
from fedjax_muon.core.recipe import described
from fedjax_muon.linalg import newton_schulz
from fedjax_muon.wrappers import aggregators

# texts and their values, by the annotation of an argument
VALUES = [
    (float, "1e-3", 0.001),
    (int, "3", 3),
    (bool, "True", True),
    (float | None, "none", None),
    (str | None, "None", None),
    (str | None, "ring", "ring"),
    (Path, "a/b", Path("a/b")),
    (Literal["ring", "star"], "star", "star"),
    (tuple[int, ...], "1,5", (1, 5)),
    (tuple[int, ...], "(1, 5)", (1, 5)),
    (tuple[int, ...], "()", ()),
    (tuple[float, ...] | float, "0.5", 0.5),
    (tuple[int, int], "4,6", (4, 6)),
    (tuple[str, ...], "a,b", ("a", "b")),
    (inspect.Parameter.empty, "0.5", 0.5),
    (inspect.Parameter.empty, "north", "north"),
]


@pytest.mark.parametrize(("kind", "text", "value"), VALUES)
def test_what_a_text_may_be_is_what_the_annotation_says(kind, text, value):
    parameter = inspect.Parameter("x", inspect.Parameter.KEYWORD_ONLY, annotation=kind)
    found = value_of("x", text, parameter, "--x")
    assert (found, type(found)) == (value, type(value))


NAMED = {  # what a text of a method makes
    "fedavg": fm.fedavg(),
    "fedavg:0.3": fm.fedavg(lr=0.3),
    "fedavg:lr=0.3,server_lr=0.5": fm.fedavg(lr=0.3, server_lr=0.5),
    "fedavg(lr=0.3,server_lr=0.5)": fm.fedavg(lr=0.3, server_lr=0.5),
    "fedavg:rule=trace(0.9)": fm.fedavg(rule=optax.trace(0.9)),
    "fedavg:rule=trace:0.9": fm.fedavg(rule=optax.trace(0.9)),
    "fedmuon:synced=false": fm.fedmuon(synced=False),
    "fedmuon:polar=newton_schulz:steps=3": fm.fedmuon(
        polar=functools.partial(newton_schulz.orthogonalize, steps=3)
    ),
}


@pytest.mark.parametrize("text", NAMED)
def test_a_name_has_arguments_of_its_own(text):
    (made,) = job(text).methods().values()
    assert described(made) == described(NAMED[text])


def job(words, parsed=parsed_train):
    return parsed(words.split())


def test_an_option_is_an_argument_of_what_the_command_names():
    ours = job(
        "fedmuon --lr 0.03 --rounds 7 --alpha 0.5 --model mlp --hidden 8,4 "
        "--cohort timed --clock lognormal:1.0 --deadline 3 --no-client-tests "
        "--plan chunked:4"
    )
    assert ours.given == {"rounds": 7}
    assert ours.calls[0].keywords == {"lr": 0.03}
    problem = ours.problem_call.keywords
    assert (problem["alpha"], problem["client_tests"]) == (0.5, False)
    assert problem["model"].keywords == {"hidden": (8, 4)}
    members = ours.how["cohort"].keywords
    assert members["clock"].keywords == {"sigma": 1.0}
    assert members["deadline"] == 3.0
    usual = ours.settings(ours.problem())["cohort"]
    assert (usual.size, usual.deadline) == (8, 3.0)  # the problem's size
    # the first that has it takes it, and NAME:key=value gives it to one
    both = job("fedavg:lr=0.3 fedmuon --lr 0.1,0.2", parsed_compare)
    assert [each.keywords for each in both.calls] == [{"lr": 0.3}, {}]
    assert both.grids == {"0": {}, "1": {"lr": (0.1, 0.2)}}
    twice = job("fedavg:lr=0.1 fedavg:lr=0.3", parsed_compare).methods()
    assert [*twice] == ["FedAvg, lr=0.1", "FedAvg, lr=0.3"]


def test_wrappers_are_composed_in_their_order():
    words = "fedavg --with robust:median --with compress --compressor top_k:0.1"
    (made,) = job(words + " --feedback 1").methods().values()
    robust = fm.robust(fm.fedavg(), aggregators.median())
    expected = fm.compress(robust, fm.top_k(0.1), feedback=1.0)
    assert described(made) == described(expected)


def test_a_cosine_decays_over_the_rounds_of_the_command():
    (made,) = job("fedmuon:lr=cosine:0.03 --rounds 7").methods().values()
    expected = fm.core.schedules.cosine_decay(fm.fedmuon(lr=0.03), lr=0.03, rounds=7)
    assert described(made) == described(expected)


@pytest.mark.parametrize(
    ("words", "graph", "clients"),
    [
        ("dsgd", "classification", "8"),
        ("dsgd --clients 3", "classification", "3"),
        ("fsgda", "auc", None),
        ("dsgda", "auc", "5"),
        ("fedavg --directory dsgd", "classification", None),
    ],
)
def test_methods_decide_the_usual_problem(words, graph, clients):
    ours = job(words)
    assert ours.problem_call.name == graph
    found = ours.problem_call.keywords.get("clients")
    assert found == (None if clients is None else int(clients))


# ------------------------------------------------------------------------- the help
JOBS = {  # words that name a function of each table
    "method": "{}",
    "problem": "fedavg --problem {}",
    "model": "fedavg --model {}",
    "divide": "fedavg --divide {}",
    "cohort": "fedavg --cohort {}",
    "arrivals": "fedavg --cohort replayed --arrivals {}",
    "clock": "fedavg --cohort timed --clock {}",
    "plan": "fedavg --plan {}",
    "sampler": "fedavg --sampler {}",
    "weighting": "fedavg --weighting {}",
    "mixer": "dsgd --mixer {}",
    "polar": "fedmuon --polar {}",
    "with": "fedavg --with {}",
    "compressor": "fedavg --with compress --compressor {}",
    "aggregator": "fedavg --with robust --aggregator {}",
    "attack": "fedavg --with attack --attack {}",
}
CASES = [(words, name) for table, words in JOBS.items() for name in TABLES[table]]


@pytest.mark.parametrize(("words", "name"), CASES)
def test_every_option_is_in_the_help_and_takes_its_default(words, name):
    words = words.format(name).split()
    text = helping.options_of("train", words)
    assert max(map(len, text.splitlines())) <= 100
    shown = set(re.findall(r"^  --([a-z0-9-]+)$", text, re.MULTILINE))
    for option, parameter in called_by(words).parameters.items():
        assert option.replace("_", "-") in shown, option
        told = re.match(r"\(default: (.*)\)$", helping._usual(parameter))
        if told and option not in helping.SIZES:
            found = names.made(value_of(option, told[1], parameter, option))
            assert found == parameter.default, option


def called_by(words):
    """What the last word of a command names."""
    found = job(" ".join(words))
    waiting = [*found.calls, *found.wrappers, found.problem_call, *found.how.values()]
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, names.Call):
            if each.name == words[-1]:
                return each
            waiting += each.keywords.values()
    raise AssertionError(words)


def test_the_help_says_what_every_option_of_a_method_is():
    silent = {}
    for name, method in METHODS.items():
        texts = helping.help_texts(method.function)
        options = inspect.signature(method.function).parameters.keys() - SUPPLIED
        if missing := [option for option in options if not texts.get(option)]:
            silent[name] = missing
    assert silent == {}


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "--version",
        *(f"{name} --help" for name in COMMANDS),
        "compare fedavg scaffold --help",
        "sweep all --help",
        "train dpmixsgd --epsilon 8 --help",
        "train fedavg --dataset nowhere.csv --help",
    ],
)
def test_help_needs_no_data_and_makes_nothing(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(*words.split())
    assert "fedjax-muon" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]


def test_an_option_that_is_given_twice_is_said(capsys):
    words = ["fedavg", "--lr", "0.1", "--lr=0.3", "--seed", "1", "--seed", "1"]
    job = parsed_train(words)
    said = capsys.readouterr().err
    assert said == "fedjax-muon: warning: --lr is given twice; 0.3 is taken\n"
    assert (job.calls[0].keywords["lr"], job.given["seed"]) == (0.3, 1)

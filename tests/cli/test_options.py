"""Options: from files, in the sections of the help, and refused in one line."""

import dataclasses
import json
import re
import tomllib
import typing
from pathlib import Path

import pytest
import yaml
from cases import slow_but
from command import SMALL, assert_same_but_for_seconds, refused, run

from fedjax_muon.cli import (
    RUNNERS,
    _given as given,
    command_kinds,
    commands,
    config_files,
    parsing,
)
from fedjax_muon.cli.arguments import method_options
from fedjax_muon.runs import config, directory
from fedjax_muon.runs.config import Config
from fedjax_muon.runs.directory import from_json, to_json
from fedjax_muon.runs.launch import Launch

YAML = """
algorithm: fedprox
hyper: {lr: 5e-2, mu: 0.5}
seed: 3
num-clients: 6
cohort_size: 3
hidden: [16]
drop_nonfinite: true
lr_schedule: null
partition: iid
"""
TOML = """
algorithm = "fedprox"
hyper = {lr = 5e-2, mu = 0.5}
seed = 3
num-clients = 6
cohort_size = 3
hidden = [16]
drop_nonfinite = true
partition = "iid"
"""
WORDS = [
    *("--algorithm", "fedprox", "--algorithm.lr", "0.05", "--algorithm.mu", "0.5"),
    *("--seed", "3", "--num-clients", "6", "--cohort-size", "3", "--hidden", "16"),
    *("--drop-nonfinite", "--partition", "iid"),
]


def write(place: Path, name: str, text: str | bytes) -> Path:
    path = place / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def same(one, other) -> bool:
    """Whether two commands have the same values; classes of options differ."""
    return repr(one) == repr(other)


def test_files_of_all_formats_are_the_same_arguments(tmp_path):
    wanted = given("train", WORDS)
    in_json = json.dumps(tomllib.loads(TOML))
    assert yaml.safe_load(YAML)["hyper"]["lr"] == "5e-2"  # a word in YAML
    for name, text in {"a.yaml": YAML, "a.toml": TOML, "a.json": in_json}.items():
        path = write(tmp_path, name, text)
        found = given("train", ["--config", str(path)])
        assert found.config_file == path
        assert same(found.config, wanted.config)
        assert same(found.hyper, wanted.hyper)
        assert (found.algorithm, found.seed) == ("fedprox", 3)


def test_arguments_come_before_the_file_which_comes_before_defaults(tmp_path):
    path = str(write(tmp_path, "a.yaml", YAML))
    found = given("train", [f"--config={path}", "--algorithm.mu", "0", "--seed", "4"])
    assert (found.hyper.lr, found.hyper.mu, found.seed) == (0.05, 0.0, 4)
    assert found.config.cohort_size == 3
    without = given("train", [*WORDS, "--no-drop-nonfinite"])
    found = given("train", ["--config", path, "--no-drop-nonfinite"])
    assert found.config == without.config
    # the options of the file's algorithm are not another one's
    other = given("train", ["--algorithm", "fedavg", "--config", path])
    assert other.hyper.lr == given("train", ["--algorithm", "fedavg"]).hyper.lr
    assert other.config.cohort_size == 3
    # a problem in the file changes the other defaults
    auc = str(write(tmp_path, "auc.toml", 'problem = "auc"\nrounds = 3'))
    found = given("compare", ["--config", auc, "--lr", "local_sgda", "0.1"])
    wanted = given("compare", ["--problem", "auc", "--rounds", "3"])
    assert same(found.config, wanted.config)


def test_positional_names_and_values_by_name(tmp_path):
    text = "algorithms: [fedavg, fedmuon]\nlr: {fedavg: 0.3}\nseeds: [1, 2]\n"
    path = str(write(tmp_path, "a.yaml", text))
    found = given("compare", ["--config", path])
    assert found.algorithms == ("fedavg", "fedmuon")
    assert (found.lr, found.seeds) == ({"fedavg": 0.3}, (1, 2))
    assert given("compare", ["scaffold", "--config", path]).algorithms == ("scaffold",)


@pytest.mark.slow
def test_a_run_is_repeated_from_its_directory(tmp_path):
    first, again = tmp_path / "first", tmp_path / "again"
    hyper = ("--algorithm.lr", 0.05, "--algorithm.momentum", 0.8, "--seed", 5)
    model = ("--hidden", 8, "--compressor", "top_k", "--rounds", 2)
    run("train", "--algorithm", "fedmuon", *hyper, *SMALL, *model, "--output", first)
    run("train", "--config", first, "--output", again)
    assert_same_but_for_seconds(first / "metrics.csv", again / "metrics.csv")
    texts = [(place / "config.json").read_text() for place in (first, again)]
    assert texts[0] == texts[1]


JOBS = {
    "compare": config.Comparison(
        ("fedavg", "scaffold"),
        {"fedavg": 0.3, "scaffold": 0.07},
        {"fedavg": "cosine", "scaffold": "constant"},
        (4, 5),
        config.Config(
            hidden=(), exclude=("a b",), data_dir=Path("x=y"), epsilon=(0.5, 2.0)
        ),
    ),
    "sweep": config.Sweep(
        ("fedavg", "fedmuon"),
        {"fedavg": {"lr": (0.1, 1e-05)}, "fedmuon": {"momentum": (0.9,), "lr": (1.0,)}},
        (7,),
        0.25,
        3,
        config.Config(alpha=0.3, error_feedback=0.5, compressor="svd"),
    ),
}


CHECKED = commands.comparisons.Checked(None, "60 examples", [])


@pytest.mark.parametrize("name", JOBS)
def test_the_config_of_a_command_makes_the_same_job(name, tmp_path, monkeypatch):
    """From config.json through the arguments to the job that would be recorded."""
    made = []

    def create(output, job, kind):
        made.append(job)
        raise ValueError("far enough")

    path = write(tmp_path, "config.json", to_json(JOBS[name]))
    monkeypatch.setattr(directory, "create", create)
    monkeypatch.setattr(commands.comparisons, "check", lambda job: CHECKED)
    monkeypatch.setattr(commands.sweeps, "check", lambda job, executor: None)
    with pytest.raises(SystemExit):
        run(name, "--config", path)
    assert from_json(to_json(made[0])) == from_json(to_json(JOBS[name]))


def test_a_grid_is_for_all_methods_or_for_one():
    grids = commands._grids
    assert grids(["fedavg", "fedmuon"], ["fedavg.lr=3", "lr=1,2", "server_lr=1"]) == {
        "fedavg": {"lr": (3.0,), "server_lr": (1.0,)},
        "fedmuon": {"lr": (1.0, 2.0), "server_lr": (1.0,)},
    }
    paper = grids(["fedavg", "fedmuon"], ["paper"])
    mixed = grids(["fedavg", "fedmuon"], ["paper", "fedavg.lr=0.5"])
    assert mixed == {**paper, "fedavg": {**paper["fedavg"], "lr": (0.5,)}}


WRONG = {
    "unknown.yaml": ("cohort_siz: 3", "'cohort_siz'; did you mean cohort_size?"),
    "word.yaml": ("rounds: many", "rounds: input should be a valid integer"),
    "real.toml": ("rounds = 2.5", "rounds: input should be a valid integer"),
    "flag.yaml": ("rounds: true", "rounds takes numbers or words, got true"),
    "number.yaml": ("tune: 3", "tune: input should be a valid boolean"),
    "list.yaml": ("rounds: [1, 2]", "a valid integer, got '[1, 2]'"),
    "pairs.yaml": ("hyper: 3", "hyper takes values by name, got 3"),
    "range.yaml": ("rounds: 0", "rounds must be at least 1, got 0"),
    "choice.json": ('{"plan": "fast"}', "should be 'default', 'loop', 'mapped'"),
    "method.yaml": ("algorithm: fedmoun", "did you mean fedmuon"),
    "option.yaml": ("hyper: {foo: 1}", "unknown key 'foo'"),
    "twice.yaml": ("rounds: 1\nrounds: 2", "'rounds' occurs twice"),
    "twice.json": ('{"rounds": 1, "rounds": 2}', "'rounds' occurs twice"),
    "values.json": ("[1]", "expected options by name, got list"),
    "ended.json": ("{", "expected a file in JSON ("),
    "ended.toml": ("a = ", "expected a file in TOML ("),
    "ended.yaml": ("a: [", "expected a file in YAML ("),
    "date.toml": ("rounds = 2020-01-01", "a valid integer, got '2020-01-01'"),
    "reference.yaml": ("a: &a [1]\nb: *a", "a reference (*) is not allowed"),
    "python.yaml": ("a: !!python/object/apply:os.getcwd []", "determine a constructor"),
    "deep.json": ("[" * 100_000, "maximum recursion depth"),
    "deep.yaml": ("[" * 5000, "maximum recursion depth"),
    "latin.yaml": ("rounds: \xe9".encode("latin-1"), "can't decode byte 0xe9"),
    "huge.yaml": (b"a: 1\n" * 100_000, "expected at most 262144 bytes, found 500000"),
    "file.ini": ("a=1", "a config file must end in .yaml, .yml, .json, .toml"),
    "config.json": ('{"kind": "run"}', "config must be an object, got None"),
}


@pytest.mark.parametrize("name", slow_but(("unknown.yaml", "range.yaml"), WRONG))
def test_a_wrong_file_is_refused_in_one_line(name, tmp_path, capsys):
    text, message = WRONG[name]
    path = write(tmp_path, name, text)
    place = tmp_path / "out"
    said = refused(capsys, "train", "--config", path, "--output", place)
    assert message in said
    assert str(path) in said
    assert not place.exists()


def test_a_mistake_in_the_arguments_is_not_the_files(tmp_path, capsys):
    path = write(tmp_path, "a.yaml", "rounds: 0\nseed: 1\n")
    said = refused(capsys, "train", "--config", path, "--rounds", 2, "--devices", 0)
    assert said == "devices must be at least 1, got 0"
    said = refused(capsys, "train", "--config", path, "--algorithm", "fedmoun")
    assert said.startswith("unknown algorithm")


def test_the_config_of_another_command_is_named(tmp_path, capsys):
    path = write(tmp_path, "config.json", to_json(JOBS["sweep"]))
    said = refused(capsys, "train", "--config", tmp_path)
    assert "is the config of `sweep`, not of `train`; repeat it with: " in said
    assert said.endswith(f"fedjax-muon sweep --config {path}")
    assert "has no config.json" in refused(capsys, "train", "--config", tmp_path.parent)
    assert "No such file" in refused(capsys, "train", "--config", tmp_path / "no.yaml")
    assert config_files.find("resume", ["--config", "x.ini"]).path is None


# ---------------------------------------- the help: every option once, in 80 columns

EXPECTED = {
    "problem": "Data",
    "dataset": "Data",
    "alpha": "Client",
    "model": "Model",
    "newton_schulz_dtype": "Newton-Schulz",
    "error_feedback": "Compression",
    **dict.fromkeys(("cohort_size", "rounds"), "Training"),
    **dict.fromkeys(("devices", "coordinator", "tune"), "Execution"),
    "output": "Output",
    "seed": None,
}


def boxes(text: str) -> dict[str, list[str]]:
    """The options of every box of a help text, which without Unicode has no lines."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.strip("╭╮│─ ")
        if re.fullmatch(r"([\w-]+ )?options|positional arguments", words):
            options = found.setdefault(words, [])
        option = re.match(r"--([\w.-]+)", words)
        if option and option[1].strip("-"):
            options.append(option[1])
    return found


def names(kind: type) -> list[str]:
    """The options of a command, from its dataclasses alone."""
    found = []
    for field in dataclasses.fields(kind):
        part = {"config": Config, "launch": Launch}.get(field.name)
        if part is not None:
            found += names(part)
        elif field.name == "config_file":
            found.append("config")
        elif field.name != "hyper":
            found.append(field.name.replace("_", "-"))
    return found


@pytest.mark.parametrize("command", RUNNERS)
def test_every_option_is_in_one_section_of_help(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        run(command, "--help")
    assert stop.value.code == 0
    text = capsys.readouterr().out
    found = boxes(text)
    listed = [name for options in found.values() for name in options]
    assert len(set(listed)) == len(listed)
    kind, _ = command_kinds([command])[command]
    positional = {"algorithms", "directory", "directories", "name", "path"}
    wanted = {*names(kind)} - (positional if command != "sweep" else set())
    plain = {name for name in listed if not name.startswith("algorithm.")}
    assert plain == wanted
    lines = [line for line in text.splitlines() if line.startswith((" ", "│", "╭"))]
    assert max(map(len, lines)) <= 80
    if command == "train":
        assert list(found) == [
            *("options", "algorithm options", "Data options", "Client options"),
            *("Graph options", "Privacy options"),
            *("Model options", "Newton-Schulz options", "Training options"),
            *("Time options", "Compression options", "Execution options"),
            "Output options",
        ]
        assert found["options"] == ["config", "algorithm", "seed"]


def test_options_are_where_they_are_looked_for():
    kind, default = command_kinds(["train"])["train"]
    options = parsing.options(kind, default.get("default"))
    found = {option.name: option.section for option in options}
    assert EXPECTED.items() <= found.items()
    for kind, starts in parsing.STARTS.items():
        fields = [field.name for field in dataclasses.fields(kind)]
        assert next(iter(starts)) == fields[0]
        assert list(starts) == sorted(starts, key=fields.index)
        assert set(starts.values()) <= set(parsing.ORDER)


# --------------------------------------------- bad input, before anything is made

NOT_MINIMAX = "fsgda is a method for minimax problems; add --problem auc"
TWO_CLASSES = "AUC is defined for two classes; the model gives 10 logits"
TWO_RATIOS = "ratios must have one number for each of the 8 clients, got 2"
RATIOS = "--partition ratios --ratios 0.1 0.2"
ONCE = "must name one or more, each once"
SWEEP, PRIVATE = "sweep --algorithms fedavg", "compare dpmixsgd --epsilon 1"
LITTLE = (
    "train --algorithm fedavg --train-share 0.2 --num-clients 4 --min-client-size 1 "
    "--cohort-size 4 --rounds 2 --hidden 8 --batch-size 16"
)
# what is given, and what it is told, by the command
QUICK = {
    "resum": {"": "resume"},
    "train": {
        "--rounds 0": "rounds must be at least 1, got 0",
        "--newton-schulz-steps -1": "newton_schulz_steps must be at least 0, got -1",
        "--train-share 0": "train_share must lie in (0, 1], got 0.0",
        "--algorithm muloco --algorithm.momentum 1": (
            "momentum must lie in [0, 1), got 1.0"
        ),
        "--algorithm fedmun": "unknown algorithm 'fedmun'; did you mean fedmuon",
        "--dataset digit": "unknown dataset 'digit'; did you mean 'digits'? Choose",
        "--algorithm fsgda": NOT_MINIMAX,
        "--problem auc --dataset digits": TWO_CLASSES,
        "--algorithm.lrr 0.1": "--algorithm.lr",
        "--plan fast": "invalid choice",
        "--model resnet": "did you mean resnet18?",
        "--alpha small": "could not convert",
    },
    "data": {
        "digits --list": "--list shows all datasets; leave out digits",
        "digit": "unknown dataset 'digit'; did you mean 'digits'? Choose",
        "mnist": (
            "mnist is stored in files: give data_dir or set the environment variable "
            "FEDJAX_MUON_DATA to the directory that holds them; how to get them: "
            "fedjax-muon data mnist"
        ),
    },
    LITTLE: {
        "--local-epochs 1 2 3": "the smallest and the largest, got 1 2 3",
        "--local-epochs 0": "local_epochs must be at least 1, got 0",
        "--local-epochs 3 2": "(low, high), got (3, 2)",
        "--own-leaves Dense_9": "no parameter has 'Dense_9' in its path",
        "--own-leaves kernel bias": "kernel, bias cover all parameters",
        "--own-leaves Dense_1 --ditto 1": "cannot be combined",
        "--ditto -1": "pull must",
    },
    SWEEP: {
        "--grid lr=0.1,-1": "the grid of fedavg: lr must lie in [0, infinity), got -1",
        "--grid lr=-2 --lr-schedule cosine": (
            "of fedavg: lr must lie in [0, infinity), got -2"
        ),
        "--grid lr=nan": "the grid of fedavg: lr must lie in [0, infinity), got nan",
    },
    "sweep": {
        "--algorithms fedavgg": "unknown algorithm 'fedavgg'; did you mean fedavg"
    },
    PRIVATE: {
        "--budget 0.1": "and 0.1 is allowed, at delta 1e-05",
        "--output .": "is already used; choose another --output",
        "--cohort-size 3": "dpmixsgd has no server; leave out cohort_size",
    },
    "compare dpmixsgd dsgda": {"--epsilon 1": "dsgda has no private version; leave"},
    "compare dpmixsgd fedavg": {"--epsilon 1 --delta 1e-3": "compare them separately"},
    "train --algorithm fedavg": {
        "--epsilon": "error parsing --epsilon: it needs a value",
        "--clip-norm 1": "clip_norm is an option of private runs; add --epsilon",
        "--graph ring": "fedavg has a server, and a graph is for agents without one",
        "--epsilon 1 2": "train takes one --epsilon; for several, use compare",
    },
    "train --algorithm dpmixsgd": {
        "": "is a private method; add --epsilon",
        "--epsilon 1 --ledger /dev/null/ledger.json": "/dev/null",
    },
}
SLOW = {
    "train": {
        "--dataset fashion_mnist": "fashion_mnist is stored in files: give data_dir",
        "--cohort-size 17": "cohort_size must lie between 1 and the 16 clients",
        "--local-steps 0": "local_steps must be at least 1, got 0",
        "--hidden 64 0": "hidden widths must be at least 1, got (64, 0)",
        "--batch-size -1": "batch_size must be at least 1, got -1",
        "--dropout 1": "dropout must lie in [0, 1), got 1.0",
        "--alpha 0": "alpha",
        "--algorithm fedmuon_align --algorithm.align 1.5": (
            "align must lie in [0, 1], got 1.5"
        ),
        "--algorithm.lr -1": "lr must lie in [0, infinity), got -1",
        "--algorithm fedavg --algorithm.lr nan": (
            "lr must lie in [0, infinity), got nan"
        ),
        "--algorithm stem": "full participation only; use a cohort_size of all 16",
        "--algorithm scaffold --weighting examples": "has control variates",
        "--plan chunked --chunk-size 0": "chunk_size must be at least 1, got 0",
        "--model lenet --dataset digits": "LeNet",
        "--dataset breast_cancer --augmentation crop_and_flip": (
            "augmentation crop_and_flip does not fit breast_cancer: images"
        ),
        "--positives 0.1": "labels must be 0 (negative) or 1 (positive)",
        "--model rnn": (
            "the model rnn does not fit digits; rnn, lstm, gru and roberta"
        ),
    },
    "train --problem auc": {
        RATIOS: TWO_RATIOS,
        "--positives 0.9": "ratio 0.9 with",
        "--positives 1.5": "ratio must lie in [0, 1], got 1.5",
        "--algorithm.lr -1": "lr must lie in [0, infinity), got -1",
        "--algorithm fessgda": "did you mean fess_gda",
    },
    "compare": {
        "fedavg fedavg": f"algorithms {ONCE}",
        "--seeds 1 1": f"seeds {ONCE}",
        "--lr scafold 1": "--lr names 'scafold', which is not compared",
        "fedavg fsgda": NOT_MINIMAX,
        "--problem auc --dataset digits": TWO_CLASSES,
        "--problem auc --cohort-size 4": (
            "full participation only; use a cohort_size of all 8"
        ),
        "sagdaa --problem auc": "did you mean sagda",
    },
    "resume": {"/nowhere": "is not a run directory"},
    "plot": {"": "plot needs at least one run directory"},
    SWEEP: {
        "--grid lr=0.1 align=0.5": (
            "names 'align', which is not a number that fedavg takes; it takes lr,"
        ),
        "--grid lr=abc": "NAME=NUMBER,NUMBER,...; got 'lr=abc'",
        "--grid lr=": "NAME=NUMBER,NUMBER,...; got 'lr='",
        "--grid lr": "NAME=NUMBER,NUMBER,...; got 'lr'",
        "--grid lr=0.1,1e-1": "the grid of lr has a value twice",
        "--grid lr=0.1 lr=0.2": "--grid names 'lr' twice",
        "--grid": "NAME=NUMBER,NUMBER,...; got nothing",
        "--seeds 1,1": f"seeds {ONCE}, got (1, 1)",
        "--seeds": f"seeds {ONCE}, got ()",
        "--seeds 0,4294967296": "a seed must lie in [0, 2^32), got 4294967296",
        "--seeds=-1": "a seed must lie in [0, 2^32), got -1",
        "--validation 0": "share must be in (0, 1), got 0.0",
        "--validation 1": "share must be in (0, 1), got 1.0",
        "--validation 0.001": "the class '8', which has 139 of 1437 examples",
        "--cells-at-once 0": "cells_at_once must be at least 1, got 0",
        "--compressor top_k --compressor-share 0": "share must lie in (0, 1], got 0",
        "--compressor top_k --error-feedback 2": "feedback must lie in [0, 1], got 2",
        "--compressor quantize --compressor-bits 9": (
            "bits must be an integer from 1 to 8, got 9"
        ),
        "--error-feedback 1": "error_feedback need a compressor",
        "--compressed-parts momentum": "compressed_parts and error_feedback need",
    },
    "sweep": {
        "--algorithms fedmuon --grid synced=0,1": (
            "the grid names 'synced', which is not a number that fedmuon takes"
        ),
        "--algorithms fedavg,fedavg": f"algorithms {ONCE}",
        "--algorithms": f"algorithms {ONCE}, got ()",
        "--algorithms fedmuon_align --compressor svd --compressed-parts moment": (
            "no message has a part 'moment'; there are momentum, params"
        ),
        "--algorithms fedavg,fsgda": f"fsgda: {NOT_MINIMAX}",
        "--algorithms fed_nsgd_m": "fed_nsgda_m",
        f"--problem auc {RATIOS}": TWO_RATIOS,
        "--problem auc --dataset digits": TWO_CLASSES,
    },
    PRIVATE: {
        "--hidden 4 0": "hidden widths must be at least 1, got (4, 0)",
        "--budget 0": "epsilon must lie in (0, infinity), got 0",
        "--epsilon 1,1": "epsilons must differ, got (1.0, 1.0)",
        "--epsilon 0": "epsilon must lie in [0.0001, 1e+07], or be inf",
        "--delta 0.02": "delta must lie in (0, 0.01",
        "--batch-size 92": "batch must be at most 91",
        "--dataset digits": "AUC is defined for two classes",
        "--clip-norm 0": "clip_norm must lie in (0, infinity), got 0",
        "--num-clients 1000": "num_clients must be in 1..455 (the examples), got 1000",
        "--graph tree": "invalid choice",
        "--lr-schedule cosine": "dpmixsgd takes no learning rate schedule",
    },
    "sweep --algorithms dpmixsgd": {
        "--epsilon 1": "use compare, which takes several --epsilon"
    },
    "deploy --num-clients 2 --algorithm dsgd": {"": "dsgd has no server"},
}


def cases(table):
    return [
        (f"{command} {words}".strip(), message)
        for command, messages in table.items()
        for words, message in messages.items()
    ]


@pytest.mark.parametrize(
    ("words", "message"), slow_but(cases(QUICK), cases(QUICK) + cases(SLOW))
)
def test_bad_input_is_refused_first(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDJAX_MUON_DATA", raising=False)
    (tmp_path / "file").touch()
    assert message in refused(capsys, *words.split())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_problem_that_does_not_exist_is_rejected(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in ("train", "compare", "sweep"):
        message = refused(capsys, command, "--problem", "regression")
        assert "invalid choice" in message
        assert "auc" in message
    assert list(tmp_path.iterdir()) == []


def test_every_option_of_a_method_has_a_help():
    for method in config.METHODS.values():
        options = method_options(method)
        kinds = typing.get_type_hints(options, include_extras=True)
        silent = [name for name in kinds if not kinds[name].__metadata__[0].help]
        assert (method.name, silent) == (method.name, [])

"""Options: in the sections of the help, and refused in one line."""

import dataclasses
import re
import typing

import pytest
from cases import slow_but
from command import refused, run

from fedjax_muon.cli import (
    RUNNERS,
    _given as given,
    command_kinds,
    commands,
    parsing,
)
from fedjax_muon.cli.arguments import method_options
from fedjax_muon.runs import config
from fedjax_muon.runs.config import Config
from fedjax_muon.runs.launch import Launch


def test_a_grid_is_for_all_methods_or_for_one():
    grids = commands._grids
    assert grids(["fedavg", "fedmuon"], ["fedavg.lr=3", "lr=1,2", "server_lr=1"]) == {
        "fedavg": {"lr": (3.0,), "server_lr": (1.0,)},
        "fedmuon": {"lr": (1.0, 2.0), "server_lr": (1.0,)},
    }
    paper = grids(["fedavg", "fedmuon"], ["paper"])
    mixed = grids(["fedavg", "fedmuon"], ["paper", "fedavg.lr=0.5"])
    assert mixed == {**paper, "fedavg": {**paper["fedavg"], "lr": (0.5,)}}


@pytest.mark.parametrize(
    ("words", "graph"),
    [
        ("train --output dsgd", None),
        ("train --algorithm dsgd --output fedavg", "erdos_renyi"),
        ("compare dsgd demuon --output fedavg", "erdos_renyi"),
        ("compare --quick dsgd", "erdos_renyi"),
        ("compare --rounds 2 dsgd,demuon", "erdos_renyi"),
        ("compare fedavg --output=dsgd", None),
    ],
)
def test_only_names_of_algorithms_decide_the_defaults(words, graph):
    name, *rest = words.split()
    assert given(name, rest).config.graph == graph


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
        assert found["options"] == ["algorithm", "seed"]


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

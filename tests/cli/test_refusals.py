"""Bad input is refused in one line, with a hint, before anything is made."""

import pytest
from cases import slow_but
from command import refused

NOT_MINIMAX = "fsgda is a method for minimax problems; choose one with --problem"
TWO_CLASSES = "AUC is defined for two classes; the model gives 10 logits"
TWO_RATIOS = "ratios must be one for each of the 8 clients, got 2"
RATIOS = "--partition ratios --ratios 0.1 0.2"
ONCE = "must be one or more, each once"
SWEEP, PRIVATE = "sweep --algorithms fedavg", "private --methods dpmixsgd"
SMALL = (
    "train --algorithm fedavg --train-share 0.2 --num-clients 4 --min-client-size 1 "
    "--cohort-size 4 --rounds 2 --hidden 8 --batch-size 16"
)
# what is given, and what it is told, by the command
QUICK = {
    "resum": {"": "resume"},
    "train": {
        "--rounds 0": "rounds must be at least 1, got 0",
        "--newton-schulz-steps -1": "newton_schulz_steps must lie in 0..100, got -1",
        "--train-share 0": "train_share must lie in (0, 1], got 0.0",
        "--algorithm muloco --algorithm.momentum 1": (
            "momentum must lie in [0, 1), got 1.0"
        ),
        "--algorithm fedmun": "unknown algorithm 'fedmun'; did you mean fedmuon",
        "--dataset digit": "unknown data set 'digit'; choose one of digits",
        "--algorithm fsgda": NOT_MINIMAX,
        "--problem auc --dataset digits": TWO_CLASSES,
        "--algorithm.lrr 0.1": "--algorithm.lr",
        "--plan fast": "invalid choice",
        "--model resnet": "did you mean resnet18?",
        "--alpha small": "could not convert",
    },
    "data": {
        "digits --list": "--list shows all sets, so leave out digits",
        "digit": "unknown data set 'digit'; choose one of digits",
        "mnist": (
            "mnist is stored in files: give data_dir or set the environment variable "
            "FEDJAX_MUON_DATA to the directory that holds them; how to get them: "
            "fedjax-muon data --list"
        ),
    },
    SMALL: {
        "--local-epochs 1 2 3": "the smallest and the largest, got 1 2 3",
        "--local-epochs 0": "local_epochs must be at least 1, got 0",
        "--local-epochs 3 2": "(low, high), got (3, 2)",
        "--own-leaves Dense_9": "no parameter has 'Dense_9' in its path",
        "--own-leaves kernel bias": "kernel, bias are all parameters",
        "--own-leaves Dense_1 --ditto 1": "exclude each other",
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
        "--methods dsgda": "dsgda is not private, and its results",
        "--budget 0.1": "and 0.1 is allowed, at delta 1e-05",
        "--output .": "is already used; choose another --output",
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
        "--algorithm.align 1.5": "align must lie in [0, 1], got 1.5",
        "--algorithm.lr -1": "lr must lie in (0, infinity), got -1",
        "--algorithm fedavg --algorithm.lr nan": (
            "lr must lie in [0, infinity), got nan"
        ),
        "--algorithm stem": "full participation only; use a cohort_size of all 16",
        "--algorithm scaffold --weighting examples": "has control variates",
        "--plan chunked --chunk-size 0": "a chunk holds at least one client",
        "--model lenet --dataset digits": "LeNet",
        "--dataset breast_cancer --augmentation crop_and_flip": (
            "augmentation crop_and_flip does not fit breast_cancer: images"
        ),
        "--positives 0.1": "labels must be 0 (negative) or 1 (positive)",
        "--model rnn": (
            "the model rnn does not fit digits; rnn, lstm and gru are for text"
        ),
    },
    "train --problem auc": {
        RATIOS: TWO_RATIOS,
        "--positives 0.9": "ratio 0.9 with",
        "--positives 1.5": "ratio must be in [0, 1], got 1.5",
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
            "names 'align', which is no number that fedavg takes; it takes lr,"
        ),
        "--grid lr=abc": "NAME=NUMBER,NUMBER,...; got 'lr=abc'",
        "--grid lr=": "NAME=NUMBER,NUMBER,...; got 'lr='",
        "--grid lr": "NAME=NUMBER,NUMBER,...; got 'lr'",
        "--grid lr=0.1,1e-1": "the grid of lr has a value twice",
        "--grid lr=0.1 lr=0.2": "the grid names 'lr' twice",
        "--grid": "NAME=NUMBER,NUMBER,...; got none",
        "--seeds 1,1": f"seeds {ONCE}, got (1, 1)",
        "--seeds": f"seeds {ONCE}, got ()",
        "--seeds 0,4294967296": "a seed must lie in [0, 2^32), got 4294967296",
        "--seeds=-1": "a seed must lie in [0, 2^32), got -1",
        "--validation 0": "share must be in (0, 1), got 0.0",
        "--validation 1": "share must be in (0, 1), got 1.0",
        "--validation 0.001": "a class that has 139 of 1437 examples",
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
            "the grid names 'synced', which is no number that fedmuon takes"
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
        "--methods dpsgd": "unknown method 'dpsgd'; there are dp_sgda",
        "--methods dp_sgda,dp_sgda": f"methods {ONCE}",
        "--hidden 4 0": "hidden widths must be at least 1, got (4, 0)",
        "--budget 0": "epsilon must lie in (0, infinity), got 0",
        "--epsilons 1,1": f"epsilons {ONCE}",
        "--epsilons 0": "epsilon must lie in (0, infinity)",
        "--lr sgd 0.1": "unknown method 'sgd'",
        "--delta 0.02": "delta must lie in (0, 0.01",
        "--batch-size 92": "batch must be at most 91",
        "--dataset digits": "AUC is defined for two classes",
        "--clip-norm 0": "clip_norm must lie in (0, infinity), got 0",
        "--agents 1000": "must be a whole number in 1..455",
        "--graph tree": "invalid choice",
    },
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
def test_bad_input_is_refused_in_one_line_before_anything_is_made(
    words, message, capsys, tmp_path, monkeypatch
):
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

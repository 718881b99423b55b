"""What the command refuses, in one line and before anything is made."""

import csv

import numpy as np
import pytest
from cases import slow_but
from command import refused

NOT_MINIMAX = "minimax problems; add --problem auc"
TWO_CLASSES = "two classes; the model gives 10"
RATIOS = "--partition ratios --ratios 0.1 0.2"
ONCE = "must name one or more, each once"
SWEEP, PRIVATE = "sweep --algorithms fedavg", "compare dpmixsgd --epsilon 1"
LITTLE = (
    "train --algorithm fedavg --train-share 0.2 --num-clients 4 --min-client-size 1 "
    "--cohort-size 4 --rounds 2 --hidden 8 --batch-size 16"
)
TABLE = "train --algorithm fedavg --dataset ../table.csv --cohort-size 2"
# what is given, and what it is told, by the command
QUICK = {
    "resum": {"": "resume"},
    "train": {
        "--problem regression": "invalid choice",
        "--rounds 0": "rounds must be at least 1, got 0",
        "--train-share 0": "train_share must lie in (0, 1]",
        "--algorithm muloco --algorithm.momentum 1": "momentum must lie in [0, 1)",
        "--algorithm fedmun": "did you mean fedmuon",
        "--dataset digit": "did you mean 'digits'",
        "--algorithm fsgda": NOT_MINIMAX,
        "--problem auc --dataset digits": TWO_CLASSES,
        "--algorithm.lrr 0.1": "--algorithm.lr",
        "--model resnet": "did you mean resnet18",
        "--alpha small": "could not convert",
    },
    LITTLE: {
        "--local-epochs 1 2 3": "got 1 2 3",
        "--own-leaves Dense_9": "no parameter has 'Dense_9'",
        "--own-leaves Dense_1 --ditto 1": "cannot be combined",
        "--buffer 3": "add --concurrency",
        "--concurrency 3": "add --buffer",
        "--staleness 1": "add --buffer",
        "--clock lognormal": "such as constant:1:0",
        "--clock fast:1": "got 'fast:1'",
        "--clock nowhere.csv": "nowhere.csv",
    },
    SWEEP: {
        "--grid lr=0.1,-1": "the grid of fedavg: lr must lie in",
        "--grid lr=-2 --lr-schedule cosine": "of fedavg: lr must lie in",
        "--client-tests": "leave out client_tests",
        "--log lines": "unknown option --log",
    },
    PRIVATE: {
        "--budget 0.1": "0.1 is allowed",
        "--cohort-size 3": "has no server; leave out cohort_size",
    },
    "compare dpmixsgd dsgda": {"--epsilon 1": "dsgda has no private version"},
    "compare dpmixsgd fedavg": {"--epsilon 1 --delta 1e-3": "separately"},
    "train --algorithm fedavg": {
        "--epsilon": "it needs a value",
        "--clip-norm 1": "add --epsilon",
        "--graph ring": "a graph is for agents",
        "--epsilon 1 2": "for several, use compare",
        "--log json": "unknown tracker 'json'; log takes",
        "--log wandb,wandb": "names 'wandb' twice",
        "--output .": "choose another --output",
    },
    "train --num-clients 6 --cohort-size 3": {
        "--devices 9": "at most the 8 that this host has",
        "--devices 0": "devices must be at least 1",
        "--split-examples": "needs several devices",
        "--num-processes 2": "coordinator, num_processes and process_id go",
    },
    "train --algorithm dpmixsgd": {
        "": "add --epsilon",
        "--epsilon 1 --ledger /dev/null/ledger.json": "/dev/null",
    },
    TABLE: {"--label risk --owner bank": "add --partition by_owner"},
}
SLOW = {
    "train": {
        "--dataset fashion_mnist": "give data_dir",
        "--cohort-size 17": "between 1 and the 16 clients",
        "--hidden 64 0": "hidden widths must be at least 1",
        "--alpha 0": "alpha must",
        "--algorithm scaffold --weighting examples": "has control variates",
        "--plan chunked --chunk-size 0": "chunk_size must be at least 1",
        "--model lenet --dataset digits": "LeNet",
        "--dataset breast_cancer --augmentation crop_and_flip": "does not fit",
        "--positives 0.1": "labels must be 0",
        "--model rnn": "rnn does not fit digits",
        "--label risk": "label is only for tables",
        "--image-size 4 4": "only for directories of images",
        "--partition by_owner": "does not say which clients",
        "--dataset ../none.csv": "there is no file",
        "--dataset ../none/": "there is no folder",
    },
    "train --problem auc": {
        RATIOS: "one number for each of the 8 clients",
        "--positives 0.9": "ratio 0.9 with",
        "--algorithm fessgda": "did you mean fess_gda",
    },
    TABLE: {
        "--label risk --exclude bank --partition by_owner": "with --owner",
        "--label risk --owner bnk --partition by_owner": "no column 'bnk'",
    },
    "compare": {
        "fedavg fedavg": f"algorithms {ONCE}",
        "--seeds 1 1": f"seeds {ONCE}",
        "--lr scafold 1": "'scafold', which is not compared",
        "fedavg fsgda": NOT_MINIMAX,
        "--problem auc --cohort-size 4": "use a cohort_size of all 8",
    },
    "resume": {"/nowhere": "is not a run directory"},
    "plot": {"": "at least one run directory"},
    SWEEP: {
        "--grid lr=0.1 align=0.5": "'align', which is not a number",
        "--grid lr=abc": "got 'lr=abc'",
        "--grid lr": "got 'lr'",
        "--grid lr=0.1,1e-1": "the grid of lr has a value twice",
        "--grid lr=0.1 lr=0.2": "--grid names 'lr' twice",
        "--grid": "got nothing",
        "--seeds": f"seeds {ONCE}, got ()",
        "--seeds 0,4294967296": "a seed must lie in [0, 2^32)",
        "--validation 1": "share must be in (0, 1)",
        "--validation 0.001": "the class '8'",
        "--cells-at-once 0": "cells_at_once must be at least 1",
        "--compressor quantize --compressor-bits 9": "bits must be",
        "--error-feedback 1": "need a compressor",
        "--compressed-parts momentum": "compressed_parts and error_feedback need",
    },
    "sweep": {
        "--algorithms fedmuon --grid synced=0,1": "'synced', which is not a number",
        "--algorithms": f"algorithms {ONCE}, got ()",
        "--algorithms fedmuon_align --compressor svd --compressed-parts moment": (
            "no message has a field 'moment'"
        ),
        "--algorithms fedavg,fsgda": NOT_MINIMAX,
        f"--problem auc {RATIOS}": "one number for each of the 8 clients",
    },
    PRIVATE: {
        "--budget 0": "epsilon must lie in (0, infinity)",
        "--epsilon 1,1": "epsilons must differ",
        "--epsilon 0": "epsilon must lie in [0.0001",
        "--delta 0.02": "delta must lie in (0, 0.01",
        "--batch-size 92": "batch must be at most 91",
        "--num-clients 1000": "in 1..455 (the examples)",
        "--graph tree": "invalid choice",
        "--lr-schedule cosine": "takes no learning rate schedule",
    },
    "sweep --algorithms dpmixsgd": {"--epsilon 1": "use compare"},
}


def cases(table):
    return [
        (f"{command} {words}".strip(), message)
        for command, messages in table.items()
        for words, message in messages.items()
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a file, beside a table."""
    place = tmp_path_factory.mktemp("there") / "here"
    place.mkdir()
    (place / "file").touch()
    rng = np.random.default_rng(0)
    rows = [[rng.normal(), "ns"[i % 3 > 0], "ab"[i % 2]] for i in range(40)]
    with (place.parent / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["age", "bank", "risk"], *rows])
    return place


@pytest.mark.parametrize(
    ("words", "message"), slow_but(cases(QUICK), cases(QUICK) + cases(SLOW))
)
def test_bad_input_is_refused_first(words, message, capsys, place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.delenv("FEDJAX_MUON_DATA", raising=False)
    assert message in refused(capsys, *words.split())
    assert [path.name for path in place.iterdir()] == ["file"]

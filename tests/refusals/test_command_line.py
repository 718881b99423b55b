"""What the command refuses, in one line and before anything is made."""

import csv

import numpy as np
import pytest
from cases import slow_but
from command import refused

NOT_MINIMAX = "minimax problems; add --problem auc"
ONCE = "must be one or more numbers, each once"
GRID, PRIVATE = "sweep fedavg --lr 0.1,0.2", "compare dpmixsgd --epsilon 1"
LITTLE = (
    "train fedavg --train-share 0.2 --clients 4 --rounds 2 --batch-size 16 "
    "--divide dirichlet:alpha=1,min_size=1 --model mlp:hidden=8"
)
TABLE = "train fedavg --dataset ../table.csv --cohort 2"
# what is given, and what it is told, by the command
QUICK = {
    "resum": {"": "did you mean resume?"},
    "train": {
        "--problem regression": "choose one of classification, auc, text, or your own",
        "--rounds 0": "rounds must be at least 1, got 0",
        "--rounds": "--rounds needs a value: a whole number",
        "fedavg:lr=0.1 --lr 0.3": "--lr is given twice; give it once",
        "fedavg:lr=0.1,lr=0.3": "fedavg names lr twice; name it once",
        "--problem classification:alpha=1 --alpha 2": "--alpha is given twice",
        "feddyn --alpha 0.01": "--alpha is an option of classification and of feddyn",
        "fedsubmuon_gt --step 0.5 --cohort timed --clock lognormal:1.0": (
            "write fedsubmuon_gt:step=VALUE for the method's, with --step for the "
            "other, or lognormal:step=VALUE"
        ),
        "fedsgda_clip --epsilon 1 --clip-norm 1": "of ClientPrivacy and of fedsgda_cl",
        f"--rounds {10**18}": "rounds must be at most 2147483647, got 10",
        f"--local-steps {10**18}": "local_steps must be at most 2147483647, got 10",
        f"--model mlp:hidden={10**30}": "hidden widths must be at most 2147483647",
        "--lr cosine(cosine(0.1))": "cosine: lr must be a number, got 'cosine(0.1)'",
        "--lr cosine:cosine:0.1": "cosine: lr must be a number, got 'cosine:0.1'",
        f"--lr {300 * 'cosine('}0.1{300 * ')'}": "names more than 30 functions in one",
        f"--lr {2000 * 'cosine:'}0.1": "--lr names more than 30 functions in one",
        "fedavg --server-lr cosine:0.1": "unknown --server-lr 'cosine'",
        f"--lr {10**5 * 'x'}": f"xxx [...] {900 * 'x'}",
        "--train-share 0": "train_share must lie in (0, 1]",
        "muloco --momentum 1": "momentum must lie in [0, 1)",
        "fessgda": "did you mean fess_gda",
        "fedmun": "unknown method 'fedmun'; did you mean fedmuon?",
        "--dataset digit": "did you mean 'digits'",
        "fsgda --problem classification": NOT_MINIMAX,
        "fsgda --dataset digits": "two classes; the model gives 10",
        "--lrr 0.1": "unknown option --lrr; did you mean --lr?",
        "--model resnet": "did you mean resnet18",
        "--alpha small": "--alpha must be a number, got 'small'",
        "--client-tests maybe": "must be true or false, got 'maybe'",
        "fedavg fedmuon": "for several, use compare",
        "fedmuon:lrr=1": "did you mean lr? it takes lr, momentum, rule, polar, synced",
        "fedavg(lr=0.1": "a bracket is missing in 'fedavg(lr=0.1'",
        "fedmuon:lr=x": "unknown fedmuon: lr 'x'; choose one of cosine",
        "--lr 0.1,0.2": "train takes one lr; for several, use sweep",
        "--lr cosine": "cosine needs lr",
        "--model no_module:net": "there is no module 'no_module', of no_module:net",
        "--with compres": "unknown wrapper 'compres'; did you mean compress?",
        "--with compress": "compress needs compressor; give it by --compressor",
        "--plan mapped --tune": "leave out --plan",
        "--seeds 0,1": "did you mean --seed?",
        "fedmuon --seed 0 1": "unexpected argument '1'",
    },
    LITTLE: {
        "--local-epochs 1,2,3": "(low, high), got (1, 2, 3)",
        "--with keep_own:Dense_9": "no parameter has 'Dense_9'",
        "--with keep_own:head --with ditto": "cannot be combined; choose one",
        "--local-steps 2 --local-epochs 1": "either local_steps or local_epochs",
        "--cohort buffered --buffer 3": "by --concurrency",
        "--concurrency 3": "it is one of --cohort buffered or fedasync; --help shows",
        "--dropout 0.1": "one of --cohort sampled or poisson or timed or buffered or",
        "--cohort timed": "timed needs clock; give it by --clock",
        "--cohort fast:1": "unknown --cohort 'fast'; did you mean fedasync? choose",
        "--cohort timed --clock lognormal": "lognormal needs sigma",
        "--cohort timed --clock fast:1": "unknown --clock 'fast'",
        "--cohort timed --clock trace:nowhere.csv": "nowhere.csv",
        "--with robust:mean": "unknown robust: aggregator 'mean'",
    },
    GRID: {
        "--lr 0.1,-1": "the grid of fedavg: lr must lie in",
        "--lr 0.1,x": "--lr must be numbers",
        "--log lines": "unknown option --log",
        "--part 3/2": "part must be such as 3/8",
    },
    "sweep feddyn": {"--alpha 0.01,0.1": "of classification and of feddyn; write fed"},
    "sweep fedavg": {"": "fedavg has no grid", "--grid papers": "did you mean paper"},
    PRIVATE: {
        "--budget 0.1": "0.1 is allowed",
        "--cohort 3": "needs a server, and dpmixsgd has none",
    },
    "compare dpmixsgd dsgda": {"--epsilon 1": "dsgda has no private version"},
    "compare dpmixsgd fedavg": {"--epsilon 1 --delta 1e-3": "separately"},
    "train fedavg": {
        "--epsilon": "--epsilon needs a value",
        "--clip-norm 1": "add --epsilon",
        "--graph ring": "is for agents without a server",
        "--epsilon 1,2": "for several, use compare",
        "--epsilon 1 --cohort sampled:2": "give --cohort a number",
        "--log json": "unknown tracker 'json'; log takes",
        "--log wandb,wandb": "names 'wandb' twice",
        "--directory .": "choose another directory",
    },
    "train --clients 6 --cohort 3": {
        "--devices 9": "at most the 8 that this host has",
        "--devices 0": "devices must be at least 1",
        "--split-examples": "needs several devices",
        "--num-processes 2": "coordinator, num_processes and process_id go",
    },
    "train dpmixsgd": {
        "": "add --epsilon",
        "--epsilon 1 --ledger /dev/null/ledger.json": "/dev/null",
    },
}
SLOW = {
    "train": {
        "--dataset fashion_mnist": "give data_dir",
        "--cohort 17": "between 1 and the 16 clients",
        "--model mlp:hidden=64+0": "hidden widths must be at least 1",
        "--alpha 0": "alpha must",
        "scaffold --weighting examples": "has control variates",
        "--plan chunked --size 0": "chunk_size must be at least 1",
        "--model lenet": "LeNet",
        "--dataset breast_cancer --augment crop_and_flip": "does not fit",
        "--positives 0.1": "labels must be 0",
        "--model rnn": "this dataset has numbers",
        "--label risk": "label is only for tables",
        "--image-size 4,4": "only for directories of images",
        "--divide by_owner": "does not say which clients",
        "--dataset ../none.csv": "there is no file",
        "--dataset ../none/": "there is no folder",
    },
    "train fess_gda": {
        "--divide ratios --shares 0.1,0.2": "one number for each of the 8 clients",
        "--positives 0.9": "ratio 0.9 with",
    },
    TABLE: {
        "--label risk --exclude bank --divide by_owner": "name the column by owner",
        "--label risk --owner bnk": "no column 'bnk'",
        "--label risk --owner bank --divide iid": "leave out one of them",
    },
    "compare": {
        "fedavg fedavg": "fedavg is named twice",
        "--seeds 1,1": f"seeds {ONCE}",
        "fedavg fsgda --problem classification": NOT_MINIMAX,
        "fedavg dsgd": "has a server and dsgd has none",
        "--problem auc --cohort 4": "use a cohort of all 8",
        "fedadamw --b1 0.1,0.2": "for grids of other numbers, use sweep",
    },
    "resume": {"/nowhere": "is not the directory of a command"},
    "plot": {"": "at least one directory", "here": "has no finished run"},
    "partition": {"--output a.txt": "must end in .png, .pdf, .svg"},
    "export": {"/nowhere b.safetensors": "is not the directory of a run"},
    GRID: {
        "--lr 0.1,1e-1": "the grid of lr must have one",
        "--seeds": "--seeds needs a value",
        "--seeds 0,4294967296": "a seed must lie in [0, 2^32)",
        "--validation 1": "share must be in (0, 1)",
        "--validation 0.001": "the class '8'",
        "--cells-at-once 0": "cells_at_once must be at least 1",
        "--with compress:quantize:9": "bits must be",
    },
    "sweep": {
        "": "name the methods of the sweep",
        "fedmuon --synced true,false": "must be true or false, got 'true,false'",
        "fedmuon_align --lr 0.1,0.2 --with compress:top_k:0.1,fields=moment": (
            "no message has a field 'moment'"
        ),
        "dpmixsgd --epsilon 1 --lr 0.1,0.2": "use compare",
    },
    PRIVATE: {
        "--budget 0": "epsilon must lie in (0, infinity)",
        "--epsilon 1,1": "epsilons must differ",
        "--epsilon 0": "epsilon must lie in [0.0001",
        "--delta 0.02": "delta must lie in (0, 0.01",
        "--batch-size 92": "batch must be at most 91",
        "--clients 1000": "in 1..455 (the examples)",
        "--graph tree": "unknown --graph 'tree'",
        "--lr 0.1,0.2": "which privacy does not cover",
    },
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

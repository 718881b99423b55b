"""What the command refuses, in one line and before anything is made."""

import csv
import sys

import numpy as np
import pytest

from tests.support.cases import slow_but
from tests.support.command import refused

SMALL = "clients=4,divide=dirichlet(alpha=1,min_size=1),train_share=0.2,model=mlp:8"
TINY = f"--problem digits:{SMALL} --rounds 2 --batch-size 16"
LITTLE = f"train fedavg {TINY}"
TABLE = "train fedavg --cohort 2 --problem ../table.csv"
GRID = "sweep fedavg --grid lr=0.1,0.2"
ONE = "ExamplePrivacy:epsilon=1"
PRIVATE = f"compare dpmixsgd --privacy {ONE}"
OURS = "train fedavg --batch-size 8 --problem"
# words, and what is said of them
QUICK = {
    "resum": "there are train, compare, sweep",
    "plo": "did you mean plot?",
    "train": "train needs method; train --help shows more",
    "train fedavg --problem housing": "unknown problem 'housing'; choose one of",
    "train fedavg --problem regression": "regression needs dataset",
    "train fedavg --rounds 0": "rounds must be at least 1, got 0",
    "train fedavg --rounds": "--rounds needs a value: a whole number",
    "train fedavg --rounds x": "--rounds must be a whole number, got 'x'",
    "train fedavg --rounds 0.5": "--rounds must be a whole number, got '0.5'",
    f"train fedavg --rounds {10**18}": "rounds must be at most 2147483647, got 10",
    f"train fedavg --problem digits:model=mlp:{10**30}": "widths must be at most 2147",
    "train fedmuon:lr=cosine(cosine(0.1))": "cosine: lr must be a number, got 'cosine(",
    f"train fedmuon:lr={300 * 'cosine('}0.1{300 * ')'}": "more than 30 functions in on",
    f"train fedmuon:lr={2000 * 'cosine:'}0.1": "names more than 30 functions in one",
    "train fedavg:server_lr=cosine:0.1": "'cosine:0.1' must be MODULE:FUNC",
    f"train fedmuon:lr={10**5 * 'x'}": f"xxx [...] {'x' * 500}",
    "train fessgda": "did you mean fess_gda",
    "train fedmun": "unknown method 'fedmun'; did you mean fedmuon?",
    "train fedavg --problem digit": "did you mean digits",
    "train fedavg --problem digits:label=risk": "digits has no 'label'; it takes clie",
    "train fedavg --problem scans/:image_size=[4,4]": "scans/ has no 'image_size'; did",
    "train fedavg --problem a.csv:size=[4,4]": "a.csv has no 'size'; ",
    "train fedavg --problem classification:digit": "did you mean 'digits'",
    "train fsgda --problem classification": "is a method for minimax problems",
    "train fedavg --roundz 1": "unknown option --roundz; did you mean --rounds?",
    "train fedavg --problem digits:model=resnet": "did you mean resnet18",
    "train fedavg --problem digits:alpha=small": "alpha must be a number, got 'small'",
    "train fedavg --problem digits:client_tests=maybe": "must be true or false, got 'm",
    "train fedavg fedmuon": "train takes method, got 'fedmuon' too; for several, use c",
    "train fedmuon:lrr=1": "fedmuon has no 'lrr'; did you mean lr? it takes lr, momen",
    "train fedavg(lr=0.1": "a bracket is missing in 'fedavg(lr=0.1'",
    "train fedmuon:lr=x": "unknown fedmuon: lr 'x'; choose one of cosine",
    "train fedmuon:lr=cosine": "cosine needs lr, such as cosine:lr=...",
    "train fedavg:lr=0.1,lr=0.3": "fedavg names lr twice; name it once",
    "train fedavg --problem digits:model=no_module:net": "there is no module 'no_modul",
    "train compres:fedavg": "no module 'compres', of compres:fedavg, in ",
    "train compress:fedavg": "compress needs compressor, such as compress:compressor=",
    "train fedavg --seeds 0,1": "did you mean --seed?",
    "train fedmuon --seed 0 1": "unexpected argument '1'; names come before options",
    "train fedmuon --seed 0 --seed=0": "--seed is given twice; give it once",
    f"train ditto(keep_own(fedavg,head)) {TINY}": "cannot be combined; choose one",
    f"{LITTLE} --cohort buffered:buffer=3": "buffered needs concurrency, such as",
    f"{LITTLE} --cohort timed:3": "timed needs clock, such as timed:clock=",
    f"{LITTLE} --cohort fast:1": "unknown --cohort 'fast'; did you mean fedasync? choo",
    f"{LITTLE} --cohort timed:3,lognormal": "lognormal needs sigma",
    f"{LITTLE} --cohort timed:3,fast": "unknown timed: clock 'fast'",
    f"{LITTLE} --cohort timed:3,trace:nowhere.csv": "nowhere.csv",
    f"train robust:fedavg,mean {TINY}": "unknown robust: aggregator 'mean'",
    "sweep fedavg --grid lr=0.1,x": "--grid must be paper or values by name",
    "sweep fedavg --grid papers": "did you mean paper",
    "sweep fedavg --grid lrr=0.1,0.2": "the grid names 'lrr'",
    "sweep fedavg": "the grid must name a hyperparameter, such as lr, got none",
    f"{GRID} --log lines": "unknown option --log",
    f"{PRIVATE} --budget 0.1": "0.1 is allowed",
    f"{PRIVATE} --cohort 3": "cohort needs a server, but dpmixsgd has none",
    f"compare dpmixsgd dsgda --privacy {ONE}": "privacy is for private methods",
    f"compare dpmixsgd fsgda --problem auc:clients=5 --privacy {ONE}": "must be a Clie",
    "train fedavg --privacy": "--privacy needs a value",
    "train fedavg --privacy ClientPrivacy:clip_norm=1": "epsilon",
    "train fedavg --mixer sparse": "mixer needs a graph of agents, but fedavg has none",
    "train fedavg --privacy ClientPrivacy:epsilon=1 --cohort sampled:2": "cohort",
    "train fedavg --log json": "unknown tracker 'json'; log takes",
    "train fedavg --log wandb,wandb": "names 'wandb' twice",
    "train fedavg --directory .": "choose another directory",
    "train fedavg --devices 9": "devices must be between 1 and the 8 that this host",
    "train dpmixsgd": "give it privacy, an ExamplePrivacy",
    f"train dpmixsgd --privacy {ONE} --ledger /dev/null/ledger.json": "/dev/null",
    "list nothing": "unknown name 'nothing'; ",
    "prepare": "prepare needs name",
    "export /nowhere": "export needs file",
    "plot": "plot needs directories",
    "train own_fad:f": "there is no module 'own_fad', of own_fad:f, in ",
    "train own_fed:fedhal": "own_fed.py has no function 'fedhal'; did you mean fedhalf",
    "train own_fed:fedhalf:prt=1": "own_fed:fedhalf has no 'prt'; did you mean part?",
    "train own_fed:VALUE": "own_fed.py has no function 'VALUE'",
    "train own_fed.x:f": "there is no module 'own_fed.x', of own_fed.x:f",
    "train own_fed:number": "int",
    "train own_fed:needs": "own_fed:needs needs lr, such as own_fed:needs:lr=",
    "train own_exit:f": "own_exit ends the program when it is imported",
    "train builtins:max": "max has no signature",
    "train fedavg --problem own_fed:number": "problem must be a Problem",
    "train fedavg --problem own_fed:hospital:ward=x": "ward must be a whole number, go",
}
SLOW = {
    "train fedavg --problem fashion_mnist": "give data_dir",
    "train scaffold --weighting examples": "has control variates",
    "train fedavg --problem digits:model=lenet": "LeNet",
    "train fedavg --problem breast_cancer:augment=crop_and_flip": "does not fit",
    "train fedavg --problem digits:positives=0.1": "labels must be 0",
    "train fedavg --problem digits:model=rnn": "this dataset has numbers",
    "train fedavg --problem digits:divide=by_owner": "does not say which clients",
    "train fedavg --problem ../none.csv": "there is no file",
    "train fedavg --problem ../none/": "there is no folder",
    "train fsgda --problem digits": "is a method for minimax problems",
    "train fess_gda --problem auc:divide=ratios:[0.1,0.2]": "one number for each of th",
    "train fess_gda --problem auc:positives=0.9": "ratio 0.9 with",
    f"{TABLE}:label=risk,exclude=bank,divide=by_owner": "name the column with from_",
    f"{TABLE}:label=risk,owner=bnk": "no column 'bnk'",
    f"{TABLE}:label=risk,owner=bank,clients=2": "every owner is a client, so clients=2",
    "compare fedavg fsgda --problem digits": "is a method for minimax problems",
    "compare --problem auc --cohort 4": "use a cohort of all 8",
    "plot here": "has no finished run",
    "partition --output a.txt": "must end in .png, .pdf, .svg",
    "export /nowhere b.safetensors": "is not the directory of a run",
    "export /nowhere b.onnx": "must end in .safetensors",
    "sweep": "sweep needs methods",
    "sweep all --problem auc": "all are methods of classification; write sweep minimax",
    f"{GRID} --seeds": "--seeds needs a value",
    f"{GRID} --seeds 0,4294967296": "a seed must lie in [0, 2^32)",
    "sweep fedmuon --grid synced=true,false": "the grid names 'synced'",
    "sweep compress(fedmuon_align,top_k(0.1),fields=moment) --grid lr=0.1,0.2": (
        "no message has a field 'moment'"
    ),
    f"sweep dpmixsgd --privacy {ONE} --grid lr=0.1,0.2": "use compare",
    "compare dpmixsgd --privacy ExamplePrivacy:epsilon=[1,1]": "epsilons must differ",
    "train dpmixsgd --privacy ExamplePrivacy:epsilon=[1,2]": "compare",
    "compare dpmixsgd --privacy ExamplePrivacy:epsilon=0": "epsilon must lie in [0.000",
    f"{PRIVATE} --problem auc:graph=tree": "unknown auc: graph 'tree'",
    f"{PRIVATE} --grid lr=0.1,0.2": "which privacy does not cover",
    f"{OURS} digits:model=own_fed:word": "word must return a flax.linen module, or one",
    f"{OURS} digits:divide=own_fed:keyless": "keyless is called as keyless(labels, cl",
    f"{OURS} digits:divide=own_fed:fewer": "fewer must return a list of 16 arrays of",
    f"{OURS} digits:divide=own_fed:shares": "whole numbers, got float64[90] for clien",
    f"{OURS} digits:divide=own_fed:empty": "client 15 has no examples",
    f"{OURS} digits:divide=own_fed:outside": "names example 1437, but there are only",
    f"{OURS} digits:divide=own_fed:twice": "gives example 3 to two clients, or twice",
}
CODE = """
import numpy as np

import fedjax_muon as fm

VALUE = 3


@fm.recorded
def fedhalf(lr: fm.Hyper = 0.1, *, part: fm.Hyper = 1, flag: bool = True):
    return fm.fedavg(lr, server_lr=part)


@fm.problems.named
def hospital(ward: int = 3, *, north: str = "n", clients: int = 6):
    return fm.problems.classification(clients=clients)


def needs(lr):
    return fm.fedavg(lr)


def number():
    return 2


def word(dataset):
    return "x"


def dealt(labels, clients, *, key, start: int = 0):
    return np.array_split(np.arange(start, len(labels)), clients)


def keyless(labels, clients):
    return dealt(labels, clients, key=None)


def fewer(labels, clients, key):
    return dealt(labels, clients - 1, key=key)


def shares(labels, clients, key):
    return [part / 2 for part in dealt(labels, clients, key=key)]


def empty(labels, clients, key):
    return [*dealt(labels, clients - 1, key=key), []]


def outside(labels, clients, key):
    return [part + 1 for part in dealt(labels, clients, key=key)]


def twice(labels, clients, key):
    return [np.minimum(part, 3) for part in dealt(labels, clients, key=key)]
"""
FILES = {"own_fed.py": CODE, "own_exit.py": "import sys\nsys.exit()\n"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with code, beside a table."""
    place = tmp_path_factory.mktemp("there") / "here"
    place.mkdir()
    for name, text in FILES.items():
        (place / name).write_text(text)
    rng = np.random.default_rng(0)
    rows = [[rng.normal(), "ns"[i % 3 > 0], "ab"[i % 2]] for i in range(40)]
    with (place.parent / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["age", "bank", "risk"], *rows])
    yield place
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.mark.filterwarnings("ignore:the noise in the sum")
@pytest.mark.parametrize(
    ("words", "message"), slow_but([*QUICK.items()], [*QUICK.items(), *SLOW.items()])
)
def test_bad_input_is_refused_first(words, message, capsys, place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("FEDJAX_MUON_DATA", raising=False)
    assert message in refused(capsys, *words.split())
    assert {path.name for path in place.iterdir()} == {*FILES}

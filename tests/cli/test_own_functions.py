"""Methods, models, divisions and problems of users, by MODULE:FUNCTION."""

import sys

import numpy as np
import pytest
from cases import slow_but
from command import SMALL, assert_same_but_for_seconds, refused, run

from fedjax_muon.cli.commands import parsed_train

CODE = '''
import flax.linen as nn
import numpy as np

import fedjax_muon as fm

VALUE = 3


@fm.recorded
def fedhalf(lr: fm.Hyper = 0.1, *, part: fm.Hyper = 1, flag: bool = True):
    """FedAvg whose server moves by a part.

    Args:
      lr: Local learning rate.
      part: How far the server moves.
    """
    return fm.fedavg(lr, server_lr=part)


@fm.problems.named
def hospital(ward: int = 3, *, north: str = "n", clients: int = 6):
    model = lambda dataset: sized(dataset, width=ward)
    return fm.problems.classification(clients=clients, model=model)


@fm.problems.named
def agents(ward: int = 4):
    return fm.problems.classification(clients=ward, divide=fm.partition.iid)


def needs(lr):
    return fm.fedavg(lr)


def number():
    return 2


def sized(dataset, *, width: int = 4):
    return fm.models.MLP(len(dataset.classes), (width,))


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
'''
FILES = {"own_fed": CODE, "own_exit": "import sys\nsys.exit()\n"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A current directory with the user's files, which no other test imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name, None)


def test_own_functions_take_options_as_those_of_the_library(folder, capsys):
    run("train", "own_fed:fedhalf", "--help")
    assert "How far the server moves. (default: 1)" in capsys.readouterr().out
    words = "train {} --part 0.5 --problem own_fed:hospital --ward 8 --north n2"
    options = [*SMALL, "--rounds", "2"]
    run(*words.format("own_fed:fedhalf").split(), *options, "--directory", "own")
    words = "train fedavg --server-lr 0.5 --model mlp:hidden=8"
    run(*words.split(), *options, "--directory", "library")
    assert_same_but_for_seconds(
        *(folder / x / "metrics.csv" for x in ("own", "library"))
    )
    given = parsed_train(["fedavg", "--model", "own_fed:sized", "--width", "5"])
    assert given.problem_call.keywords["model"].keywords == {"width": 5}
    assert given.modules == ["own_fed"]


def test_an_own_problem_of_agents_has_no_options_of_others(folder):
    """Usual options are for problems that have them."""
    job = parsed_train(["dsgd", "--problem", "own_fed:agents", "--ward", "3"])
    assert len(job.problem().parts(0)) == 3
    assert (job.rounds, job.taken.options) == (200, {})


def test_names_of_options_that_two_functions_have():
    words = ["feddyn:alpha=0.01", "--alpha", "0.5"]
    for given in (words, ["feddyn", "--problem=classification:alpha=0.5", *words[1:]]):
        given = [*given[:-1], "0.01"] if len(given) > 3 else given
        job = parsed_train(given)
        assert job.problem_call.keywords["alpha"] == 0.5
        assert job.calls[0].keywords["alpha"] == 0.01


def test_an_own_division_decides_which_examples_clients_have():
    given = parsed_train(["fedavg", "--divide", "own_fed:dealt", "--start", "7"])
    problem = given.problem()
    expected = np.array_split(np.arange(7, len(problem.dataset.y_train)), 16)
    for part, other in zip(problem.parts(0), expected, strict=True):
        np.testing.assert_array_equal(part, other)


@pytest.mark.slow
def test_own_methods_are_swept_and_compared(folder):
    words = [*SMALL, "--model", "own_fed:sized", "--rounds", "2"]
    grid = ("own_fed:fedhalf", "--lr", "0.1,0.3", "--no-extend")
    run("sweep", *grid, *words, "--directory", "sweep")
    assert (folder / "sweep/own_fed-fedhalf/cells.csv").exists()
    both = ("own_fed:fedhalf:lr=0.1", "fedavg:lr=0.1", "--seeds", "0")
    run("compare", *both, *words, "--directory", "compared")
    sys.modules.pop("own_fed")
    run("plot", "sweep", "--output", "sweep.png")
    assert "own_fed" not in sys.modules


REFUSED = {
    "own_fad:f": "there is no module 'own_fad', of own_fad:f, in ",
    "own_fed:fedhal": "own_fed.py has no function 'fedhal'; did you mean fedhalf?",
    "own_fed:fedhalf:prt=1": "own_fed:fedhalf has no 'prt'; did you mean part?",
    "own_fed:VALUE": "own_fed.py has no function 'VALUE'",
    "own_fed:number": "own_fed:number must return an Algorithm or a Gossip, got int",
    "own_fed:needs": "all arguments of own_fed:needs must have defaults",
    "own_fed.x:f": "there is no module 'own_fed.x', of own_fed.x:f",
    "own_exit:f": "own_exit ends the program when it is imported",
    "builtins:max": "builtins:max has no signature",
    "fedavg --problem own_fed:number": "own_fed:number must return a Problem, got int",
    "fedavg --problem own_fed:hospital --ward x": "--ward must be a whole number, got",
    "fedavg --model own_fed:word": "word must return a flax.linen module, or one of",
    "fedavg --divide own_fed:keyless": "keyless is called as keyless(labels, clients",
    "fedavg --divide own_fed:fewer": "fewer must return a list of 16 arrays of ids",
    "fedavg --divide own_fed:shares": "whole numbers, got float64[90] for client 0",
    "fedavg --divide own_fed:empty": "client 15 has no examples",
    "fedavg --divide own_fed:outside": "names example 1437, but there are only 0 to",
    "fedavg --divide own_fed:twice": "gives example 3 to two clients, or twice to one",
}


@pytest.mark.parametrize(("words", "said"), slow_but(6, [*REFUSED.items()]))
def test_what_is_not_such_a_function_is_refused(words, said, folder, capsys):
    assert said in refused(capsys, "train", *words.split(), "--batch-size", "8")
    assert not (folder / "runs").exists()

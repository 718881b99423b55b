"""Algorithms, models and partitions of users: trained, swept, resumed, refused."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import slow_but
from command import SMALL, assert_same_but_for_seconds, refused, run

from fedjax_muon.runs import directory, own_code
from fedjax_muon.runs.config import Comparison, Config, Run, Sweep
from fedjax_muon.runs.directory import to_json
from fedjax_muon.runs.load import load_run

ALGORITHM = '''
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


def needs(lr):
    return fm.fedavg(lr)


@fm.recorded
def nothing():
    pass


def number():
    return 2


def raising():
    raise ValueError("no, thanks")


def bare(lr: float = 0.1):
    return fm.fedavg(lr)._replace(recipe=None)
'''
MODEL = """
import flax.linen as nn


class Gated(nn.Module):
    classes: int
    width: int = 16

    @nn.compact
    def __call__(self, x):
        x = x.reshape(len(x), -1)
        x = nn.Dense(self.width)(x) * nn.sigmoid(nn.Dense(self.width)(x))
        return nn.Dense(self.classes)(x)


def sized(classes, shape, width=4):
    assert shape == (8, 8, 1), shape
    return Gated(classes, width)


def word(classes):
    return "x"


def without():
    pass


def deep(classes, depth):
    pass
"""
PARTITION = """
import numpy as np


def dealt(labels, num_clients, *, key, start=0):
    return np.array_split(np.arange(start, len(labels)), num_clients)


def keyless(labels, num_clients):
    return dealt(labels, num_clients, key=None)


def fewer(labels, num_clients, key):
    return dealt(labels, num_clients - 1, key=key)


def nothing(labels, num_clients, key):
    pass


def shares(labels, num_clients, key):
    return [part / 2 for part in dealt(labels, num_clients, key=key)]


def empty(labels, num_clients, key):
    return [*dealt(labels, num_clients - 1, key=key), []]


def outside(labels, num_clients, key):
    return [part + 1 for part in dealt(labels, num_clients, key=key)]


def twice(labels, num_clients, key):
    return [np.minimum(part, 3) for part in dealt(labels, num_clients, key=key)]
"""
FILES = {"own_fed": ALGORITHM, "own_net": MODEL, "own_cut": PARTITION}
FILES |= {
    "own_exit": "import sys\nsys.exit()\n",
    "own_import": "import no_such_package\n",
}
WRITING = 'import pathlib\n\npathlib.Path("written").touch()\n'
RESUME = "fedjax-muon resume own --algorithm own_fed:fedhalf"
TINY = (*SMALL, "--hidden", 8, "--rounds", 2)


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


def test_an_own_algorithm_is_trained_as_one_of_the_library_and_resumed(folder, capsys):
    rows = [folder / name / "metrics.csv" for name in ("own", "library")]
    options = ("--algorithm", "own_fed:fedhalf", "--algorithm.part", 0.5)
    run("train", *options, *TINY, "--output", "own")
    library = ("--algorithm", "fedavg", "--algorithm.server-lr", 0.5)
    run("train", *library, *TINY, "--output", "library")
    assert_same_but_for_seconds(*rows)
    words = json.loads((folder / "own/config.json").read_text())
    assert words["algorithm"] == "own_fed:fedhalf"
    assert words["hyper"] == {"lr": 0.1, "part": 0.5, "flag": True}
    shutil.rmtree("own/checkpoints")
    assert directory.resume_command(Path("own")) == RESUME
    run(*RESUME.split()[1:])
    assert_same_but_for_seconds(*rows)
    # figures need no import, resuming does
    (folder / "own_fed.py").rename("elsewhere.py")
    sys.modules.pop("own_fed")
    capsys.readouterr()
    run("plot", "own", "--output", "own.png")
    assert "own_fed" not in sys.modules
    missing = f"there is no module 'own_fed', of own_fed:fedhalf, in {folder}"
    assert refused(capsys, *RESUME.split()[1:]).startswith(missing)


ONE = Run("fedavg", {"lr": 0.1}, 0, Config())
SWEPT = Sweep(
    ("evil:f", "evil:g"), {"evil:f": {}, "evil:g": {}}, (0,), 0.1, 1, Config()
)


@pytest.mark.parametrize(
    ("job", "named"),
    [
        (dataclasses.replace(ONE, algorithm="evil:f"), "--algorithm evil:f"),
        (dataclasses.replace(ONE, config=Config(model="evil:f")), "--model evil:f"),
        (SWEPT, "--algorithm evil:f,evil:g"),
        (
            Comparison(("fedavg", "evil:f"), {}, {}, (0,), Config()),
            "--algorithm evil:f",
        ),
    ],
    ids=["algorithm", "model", "sweep", "comparison"],
)
def test_code_that_a_directory_names_runs_only_if_it_is_named_again(
    job, named, folder, capsys
):
    (folder / "evil.py").write_text(WRITING)
    (folder / "theirs").mkdir()
    (folder / "theirs/config.json").write_text(to_json(job))
    commands = [["resume"]]
    if isinstance(job, Run):
        commands += [["export"]]
    for command in commands:
        words = [*command, "theirs", *["out.safetensors"] * (command == ["export"])]
        for other in ([], ["--algorithm", "other:f"]):
            said = refused(capsys, *words, *other)
            assert said.startswith("theirs runs custom code, evil:f")
            assert said.endswith(f"if you trust it, add {named}")
            assert "evil" not in sys.modules
        refused(capsys, *words, *named.split())  # it has no function
        assert Path("written").exists()
        Path("written").unlink()
        sys.modules.pop("evil")


@pytest.mark.slow
def test_own_code_is_swept_and_compared(folder, capsys):
    names = ("--algorithms", "own_fed:fedhalf", "--model", "own_net:sized")
    grid = ("--grid", "own_fed:fedhalf.part=0,1", "--seeds", 0)
    run("sweep", *names, *grid, *TINY, "--output", "sweep")
    rows = (folder / "sweep/points.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows[1:]] == ["part=0", "part=1"]
    assert (folder / "sweep/cells/own_fed-fedhalf.csv").exists()
    for name in FILES:
        sys.modules.pop(name, None)
    run("plot", "sweep", "--output", "sweep.png")
    assert "own_fed" not in sys.modules
    said = refused(capsys, "sweep", "--algorithms", "own_fed:bare", "--grid", "lr=1")
    assert "decorate it with fedjax_muon.recorded" in said


REFUSED = {
    "own_fad:f": "there is no module 'own_fad', of own_fad:f, in ",
    "own_fed.x:f": "there is no module 'own_fed.x', of own_fed.x:f",
    "own_fed:fedhal": "own_fed.py has no function 'fedhal'; did you mean fedhalf?",
    "own_fed:VALUE": "own_fed:VALUE must be a function, got a value of type int",
    "own_fed:needs": "all arguments of own_fed:needs must have defaults; lr has none",
    "own_fed:nothing": "own_fed:nothing: nothing must return an algorithm, got None",
    "own_fed:number": "own_fed:number must return an Algorithm or a Gossip, got int",
    "own_exit:f": "own_exit ends the program when it is imported",
    "own_fed:b:f": "'own_fed:b:f' must be MODULE:FUNCTION, such as",
    ":": "':' must be MODULE:FUNCTION",
    "builtins:max": "builtins:max has no signature",
}
WRONG_MODELS = {
    "own_net:Gate": "own_net.py has no function 'Gate'; did you mean Gated?",
    "own_net:word": "own_net:word must return a flax.linen module, or one of flax.nnx",
    "own_net:without": "own_net:without must take the argument classes",
    "own_net:deep": "depth must have a default",
    "mpl": "unknown model 'mpl'; did you mean mlp? choose one of mlp",
}
WRONG_PARTITIONS = {
    "own_cut:deal": "own_cut.py has no function 'deal'; did you mean dealt?",
    "own_cut:keyless": "own_cut:keyless is called as keyless(labels, num_clients, "
    "key=key), which it does not take: got an unexpected keyword argument 'key'",
    "own_cut:fewer": "own_cut:fewer must return a list of 6 clients, got 5",
    "own_cut:nothing": "must return a list of 6 arrays of ids, one for each client, "
    "got NoneType",
    "own_cut:shares": "own_cut:shares gives client 0 no axis of integers, but float64",
    "own_cut:empty": "own_cut:empty gives client 5 no examples",
    "own_cut:outside": "own_cut:outside gives client 5 examples ",
    "own_cut:twice": "own_cut:twice gives example 3 to two clients, or twice to one",
    "iod": "unknown partition 'iod'; did you mean iid? choose one of dirichlet",
}


CASES = [
    *slow_but(3, [("--algorithm", *case) for case in REFUSED.items()]),
    *slow_but(1, [("--model", *case) for case in WRONG_MODELS.items()]),
    *slow_but(2, [("--partition", *case) for case in WRONG_PARTITIONS.items()]),
]


@pytest.mark.parametrize(("option", "name", "message"), CASES)
def test_what_is_no_algorithm_is_refused(option, name, message, folder, capsys):
    assert message in refused(capsys, "train", option, name, *TINY)
    assert not (folder / "runs").exists()


def test_an_own_partition_decides_which_examples_clients_have(folder, capsys):
    run("train", "--algorithm", "fedavg", *TINY, "--partition", "own_cut:dealt")
    (place,) = (folder / "runs").iterdir()
    loaded = load_run(place)
    sizes = [len(part) for part in np.array_split(loaded.dataset.y_train, 6)]
    assert loaded.simulation.clients.size.tolist() == sizes
    np.testing.assert_array_equal(
        loaded.simulation.run.partition.order, np.arange(sum(sizes))
    )
    # figures and reports need no import
    (folder / "own_cut.py").rename("elsewhere.py")
    sys.modules.pop("own_cut")
    run("plot", place, "--output", "own.png")
    assert "own_cut" not in sys.modules
    capsys.readouterr()
    named = "--partition", "own_cut:dealt"
    assert refused(capsys, "resume", place).endswith(" ".join(named))
    missing = "there is no module 'own_cut', of own_cut:dealt"
    assert refused(capsys, "resume", place, *named).startswith(missing)


def test_own_models_take_what_they_name(capsys):
    options = ("--model", "own_net:Gated", "--compute-dtype", "bfloat16")
    said = refused(capsys, "train", *options, *TINY)
    assert said == "own_net:Gated must take the argument dtype"
    made = own_code.model("own_net:Gated", {"classes": 3, "shape": (2,)}, needed=())
    assert (made.classes, made.width) == (3, 16)


def test_errors_of_the_users_own_code_name_its_line(folder, capsys):
    for name, message in {
        "own_fed:raising": "own_fed.py:32: ValueError: no, thanks; the traceback is",
        "own_import:f": "own_import.py:1: ModuleNotFoundError: No module named",
    }.items():
        with pytest.raises(SystemExit) as stop:
            run("train", "--algorithm", name, *TINY)
        assert stop.value.code == 1
        said = capsys.readouterr().err
        assert f"{folder}/{message}" in said
        assert said.count("\n") == 1

"""Commands that end early, and go on by `resume`."""

import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
from command import assert_same_but_for_seconds, refused, run, spawn, wait_for
from packages import needs

from fedjax_muon.privacy.ledger import Ledger
from fedjax_muon.runs import metrics_csv

SMALL = "--clients 4 --model mlp:hidden=8 --cohort 2 --local-steps 1 "
SMALL += "--batch-size 8 --evaluate-every 2"
OWN = """
import pathlib

import fedjax_muon as fm

pathlib.Path(__file__).with_name("imported").touch()


@fm.recorded
def fedhalf(lr: fm.Hyper = 0.1):
    return fm.fedavg(lr, server_lr=0.5)


def raising():
    raise ValueError("no, thanks")
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of six rounds without an interrupt."""
    place = tmp_path_factory.mktemp("whole") / "run"
    run("train", "fedavg", *SMALL.split(), "--rounds", 6, "--directory", place)
    return place


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current directory with the user's own module, which no other test imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_half.py").write_text(OWN)
    yield tmp_path
    sys.modules.pop("own_half", None)


@pytest.fixture
def pressed(monkeypatch):
    """Ctrl-C comes once a run has written its row of round 2."""
    append = metrics_csv.append

    def interrupted(path, row):
        append(path, row)
        if row["round"] == 2:
            monkeypatch.setattr(metrics_csv, "append", append)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(metrics_csv, "append", interrupted)


def interrupt(capsys, *words):
    """The command that goes on, as an interrupted one prints it."""
    with pytest.raises(SystemExit) as stop:
        run(*words)
    assert stop.value.code == 130
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return shlex.split(said.out.partition("continue with: fedjax-muon ")[2])


def test_an_interrupted_run_goes_on_from_anywhere(
    whole, folder, pressed, capsys, monkeypatch
):
    """Its relative paths are those of where it was begun."""
    words = ("train", "fedavg", *SMALL.split(), "--rounds", 6)
    resume = interrupt(capsys, *words, "--directory", folder / "run")
    assert metrics_csv.read(folder / "run/metrics.csv")["round"][-1] < 6
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    run(*resume)
    assert Path.cwd() == folder
    assert_same_but_for_seconds(folder / "run/metrics.csv", whole / "metrics.csv")


@pytest.mark.slow
def test_a_killed_run_goes_on(whole, tmp_path):
    place = tmp_path / "run"
    words = ("train", "fedavg", *SMALL.split(), "--rounds", 6, "--directory", place)
    with spawn(*words) as process:
        wait_for(lambda: (place / "metrics.csv").exists(), process)
        process.kill()
    run("resume", place)
    assert_same_but_for_seconds(place / "metrics.csv", whole / "metrics.csv")


def test_more_rounds_and_lost_checkpoints(copy, tmp_path):
    before = (copy / "metrics.csv").read_text()
    run("resume", copy)
    assert (copy / "metrics.csv").read_text() == before
    shutil.rmtree(copy / "checkpoints")
    run("resume", copy, "--rounds", 8)
    words = ("train", "fedavg", *SMALL.split(), "--rounds", 8)
    run(*words, "--directory", tmp_path / "long")
    assert_same_but_for_seconds(copy / "metrics.csv", tmp_path / "long/metrics.csv")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train fedavg --lr 0.2", "its method.lr is 0.1, not 0.2; choose another"),
        ("train fedavg --seed 1", "its seed is 0, not 1"),
        ("train fedavg --alpha 0.5", "its problem.alpha is 0.1, not 0.5"),
        ("train scaffold", "its method.algorithm is "),
        ("compare fedavg --quick", "has a single run or a sweep; choose another"),
    ],
)
def test_another_run_in_its_directory_is_refused(words, said, copy, capsys):
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    words = [*words.split(), *SMALL.split(), "--rounds", "6", "--directory", copy]
    assert said in refused(capsys, *words)
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


def test_a_damaged_command_is_refused(copy, capsys):
    path = copy / "command.json"
    whole = json.loads(path.read_text())
    for text, said in {
        path.read_text()[:40]: "expected the words of a command, found a damaged one",
        json.dumps({"argv": "train"}): "run the command itself again",
        json.dumps({**whole, "argv": []}): "run the command itself again",
        json.dumps({**whole, "argv": ["fly"]}): "was made by fly, which does not resu",
    }.items():
        path.write_text(text)
        assert said in refused(capsys, "resume", copy)
    path.unlink()
    assert "it has no command.json" in refused(capsys, "resume", copy)


def reworded(directory, *words):
    """A directory whose command has further words, as another person wrote them."""
    path = directory / "command.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "argv": [*about["argv"], *words]}))


def test_a_directory_joins_no_machines(copy, monkeypatch):
    """Only the words of whoever resumes do."""
    joined = []
    initialize = lambda *by_hand, **how: joined.append(by_hand)
    monkeypatch.setattr("jax.distributed.initialize", initialize)
    monkeypatch.setattr("jax.config.update", lambda *option: None)
    reworded(copy, "--coordinator", "10.9.8.7:1", "--num-processes=2", "--process-id=1")
    run("resume", copy)
    reworded(copy, "--distributed")
    run("resume", copy)
    assert not joined
    run("resume", copy, "--coordinator", "h:1", "--num-processes=1", "--process-id=0")
    assert joined == [("h:1", 1, 0)]


@pytest.mark.parametrize("given", ["--log wandb", "--log=tensorboard", "--ledger b"])
def test_what_a_directory_writes_elsewhere_is_said_again(given, copy, capsys):
    reworded(copy, *given.split())
    said = refused(capsys, "resume", copy)
    assert f"with {given.replace('=', ' ')}, which resume takes from your words" in said
    if "log" in given:
        run("resume", copy, "--log", "none")


def test_a_directory_names_no_ledger_of_others(tmp_path, capsys):
    private = "train fedavg --epsilon 8 --delta 1e-2 --clients 60 --cohort 10"
    private += (
        " --rounds 2 --model mlp:hidden=4 --divide iid --local-steps 1 --batch-size 4"
    )
    words = [*private.split(), "--directory", tmp_path / "a"]
    run(*words, "--ledger", tmp_path / "own.json")
    capsys.readouterr()
    said = refused(capsys, "resume", tmp_path / "a")
    assert "which resume takes from your words alone" in said
    charged = tmp_path / "a/ledger.json"
    about = json.loads(charged.read_text())
    charged.write_text(json.dumps({**about, "ledger": str(tmp_path / "b/other.json")}))
    said = refused(capsys, "resume", tmp_path / "a", "--ledger", tmp_path / "own.json")
    assert "other.json, not to" in said
    with pytest.raises(ValueError, match="has no run"):
        Ledger(tmp_path / "b/other.json").reach("run", 1)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("hidden", [False, True])
def test_own_code_of_a_directory_runs_only_if_it_is_trusted(folder, capsys, hidden):
    """Whatever the directory says of it."""
    run("train", "own_half:fedhalf", *SMALL.split(), "--rounds", 2, "--directory", "a")
    rows = (folder / "a/metrics.csv").read_text()
    path = folder / "a/command.json"
    about = json.loads(path.read_text())
    assert about["modules"] == ["own_half"]
    if hidden:
        path.write_text(json.dumps({**about, "modules": []}))
    sys.modules.pop("own_half")
    (folder / "imported").unlink()
    for more in ([], ["--trust", "other"]):
        said = refused(capsys, "resume", "a", *more)
        assert "own_half" in said
        assert said.endswith("if you trust it, add --trust own_half")
    run("plot", "a")  # needs no code
    assert not (folder / "imported").exists()
    run("resume", "a", "--trust", "own_half")
    assert (folder / "imported").exists()
    assert (folder / "a/metrics.csv").read_text() == rows


@pytest.mark.slow
def test_an_interrupted_command_names_its_own_code(folder, pressed, capsys):
    needs("tensorboardX")
    words = ("train", "own_half:fedhalf", *SMALL.split(), "--rounds", 6)
    resume = interrupt(capsys, *words, "--log", "tensorboard", "--directory", "a")
    assert resume == ["resume", "a", "--trust", "own_half", "--log=tensorboard"]
    run(*resume)


def test_a_fault_in_own_code_is_a_line_and_a_traceback_in_a_file(folder, capsys):
    with pytest.raises(SystemExit) as stop:
        run("train", "own_half:raising", *SMALL.split())
    assert stop.value.code == 1
    said = capsys.readouterr().err
    line = OWN.partition("    raise")[0].count("\n") + 1
    assert f"{folder}/own_half.py:{line}: ValueError: no, thanks; the traceb" in said
    assert said.count("\n") == 1
    assert not (folder / "runs").exists()


def test_what_diverges_ends_in_1_and_names_the_client(tmp_path, capsys):
    words = ("train", "fedavg_momentum:lr=1e30", *SMALL.split(), "--rounds", 3)
    with pytest.raises(SystemExit) as stop:
        run(*words, "--directory", tmp_path / "run")
    assert stop.value.code == 1
    assert "not a finite message from client" in capsys.readouterr().out

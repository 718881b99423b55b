"""Commands that train: alone, interrupted, compared, and swept."""

import csv
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

from fedjax_muon import problems, runs
from fedjax_muon.cli import names
from fedjax_muon.runs import metrics_csv
from tests.support.command import (
    assert_same_but_for_seconds,
    refused,
    run,
    spawn,
    wait_for,
)
from tests.support.packages import needs

DATA = "--problem digits:clients=4,model=mlp:8"
SMALL = "--cohort 2 --local-steps 1 --batch-size 8 --evaluate-every 2"
WORDS = ("train", "fedavg", *DATA.split(), *SMALL.split(), "--rounds", 6)
OWN = '''
import numpy as np

import fedjax_muon as fm


@fm.recorded
def fedhalf(lr: fm.Hyper = 0.1, *, part: fm.Hyper = 1):
    """FedAvg whose server moves by a part.

    Args:
      lr: Local learning rate.
      part: How far the server moves.
    """
    return fm.fedavg(lr, server_lr=part)


@fm.problems.named
def hospital(ward: int = 3, *, north: str = "n", clients: int = 6):
    return fm.problems.classification(
        clients=clients, model=lambda dataset: sized(dataset, width=ward)
    )


def sized(dataset, *, width: int = 4):
    return fm.models.MLP(len(dataset.classes), (width,))


def dealt(labels, clients, *, key, start: int = 0):
    return np.array_split(np.arange(start, len(labels)), clients)


def raising():
    raise ValueError("no, thanks")
'''


def rows(path):
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of six rounds without an interrupt."""
    place = tmp_path_factory.mktemp("whole") / "run"
    run(*WORDS, "--directory", place)
    return place


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current directory with the user's own module, which no other test imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_fed.py").write_text(OWN)
    yield tmp_path
    sys.modules.pop("own_fed", None)


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


# ---------------------------------------------------------------------- going on
def interrupt(capsys, *words):
    """The command that goes on, as an interrupted one prints it."""
    with pytest.raises(SystemExit) as stop:
        run(*words)
    assert stop.value.code == 130
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return shlex.split(said.err.partition("continue with: fedjax-muon ")[2])


def test_an_interrupted_run_goes_on_by_the_words_that_it_prints(
    whole, folder, pressed, capsys
):
    again = interrupt(capsys, *WORDS)
    assert again[:-1] == [*map(str, WORDS), "--directory"]
    place = Path(again[-1])
    assert metrics_csv.read(place / "metrics.csv")["round"][-1] < 6
    run(*again)
    assert_same_but_for_seconds(place / "metrics.csv", whole / "metrics.csv")


@pytest.mark.slow
def test_a_killed_run_goes_on(whole, tmp_path):
    place = tmp_path / "run"
    words = (*WORDS, "--directory", place)
    with spawn(*words) as process:
        wait_for(lambda: (place / "metrics.csv").exists(), process)
        process.kill()
    run(*words)
    assert_same_but_for_seconds(place / "metrics.csv", whole / "metrics.csv")


def test_more_rounds_and_lost_checkpoints(copy, tmp_path):
    before = (copy / "metrics.csv").read_text()
    run(*WORDS, "--directory", copy)
    assert (copy / "metrics.csv").read_text() == before
    shutil.rmtree(copy / "checkpoints")
    more = (*WORDS[:-1], 8, "--directory")
    run(*more, copy)
    run(*more, tmp_path / "long")
    assert_same_but_for_seconds(copy / "metrics.csv", tmp_path / "long/metrics.csv")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"train fedavg:0.2 {DATA}", "its method.lr is 0.1, not 0.2; choose another"),
        (f"train fedavg {DATA} --seed 1", "its seed is 0, not 1"),
        (f"train fedavg {DATA.replace(',', ',alpha=0.5,')}", "its problem.alpha is 0."),
        (f"train scaffold {DATA}", "its method.algorithm is "),
        (f"compare fedavg:0.1 {DATA}", "has a single run or a sweep; choose another"),
    ],
)
def test_another_run_in_its_directory_is_refused(words, said, copy, capsys):
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    words = [*words.split(), *SMALL.split(), "--rounds", "6", "--directory", copy]
    assert said in refused(capsys, *words)
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


def test_a_fault_in_own_code_is_a_line_and_a_traceback_in_a_file(folder, capsys):
    with pytest.raises(SystemExit) as stop:
        run("train", "own_fed:raising", *SMALL.split())
    assert stop.value.code == 1
    said = capsys.readouterr().err
    line = OWN.partition("    raise")[0].count("\n") + 1
    assert f"{folder}/own_fed.py:{line}: ValueError: no, thanks; the traceb" in said
    assert said.count("\n") == 1
    assert not (folder / "runs").exists()


def test_what_diverges_ends_in_1_and_names_the_client(tmp_path, capsys):
    words = ("train", "fedavg_momentum:lr=1e30", *DATA.split(), *SMALL.split())
    with pytest.raises(SystemExit) as stop:
        run(*words, "--rounds", 3, "--directory", tmp_path / "run")
    assert stop.value.code == 1
    assert "not a finite message from client" in capsys.readouterr().err


# --------------------------------------------------------------------- own functions
def test_own_functions_read_as_those_of_the_library(folder, capsys):
    run("train", "own_fed:fedhalf", "--help")
    said = " ".join(capsys.readouterr().out.split())
    assert "How far the server moves. (default: 1)" in said
    run("list", "own_fed:hospital")
    assert "north (default: n)" in " ".join(capsys.readouterr().out.split())
    more = (*SMALL.split(), "--rounds", 2, "--directory")
    problem = ("--problem", "own_fed:hospital:ward=8,north=n2")
    run("train", "own_fed:fedhalf:part=0.5", *problem, *more, "own")
    problem = ("--problem", "digits:clients=6,model=own_fed:sized:8")
    run("train", "fedavg:server_lr=0.5", *problem, *more, "library")
    assert_same_but_for_seconds(
        *(folder / x / "metrics.csv" for x in ("own", "library"))
    )


@pytest.mark.slow
def test_own_methods_are_swept_and_compared(folder):
    data = ("--problem", "digits:clients=4,divide=own_fed:dealt(start=7),model=mlp:4")
    words = [*SMALL.split(), *data, "--rounds", "2"]
    grid = ("own_fed:fedhalf", "--grid", "lr=0.1,0.3,part=0.5,1", "--no-extend")
    run("sweep", *grid, *words, "--directory", "sweep")
    (cells,) = (folder / "sweep").glob("*/cells.csv")
    assert len({(row["lr"], row["part"]) for row in rows(cells)}) == 4
    both = ("own_fed:fedhalf:lr=0.1", "fedavg:lr=0.1", "--seeds", "0")
    run("compare", *both, *words, "--directory", "compared")
    sys.modules.pop("own_fed")
    run("plot", "sweep", "--output", "sweep.png")
    assert "own_fed" not in sys.modules


# ----------------------------------------------------------------------- comparisons
@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    place = tmp_path_factory.mktemp("compared") / "run"
    run(*COMPARED, "--directory", place)
    return place


COMPARED = ("compare", "fedavg:lr=0.2", "fedmuon:lr=0.05", *DATA.split())
COMPARED += (*SMALL.split(), "--rounds", 4, "--seeds", "3,4")


def test_a_comparison_has_the_runs_of_train(compared, tmp_path, capsys):
    words = ("train", "fedmuon:lr=0.05", *DATA.split(), *SMALL.split(), "--seed", 4)
    run(*words, "--rounds", 4, "--directory", tmp_path / "run")
    (place,) = compared.glob("[Ff]ed[Mm]uon*/seed4")
    ours = tmp_path / "run/metrics.csv"
    assert_same_but_for_seconds(place / "metrics.csv", ours)
    by_name = {row["method"]: row for row in rows(compared / "summary.csv")}
    assert (by_name["FedMuon"]["lr"], by_name["FedAvg"]["lr"]) == ("0.05", "0.2")


def test_a_comparison_is_extended_and_drawn(compared, tmp_path, capsys):
    place = Path(shutil.copytree(compared, tmp_path / "copy"))
    (lost,) = place.glob("[Ff]ed[Aa]vg*/seed4")
    shutil.rmtree(lost)
    more = [6 if word == 4 else word for word in COMPARED]
    run(*more, "--directory", place)
    assert "90% of the best" in " ".join(capsys.readouterr().out.split())
    for path in place.glob("*/seed*/metrics.csv"):
        assert metrics_csv.read(path)["round"].tolist()[-2:] == [4, 6]
    run("plot", compared, "--output", tmp_path / "a.pdf")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    looks = "{'FedMuon': ('Ours', 'black'), 'FedAvg': 'Baseline'}"
    run("plot", compared, "--output", tmp_path / "a.svg", "--looks", looks)
    drawn = (tmp_path / "a.svg").read_text()
    assert ">Ours</text>" in drawn
    assert ">Baseline</text>" in drawn
    assert ">FedMuon</text>" not in drawn
    wrong = looks.replace("FedMuon", "FedMuo")
    said = refused(capsys, "plot", compared, "--looks", wrong)
    assert "looks names 'FedMuo', which is not one of FedAvg, FedMuon" in said
    said = refused(capsys, "plot", compared, place, "--output", tmp_path / "b.pdf")
    assert "rounds" in said
    words = [word if word != "fedavg:lr=0.2" else "fedavg:lr=0.3" for word in COMPARED]
    said = refused(capsys, *words, "--directory", compared)
    assert "its method.lr is 0.2, not 0.3; choose another" in said


@pytest.mark.slow
def test_what_diverges_is_named_and_the_others_go_on(tmp_path, capsys):
    more = (*DATA.split(), *SMALL.split(), "--rounds", 4)
    words = ("compare", "fedavg:lr=0.1", "fedavg_momentum:lr=1e30", *more)
    with pytest.raises(SystemExit) as stop:
        run(*words, "--seeds", 0, "--directory", tmp_path / "run")
    assert stop.value.code == 1
    for name in ("summary.csv", "summary.tex"):
        written = (tmp_path / "run" / name).read_text()
        assert "diverged (round " in written
        assert "FedAvg" in written
    words = ("sweep", "fedavg", "--grid", "lr=1e29,1e30", *more)
    with pytest.raises(SystemExit) as stop:
        run(*words, "--directory", tmp_path / "sweep")
    assert stop.value.code == 1
    assert "diverged" in (tmp_path / "sweep/summary.csv").read_text()


@pytest.mark.slow
def test_a_sweep_is_extended_by_a_larger_grid(tmp_path, capsys):
    place = tmp_path / "sweep"
    words = ("sweep", "fedavg", "fedprox", *DATA.split(), *SMALL.split())
    words += ("--rounds", 4, "--directory", place, "--no-extend", "--grid")
    run(*words, "lr=0.1,0.3")
    cells = {path: path.read_text() for path in place.glob("*/cells.csv")}
    assert len(cells) == 2
    run(*words, "lr=0.1,0.3,0.9")
    for path, before in cells.items():  # nothing is run again
        assert set(before.splitlines()) < set(path.read_text().splitlines())
    methods = {row["method"] for row in rows(place / "summary.csv")}
    assert methods == {"FedAvg", "FedProx"}
    run("plot", place, "--output", tmp_path / "best.png")
    assert (tmp_path / "best.png").stat().st_size > 10_000


PUBLISHED = [name for name in names.GROUPS["all"] if names.METHODS[name].grid]


@pytest.mark.parametrize("words", [" ".join(PUBLISHED), "minimax --problem auc"])
def test_published_grids_pass_the_checks_of_a_sweep(
    words, tmp_path, monkeypatch, capsys
):
    """Whose first group is not trained."""

    class End(BaseException):
        """The sweep would begin."""

    def end(*_, **__):
        raise End

    monkeypatch.setattr("fedjax_muon.runs.cells.FinishedCells.run", end)
    with pytest.raises(End):
        run("sweep", *words.split(), "--grid", "paper", "--directory", tmp_path / "a")


# ------------------------------------------------------------------------- trackers
@pytest.mark.slow
def test_an_interrupted_command_names_its_trackers(folder, pressed, capsys):
    needs("tensorboardX")
    again = interrupt(capsys, *WORDS, "--log", "tensorboard", "--directory", "a")
    assert again[-4:] == ["--log", "tensorboard", "--directory", "a"]
    run(*again)


def test_a_partition_is_drawn_and_counted(tmp_path, capsys):
    figure = tmp_path / "parts.png"
    run("partition", "digits:clients=5,divide=iid", "--output", figure)
    assert "5 clients with 287 to 288 examples" in capsys.readouterr().out
    assert figure.stat().st_size > 10_000
    with pytest.raises(TypeError, match="must be a Problem"):
        runs.plotting.partition(problems.classification)

"""Sweeps on workers: the table of one machine, whatever happens to the workers."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import swept
from cases import slow_but
from command import refused, run, spawn, wait_for
from swept import CELLS, DIGITS, GRID, assert_same_tables, finished, meanwhile

from fedjax_muon.runs import executor_names, sweep_cells
from fedjax_muon.runs import sweep as sweeps
from fedjax_muon.runs.config import Config, Sweep
from fedjax_muon.runs.config_json import to_json
from fedjax_muon.simulation.executors import Processes


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The sweep on one machine."""
    place = tmp_path_factory.mktemp("runs") / "alone"
    run("sweep", *GRID, "--output", place)
    return place


@pytest.fixture(autouse=True)
def programs(tmp_path_factory, monkeypatch):
    swept.share_programs(tmp_path_factory, monkeypatch)


@pytest.fixture
def submitted(monkeypatch) -> list[str]:
    """The names of the tasks that are handed to `run_tasks`."""
    found: list[str] = []
    whole = sweep_cells.run_tasks

    def remember(executor, function, tasks, stop):
        found.extend(task.name for task in tasks)
        return whole(executor, function, tasks, stop)

    monkeypatch.setattr(sweep_cells, "run_tasks", remember)
    return found


@pytest.mark.slow
def test_two_processes_of_which_one_is_killed(alone, tmp_path, monkeypatch):
    """They make the same table."""
    started: list[Any] = []
    start = Processes._start
    remember = lambda self: started.append(start(self)) or started[-1]
    monkeypatch.setattr(Processes, "_start", remember)
    place = tmp_path / "two"
    kill = lambda: os.kill(started[0][0].pid, signal.SIGKILL)
    meanwhile(lambda: len(finished(place)) > 1, kill)
    run("sweep", *GRID, "--executor", "processes:2", "--output", place)
    assert len(started) == 3
    assert_same_tables(place, alone)
    assert swept.workers() == []


@pytest.mark.slow
def test_a_killed_sweep_resumes_with_what_is_missing(alone, tmp_path, submitted):
    place = tmp_path / "killed"
    given = ("--executor", "processes:2", "--output", place)
    process = spawn("sweep", *GRID, *given)
    wait_for(lambda: len(finished(place)) > 1, process)
    helpers = swept.workers(process.pid)
    process.kill()
    process.communicate()
    before = finished(place)
    assert 1 < len(before) < CELLS
    assert len(helpers) == 2
    psutil.wait_procs(helpers, timeout=10)
    assert not any(helper.is_running() for helper in helpers)
    run("resume", place, "--executor", "processes:1")
    assert len(submitted) == CELLS - len(before)
    done = {f"fedavg lr={float(lr):g} seed {seed}" for lr, seed in before}
    assert not done & set(submitted)
    assert_same_tables(place, alone)
    again = len(submitted)
    run("resume", place, "--executor", "processes:1")  # nothing is missing
    assert len(submitted) == again


@pytest.mark.slow
def test_an_interrupt_keeps_finished_groups(alone, tmp_path, capsys, submitted):
    """And ends the workers."""
    place = tmp_path / "stopped"
    stop = lambda: os.kill(os.getpid(), signal.SIGTERM)
    meanwhile(lambda: len(finished(place)) > 1, stop)
    with pytest.raises(SystemExit) as ended:
        run("sweep", *GRID, "--executor", "processes:1", "--output", place)
    assert ended.value.code == 130
    out = capsys.readouterr().out.replace("\n", "")
    assert f"fedjax-muon resume {place} --executor processes:1" in out
    assert 1 < len(finished(place)) < CELLS
    assert swept.workers() == []
    run("resume", place)  # in this process
    assert len(submitted) == CELLS
    assert_same_tables(place, alone)


# ------------------------------------------------------------------------ refusals

BAD = {
    "an executor is processes:N, dask:ADDRESS, slurm or": "threads:2",
    "got 'processes:two'": "processes:two",
    "got 'processes'": "processes",
    "got 'dask:'": "dask:",
    "processes must be at least 1, got 0": "processes:0",
    "OPTION=VALUE,...; got slurm:fast": "slurm:fast",
}


@pytest.fixture
def nothing_runs(monkeypatch):
    monkeypatch.setattr(sweeps, "train", lambda *_, **__: pytest.fail("not refused"))


@pytest.mark.parametrize("message", slow_but(2, BAD))
def test_executors_are_checked_at_once(message, capsys, tmp_path, nothing_runs):
    if "slurm:" in BAD[message] and not find_spec("submitit"):
        pytest.skip("submitit is not installed")  # importing it would close loggers
    place = tmp_path / "new"
    given = ("--executor", BAD[message], "--output", place)
    assert message in refused(capsys, "sweep", *DIGITS, "--grid", "lr=0.1", *given)
    assert not place.exists()


@pytest.mark.parametrize(
    ("name", "package"), [("dask:localhost:8786", "distributed"), ("slurm", "submitit")]
)
def test_a_missing_package_is_the_pip_command(
    name, package, capsys, tmp_path, monkeypatch, nothing_runs
):
    monkeypatch.setattr(executor_names, "find_spec", lambda name: None)
    given = ("--grid", "lr=0.1", "--executor", name, "--output", tmp_path / "new")
    message = refused(capsys, "sweep", *DIGITS, *given)
    kind = name.partition(":")[0]
    assert message.startswith(f'the executor {kind} needs {package}: pip install "')


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--devices", "2", "--executor", "processes:2"), "leave out devices"),
        (("--split-examples",), "a copy of the examples on each device; leave out"),
        (("--devices", "99"), "devices must be at most the 8 that this host has"),
    ],
)
def test_devices_that_cannot_divide_cells_are_refused(
    options, message, capsys, tmp_path, nothing_runs
):
    given = (*options, "--output", tmp_path / "new")
    assert message in refused(capsys, "sweep", *DIGITS, "--grid", "lr=0.1", *given)


@pytest.mark.slow
def test_devices_divide_cells_and_the_table_is_the_same(alone, tmp_path):
    place = tmp_path / "devices"
    run("sweep", *GRID, "--devices", "2", "--output", place)
    found = swept.cells(place)
    for name, rows in swept.cells(alone).items():
        some, other = (np.array(one, float) for one in (rows, found[name]))
        np.testing.assert_allclose(some, other, rtol=1e-5, atol=1e-12)


@pytest.mark.slow
def test_only_sweeps_are_resumed_on_an_executor(capsys, tmp_path):
    place = tmp_path / "run"
    run("train", "--rounds", "1", "--hidden", "4", "--output", place)
    message = refused(capsys, "resume", place, "--executor", "processes:2")
    assert message == f"{place} is no sweep; leave out --executor, which is for sweeps"


def test_workers_with_another_data_set_are_refused():
    job = Sweep(("fedavg",), {"fedavg": {"lr": (0.1,)}}, (0,), 0.1, None, Config())
    given = (to_json(job), "fedavg", [({"lr": 0.1}, 0)], 1, 64, "digest")
    with pytest.raises(ValueError, match="its examples of digits differ from those"):
        sweep_cells.run_cells(*given)

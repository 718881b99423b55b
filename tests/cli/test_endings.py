"""How a command ends, and what it decides before JAX is first used."""

import os
import signal
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from fedjax_muon.cli import main as shell
from fedjax_muon.data import Dataset
from fedjax_muon.data.dataset import check
from fedjax_muon.engine import launch
from fedjax_muon.simulation.meter import NonFiniteError
from tests.support.command import refused


def of_package():
    empty = np.zeros((0, 2), np.float32), np.zeros(0, int)
    check(Dataset(*empty, *empty, ("a",)))


def of_another():
    np.broadcast_to(np.zeros((2, 3)), (4, 3))


def fault(error):
    raise error


ENDS = {  # what happens, the exit status, and what is said
    "a refusal": (of_package, 2, "x_train must be non-empty"),
    "a file": (Path("/nowhere/a").read_text, 2, "No such file or directory"),
    "a package": (of_another, 1, "could not be broadcast"),
    "a fault": (
        lambda: fault(RuntimeError("a\nb")),
        1,
        "RuntimeError: a; the traceback",
    ),
    "Ctrl-C": (lambda: os.kill(os.getpid(), signal.SIGINT), 130, "interrupted"),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), 130, "interrupted"),
    "no home": (
        lambda: fault(RuntimeError("Could not determine home directory.")),
        2,
        "name the place with its whole path",
    ),
    "a run that diverges": (
        lambda: fault(NonFiniteError(3, [1])),
        1,
        "not a finite message from client 1",
    ),
    "a pipe": (lambda: fault(BrokenPipeError()), 1, "the output was closed"),
}


@pytest.mark.parametrize("case", ENDS)
def test_whatever_happens_ends_in_a_line_and_a_status(case, capsys):
    act, status, said = ENDS[case]
    with pytest.raises(SystemExit) as stop, shell._terminable(), shell.ending():
        act()
    assert stop.value.code == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedjax-muon: error: ")
    assert said in line


@pytest.mark.parametrize(
    ("flags", "updates"),
    [
        ("", [("jax_num_cpu_devices", 2)]),
        ("--xla_force_host_platform_device_count=4", []),
    ],
)
def test_virtual_devices_of_xla_are_kept(flags, updates, monkeypatch):
    seen = []
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(launch.os, "cpu_count", lambda: 2)
    update = lambda *given: seen.append(given)
    config = types.SimpleNamespace(jax_num_cpu_devices=-1, update=update)
    monkeypatch.setattr(launch.jax, "config", config)
    launch.begin(4)
    assert seen == updates


def test_processes_are_joined_by_the_environment(monkeypatch):
    joined = []
    initialize = lambda *by_hand, **how: joined.append(by_hand)
    monkeypatch.setattr("jax.distributed.initialize", initialize)
    monkeypatch.setattr("jax.config.update", lambda *option: None)
    launch.begin(1)
    assert not joined
    launch.begin(1, distributed=True)
    for name, value in zip(launch.PLACES, ("h:1", "2", "1"), strict=True):
        monkeypatch.setenv(name, value)
    launch.begin(1, distributed=True)
    assert joined == [(None, None, None), ("h:1", 2, 1)]
    monkeypatch.delenv(launch.PLACES[2])
    with pytest.raises(ValueError, match="go together"):
        launch.begin(1, distributed=True)


PRIVATE = "--privacy ClientPrivacy:epsilon=8,delta=0.01 --directory a"


@pytest.mark.filterwarnings("ignore:the noise in the sum")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train fedavg --distributed", "several processes need a shared directory; na"),
        ("compare fedavg --directory a", "can train only one run together"),
        ("sweep fedavg --grid lr=0.1,0.2 --directory a", "can train only one run toge"),
        (f"train fedavg {PRIVATE}", "cannot span several processes"),
    ],
)
def test_several_processes_train_one_run(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "begin", lambda *devices, distributed: None)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(launch, "devices_of", lambda count: ())
    assert said in refused(capsys, *words.split())
    assert not [*tmp_path.iterdir()]

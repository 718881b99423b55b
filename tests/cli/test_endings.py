"""How a command ends, and what it decides before JAX is first used."""

import os
import signal
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from command import refused

from fedjax_muon.cli import errors, launch
from fedjax_muon.data import Dataset
from fedjax_muon.data.dataset import check


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
    "a pipe": (lambda: fault(BrokenPipeError()), 1, "the output was closed"),
}


@pytest.mark.parametrize("case", ENDS)
def test_whatever_happens_ends_in_a_line_and_a_status(case, capsys):
    act, status, said = ENDS[case]
    with pytest.raises(SystemExit) as stop, errors.guarded(), errors.refusing():
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
    launch.begin(launch.Launch(), 4)
    assert seen == updates


@pytest.mark.filterwarnings("ignore:the noise in the sum")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train fedavg", "several processes need a shared directory; name it with"),
        ("compare fedavg --quick --directory a", "can train only one run together"),
        ("sweep fedavg --lr 0.1,0.2 --directory a", "can train only one run together"),
        ("train fedavg --epsilon 8 --directory a", "cannot span several processes"),
    ],
)
def test_several_processes_train_one_run(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(launch, "devices_of", lambda count: ())
    monkeypatch.setattr(launch, "SECONDS_BETWEEN_LOOKS", 600.0)  # nobody is there
    assert said in refused(capsys, *words.split())
    assert not [*tmp_path.iterdir()]

"""The command, called in this process or in one of its own."""

import subprocess
import sys

import pytest

from fedjax_muon.shell.main import main

# a problem whose programs are small
TINY = ["--clients", "4", "--model", "mlp:hidden=8", "--cohort-size", "2"]
TINY += ["--local-steps", "1", "--batch-size", "8"]


def run(*words) -> None:
    main([str(word) for word in words])


def stopped(capsys, *words, status=2) -> str:
    """The one line of an error, with which a command ends in a status."""
    with pytest.raises(SystemExit) as stop:
        run(*words)
    assert stop.value.code == status
    lines = capsys.readouterr().err.strip().splitlines()
    # in the suite warnings are errors; other versions of other packages have others
    lines = [line for line in lines if not line.startswith("fedjax-muon: warning: ")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("fedjax-muon: error: ")
    return lines[0].removeprefix("fedjax-muon: error: ")


def spawn(*words) -> subprocess.Popen:
    command = [sys.executable, "-m", "fedjax_muon.shell.main", *map(str, words)]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, text=True, **quiet)

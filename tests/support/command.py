"""The command, called in this process or in one of its own."""

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedjax_muon.cli.main import main

SMALL = ["--cohort", "3", "--local-steps", "2"]
SMALL += ["--batch-size", "8", "--evaluate-every", "2"]


def run(*arguments) -> None:
    main([str(a) for a in arguments])


def refused(capsys, *arguments) -> str:
    """The one line that a refusal with exit status 2 prints."""
    with pytest.raises(SystemExit) as stop:
        run(*arguments)
    assert stop.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    # in the suite warnings are errors; other versions of other packages have others
    lines = [line for line in lines if not line.startswith("fedjax-muon: warning: ")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("fedjax-muon: error: ")
    return lines[0].removeprefix("fedjax-muon: error: ")


def assert_same_but_for_seconds(a: Path, b: Path) -> None:
    def rows(path):
        with path.open() as file:
            return [{**row, "seconds": ""} for row in csv.DictReader(file)]

    assert rows(a) == rows(b)


def spawn(*arguments, **variables: str) -> subprocess.Popen:
    """The command in a process, with further variables in its environment."""
    command = [sys.executable, "-m", "fedjax_muon", *map(str, arguments)]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    environment = {**os.environ, **variables}
    return subprocess.Popen(command, text=True, env=environment, **quiet)


def wait_for(condition, process) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)

"""What became of a command: its exit status, what it printed, what is wrong with it."""

import contextlib
import io
import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_muon.cli.main import main

ALLOWED = (0, 1, 2, 130)
LIMIT = 300  # seconds that a small command may take, beside other work


class Outcome(NamedTuple):
    """A command's end."""

    status: int
    out: str
    err: str

    @property
    def problem(self) -> str:
        """What is wrong with it, empty if nothing is."""
        lines = self.err.strip().splitlines()
        if "Traceback" in self.out + self.err:
            return "traceback"
        if self.status not in ALLOWED:
            return f"status {self.status}"
        if "---" in self.err:
            return "a box"
        if self.status == 2 and sum("error:" in line for line in lines) != 1:
            return "a refusal that is not one line"
        if self.status == 1 and not re.search("diverged|lower the", self.text):
            return "a fault"
        return ""

    @property
    def text(self) -> str:
        """Everything that was printed."""
        return self.out + self.err


class HangError(Exception):
    """A command that ran past the limit."""


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises `HangError` in what runs longer."""

    def end(number, frame):
        del number, frame
        raise HangError

    previous = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def run(arguments: Sequence[object], limit: int = LIMIT) -> Outcome:
    """Runs a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with limited(limit):
                main([str(word) for word in arguments])
        except SystemExit as stop:
            status = 0 if stop.code is None else stop.code
        except HangError:
            status = -1
        except BaseException as error:  # main lets nothing else through
            status = -2
            err.write(f"Traceback: {type(error).__name__}: {error}")
    code = status if isinstance(status, int) else 1
    return Outcome(code, out.getvalue(), err.getvalue())


def files(directory: Path) -> set[str]:
    """All files and directories below a directory."""
    return {
        os.path.join(folder, name)
        for folder, folders, names in os.walk(directory)
        for name in (*folders, *names)
    }

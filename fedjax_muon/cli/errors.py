"""How a command ends: one line and an exit status, whatever happened.

0 is success, 2 an error about what was asked for, 1 any other fault, whose traceback is
in a log file, and 130 an interrupt (Ctrl-C, SIGTERM).
"""

import contextlib
import gc
import os
import signal
import sys
import sysconfig
import tempfile
import threading
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedjax_muon.terminal import plain_console

LOG = "error.log"
LONGEST = 2000  # characters of a line
OWN = ("fedjax_muon", "experiments", "__main__")  # packages whose errors are refusals


class FaultError(Exception):
    """A fault whose traceback has been written to a log file."""

    def __init__(self, error: Exception, log: Path | None):
        self.error, self.log = error, log
        super().__init__(str(error))


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turns an error about what was asked for into one line and exit status 2.

    A `ValueError` that another package raises is a fault: this package's own checks
    come before.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # nobody reads the output any more
    except OSError as error:
        show_error(str(error))
        sys.exit(2)
    except RuntimeError as error:
        if "home directory" not in str(error):
            raise
        show_error(f"{error}; name the place with its whole path")
        sys.exit(2)
    except (ValueError, ImportError) as error:  # of options, and of optional packages
        if not is_refusal(error):
            raise
        show_error(str(error))
        sys.exit(2)


def is_refusal(error: Exception) -> bool:
    """Whether this project's code raised an error, and not that of a dependency."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").split(".")[0] in OWN


@contextlib.contextmanager
def logged(directory: Path) -> Iterator[None]:
    """Writes the traceback of a fault into a run directory."""
    try:
        yield
    except BrokenPipeError:
        raise
    except Exception as error:
        raise FaultError(error, _write_log(directory / LOG)) from error


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Ends a command with one line and an exit status, whatever is raised.

    SIGTERM counts as an interrupt.
    """
    with _terminable(), _without_late_complaints():
        try:
            yield
            sys.stdout.flush()
        except KeyboardInterrupt:
            show_error("interrupted")
            sys.exit(130)
        except BrokenPipeError:
            _abandon_output()
            show_error("the output was closed")
            sys.exit(1)
        except FaultError as fault:
            _end(fault.error, fault.log)
        except OSError as error:
            _abandon_output()
            show_error(str(error))
            sys.exit(1)
        except Exception as error:
            _end(error, _write_log(None))


def _end(error: Exception, log: Path | None) -> None:
    where = f"; the traceback is in {log}" if log else ""
    what = str(error).strip().split("\n")[0][:300]
    show_error(f"{_place(error)}{type(error).__name__}: {what}{where}")
    sys.exit(1)


def _place(error: Exception) -> str:
    """The innermost line of a user's own file in a traceback, if there is one."""
    standard = sysconfig.get_path("stdlib"), "<"
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        package = frame.f_globals.get("__name__", "").split(".")[0]
        file = frame.f_code.co_filename
        installed = {"site-packages", "dist-packages"} & {*Path(file).parts}
        users = not installed and not file.startswith(standard) and os.path.isfile(file)
        if package not in OWN and users:
            return f"{file}:{line}: "
    return ""


def _write_log(path: Path | None) -> Path | None:
    """Where the traceback of the current exception is; None if it can't be written."""
    text = traceback.format_exc()
    try:
        if path is None:
            number, name = tempfile.mkstemp(prefix="fedjax-muon-", suffix=".log")
            os.close(number)
            path = Path(name)
        path.write_text(text)
    except OSError:
        return None
    return path


def _abandon_output() -> None:
    """Lets the interpreter end although standard output can't be flushed."""
    with contextlib.suppress(OSError, ValueError):
        try:
            sys.stdout.flush()
            return
        except OSError:
            pass
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _without_late_complaints() -> Iterator[None]:
    """Drops what Python says of coroutines that orbax leaves when a file fails it."""
    previous = sys.unraisablehook

    def hook(event: Any) -> None:
        closed = "Event loop is closed" in str(event.exc_value)
        if not closed and not isinstance(event.object, types.CoroutineType):
            previous(event)

    sys.unraisablehook = hook
    gc.freeze()  # what is older than the command is not searched, which may be much
    try:
        yield
    except SystemExit:
        gc.collect()
        raise
    finally:
        gc.unfreeze()
        sys.unraisablehook = previous


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Makes SIGTERM an interrupt, where signals can be handled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number, frame):
        del number, frame
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    """Prints a warning without the place in the source that raised it; stands in for
    `warnings.showwarning`."""
    del category, filename, lineno, file, line
    show_line(f"warning: {message}")


def show_error(message: str) -> None:
    """Prints one line about an error."""
    show_line(f"error: {message}", "red")


def show_line(text: str, style: str = "yellow") -> None:
    """Prints one line on standard error, also where warnings are errors."""
    if len(text) > LONGEST:  # it repeats what was given
        text = f"{text[: LONGEST // 2]} [...] {text[-LONGEST // 2 :]}"
    with contextlib.suppress(OSError, ValueError):  # standard error is closed
        console = plain_console(stderr=True, soft_wrap=True, highlight=False)
        console.print(" ".join(f"fedjax-muon: {text}".split()), style=style)

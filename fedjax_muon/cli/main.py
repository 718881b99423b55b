"""The command line: a command calls one function of Python, and nothing else.

    fedjax-muon train fedmuon:lr=0.03 --problem digits:alpha=0.5 --rounds 50
    fm.train(fm.fedmuon(lr=0.03), fm.problems.classification(alpha=0.5), rounds=50)

`call` makes options of the function's arguments, and `names` values of texts. Here is
what needs neither JAX nor them: the overview, and how a command ends. 0 is success, 2
an error about what was asked for, 1 any other fault, whose traceback is in a file, and
130 an interrupt (Ctrl-C, SIGTERM).
"""

import contextlib
import difflib
import errno
import os
import signal
import sys
import sysconfig
import tempfile
import threading
import traceback
import typing
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import fedjax_muon

COMMANDS = {
    "train": "Train one method.",
    "compare": "Train several methods on several seeds, and write a table and figures.",
    "sweep": "Train methods on a grid, and choose the best by validation.",
    "list": "Show the names of methods, datasets and other things, or describe some.",
    "plot": "Draw the curves of run directories.",
    "predict": "Label new examples with the model of a run.",
    "sample": "Continue a text with the language model of a run.",
    "export": "Write the model of a run to a file.",
    "prepare": "Download a dataset of tensorflow-datasets.",
    "split": "Divide a CSV file into one for each owner.",
    "partition": "Draw the labels of each client of a problem.",
    "describe": "Write what a server without data must know about a client's data.",
    "deploy": "Write a Flower app that trains a method with real clients.",
}
USAGE = """\
usage: fedjax-muon COMMAND NAMES... [--option value]

  fedjax-muon train fedmuon:lr=0.03 --problem digits:alpha=0.5
  fedjax-muon compare fedavg fedmuon --seeds 0,1,2
  fedjax-muon sweep fedavg fedmuon --grid lr=0.01,0.03,0.1
  fedjax-muon train my_code:fedfoo:lr=0.1 --problem my_code:hospital:ward=3
  fedjax-muon list fedmuon
"""
LOG = "error.log"  # of a fault, in a run directory
LONGEST = 2000  # characters of a line
FULL = (errno.ENOSPC, errno.EFBIG, errno.EIO)  # errors of writing, and not of input
OWN = ("fedjax_muon", "experiments", "__main__")  # packages whose errors are refusals


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command of the command line."""
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    with _terminable(), ending(), warnings.catch_warnings():
        warnings.showwarning = _warn
        if words[0] == "--version":
            print(f"fedjax-muon {fedjax_muon.__version__}")
        elif words[0] in ("-h", "--help"):
            print(overview())
        else:
            _command(*words)
        sys.stdout.flush()


def overview() -> str:
    """What there is, for those who ask for nothing."""
    lines = [f"  {name:10} {about}" for name, about in COMMANDS.items()]
    more = "COMMAND --help shows its options, --version the version."
    return "\n".join([USAGE, *lines, "", more])


def _command(name: str, *words: str) -> None:
    if name not in COMMANDS:
        from fedjax_muon.cli import old  # which needs JAX

        near = difflib.get_close_matches(name, COMMANDS, 1, 0.5)
        known = f"there are {', '.join(COMMANDS)}"
        advice = f"did you mean {near[0]}?" if near else known
        advice = old.COMMANDS.get(name, advice)
        raise ValueError(f"unknown command {name!r}; {advice}")
    from fedjax_muon.cli import call
    from fedjax_muon.startup import cache_programs

    cache_programs()
    call.run(name, words)


# ------------------------------------------------------------------------ how it ends
@contextlib.contextmanager
def ending(place: Path | None = None, again: str = "") -> Iterator[None]:
    """Ends with one line and an exit status, whatever is raised.

    Args:
      place: The directory of a run, for the traceback of a fault.
      again: The command that continues there.
    """
    try:
        yield
    except KeyboardInterrupt:
        more = f"; continue with: {again}" if place and place.exists() else ""
        _end(130, f"interrupted{more}")
    except BrokenPipeError:
        _abandon_output()
        _end(1, "the output was closed")
    except Exception as error:
        if type(error).__name__.startswith("NonFinite"):
            _end(1, str(error))
        if isinstance(error, OSError) and error.errno in FULL and not error.filename:
            _abandon_output()
            _end(1, str(error))
        if is_refusal(error):
            _end(2, str(error))
        if isinstance(error, RuntimeError) and "home directory" in str(error):
            _end(2, f"{error}; name the place with its whole path")
        _end(1, _fault(error, place if place and place.exists() else None))


def is_refusal(error: Exception) -> bool:
    """Whether an error is about your input: about a file, or raised by this project's
    own checks rather than by a dependency or your code."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    is_own = frame.f_globals.get("__name__", "").split(".")[0] in OWN
    kinds = ValueError, TypeError, ImportError
    return isinstance(error, OSError) or (isinstance(error, kinds) and is_own)


def _fault(error: Exception, place: Path | None) -> str:
    """A line about a fault, whose traceback is in a file."""
    what = str(error).strip().split("\n")[0][:300]
    said = f"{_line_of(error)}{type(error).__name__}: {what}"
    with contextlib.suppress(OSError):
        path = place and place / LOG
        if path is None:
            handle, name = tempfile.mkstemp(".log", "fedjax-muon-")
            os.close(handle)
            path = Path(name)
        path.write_text("".join(traceback.format_exception(error)), "utf-8")
        said += f"; the traceback is in {path}"
    return said


def _line_of(error: Exception) -> str:
    """The innermost line of your own file in a traceback, if there is one."""
    standard = sysconfig.get_path("stdlib"), "<"
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        package = frame.f_globals.get("__name__", "").split(".")[0]
        file = frame.f_code.co_filename
        installed = {"site-packages", "dist-packages"} & {*Path(file).parts}
        users = not installed and not file.startswith(standard) and os.path.isfile(file)
        if package not in OWN and users:
            return f"{file}:{line}: "
    return ""


def _abandon_output() -> None:
    """Lets the interpreter end although standard output can't be flushed."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Makes SIGTERM an interrupt, where signals can be handled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _end(status: int, message: str) -> typing.NoReturn:
    show_line(f"error: {message}", "red")
    sys.exit(status)


def _warn(message: Warning | str, *place: object, **more: object) -> None:
    """Prints a warning without its place; stands in for `warnings.showwarning`."""
    del place, more
    show_line(f"warning: {message}")


def show_line(text: str, style: str = "yellow") -> None:
    """Prints one line on standard error, also where warnings are errors."""
    from fedjax_muon.terminal import plain_console

    if len(text) > LONGEST:  # it repeats what was given
        text = f"{text[: LONGEST // 2]} [...] {text[-LONGEST // 2 :]}"
    with contextlib.suppress(OSError, ValueError):  # standard error is closed
        console = plain_console(stderr=True, soft_wrap=True, highlight=False)
        console.print(" ".join(f"fedjax-muon: {text}".split()), style=style)


if __name__ == "__main__":
    main()

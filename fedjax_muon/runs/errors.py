"""Errors and warnings as the command prints them: one line each."""

import contextlib
import sys
from collections.abc import Iterator

from rich.console import Console


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turns an error about what was asked for into one line and exit status 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        _print(f"fedjax-muon: error: {error}", "red")
        sys.exit(2)


def show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    """Prints a warning without the place in the source that raised it; stands in for
    `warnings.showwarning`."""
    del category, filename, lineno, file, line
    _print(f"fedjax-muon: warning: {message}", "yellow")


def _print(text: str, style: str) -> None:
    Console(stderr=True, soft_wrap=True).print(
        " ".join(text.split()), style=style, markup=False, highlight=False
    )

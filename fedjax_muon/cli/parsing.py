"""One line for every mistake on the command line."""

import contextlib
import difflib
import io
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any

import tyro

from fedjax_muon.runs.errors import show_error

RULE = re.compile(r"\s*[│|]?\s*[─-]{3,}\s*[│|]?\s*")


def parse(kind: Any, argv: Sequence[str], prog: str) -> Any:
    """What `tyro.cli` makes of arguments; a mistake ends in one line and status 2."""
    try:
        return parsed(kind, argv, prog)
    except MistakeError as error:
        show_error(f"{error}; see {prog} -h")
        sys.exit(2)


class MistakeError(Exception):
    """A mistake in arguments."""


def parsed(kind: Any, argv: Sequence[str], prog: str) -> Any:
    """What `tyro.cli` makes of arguments."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, args=list(argv), prog=prog)
    except SystemExit as stop:
        if stop.code != 2:
            raise
        message = _reworded(_first_part(said.getvalue()), _options(kind, prog))
        raise MistakeError(message) from None


def _options(kind: Any, prog: str) -> list[str]:
    """The options of a command, as its help has them."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        tyro.cli(kind, args=["--help"], prog=prog)
    return re.findall(r"(?<![\w-])--[a-z][\w.-]*", text.getvalue())


def unknown_command(word: str, commands: Sequence[str]) -> str:
    """What is said of a word that is no command."""
    near = difflib.get_close_matches(word, commands, 1, 0.5)
    advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(commands)}"
    return f"unknown command {word!r}; {advice}"


def _first_part(text: str) -> str:
    """The first section of tyro's box, which has lines or, without Unicode, dashes."""
    title, *lines = text.strip().splitlines() or [""]
    if not title.startswith("╭"):  # then a rule is below the title
        lines = lines[1:]
    section = itertools.takewhile(lambda line: not RULE.fullmatch(line), lines)
    words = " ".join(line.strip(" │|╰╯─") for line in section).split()
    return " ".join(words or text.split())


def _reworded(message: str, options: Sequence[str]) -> str:
    found = re.match(r"Unrecognized options: (\S+?)(?:,|$)", message)
    if found is None:
        message = re.sub(r"^Missing from [^:]*:", "missing:", message)
        return message[:1].lower() + message[1:].rstrip(".")
    word = found[1].partition("=")[0]
    if not word.startswith("-"):
        return f"unexpected argument {word!r}"
    by_name = {o.lstrip("-").rpartition(".")[2]: o for o in options}
    near = difflib.get_close_matches(word.lstrip("-"), by_name, 1, 0.6)
    advice = f"; did you mean {by_name[near[0]]}?" if near else ""
    return f"unknown option {word}{advice}"

"""How arguments become a command: options in sections, and one line for a mistake.

A command is a dataclass, of which `Config` and `Launch` are parts whose options have no
prefix. tyro has one box for every nested dataclass. So for parsing, the options are put
in another dataclass, with one part for every section.
"""

import contextlib
import dataclasses
import difflib
import functools
import io
import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import docstring_parser
import tyro

from fedjax_muon.runs.config import Config
from fedjax_muon.runs.errors import show_error
from fedjax_muon.runs.launch import Launch

RULE = re.compile(r"\s*[│|]?\s*[─-]{3,}\s*[│|]?\s*")
# The first field of every section; those after it belong to the same one.
STARTS: dict[type, dict[str, str]] = {
    Config: {
        "problem": "Data",
        "num_clients": "Client",
        "graph": "Graph",
        "epsilon": "Privacy",
        "model": "Model",
        "newton_schulz_steps": "Newton-Schulz",
        "weight_decay": "Training",
        "clock": "Time",
        "drop_nonfinite": "Training",
        "compressor": "Compression",
        "plan": "Execution",
    },
    Launch: {"distributed": "Execution"},
}
# Fields of commands; the others have no section.
PLACES = {
    **dict.fromkeys(("local", "deadline", "patience", "largest_client"), "Node"),
    "cells_at_once": "Execution",
    "compile_for": "Execution",
    "part": "Execution",
    "log": "Output",
    "tune": "Execution",
    "output": "Output",
}
ORDER = (
    "Node",
    "Data",
    "Client",
    "Graph",
    "Privacy",
    "Model",
    "Newton-Schulz",
    "Training",
    "Time",
    "Compression",
    "Execution",
    "Output",
)


class Option(NamedTuple):
    """A field of a command, or of a part of one."""

    name: str
    part: str | None  # field of the command that it is in
    section: str | None
    hint: Any  # its type, with its help
    default: Any  # or dataclasses.MISSING


def options(kind: type, default: Any = None) -> list[Option]:
    """The options of a command."""
    result = []
    for option in _fields(kind, default):
        inner = get_args(option.hint)[0] if get_args(option.hint) else None
        if inner not in STARTS:
            result.append(option._replace(section=PLACES.get(option.name)))
            continue
        section = None
        for field in _fields(inner, option.default):
            section = STARTS[inner].get(field.name, section)
            result.append(field._replace(part=option.name, section=section))
    return result


def _fields(kind: type, default: Any) -> list[Option]:
    texts, hints = _help(kind), get_type_hints(kind, include_extras=True)
    result = []
    for field in dataclasses.fields(kind):
        hint: Any = hints[field.name]
        if field.name in texts:
            hint = Annotated[hint, tyro.conf.arg(help=texts[field.name])]
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if default is not None:
            value = getattr(default, field.name)
        result.append(Option(field.name, None, None, hint, value))
    return result


@functools.cache
def _help(kind: type) -> Mapping[str, str]:
    """The docstrings of fields, each on one line: the terminal's width breaks them."""
    # classes that were made for one algorithm have no source
    modules = {each: vars(sys.modules[each.__module__]) for each in kind.__mro__[:-1]}
    written = [each for each in modules if modules[each].get(each.__name__) is each]
    params = [p for c in written for p in docstring_parser.parse_from_object(c).params]
    return {p.arg_name: " ".join((p.description or "").split()) for p in params}


def grouped(options: Sequence[Option], doc: str | None) -> type:
    """A dataclass that tyro makes the options of, in sections."""
    fields = [_field(option) for option in options if option.section is None]
    for section in ORDER:
        inner = [_field(option) for option in options if option.section == section]
        if inner:
            part: Any = dataclasses.make_dataclass("Section", inner, frozen=True)
            conf = tyro.conf.arg(name=section), tyro.conf.OmitArgPrefixes
            hint = Annotated[part, *conf]
            field: Any = dataclasses.field(default_factory=part)
            fields.append((_attribute(section), hint, field))
    return dataclasses.make_dataclass(
        "Options", fields, frozen=True, kw_only=True, namespace={"__doc__": doc}
    )


def _attribute(section: str) -> str:
    return f"section_{section.replace('-', '_')}"


def _field(option: Option) -> tuple[str, Any, Any]:
    if option.default is dataclasses.MISSING:
        return option.name, option.hint, dataclasses.field()
    value = option.default
    return option.name, option.hint, dataclasses.field(default_factory=lambda: value)


def command(kind: type, options: Sequence[Option], parsed: Any) -> Any:
    """A command with the values of `grouped(options, ...)`."""
    sections = {option.section for option in options}
    parts: dict[str | None, Any] = {None: parsed}
    for section in filter(None, sections):
        parts[section] = getattr(parsed, _attribute(section))
    values = {each.name: getattr(parts[each.section], each.name) for each in options}
    return from_values(kind, options, values)


def from_values(
    kind: type, options: Sequence[Option], values: Mapping[str, Any]
) -> Any:
    """A command with values by name, of which some belong to its parts."""
    hints = get_type_hints(kind, include_extras=True)
    fields: dict[str, Any] = {}
    for name in {option.part: None for option in options}:
        inner = {each.name: values[each.name] for each in options if each.part == name}
        if name is None:
            fields |= inner
        else:
            fields[name] = get_args(hints[name])[0](**inner)
    return kind(**fields)


# ------------------------------------------------------------------------- mistakes
def parse(kind: Any, argv: Sequence[str], prog: str) -> Any:
    """What `tyro.cli` makes of arguments; a mistake ends in one line and status 2."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(kind, args=list(argv), prog=prog)
    except SystemExit as stop:
        if stop.code != 2:
            raise
    message = _reworded(_first_part(printed.getvalue()), _known(kind, prog))
    show_error(f"{message}; see {prog} -h")
    sys.exit(2)


def _known(kind: Any, prog: str) -> list[str]:
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
    match = re.match(r"Unrecognized options: (\S+?)(?:,|$)", message)
    if match is None:
        message = re.sub(r"^Missing from [^:]*:", "missing:", message)
        return message[:1].lower() + message[1:].rstrip(".")
    word = match[1].partition("=")[0]
    if not word.startswith("-"):
        return f"unexpected argument {word!r}"
    by_name = {o.lstrip("-").rpartition(".")[2]: o for o in options}
    near = difflib.get_close_matches(word.lstrip("-"), by_name, 1, 0.6)
    advice = f"; did you mean {by_name[near[0]]}?" if near else ""
    return f"unknown option {word}{advice}"

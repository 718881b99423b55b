"""Help: the options of a command, from the signatures and docstrings of functions."""

import functools
import inspect
import operator
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import docstring_parser

import fedjax_muon
from fedjax_muon.algorithms.registry import base_of
from fedjax_muon.cli import commands, flower_app, names
from fedjax_muon.cli.jobs import Section, Words, dashed

SIZES = ("cohort", "local_steps", "batch_size")  # that a problem has
PARSERS: Mapping[str, Callable[[Sequence[str]], Any]] = {
    **commands.PARSERS,
    "deploy": flower_app.parsed_deploy,
}
# first words of a command that has none
USUAL = {"sweep": ["fedavg"], "deploy": ["my_app"]}


def options_of(command: str, words: Sequence[str]) -> str:
    """The options of a command, with the methods and the problem that it names."""
    if command not in PARSERS:
        return ""
    if not Words(words).first:
        words = [*USUAL.get(command, ()), *words]
    job = PARSERS[command](words)
    return "\n".join([*map(_section, job.sections), ""])


def _section(section: Section) -> str:
    texts, lines = help_texts(section.function), [f"\n{section.title}"]
    for name, parameter in section.parameters.items():
        about = [texts.get(name, ""), _usual(parameter)]
        about.insert(1, _choices(name, parameter))
        words = " ".join(filter(None, about))
        lines.append(f"  {dashed(name)}")
        lines.append(f"      {_filled(words, 6)}" if words else "")
    return "\n".join(filter(None, lines))


def _filled(text: str, indent: int) -> str:
    width = min(100, max(60, shutil.get_terminal_size().columns))
    return f"\n{' ' * indent}".join(textwrap.wrap(text, width - indent))


def _usual(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if parameter.name in SIZES:
        return "(default: the problem's)"
    if value is parameter.empty:
        return "(required)"
    table = names.TABLES.get(parameter.name, {})
    shown = next((name for name, each in table.items() if each is value), "")
    if value is None or isinstance(value, bool):
        shown = str(value).lower()
    elif isinstance(value, int | float | str):
        shown = str(value)
    elif type(value) is tuple and not any(isinstance(x, tuple) for x in value):
        shown = shown or ",".join(map(str, value))
    return f"(default: {shown})" if shown else ""


def _choices(name: str, parameter: inspect.Parameter) -> str:
    words: list[str] = []
    for kind in names.kinds_of(parameter):
        words += map(str, names.choices_of(kind))
    if len(table := names.TABLES.get(name, {})) < 30:
        words += table
    return f"One of {', '.join(dict.fromkeys(words))}." if words else ""


@functools.cache
def help_texts(function: Callable[..., Any]) -> Mapping[str, str]:
    """The help of a function's arguments; what a preset leaves out, its base says."""
    base = base_of(function)
    known = help_texts(operator.attrgetter(base)(fedjax_muon)) if base else {}
    doc = docstring_parser.parse(inspect.getdoc(function) or "")
    own = {p.arg_name: " ".join((p.description or "").split()) for p in doc.params}
    return {**known, **own}

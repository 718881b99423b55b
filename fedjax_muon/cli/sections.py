"""Sections of a command's options, as its help shows them.

A command is a dataclass, of which `Config` and `Launch` are parts whose
options have no prefix. tyro has one box for every nested dataclass. So for parsing, the
options are put in another dataclass, with one part for every section.
"""

import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import docstring_parser
import tyro

from fedjax_muon.runs.config import Config
from fedjax_muon.runs.launch import Launch

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
    "executor": "Execution",
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
    found = []
    for option in _fields(kind, default):
        inner = get_args(option.hint)[0] if get_args(option.hint) else None
        if inner not in STARTS:
            found.append(option._replace(section=PLACES.get(option.name)))
            continue
        section = None
        for field in _fields(inner, option.default):
            section = STARTS[inner].get(field.name, section)
            found.append(field._replace(part=option.name, section=section))
    return found


def _fields(kind: type, default: Any) -> list[Option]:
    texts, hints = _help(kind), get_type_hints(kind, include_extras=True)
    found = []
    for field in dataclasses.fields(kind):
        hint: Any = hints[field.name]
        if field.name in texts:
            hint = Annotated[hint, tyro.conf.arg(help=texts[field.name])]
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if default is not None:
            value = getattr(default, field.name)
        found.append(Option(field.name, None, None, hint, value))
    return found


@functools.cache
def _help(kind: type) -> Mapping[str, str]:
    """The docstrings of fields, each on one line: the terminal's width breaks them."""
    # classes that were made for one algorithm have no source
    modules = {each: vars(sys.modules[each.__module__]) for each in kind.__mro__[:-1]}
    written = [each for each in modules if modules[each].get(each.__name__) is each]
    params = [p for c in written for p in docstring_parser.parse_from_object(c).params]
    return {p.arg_name: " ".join((p.description or "").split()) for p in params}


def grouped(options: Sequence[Option], doc: str | None) -> type:
    """A dataclass that tyro makes the options of, in sections.

    Returns:
      The dataclass, which `values` reads an instance of.
    """
    fields = [_field(option) for option in options if option.section is None]
    for section in ORDER:
        inner = [_field(option) for option in options if option.section == section]
        if inner:
            made: Any = dataclasses.make_dataclass("Section", inner, frozen=True)
            conf = tyro.conf.arg(name=section), tyro.conf.OmitArgPrefixes
            hint = Annotated[made, *conf]
            field: Any = dataclasses.field(default_factory=made)
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


def values(options: Sequence[Option], given: Any) -> dict[str, Any]:
    """The values of options."""
    parts = {None: given} | {
        section: getattr(given, _attribute(section))
        for section in {option.section for option in options}
        if section is not None
    }
    return {each.name: getattr(parts[each.section], each.name) for each in options}


def command(kind: type, options: Sequence[Option], values: Mapping[str, Any]) -> Any:
    """A command with these values."""
    hints = get_type_hints(kind, include_extras=True)
    fields: dict[str, Any] = {}
    for name in {option.part: None for option in options}:
        own = {each.name: values[each.name] for each in options if each.part == name}
        if name is None:
            fields |= own
        else:
            fields[name] = get_args(hints[name])[0](**own)
    return kind(**fields)

"""Help: the options of a command, from the signatures and docstrings of functions."""

import functools
import inspect
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import docstring_parser

from fedjax_muon.shell import commands, flower_app, names
from fedjax_muon.shell.jobs import Section, Words, dashed

USAGE = """\
usage: fedjax-muon COMMAND METHODS... [--option value]

  fedjax-muon train fedmuon --lr 0.03 --alpha 0.5
  fedjax-muon compare fedavg:lr=0.3 fedmuon:lr=0.03 --seeds 0,1,2
  fedjax-muon sweep fedavg fedmuon --lr 0.01,0.03,0.1
  fedjax-muon train my_code:fedfoo --problem my_code:hospital --ward 3
"""
HELP: Mapping[str, str] = {
    "train": "Train one method. Options: fedjax-muon train METHOD --help",
    "compare": "Train several methods on several seeds; show a table and draw curves.",
    "sweep": "Train methods on grids, such as --lr 0.01,0.03; report the best of each.",
    "resume": "Continue what a command began: resume DIRECTORY [--rounds N]"
    " [--trust MODULE,...]. Further options replace those it was started with.",
    "plot": "Draw curves: plot DIRECTORIES... [--output curves.png]",
    "list": "Show every method, every dataset and other names. [--data-dir DIR]",
    "partition": "Show the labels of each client: partition [--alpha 0.5] [--seed 0]"
    " [--output partition.png], and the options of a problem.",
    "prepare": "Download and convert a dataset of tensorflow-datasets: prepare NAME"
    " [--data-dir DIR]. Needs TensorFlow (the extra prepare).",
    "export": "Write the parameters of a run: export DIRECTORY FILE.safetensors"
    " [--overwrite] [--trust MODULE,...]",
    "deploy": "Write a Flower app for real clients: deploy DIRECTORY METHOD, with the"
    " options of train.",
}
SIZES = ("cohort_size", "local_steps", "batch_size")  # that a problem has
PARSERS: Mapping[str, Callable[[Sequence[str]], Any]] = {
    **commands.PARSERS,
    "deploy": flower_app.parsed_deploy,
}
# first words of a command that has none
USUAL = {"sweep": ["fedavg"], "deploy": ["my_app"]}


def help_of(argv: Sequence[str]) -> str:
    """The help of a command, with the methods and the problem that it names."""
    words = [word for word in argv if word not in ("-h", "--help")]
    if not words:
        lines = [f"  {name:10} {_filled(text, 13)}" for name, text in HELP.items()]
        return "\n".join([USAGE, *lines, "", "--version prints the version."])
    name, *rest = words
    if name not in PARSERS:
        return f"fedjax-muon {name}: {HELP[name]}"
    if not Words(rest).first:
        rest = [*USUAL.get(name, ()), *rest]
    job = PARSERS[name](rest)
    return "\n".join(
        [f"fedjax-muon {name}: {HELP[name]}", *map(_section, job.sections)]
    )


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
    shown = "none" if value is None or value == () else str(value)
    if isinstance(value, tuple) and value:
        shown = ",".join(map(str, value))
    if callable(value) or len(shown) > 40:
        shown = getattr(value, "__name__", "")
    return f"(default: {shown.lower() if isinstance(value, bool) else shown})" * bool(
        shown
    )


def _choices(name: str, parameter: inspect.Parameter) -> str:
    words: list[str] = []
    for kind in names.kinds_of(parameter):
        words += map(str, names.choices_of(kind))
    if len(table := names.TABLES.get(name, {})) < 30:
        words += table
    return f"One of {', '.join(dict.fromkeys(words))}." if words else ""


@functools.cache
def help_texts(function: Callable[..., Any]) -> Mapping[str, str]:
    """The help of a function's arguments; presets have that of their bases."""
    name = getattr(function, "__name__", "")
    method = names.METHODS.get(name)
    bases = method.preset.functions if method is not None and method.preset else ()
    found: dict[str, str] = {}
    for each in (*bases, function):
        doc = docstring_parser.parse(inspect.getdoc(each) or "")
        for part in doc.params:
            found[part.arg_name] = " ".join((part.description or "").split())
    if method is None:
        return found
    return {**_shared(), **found}


@functools.cache
def _shared() -> Mapping[str, str]:
    """The help of arguments that many methods share, from the first that has it."""
    found: dict[str, str] = {}
    for method in names.METHODS.values():
        doc = docstring_parser.parse(inspect.getdoc(method.function) or "")
        for part in doc.params:
            text = " ".join((part.description or "").split())
            found.setdefault(part.arg_name, text)
    return found

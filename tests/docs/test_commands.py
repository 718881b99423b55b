"""Printed commands are taken by the parsers of the programs that they name."""

import argparse
import ast
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as benchmarks
from fedjax_muon.cli import call, flower_app, main as shell
from tests.support.printed import ROOT, all_commands, blocks

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs"
CONFIGURATION = DOCS / "command_line.md"
PRINTED = all_commands()
PROGRAMS = ("experiments", "benchmarks", "notebooks")


class ParsedError(BaseException):  # which the command does not catch
    """Thrown where a program would begin its work, with what it was given."""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A current directory with the files that pages show, and a run."""
    algorithm, _, model, _, partition, _, problem, _ = blocks(CONFIGURATION)
    feddyn = blocks(DOCS / "how_to/algorithm.md")[1].partition("\n# Digits of 16")[0]
    (tmp_path / "my_algorithm.py").write_text(f"{algorithm}\n{feddyn}")
    (tmp_path / "my_model.py").write_text(model)
    (tmp_path / "my_partition.py").write_text(partition)
    (tmp_path / "my_problem.py").write_text(problem)
    page = DOCS / "tutorial/3_own_method.md"
    (method,) = blocks(page, 'python title="my_method.py"')
    (tmp_path / "my_method.py").write_text(method)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    monkeypatch.chdir(tmp_path)
    yield
    for name in ("my_algorithm", "my_model", "my_partition", "my_method", "my_problem"):
        sys.modules.pop(name, None)


@pytest.fixture
def parsing(monkeypatch, files):
    """Programs end as soon as they have parsed their arguments."""
    parse_args = argparse.ArgumentParser.parse_args

    def parsed_args(parser, *given):
        raise ParsedError(parse_args(parser, *given))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed_args)
    return monkeypatch


def parsed_command(name: str, *words: str) -> dict[str, Any]:
    """The arguments of a command, made but for the problem, which has data."""
    if name not in shell.COMMANDS:
        raise ValueError(f"there is no command {name}")
    values = call.parsed(name, words)
    if name == "deploy":
        flower_app.check([*values])
    elsewhere = ("problem", "devices", "cohort")  # which may need files, or machines
    return {k: v if k in elsewhere else call.made(k, v) for k, v in values.items()}


def file_of(module: str) -> Path:
    """The file that `python -m module` runs."""
    spec = find_spec(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{module}.__main__")
    if spec is None or spec.origin is None:
        raise ValueError(f"{module} is no program")
    return Path(spec.origin)


def parses(source: str) -> bool:
    """Whether a program, or what it imports of programs, has a parser."""
    if "parse_args(" in source:
        return True
    froms = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom)]
    names = {node.module or "" for node in froms}
    ours = [name for name in names if name.split(".")[0] in PROGRAMS and "." in name]
    origins = [spec.origin for spec in map(find_spec, ours) if spec and spec.origin]
    return any(parses(Path(origin).read_text()) for origin in origins)


def run_module(module: str, arguments: Sequence[str], monkeypatch) -> None:
    """As `python -m module`, but for programs that parse nothing: these aren't run."""
    path = file_of(module)
    source = path.read_text()
    if '__name__ == "__main__"' not in source:
        raise ValueError(f"{module} is no program")
    if not parses(source):
        if arguments and "sys.argv" not in source:
            raise ValueError(f"{module} takes no arguments")
        raise ParsedError(None)
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    package = module if path.stem == "__main__" else module.rpartition(".")[0]
    names = {"__name__": "__main__", "__file__": str(path), "__package__": package}
    exec(compile(source, str(path), "exec"), names)


def parse(words: Sequence[str], monkeypatch) -> Any:
    """What a program is given; `SystemExit` or `ValueError` if it refuses."""
    program, arguments = words[0], list(words[1:])
    if program == "python":
        program, arguments = words[2], list(words[3:])
    try:
        if program in ("fedjax-muon", "fedjax_muon"):
            return parsed_command(*arguments)
        if program == "benchmarks":
            benchmarks.main(arguments)
        else:
            run_module(program, arguments, monkeypatch)
    except ParsedError as parsed:
        (given,) = parsed.args
        if program == "benchmarks" and hasattr(given, "workloads"):
            benchmarks.check(given)
        return given
    raise AssertionError("the program did not parse its arguments")


@pytest.mark.parametrize("printed", PRINTED, ids=lambda p: " ".join(p.words))
def test_a_printed_command_is_parsed(printed, parsing):
    words = list(printed.words)
    if printed.inline and len(words) == (3 if words[0] == "python" else 2):
        words.append("--help")  # in a sentence it may be a mere name
    if words[-1] != "--help":
        parse(words, parsing)
    elif words[0] == "fedjax-muon":
        shell.main(words[1:])
    else:
        with pytest.raises(SystemExit) as stop:
            parse(words, parsing)
        assert stop.value.code in (0, None), printed.place

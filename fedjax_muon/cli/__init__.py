"""The command `fedjax-muon`."""

import importlib
import sys
import warnings
from typing import Annotated, Any, Union

import fedjax_muon
from fedjax_muon.runs import errors


def main(argv: list[str] | None = None) -> None:
    """Parses the command line and runs one command.

    It ends in 0, in 2 for bad input, in 1 for another fault, or in 130 if interrupted.
    """
    argv = (sys.argv[1:] if argv is None else argv) or ["--help"]
    with errors.guarded(), warnings.catch_warnings():
        warnings.showwarning = errors.show_warning
        _main(argv)


def _main(argv: list[str]) -> None:
    if argv == ["--version"]:
        print(f"fedjax-muon {fedjax_muon.__version__}")
        return
    # Imported here, so that whatever they raise ends in one line too.
    import tyro
    from tyro.conf import subcommand

    from fedjax_muon.cli import parsing
    from fedjax_muon.startup import cache_programs

    cache_programs()
    name, *rest = argv
    if name in RUNNERS:
        args = _given(name, rest)
        # Modules are imported when their command runs: help needs none of them.
        module, function = RUNNERS[name]
        getattr(importlib.import_module(f"{__name__}.{module}"), function)(args)
        return
    with errors.refusing():
        if name not in ("-h", "--help"):
            raise ValueError(parsing.unknown_command(name, list(RUNNERS)))
        kinds = command_kinds(argv)
    every: Any = Union[  # noqa: UP007 - made from a list
        tuple(
            Annotated[kind, subcommand(name, **how)]
            for name, (kind, how) in kinds.items()
        )
    ]
    tyro.cli(
        every,
        args=argv,
        prog="fedjax-muon",
        description="Federated optimization built around Muon; --version prints its "
        "version.",
    )


def _given(name: str, argv: list[str]) -> Any:
    """A command with the values of its arguments and its defaults."""
    from fedjax_muon.cli import parsing

    prog = f"fedjax-muon {name}"
    with errors.refusing():
        kind, how = command_kinds([name, *argv])[name]
    options = parsing.options(kind, how.get("default"))
    parsed = parsing.parse(parsing.grouped(options, kind.__doc__), argv, prog)
    with errors.refusing():  # values that are out of range
        return parsing.command(kind, options, parsed)


RUNNERS = {  # module and function of a command
    "compare": ("commands", "compare"),
    "train": ("commands", "train"),
    "sweep": ("commands", "sweep"),
    "resume": ("commands", "resume"),
    "list": ("lists", "methods"),
    "plot": ("commands", "plot"),
    "export": ("commands", "export"),
    "partition": ("commands", "partition"),
    "prepare": ("commands", "prepare"),
}


def command_kinds(argv: list[str]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The arguments of every command and their defaults, which others may decide."""
    from fedjax_muon.cli import arguments

    job, algorithm = arguments.job_in(argv), arguments.algorithm_in(argv)
    kinds = {name: getattr(arguments, name.title()) for name in RUNNERS}
    kinds["train"] = arguments.of_algorithm(kinds["train"], algorithm)
    return {name: (kind, arguments.defaults(kind, job)) for name, kind in kinds.items()}

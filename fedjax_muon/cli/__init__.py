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
    from fedjax_muon.engine.programs import cache_programs

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
    """A command with the values of its arguments, its file and its defaults."""
    from fedjax_muon.cli import config_files, parsing, sections

    prog = f"fedjax-muon {name}"
    with errors.refusing():
        file = config_files.find(name, argv)
        with file.blamed("algorithm", argv):
            kind, how = command_kinds([name, *argv, *file.deciding])[name]
        options = sections.options(kind, how.get("default"))
        options = config_files.with_defaults(options, file.for_algorithm(argv))
    given = parsing.parse(sections.grouped(options, kind.__doc__), argv, prog)
    with errors.refusing():  # values that are out of range
        return config_files.command(
            kind, options, sections.values(options, given), file
        )


RUNNERS = {
    "compare": ("commands", "compare"),
    "train": ("commands", "train"),
    "deploy": ("deployments", "command"),
    "sweep": ("commands", "sweep"),
    "resume": ("commands", "resume"),
    "list": ("lists", "command"),
    "plot": ("commands", "plot"),
    "export": ("reports", "export"),
    "report": ("reports", "report"),
    "partition": ("commands", "partition"),
    "noise": ("commands", "noise"),
    "data": ("datasets", "command"),
    "prepare": ("commands", "prepare"),
}


def command_kinds(argv: list[str]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The arguments of every command and their defaults, which others may decide."""
    from fedjax_muon.cli import arguments, one_algorithm

    job = arguments.job_in(argv)
    kinds = {
        "compare": arguments.Compare,
        "train": one_algorithm.train_class(arguments.algorithm_in(argv)),
        "deploy": one_algorithm.deploy_class(arguments.algorithm_in(argv)),
        "sweep": arguments.Sweep,
        "resume": arguments.Resume,
        "list": arguments.List,
        "plot": arguments.Plot,
        "export": arguments.Export,
        "report": arguments.Report,
        "partition": arguments.Partition,
        "noise": arguments.Noise,
        "data": arguments.Data,
        "prepare": arguments.Prepare,
    }
    defaults = {name: arguments.defaults(kind, job) for name, kind in kinds.items()}
    return {name: (kinds[name], defaults[name]) for name in kinds}

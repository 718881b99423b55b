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
    from fedjax_muon.runs import launch

    launch.remember_programs()
    with errors.refusing():
        kinds = command_kinds(argv)
        known = argv[:1] in ([name] for name in kinds)
        if not known and argv[0] not in ("-h", "--help"):
            raise ValueError(parsing.unknown_command(argv[0], list(kinds)))
    if known:
        name, *rest = argv
        kind, how = kinds[name]
        with errors.refusing():  # arguments that are out of range
            args = parsing.parse(kind, rest, f"fedjax-muon {name}", **how)
        # Modules are imported when their command runs: help needs none of them.
        module, function = RUNNERS[name]
        getattr(importlib.import_module(f"{__name__}.{module}"), function)(args)
        return
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
        description="Federated optimization built around Muon. "
        "`fedjax-muon --version` prints the version.",
    )


RUNNERS = {
    "compare": ("commands", "compare"),
    "train": ("commands", "train"),
    "deploy": ("deployments", "command"),
    "sweep": ("commands", "sweep"),
    "resume": ("commands", "resume"),
    "list": ("commands", "show"),
    "plot": ("commands", "plot"),
    "partition": ("commands", "partition"),
    "private": ("commands", "private"),
    "noise": ("commands", "noise"),
    "data": ("datasets", "command"),
    "prepare": ("commands", "prepare"),
}


def command_kinds(argv: list[str]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The arguments of every command and their defaults, which others may decide."""
    from fedjax_muon.cli import arguments

    problem = arguments.problem_in(argv)
    kinds = {
        "compare": arguments.Compare,
        "train": arguments.train_class(arguments.algorithm_in(argv)),
        "deploy": arguments.deploy_class(arguments.algorithm_in(argv)),
        "sweep": arguments.Sweep,
        "resume": arguments.Resume,
        "list": arguments.List,
        "plot": arguments.Plot,
        "partition": arguments.Partition,
        "private": arguments.Private,
        "noise": arguments.Noise,
        "data": arguments.Data,
        "prepare": arguments.Prepare,
    }
    defaults = {name: arguments.defaults(kind, problem) for name, kind in kinds.items()}
    return {name: (kinds[name], defaults[name]) for name in kinds}

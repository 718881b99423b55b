"""The command `fedjax-muon`."""

import importlib
import sys
import warnings
from typing import Annotated, Any, Union

import tyro
from tyro.conf import subcommand

import fedjax_muon
from fedjax_muon.cli import arguments
from fedjax_muon.runs import errors, launch


def main(argv: list[str] | None = None) -> None:
    """Parses the command line and runs one command; exits with 2 for bad input."""
    argv = sys.argv[1:] if argv is None else argv
    if argv == ["--version"]:
        print(f"fedjax-muon {fedjax_muon.__version__}")
        return
    launch.remember_programs()
    with errors.refusing():
        train = arguments.train_class(arguments.algorithm_in(argv))
    # Modules are imported when their command runs: help needs none of them.
    runners: dict[type, tuple[str, str, str]] = {
        arguments.Compare: ("compare", "commands", "compare"),
        train: ("train", "commands", "train"),
        arguments.Sweep: ("sweep", "commands", "sweep"),
        arguments.Resume: ("resume", "commands", "resume"),
        arguments.List: ("list", "commands", "show"),
        arguments.Plot: ("plot", "commands", "plot"),
        arguments.Partition: ("partition", "commands", "partition"),
        arguments.Private: ("private", "commands", "private"),
        arguments.Noise: ("noise", "commands", "noise"),
        arguments.Data: ("data", "datasets", "command"),
        arguments.Prepare: ("prepare", "commands", "prepare"),
    }
    problem = arguments.problem_in(argv)
    kinds: Any = Union[  # noqa: UP007 - made from a list
        tuple(
            Annotated[kind, subcommand(name, **arguments.defaults(kind, problem))]
            for kind, (name, _, _) in runners.items()
        )
    ]
    with errors.refusing():
        args = tyro.cli(
            kinds,
            args=argv,
            prog="fedjax-muon",
            description="Federated optimization built around Muon. "
            "`fedjax-muon --version` prints the version.",
        )
    _, module, function = runners[type(args)]
    with warnings.catch_warnings():
        warnings.showwarning = errors.show_warning
        getattr(importlib.import_module(f"{__name__}.{module}"), function)(args)

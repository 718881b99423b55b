"""The command `fedjax-muon`."""

import sys
from typing import Annotated, Any, Union

import tyro
from tyro.conf import subcommand

from fedjax_muon.cli import (
    arguments,
    commands,
    datasets,
    launch,
    private,
    session,
    sweeping,
)


def main(argv: list[str] | None = None) -> None:
    """Parses the command line and runs one command; exits with 2 for bad input."""
    argv = sys.argv[1:] if argv is None else argv
    launch.remember_programs()
    algorithm = arguments.algorithm_in(argv)
    with session.refusing():
        train = arguments.train_class(algorithm)
    runners: dict[type, tuple[str, Any]] = {
        arguments.Compare: ("compare", commands.compare),
        train: ("train", commands.train),
        arguments.Sweep: ("sweep", sweeping.command),
        arguments.Resume: ("resume", commands.resume),
        arguments.List: ("list", commands.show),
        arguments.Plot: ("plot", commands.plot),
        arguments.Partition: ("partition", commands.partition),
        arguments.Private: ("private", private.command),
        arguments.Noise: ("noise", commands.noise),
        arguments.Data: ("data", datasets.command),
        arguments.Prepare: ("prepare", commands.prepare),
    }
    problem = arguments.problem_in(argv)
    kinds: Any = Union[  # noqa: UP007 - made from a list
        tuple(
            Annotated[kind, subcommand(name, **arguments.defaults(kind, problem))]
            for kind, (name, _) in runners.items()
        )
    ]
    with session.refusing():
        args = tyro.cli(
            kinds,
            args=argv,
            prog="fedjax-muon",
            description="Federated optimization built around Muon.",
        )
    runners[type(args)][1](args)

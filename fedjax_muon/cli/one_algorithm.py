"""The commands that train one algorithm, which have its own options."""

import dataclasses
import inspect
from pathlib import Path
from typing import Annotated, Any

import docstring_parser
import tyro
from tyro.conf import Positional

from fedjax_muon.algorithms.registry import Method
from fedjax_muon.cli.arguments import ConfigFile
from fedjax_muon.runs.config import METHODS, Config, hyper_parameters, method_of
from fedjax_muon.runs.launch import Launch
from fedjax_muon.runs.lists import Names


def _help(method: Method) -> dict[str, str]:
    """What the docstring of a method says of its arguments."""
    text = docstring_parser.parse(inspect.getdoc(method.function) or "")
    return {p.arg_name: p.description or "" for p in text.params}


def _options(method: Method) -> type:
    """The plain options of a method as a dataclass, with its docstring's help."""
    help_of: dict[str, str] = {}
    # an argument that many methods share is described at the first one alone
    for one in (method, *METHODS.values()):
        help_of = _help(one) | help_of
    fields: list[Any] = []
    for name, default in hyper_parameters(method).items():
        kind: Any = Annotated[type(default), tyro.conf.arg(help=help_of.get(name, ""))]
        fields.append((name, kind, dataclasses.field(default=default)))
    return dataclasses.make_dataclass("Options", fields, frozen=True)


def _flag(kind: Any, default: Any, **about: Any) -> tuple[Any, Any]:
    """A field of a command: its type with the help, and its default."""
    annotated = Annotated[kind, tyro.conf.arg(**about)]
    return annotated, dataclasses.field(default=default)


def _algorithm_flags(method: Method, name: str) -> dict[str, tuple[Any, Any]]:
    """The fields of one algorithm, whose own options are under `--algorithm.`."""
    options = _options(method)
    return {
        "config_file": (ConfigFile, dataclasses.field(default=None)),
        "algorithm": _flag(
            str,
            name,
            help="Name of the algorithm; `fedjax-muon list` shows all. Your own one "
            "is MODULE:FUNCTION.",
        ),
        "hyper": _flag(options, options(), name="algorithm"),
        "seed": _flag(
            int, 0, help="Seed of partition, initial parameters, cohorts and batches."
        ),
    }


def train_class(name: str) -> type:
    """`train` for one algorithm, whose own options it has under `--algorithm.`."""
    method = method_of(name)
    fields = _algorithm_flags(method, name) | {
        "output": _flag(
            Path | None,
            None,
            help="Run directory, new or empty; by default one in runs/ with the time "
            "in its name.",
        ),
        "log": _flag(
            Names,
            (),
            help="Where metrics go besides metrics.csv: json, tensorboard, wandb, "
            "trackio, mlflow.",
        ),
        "compile_for": _flag(
            str | None,
            None,
            help="Compile a round for TPUs, such as v5e:4x4, which need not exist, and "
            "print its memory and communication instead of training.",
        ),
        "tune": _flag(
            bool,
            False,
            help="Measure all plans first, and take the fastest; always on "
            "accelerators, unless a plan is given.",
        ),
        "launch": _flag(Launch, Launch(), name=""),
        "config": _flag(Config, Config(), name=""),
    }
    return dataclasses.make_dataclass(
        "Train",
        [(key, *flag) for key, flag in fields.items()],
        frozen=True,
        namespace={
            "__doc__": f"Train one algorithm, here {method.label} ({method.paper}).\n\n"
            "Name another one with --algorithm to see its options."
        },
    )


DEPLOY = """Train on real clients, as a Flower app with the options of `train`.

Writes the app to a directory, which `flwr run` executes. With --local N, the app runs
at once on N SuperNodes of this machine, whose clients have the examples of `train`.
"""
DEPLOY_FLAGS = {
    "local": (int | None, None, "Number of SuperNodes, in processes of this machine."),
    "deadline": (float, 600.0, "Seconds to wait for answers; the rest are left out."),
    "patience": (
        float,
        60.0,
        "Seconds that a client without a SuperNode is waited for.",
    ),
    "largest_client": (
        int | None,
        None,
        "Most examples of a client; by default, of the clients of `train`.",
    ),
}


def deploy_class(name: str) -> type:
    """`deploy` for one algorithm, with the options of `train`."""
    method = method_of(name)
    flags = {
        "directory": _flag(
            Positional[Path],
            Path("flower-app"),
            help="The app's directory: new, empty, or that of the same options, to go "
            "on.",
        )
    }
    flags |= {
        key: _flag(kind, default, help=text)
        for key, (kind, default, text) in DEPLOY_FLAGS.items()
    }
    flags |= _algorithm_flags(method, name)
    flags["config"] = _flag(Config, Config(), name="")
    return dataclasses.make_dataclass(
        "Deploy",
        [(key, *flag) for key, flag in flags.items()],
        frozen=True,
        namespace={"__doc__": DEPLOY},
    )

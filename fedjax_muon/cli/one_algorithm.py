"""The commands that train one algorithm, which have its own options."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import docstring_parser
import tyro

from fedjax_muon.algorithms.registry import Method
from fedjax_muon.cli.arguments import Deploy, Train
from fedjax_muon.runs.config import METHODS, hyper_parameters, method_of


def _help(function: Callable[..., Any]) -> dict[str, str]:
    """What the docstring of a function says of its arguments."""
    text = docstring_parser.parse(inspect.getdoc(function) or "")
    return {p.arg_name: p.description or "" for p in text.params}


def _options(method: Method) -> type:
    """The plain options of a method as a dataclass, with its docstring's help."""
    help_of: dict[str, str] = {}
    # an argument that many methods share is described at the first one alone
    for each in (method, *METHODS.values()):
        bases = reversed(each.preset.functions) if each.preset else ()
        for function in (each.function, *bases):
            help_of = _help(function) | help_of
    fields: list[Any] = []
    for name, default in hyper_parameters(method).items():
        kind: Any = Annotated[type(default), tyro.conf.arg(help=help_of.get(name, ""))]
        fields.append((name, kind, dataclasses.field(default=default)))
    return dataclasses.make_dataclass("Options", fields, frozen=True)


def _for(kind: type, name: str, doc: str) -> type:
    """A command for one algorithm, whose own options it has under `--algorithm.`."""
    options: Any = _options(method_of(name))
    nested: Any = Annotated[options, tyro.conf.arg(name="algorithm")]
    fields: list[Any] = [
        ("algorithm", str, dataclasses.field(default=name)),
        ("hyper", nested, dataclasses.field(default_factory=options)),
    ]
    return dataclasses.make_dataclass(
        kind.__name__, fields, bases=(kind,), frozen=True, namespace={"__doc__": doc}
    )


def train_class(name: str) -> type:
    """`train` for one algorithm."""
    method = method_of(name)
    return _for(
        Train,
        name,
        f"Train one algorithm, here {method.label} ({method.paper}).\n\n"
        "Name another one with --algorithm to see its options.",
    )


def deploy_class(name: str) -> type:
    """`deploy` for one algorithm."""
    return _for(Deploy, name, Deploy.__doc__ or "")

"""Command lines of programs: the arguments of a function, and its docstring."""

import argparse
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import docstring_parser


def call(program: Callable[..., None], about: str | None) -> None:
    """Calls a function with what the command line gives.

    Args:
      program: Its arguments are numbers, texts, paths, names of a `Literal`, flags, or
        tuples of them. Those without a default, or before a `/`, have a place; the
        others are options.
      about: What the help begins with, such as the docstring of the module.
    """
    module = sys.modules["__main__"].__spec__
    parser = argparse.ArgumentParser(
        f"python -m {module.name.removesuffix('.__main__')}" if module else None,
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    document = docstring_parser.parse(getattr(program, "func", program).__doc__ or "")
    texts = {each.arg_name: each.description for each in document.params}
    signature = inspect.signature(program)
    for parameter in signature.parameters.values():
        _add(parser, parameter, texts.get(parameter.name))
    given = vars(parser.parse_args())
    for key, value in given.items():
        given[key] = tuple(value) if isinstance(value, list) else value
    bound = inspect.BoundArguments(signature, given)
    program(*bound.args, **bound.kwargs)


def _add(
    parser: argparse.ArgumentParser, parameter: inspect.Parameter, text: str | None
) -> None:
    kind, default = parameter.annotation, parameter.default
    how: dict[str, Any] = {"help": text, "default": default}
    if isinstance(kind, types.UnionType):  # with None
        kind, _ = get_args(kind)
    if get_origin(kind) is tuple:
        kind, how["nargs"] = get_args(kind)[0], "*"
    if get_origin(kind) is Literal:
        how["choices"] = get_args(kind)
    elif kind is bool:
        how["action"] = "store_true"
    else:
        how["type"] = kind
    name = f"--{parameter.name.replace('_', '-')}"
    if default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY:
        name = parameter.name
        how |= {} if default is parameter.empty else {"nargs": "?"}
    parser.add_argument(name, **how)

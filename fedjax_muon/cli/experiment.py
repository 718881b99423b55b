"""The file of a Flower app that says what is trained, in Python.

    from fedjax_muon.algorithms.fedavg import fedavg
    from fedjax_muon.problems.labeled import classification

    method = fedavg(lr=0.1)
    problem = classification(dataset="digits", clients=3)
    settings = {"cohort": 2}
    rounds = 100

The file is not run: calls of names that the command line has are read, and of others
only those in modules that a node's user allows. So a server can not run code that a
node's user did not name.
"""

import ast
import functools
import importlib
import inspect
import math
import os
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_muon import data
from fedjax_muon.cli import names
from fedjax_muon.cli.names import Call
from fedjax_muon.runs.methods import finished
from fedjax_muon.runs.simulate import Method

LIBRARIES = ("fedjax_muon", "optax", "functools")
HEADER = (
    '"""What is trained. Read, and not run: it has calls and plain values alone."""'
)


class UntrustedError(ValueError):
    """A function is of a module that must not be imported."""

    def __init__(self, name: str, module: str):
        self.name, self.module = name, module
        super().__init__(f"{name} is somebody's own code, of the module {module}")


class Experiment(NamedTuple):
    """What an app trains, in calls that are not made yet."""

    method: Call
    problem: Call
    settings: Mapping[str, Any]  # arguments of `federation`
    rounds: int
    seed: int
    evaluate_every: int

    @property
    def how(self) -> dict[str, Any]:
        """The settings, made."""
        return {name: names.made(value) for name, value in self.settings.items()}

    def algorithm(self) -> Method:
        """The method, made."""
        return finished(names.made(self.method), self.rounds)

    @property
    def modules(self) -> list[str]:
        """Your own modules, which the calls are of."""
        found, waiting = set[str](), [self.method, self.problem, *self.how.values()]
        waiting += self.settings.values()
        while waiting:
            each = waiting.pop()
            if isinstance(each, Call):
                waiting += [*each.args, *each.kwargs.values()]
                if _is_own(each):
                    found.add(each.name.partition(":")[0])
        return sorted(found)


def _is_own(call: Call) -> bool:
    return ":" in call.name and not _is_known(call)


def _is_known(call: Call) -> bool:
    return any(call.function is each for each in _known())


def _known() -> list[Any]:
    """All functions that the command line has a name for."""
    return [each for table in names.TABLES.values() for each in table.values()]


# ----------------------------------------------------------------------------- writing
def written(experiment: Experiment) -> str:
    """The file of an experiment."""
    imports = dict[str, tuple[str, str]]()
    lines = [
        f"{name} = {_source(value, imports)}"
        for name, value in experiment._asdict().items()
    ]
    froms = [
        f"from {module} import {name}" + f" as {alias}" * (alias != name)
        for alias, (module, name) in imports.items()
    ]
    return "\n".join([HEADER, "", *sorted(froms), "", *lines, ""])


def _source(value: Any, imports: dict[str, tuple[str, str]]) -> str:
    """The expression of a value; what it needs is added to the imports."""
    inner = functools.partial(_source, imports=imports)
    if isinstance(value, Call):
        head = _imported(value, imports)
        given = {name: _placed(value, name) for name in value.kwargs}
        kwargs = [f"{name}={inner(each)}" for name, each in given.items()]
        arguments = [*map(inner, value.args), *kwargs]
        if not value.lacks:
            return f"{head}({', '.join(arguments)})"
        if not arguments:
            return head
        imports["partial"] = "functools", "partial"
        return f"partial({', '.join([head, *arguments])})"
    if isinstance(value, Mapping):
        items = (f"{name!r}: {inner(each)}" for name, each in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(inner, value))}]"
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    if isinstance(value, np.dtype):
        return repr(value.name)
    return repr(str(value) if isinstance(value, Path) else value)


def _placed(call: Call, name: str) -> Any:
    """An argument; of a path the whole one, since the app is read elsewhere."""
    value, kind = call.kwargs[name], names.signature_of(call.function)[name].annotation
    is_path = any(
        each in (Path, os.PathLike) for each in map(_origin, names.members(kind))
    )
    if not (is_path and isinstance(value, str | Path)) or value in data.NAMES:
        return value
    path = Path(value).expanduser()
    return str(path.absolute()) if path.exists() else value


def _origin(kind: Any) -> Any:
    return typing.get_origin(kind) or kind


def _imported(call: Call, imports: dict[str, tuple[str, str]]) -> str:
    """The name of a function, which is imported."""
    function: Any = call.function
    module, name = function.__module__, function.__name__
    if _is_own(call):
        module, _, name = call.name.partition(":")
    alias, number = name, 2
    while imports.get(alias, (module, name)) != (module, name):
        alias, number = f"{name}_{number}", number + 1
    imports[alias] = module, name
    return alias


# ----------------------------------------------------------------------------- reading
def read(text: str, allowed: Collection[str] | None = None) -> Experiment:
    """The experiment of a file; raises `ValueError` for what it may not have.

    Args:
      allowed: Modules of others that may be imported; None for all of them.
    """
    known, values = dict[str, Any](), dict[str, Any]()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"expected Python, found {error}") from error
    for node in tree.body:
        match node:
            case ast.ImportFrom(module=str(module), names=several, level=0):
                for each in several:
                    function = _allowed(module, each.name, allowed)
                    known[each.asname or each.name] = function
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = _value(value, known)
            case ast.Expr(value=ast.Constant()):
                pass
            case _:
                raise _refused(node)
    if values.keys() != {*Experiment._fields}:
        raise ValueError(f"it must say {', '.join(Experiment._fields)}")
    whole = all(type(values[name]) is int for name in Experiment._fields[3:])
    calls = isinstance(values["method"], Call) and isinstance(values["problem"], Call)
    if not (whole and calls and isinstance(values["settings"], dict)):
        raise ValueError(
            "method and problem must be calls, and the others must be numbers"
        )
    return Experiment(**values)


def _allowed(module: str, name: str, allowed: Collection[str] | None) -> Call:
    """A function of a module, without arguments, if it may be called."""
    if module.partition(".")[0] not in LIBRARIES:
        if allowed is not None and module not in allowed:
            raise UntrustedError(f"{module}:{name}", module)
        own = f"{module}:{name}"
        return Call(names.imported(own), own, [], {})
    if module == "functools" and name == "partial":
        return Call(functools.partial, name, [], {})
    function = getattr(importlib.import_module(module), name, None)
    call = Call(function, name, [], {})  # type: ignore[arg-type]  # checked below
    if not callable(function) or not _is_known(call):
        raise ValueError(f"{module}.{name} is not a function of the command line")
    return call


def _refused(node: Any) -> ValueError:
    return ValueError(
        f"line {node.lineno} has more than imports, calls, and plain values"
    )


def _value(node: ast.expr, known: Mapping[str, Call]) -> Any:
    """The value of an expression, in which calls are not made."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return -node.operand.value  # type: ignore[attr-defined]  # matched
        case ast.Tuple(elts=several) | ast.List(elts=several):
            return tuple(_value(each, known) for each in several)
        case ast.Dict(keys=keys, values=several) if None not in keys:
            pairs = zip(keys, several, strict=True)
            return {_value(k, known): _value(v, known) for k, v in pairs if k}
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.Call(func=ast.Name(id=name), args=several, keywords=named) if (
            name in known and all(each.arg for each in named)
        ):
            args = [_value(each, known) for each in several]
            kwargs = {str(each.arg): _value(each.value, known) for each in named}
            if known[name].function is functools.partial:
                if len(args) != 1 or not isinstance(args[0], Call):
                    raise _refused(node)
                return args[0]._replace(kwargs=kwargs)
            return _call(known[name], args, kwargs)
    raise _refused(node)


def _call(head: Call, args: list[Any], kwargs: dict[str, Any]) -> Call:
    """A call whose arguments have names."""
    signature = inspect.signature(head.function)
    if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        return head._replace(args=args, kwargs=kwargs)
    try:
        bound = signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise ValueError(f"{head.name}: {error}") from error
    return head._replace(kwargs=dict(bound.arguments))

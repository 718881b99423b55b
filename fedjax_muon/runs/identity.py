"""What a run computes, in words: runs with the same words have the same numbers.

The words of its method, its problem and its settings, digests of its arrays, and of the
files of users' functions, with what their globals and closures hold. The number of
rounds is not among them: more rounds extend a run.
"""

import argparse
import dataclasses
import functools
import hashlib
import inspect
import json
import linecache
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_muon.core.recipe import Recipe, described, in_words, type_name
from fedjax_muon.engine.processes import run_on_first
from fedjax_muon.files import claim, read_text, reading
from fedjax_muon.problems import Problem
from fedjax_muon.runs.simulate import Method, made_by, settings_of
from fedjax_muon.simulation import checkpoint
from fedjax_muon.simulation.simulation import Simulation

IDENTITY = "identity.json"
# how something is executed, not what
EXECUTION = ("plan", "devices", "split_examples")
CODE = "code of "
ARRAYS = ("data", "clients", "client_tests", "weights")  # by their digests
LIBRARY = str(Path(__file__).parents[1])
MOST_SHOWN = 60  # letters of what differs, and of a text that may be published
MOST_PARTS = 8  # of what may be published
INSTALLED = {"site-packages", "dist-packages"}
PARTS = tuple | list | set | frozenset | Mapping
Words = Callable[[Any], str]


def identity(
    method: Method,
    problem: Problem,
    seed: int,
    how: Mapping[str, Any],
    *,
    publishable: bool = False,
    **others: Any,
) -> dict[str, str]:
    """What a run computes, in words, without what `arrays_of` contains.

    Args:
      publishable: Whether the words may be published although the data are private.
        They then say nothing about arrays or what functions and objects hold, since
        a digest tells whether a guess is right.
      others: Further values by name, such as `evaluate_every`.
    """
    say = _outline if publishable else _held
    text = functools.partial(in_words, say=say)
    words = {f"method.{name}": t for name, t in described(method, say).items()}
    words |= {f"problem.{name}": text(value) for name, value in problem.call.items()}
    settings = inspect.signature(made_by(method)).parameters
    given = {k: p.default for k, p in settings.items() if p.default is not p.empty}
    given |= settings_of(method, problem, how)
    for name in (*EXECUTION, "test_parts", "weights"):
        given.pop(name, None)
    words |= {name: text(value) for name, value in (given | others).items()}
    words["seed"] = str(seed)
    code: list[Any] = [
        method,
        problem.call,
        problem.task,
        problem.public_task,
        problem.divided,
    ]
    code += [problem.tested, problem.weights, given]
    # a digest of a file tells whether a guess of what it has is right
    known = {} if publishable else code_of(code)
    return words | known | {"task": text(problem.task)}


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _held(value: Any, words: Words) -> str | None:
    """Words for arrays, namespaces and objects of users' classes, by what they hold."""
    plain = type | types.FunctionType | PARTS | np.ndarray | jax.Array
    if isinstance(value, plain) or _is_record(value):
        return None
    if hasattr(value, "__array__"):  # of another library
        return words(np.asarray(value))
    namespace = isinstance(value, types.SimpleNamespace | argparse.Namespace)
    if not namespace and not _is_users(_file_of(type(value))):
        return None
    slots = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    names = {n for each in slots for n in ((each,) if isinstance(each, str) else each)}
    names |= getattr(value, "__dict__", {}).keys()
    held = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return f"{type_name(type(value))}{words(dict(sorted(held.items())))}"


def _outline(value: Any, words: Words) -> str | None:
    """Words for what may be published: plain values, and the kinds of all others."""
    plain = bool | int | float | complex | None | functools.partial
    if isinstance(value, plain) or _is_record(value):
        return None
    if isinstance(value, str | bytes | PARTS):
        most = MOST_SHOWN if isinstance(value, str | bytes) else MOST_PARTS
        return None if len(value) <= most else f"{len(value)} in a {type_name(value)}"
    array = isinstance(value, np.ndarray | jax.Array)
    return f"{value.dtype}{list(value.shape)}" if array else type_name(value)


def arrays_of(simulation: Simulation, data: str) -> dict[str, str]:
    """Digests of the arrays of a run; they tell whether a guess of them is right.

    Args:
      data: The digest of its dataset, which several runs may share.
    """
    partition = simulation.run.partition
    arrays = {
        "clients": (partition.order, partition.size),
        "client_tests": simulation.run.client_tests,
        "weights": simulation.run.mixer,
    }
    digests = {name: checkpoint.digest(value) for name, value in arrays.items()}
    return {"data": data, **digests}


def claimed(directory: Path, words: Mapping[str, str]) -> None:
    """Makes a directory that of a run, or checks that it is; names what differs."""
    checkpoint.check_path(directory)
    text = json.dumps(dict(words), indent=1) + "\n"

    def make() -> None:
        check_same(directory, words)
        directory.mkdir(parents=True, exist_ok=True)
        if not claim(directory / IDENTITY, text):
            check_same(directory, words)

    run_on_first(make)


def words_of(directory: Path) -> dict[str, str]:
    """The words of a directory's run; none if it has no run."""
    path = directory / IDENTITY
    if not path.exists():
        return {}
    remedy = "start again in another directory"
    with reading(path, "the words of a run", remedy):
        return {str(k): str(v) for k, v in json.loads(read_text(path)).items()}


def as_begun(directory: Path, words: Mapping[str, str]) -> dict[str, str]:
    """The words of a run, with those of its directory for the library's functions.

    These are known by name alone: in an earlier version, they may have been in another
    module, and presets had the rows that made them in their words.
    """
    name = lambda text: text.partition("[")[0].rpartition(".")[2]
    ours = lambda text: text.startswith("fedjax_muon.")
    found = {
        key: text
        for key, text in words_of(directory).items()
        if key.endswith("algorithm") and ours(text) and ours(now := words.get(key, ""))
        if name(text) == name(now)
    }
    return {**words, **found}


def check_same(directory: Path, words: Mapping[str, str]) -> None:
    """Raises `ValueError` if a directory has another run, or something else."""
    path = directory / IDENTITY
    if not path.exists():
        if directory.is_file() or any(directory.glob("[!.]*")):
            raise ValueError(
                f"{directory} is already used, and not by a run of this function; "
                "choose another directory"
            )
        return
    known = words_of(directory)
    missing = known.keys() ^ words.keys()
    for name in [*words, *sorted(missing)]:
        was, now = (str(each.get(name, "absent")) for each in (known, words))
        if was == now:
            continue
        pairs = enumerate(zip(was, now, strict=False))
        first = next((i for i, (a, b) in pairs if a != b), min(len(was), len(now)))
        same = max(0, first - MOST_SHOWN // 2)
        was, now = (each[same : same + MOST_SHOWN] for each in (was, now))
        differs = f"its {name} is {was}, not {now}"
        if name.startswith(CODE) or name in ARRAYS:
            differs = f"its {name} differ" if name in ARRAYS else f"the {name} differs"
        raise ValueError(
            f"{directory} has another run: {differs}; choose another directory"
        )


# ------------------------------------------------------------- code of users' functions


def code_of(value: Any) -> dict[str, str]:
    """Digests of the files of users' functions and classes inside a value, by modules.

    A digest has the whole text of the file, and what its functions that are found read
    by a global name, or hold in closures and defaults. Functions that they call by a
    global name are found too. Installed packages are not.
    """
    held = functools.partial(in_words, say=_held)
    found: dict[str, set[str]] = {}
    seen: dict[int, Any] = {}  # values are kept, so that no other one has their id
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        file, holds = "", None
        if inspect.isfunction(each):
            file, holds = each.__code__.co_filename, _held_by(each)
        elif isinstance(each, type):
            file, holds = _file_of(each), _attributes_of(each)
        if holds is not None and _is_users(file):
            digests = found.setdefault(f"{CODE}{each.__module__}", set())
            digests |= {_hash("".join(linecache.getlines(file))), _hash(held(holds))}
        waiting += _inside(each)
    return {name: _hash("".join(sorted(found[name]))) for name in sorted(found)}


def _inside(value: Any) -> Iterator[Any]:
    """What the code of a value may depend on."""
    if isinstance(value, Recipe):
        yield from (value.function, value.arguments)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, tuple | list | set | frozenset):
        yield from value
    elif inspect.ismethod(value):
        yield from (value.__func__, value.__self__)
    elif inspect.isfunction(value):
        yield from _closure_of(value)
        yield from (value.__defaults__, value.__kwdefaults__)
        yield getattr(value, "__wrapped__", None)
        if _is_users(value.__code__.co_filename):
            yield from _globals_of(value).values()
    elif isinstance(value, type):
        if _is_users(_file_of(value)):
            yield from (*vars(value).values(), value.__bases__)
    elif isinstance(value, property | staticmethod | classmethod):
        yield from (getattr(value, "fget", None), getattr(value, "__func__", None))
    elif (
        callable(value)
        or dataclasses.is_dataclass(value)
        or _is_users(_file_of(type(value)))
    ):  # such as a model, or a cohort
        yield type(value)
        yield getattr(value, "__wrapped__", None)  # such as a function in `jax.jit`
        yield from getattr(value, "__dict__", {}).values()


def _globals_of(function: types.FunctionType) -> dict[str, Any]:
    """The global names that a function reads, also as attributes of users' modules."""
    names, known = _names(function.__code__), function.__globals__
    values = {name: known[name] for name in names if name in known}
    for module in [x for x in values.values() if inspect.ismodule(x)]:
        if _is_users(getattr(module, "__file__", None) or LIBRARY):
            values |= {k: v for k, v in vars(module).items() if k in names}
    return {k: v for k, v in values.items() if not inspect.ismodule(v)}


def _names(code: types.CodeType) -> set[str]:
    inner = [x for x in code.co_consts if isinstance(x, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _closure_of(function: types.FunctionType) -> list[Any]:
    cells = function.__closure__ or ()
    return [cell.cell_contents for cell in cells if cell != types.CellType()]


def _attributes_of(kind: type) -> dict[str, Any]:
    """What a class holds itself, without what Python adds to it."""
    return {k: v for k, v in sorted(vars(kind).items()) if not k.startswith("__")}


def _held_by(function: types.FunctionType) -> Any:
    """What a function reads by global names, and holds."""
    read = dict(sorted(_globals_of(function).items()))
    held = function.__defaults__, function.__kwdefaults__, _closure_of(function)
    return (*held, read)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _file_of(kind: type) -> str:
    """The file that defines a class; empty if it is defined in a notebook."""
    package = kind.__module__.partition(".")[0]
    module = sys.modules.get(kind.__module__) or sys.modules.get(package)
    notebook = package == "__main__" or module is None
    return getattr(module, "__file__", None) or ("" if notebook else LIBRARY)


@functools.cache
def _is_users(file: str) -> bool:
    """Whether a file is the user's own, and not installed."""
    standard = sysconfig.get_path("stdlib"), LIBRARY, "<frozen"
    return not file.startswith(standard) and not INSTALLED & {*Path(file).parts}

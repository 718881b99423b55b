"""Methods as calls give them: functions, lists, grids, and the problem that is usual.

A method is an algorithm, such as `fm.fedmuon(lr=0.03)`, or a function that makes one,
such as `fm.fedmuon`: it gets its defaults, and `compare` chooses its learning rate.
"""

import dataclasses
import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_muon import algorithms, decentralized, problems
from fedjax_muon.algorithms import minimax, registry
from fedjax_muon.core import numbers_of, with_numbers
from fedjax_muon.core.hyperparameters import several
from fedjax_muon.core.recipe import hyper_parameters, in_words
from fedjax_muon.core.schedules import cosine_decay
from fedjax_muon.data import partition
from fedjax_muon.problems import Problem
from fedjax_muon.runs.rates import RATES, UNSEARCHED, Unsearched
from fedjax_muon.runs.simulate import Method, check_problem, made_by, name_of
from fedjax_muon.simulation.arrivals import Buffered
from fedjax_muon.simulation.cohorts import Sampled

METHODS: Mapping[str, registry.Method] = {
    **algorithms.ALL,
    **minimax.ALL,
    **decentralized.ALL,
    **decentralized.PRIVATE_METHODS,
}
# methods of agents that minimize; the others are for the AUC
MINIMIZING = {
    *("dsgd", "dsgd_muon", "gradient_tracking", "gradient_tracking_muon", "demuon"),
    *("suda", "suda_muon", "suda_muon_extra", "suda_muon_gt"),
}
# the data that rates were tuned for, by the problem
TUNED = {"classification": "digits", "auc": "breast_cancer"}
OF_PROBLEM = "problem."  # begins the name of a problem's argument in a grid
Made = Method | Callable[..., Method]
Methods = Sequence[Made] | Mapping[str, Made]
# {"lr": (0.1, 0.3)} of every method, {"fedavg.lr": (0.1, 0.3)} of one, which may also
# be named by its label
Grid = Mapping[str, Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class cosine:  # noqa: N801  # reads as a function in lr=fm.cosine(0.03)
    """A learning rate that falls to 0 by a cosine, over the rounds of the call.

    Example:
      >>> result = train(fm.fedavg(lr=fm.cosine(0.1)), problem, rounds=20)
    """

    lr: float

    def __call__(self, index: Any) -> Any:
        raise ValueError(
            "cosine knows its rounds in train, compare and sweep; elsewhere, give "
            "optax.cosine_decay_schedule(lr, rounds)"
        )


def function_of(method: Made) -> str:
    """The name of the function that made a method, without wrappers."""
    if isinstance(method, Method):
        return name_of(method)
    if not callable(method):
        made_by(method)  # raises
    return problems.function_name(method)


def labeled(methods: Any) -> dict[str, Made]:
    """Methods by their names in tables.

    If several come from one function, their names contain their numbers.
    """
    if isinstance(methods, Mapping):
        return dict(methods)
    if not isinstance(methods, Sequence) or isinstance(methods, str | Method):
        raise TypeError(
            "methods must be a list, such as [fm.fedavg, fm.fedmuon(lr=0.03)], or a "
            f"dictionary by label, got {methods!r:.60}"
        )
    labels, found = [_label(each) for each in methods], dict[str, Made]()
    for method, label in zip(methods, labels, strict=True):
        if labels.count(label) > 1 and isinstance(method, Method):
            numbers = numbers_of(method).items()
            label = ", ".join([label, *(f"{name}={x:g}" for name, x in numbers)])
        if label in found:
            raise ValueError(
                f"{function_of(method)} is named twice; name each method once"
            )
        found[label] = method
    return found


def _label(method: Made) -> str:
    """The label of a method, and of what wraps it."""
    name = function_of(method)
    words = METHODS[name].label if name in METHODS else name
    while recipe := getattr(method, "recipe", None):
        method = recipe.arguments.get("algorithm")
        if isinstance(method, Method) and recipe.function is not cosine_decay:
            words += f" ({recipe.function.__name__})"
    return words


def usual(methods: Mapping[str, Made], problem: Problem | None) -> Problem:
    """The problem that is given, or that of methods for which none is."""
    if problem is not None:
        check_problem(problem)
        return problem
    names = {function_of(each) for each in methods.values()} or {"fedavg"}
    agents = decentralized.ALL.keys() | decentralized.PRIVATE_METHODS.keys()
    if names <= MINIMIZING:
        return problems.classification(clients=8, divide=partition.iid)
    if names <= agents:
        return problems.auc(clients=5, positives=None, model=problems.linear)
    return problems.auc() if names <= minimax.ALL.keys() else problems.classification()


def check_suited(methods: Mapping[str, Method], problem: Problem) -> None:
    """Raises `ValueError` for methods that a problem does not suit."""
    for name in map(name_of, methods.values()):
        if name in minimax.ALL and kind_of(problem) == "classification":
            raise ValueError(
                f"{name} is a method for minimax problems; choose one, such as "
                "problems.auc()"
            )


def unsearched(method: Made) -> tuple[Made, Unsearched | None]:
    """A function with the rate that needs no search, if one is known; and what is.

    No rate is known for a function with bound arguments.
    """
    plain = callable(method) and not hasattr(method, "keywords")
    if isinstance(method, Method) or not plain:
        return method, None
    known = UNSEARCHED.get(function_of(method))
    if known is None:
        return method, None
    return method(lr=cosine(known.rate.lr)), known


def finished(method: Made, rounds: int) -> Method:
    """The method (a function is called); its schedule gets the number of rounds."""
    made: Any = method
    if not isinstance(method, Method) and callable(method):
        made = method()
    made_by(made)  # may raise
    inner = made
    while (recipe := inner.recipe) and isinstance(
        recipe.arguments.get("algorithm"), Method
    ):
        inner = recipe.arguments["algorithm"]
    rate = recipe and recipe.arguments.get("lr")
    if not isinstance(rate, cosine):
        return made
    plain = with_numbers(made, {"lr": rate.lr})
    return cosine_decay(plain, lr=rate.lr, rounds=rounds)


# ------------------------------------------------------------------------- grids
class GridNames(NamedTuple):
    """A grid by what its names are of."""

    numbers: dict[str, tuple[Any, ...]]  # of methods, which validation chooses
    shown: dict[str, tuple[Any, ...]]  # of the problem and the run, which tables show


def axes_of(
    grid: Any, methods: Mapping[str, Made], settings: Sequence[str]
) -> GridNames:
    """Divides a grid; raises `ValueError` for what names nothing.

    Args:
      settings: Names of the call's other arguments.
    """
    if grid is None or grid == "paper":
        return GridNames({}, {})
    if not isinstance(grid, Mapping):
        raise TypeError(
            'the grid must be a dictionary, such as {"lr": (0.03, 0.1)}, or "paper", '
            f"got {grid!r:.60}"
        )
    numbers, shown = {}, {}
    taken = {n for k, each in methods.items() for n in _numbers_in(k, each, grid)}
    for name, given in grid.items():
        values = several(given)
        if not isinstance(values, tuple):
            raise ValueError(
                f"the grid of {name} must have one or more values, got {given!r:.60}"
            )
        if name.startswith(OF_PROBLEM) or name in settings:
            shown[name] = values
        elif name in taken:
            numbers[name] = values
        else:
            names = ", ".join(map(function_of, methods.values()))
            raise ValueError(
                f"the grid names {name!r}, which is not a number of {names}, a setting "
                f"of the run, or {OF_PROBLEM}NAME of the problem"
            )
    return GridNames(numbers, shown)


def _numbers_in(label: str, method: Made, names: Mapping[str, Any]) -> dict[str, str]:
    """The names of a grid that are numbers of a method, and those numbers."""
    if isinstance(method, Method):
        known = [*numbers_of(method)]
    else:
        known = hyper_parameters(method)
    found = {}
    for name in names:
        owner, _, number = name.rpartition(".")
        if number in known and owner in ("", label, function_of(method)):
            found[name] = number
    return found


def published(methods: Mapping[str, Made]) -> tuple[dict[str, Made], list[str]]:
    """The methods that have a published grid, and the labels of the others."""
    names = {label: function_of(each) for label, each in methods.items()}
    has = lambda name: name in METHODS and METHODS[name].grid
    kept = {label: methods[label] for label, name in names.items() if has(name)}
    others = [label for label in methods if label not in kept]
    if not kept:
        raise ValueError(
            f"{', '.join(others)}: no published grid is known; give values, such as "
            '{"lr": (0.03, 0.1)}'
        )
    return kept, others


def grid_of(
    label: str, method: Made, axes: GridNames, grid: Any
) -> dict[str, tuple[Any, ...]]:
    """The values that a grid has for the numbers of a method."""
    if grid == "paper":
        name = function_of(method)
        return dict(METHODS[name].grid) if name in METHODS else {}
    found = _numbers_in(label, method, axes.numbers)
    return {number: axes.numbers[name] for name, number in found.items()}


class Rated(NamedTuple):
    """A method, and what chooses its numbers."""

    method: Method
    grid: dict[str, tuple[Any, ...]]  # values of numbers to choose from
    start: float | None  # where the search of its rate begins; None without one


def rated(
    method: Made,
    problem: Problem,
    grid: Mapping[str, tuple[Any, ...]],
    rounds: int,
    *,
    search: bool,
) -> Rated:
    """A method as it is compared.

    A function has the rate that was tuned for the default data, or a search from it.

    Args:
      grid: Values of its numbers; single ones are the method's.
    """
    fixed = {name: each[0] for name, each in grid.items() if len(each) == 1}
    grid = {name: each for name, each in grid.items() if len(each) > 1}
    if isinstance(method, Method):
        return Rated(with_numbers(finished(method, rounds), fixed), grid, None)
    rate = inspect.signature(method).parameters.get("lr")
    if rate is None or "lr" in {*fixed, *grid}:
        return Rated(finished(method(**fixed), rounds), grid, None)
    best = RATES.get(kind_of(problem), {}).get(function_of(method))
    lr = rate.default if best is None else best.lr
    at_home = _is_usual(problem)
    if at_home and best is not None and best.schedule == "cosine":
        lr = cosine(lr)
    start = lr if search and not at_home and isinstance(lr, int | float) else None
    return Rated(finished(method(lr=lr, **fixed), rounds), grid, start)


def kind_of(problem: Problem) -> str:
    """The name of the function that made a problem."""
    return getattr(problem.call.get("problem"), "__name__", "")


def _is_usual(problem: Problem) -> bool:
    """Whether a problem has the data and the model that rates were tuned for."""
    known = TUNED.get(kind_of(problem))
    if known is None:
        return False
    return problem.call.get("dataset") == known and problem.call.get("model") is None


# ------------------------------------------------------- axes of an experiment
class Setting(NamedTuple):
    """One point on the axes that tables show."""

    words: str  # such as "alpha=0.1", empty without axes
    values: dict[str, Any]  # by axis
    problem: Problem
    how: dict[str, Any]


def settings_along(
    shown: Mapping[str, Sequence[Any]], problem: Problem, how: Mapping[str, Any]
) -> list[Setting]:
    """The problem and the settings at every point of some axes."""
    found, names = [], {axis: _names_of(values) for axis, values in shown.items()}
    places = itertools.product(*(range(len(values)) for values in shown.values()))
    for at in places:
        where = dict(zip(shown, at, strict=True))
        point = {axis: shown[axis][place] for axis, place in where.items()}
        changes = {
            name.removeprefix(OF_PROBLEM): value
            for name, value in point.items()
            if name.startswith(OF_PROBLEM)
        }
        given = {k: v for k, v in point.items() if not k.startswith(OF_PROBLEM)}
        short = {a.removeprefix(OF_PROBLEM): names[a][i] for a, i in where.items()}
        words = ", ".join(f"{name}={value}" for name, value in short.items())
        made = problem.varied(**changes) if changes else problem
        found.append(Setting(words, short, made, {**how, **given}))
    return found


def _names_of(values: Sequence[Any]) -> list[Any]:
    """Values as labels and axes have them: numbers, or a few words that differ."""
    short = [_short(value) for value in values]
    if len({*short}) == len(values):
        return short
    plain = [re.sub(r"\b(?:\w+\.)+(?=[A-Za-z_])", "", in_words(v)) for v in values]
    if len({*plain}) < len(values):
        raise ValueError(f"a grid has each value once, got {', '.join(plain)}")
    return plain


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, int | str):
        return value
    if isinstance(value, Sampled | Buffered):
        return value.summary
    return problems.function_name(value) if callable(value) else in_words(value)


def folder_of(label: str) -> str:
    """The place of a row in a directory, such as `FedAvg/epsilon8`."""
    name, private, epsilon = label.partition(", epsilon ")
    plain = re.sub(r"[^\w.=+-]+", "-", name).strip("-.")
    return f"{plain}/epsilon{epsilon}" if private else plain

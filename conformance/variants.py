"""References with departures: the code of a transcription, changed and run again."""

import functools
import importlib
import inspect
import itertools
import re
import sys
import types
from typing import Any

import numpy as np

from conformance.directions import direction
from conformance.family import Change, Family
from conformance.problems import joined
from conformance.weights import shares, weighed

VISIBLE = 2e-3  # the least effect of a departure, relative to a step: ten times float32


@functools.cache
def source(module: str) -> str:
    return inspect.getsource(importlib.import_module(module))


@functools.cache
def changed(module: str, edits: tuple) -> dict[str, Any] | None:
    """The names of a module with other lines; None where two edits exclude another."""
    text = source(module)
    own = tuple(edit for edit in edits if ":" not in edit[0])
    for number, (scope, old, new) in enumerate(own):
        start = text.index(f"def {scope}(")
        end = text.find("\n\n\n", start)
        inside = text[start : end if end > 0 else None]
        if inside.count(old) != 1:
            alone = changed(module, own[number : number + 1]) if number else None
            if alone is None:
                raise ValueError(f"{module}.{scope} has not once the line: {old!r}")
            return None
        text = text[:start] + inside.replace(old, new) + text[start + len(inside) :]
    made = types.ModuleType(f"{module}_changed")
    made.__package__ = module.rpartition(".")[0]
    vars(made).update(weighed=weighed, shares=shares)
    sys.modules[made.__name__] = made  # for its named tuples
    exec(compile(text, made.__name__, "exec"), vars(made))
    for place in dict.fromkeys(edit[0] for edit in edits if ":" in edit[0]):
        there, name = place.split(":")  # a function that the module imports
        of = tuple((name, *edit[1:]) for edit in edits if edit[0] == place)
        vars(made)[name] = (changed(there, of) or {})[name]
    return vars(made)


def variant(family: Family, choices: dict[str, str]) -> np.ndarray | None:
    """The results [steps, numbers] with these choices; None if they diverge."""
    picked = [family.axes[axis][choice] for axis, choice in choices.items()]
    edits = family.base + tuple(edit for change in picked for edit in change.edits)
    names = changed(family.reference[0], edits)
    if names is None:
        return None
    settings, problem = dict(family.settings), family.problem
    for change in picked:
        settings |= change.settings
        problem = change.trace(problem) if change.trace else problem
    if "orth" in settings:
        norm, shape = settings.pop("norm", None), settings.pop("shape")
        settings["direction"] = direction(settings.pop("orth"), shape, norm)
    try:
        with np.errstate(all="ignore"):
            value = problem.results(names[family.reference[1]], settings)
    except np.linalg.LinAlgError:  # of infinities
        return None
    return value if np.isfinite(value).all() and abs(value).max() < 1e6 else None


def existing(family: Family, choices: dict[str, str]) -> np.ndarray:
    """The results of choices that do not diverge and whose edits fit together."""
    value = variant(family, choices)
    if value is None:
        raise ValueError(f"{family.name}: nothing comes of {choices}")
    return value


def variants(family: Family):
    """Indices of choices: all of the free axes, and at most two departures."""
    counts = {axis: len(choices) for axis, choices in family.axes.items()}
    strict = [axis for axis in counts if axis not in family.free]
    for count in range(family.together + 1):
        for chosen in itertools.combinations(strict, count):
            for values in itertools.product(*(range(1, counts[a]) for a in chosen)):
                for rest in itertools.product(*(range(counts[a]) for a in family.free)):
                    picks = dict(zip(family.free, rest, strict=True))
                    picks |= dict(zip(chosen, values, strict=True))
                    yield tuple(picks.get(axis, 0) for axis in counts)


def sources(family: Family, reference: np.ndarray) -> list[np.ndarray]:
    """What the server averages in round 1, or in every case; empty where it does not.

    They come from the edits of the weights, with all the weight on one client.
    """
    problem = family.problem
    if family.kind == "aggregate":
        messages = [[joined(m) for m in case["messages"]] for case in problem.cases]
        same = all(len(row) == len(problem.start) for row in messages[0])
        return [np.array(rows) for rows in messages] if same else []
    choices = [*family.axes.get("weights", {}).values()]
    if family.kind != "rounds" or len(choices) < 2:
        return []
    found = []
    for j in range(len(problem.cohorts[0])):
        kind = re.compile('(trace, r, )"[^"]*"')
        edits = tuple(
            (scope, old, kind.sub(rf'\1"only {j}"', new))
            for scope, old, new in choices[1].edits
        )
        one = family._replace(axes={"weights": {"one": Change(edits)}})
        found.append(existing(one, {"weights": "one"})[0] - problem.start)
    step = reference[0] - problem.start
    w = np.linalg.lstsq(np.transpose(found), step, rcond=None)[0]
    linear = np.linalg.norm(w @ np.array(found) - step) < 1e-9 * np.linalg.norm(step)
    return [np.array(found)] if linear and abs(w.sum() - 1) < 1 else []


def alone(family: Family) -> list[dict[str, str]]:
    """The single departures."""
    return [
        {axis: choice}
        for axis, choices in family.axes.items()
        if axis not in family.free
        for choice in [*choices][1:]
    ]

"""Recipes: the function and the arguments that an algorithm was made from.

The functions of an algorithm close over its hyperparameters. Programs need them as
arguments: one compilation for any value, and the same bits in a run and in a sweep. So
an algorithm stores its recipe, and `with_numbers` makes it again, inside the trace,
with other numbers.
"""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_muon.core.hyperparameters import Hyper, Number, plain, plain_numbers

P = ParamSpec("P")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
    """A function, the arguments of its call, and the fields of the result."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    fields: tuple[Any, ...]  # of the algorithm, to detect whether it was changed

    def call(self) -> str:
        """The call, for `repr`: functions by their names, without empty arguments.

        Example:
          >>> print(fedavg(lr=0.1))
          fedavg(lr=0.1, rule=identity, server_lr=1.0, server_rule=identity)
        """
        empty = lambda v: v is None or (isinstance(v, tuple) and not v)
        shown = {k: v for k, v in self.arguments.items() if not empty(v)}
        words = ", ".join(f"{name}={short(value)}" for name, value in shown.items())
        return f"{self.function.__name__}({words})"


def recorded(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator of a function that makes an algorithm: it stores the recipe.

    Arguments annotated `Hyper` or `Number` are hyperparameters, which sweeps can vary.

    Args:
      function: Returns a named tuple with a field `recipe`: an `Algorithm`, a `Gossip`
        or an `Estimator`.

    Example:
      >>> @fm.recorded
      ... def twice(lr: fm.Hyper = 0.1) -> fm.Algorithm:
      ...     return fm.fedavg(lr=lr, server_lr=2.0)
      >>> twice(lr=0.3)
      twice(lr=0.3)
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    @plain_numbers
    def make(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            known = ", ".join(signature.parameters)
            name = function.__name__
            raise TypeError(f"{name} {error}; it takes {known}") from None
        made: Any = function(*args, **kwargs)
        if "recipe" not in getattr(made, "_fields", ()):
            kind = type(made).__name__
            raise TypeError(f"{function.__name__} must return an algorithm, got {kind}")
        bound.apply_defaults()
        fields = tuple(made._replace(recipe=None))
        return made._replace(recipe=Recipe(make, dict(bound.arguments), fields))

    return make


def recipe_of(algorithm: Any) -> Recipe | None:
    """The recipe of an algorithm; None if it was changed afterwards."""
    recipe = algorithm.recipe
    if recipe is None:
        return None
    fields = tuple(algorithm._replace(recipe=None))
    same = all(a is b for a, b in zip(fields, recipe.fields, strict=True))
    return recipe if same else None


def numbers_of(algorithm: Any) -> dict[str, Any]:
    """Numeric hyperparameters, also of wrapped algorithms, without schedules.

    Example:
      >>> numbers_of(fedprox(lr=0.1, mu=0.01))
      {'lr': 0.1, 'mu': 0.01}
    """
    recipe = recipe_of(algorithm)
    if recipe is None:
        return {}
    found: dict[str, Any] = {}
    for value in recipe.arguments.values():
        if _is_inner(value):
            found |= numbers_of(value)
    hyper = hyper_parameters(recipe.function)
    own = {name: recipe.arguments[name] for name in hyper}
    return found | {name: value for name, value in own.items() if _is_number(value)}


def with_numbers(algorithm: T, numbers: Mapping[str, Any]) -> T:
    """Makes an algorithm again with other hyperparameters, which may be traced.

    Args:
      numbers: Hyperparameters by name; the others stay unchanged.
    """
    if not numbers:
        return algorithm
    recipe = recipe_of(algorithm)
    if recipe is None:
        raise ValueError(
            "this algorithm does not record the function that made it, so its "
            "hyperparameters cannot be varied; decorate that function with `recorded`"
        )
    unknown = numbers.keys() - all_hyper_parameters(algorithm)
    if unknown:
        known = ", ".join(sorted(all_hyper_parameters(algorithm))) or "none"
        raise ValueError(
            f"{recipe.function.__name__} has no hyperparameter {min(unknown)!r}; it "
            f"has {known}"
        )
    own = hyper_parameters(recipe.function)
    given = {name: value for name, value in numbers.items() if name in own}
    rest = {name: value for name, value in numbers.items() if name not in own}
    inner = {
        name: with_numbers(value, _known(value, rest))
        for name, value in recipe.arguments.items()
        if _is_inner(value)
    }
    return _call(recipe.function, {**recipe.arguments, **inner, **given})


def as_arrays(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Converts numbers to float32 arrays.

    Also where 64 bits are enabled: float64 hyperparameters would widen optax's states.
    """
    return {
        name: jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), value)
        for name, value in numbers.items()
    }


def hyper_parameters(function: Callable[..., Any]) -> list[str]:
    """The arguments of a function that are annotated `Hyper` or `Number`."""
    parameters = inspect.signature(function).parameters.items()
    return [name for name, p in parameters if _is_hyper(p.annotation)]


def _is_hyper(annotation: Any) -> bool:
    if isinstance(annotation, str):  # under `from __future__ import annotations`
        return annotation.rpartition(".")[2] in ("Hyper", "Number")
    return annotation in (Hyper, Number)


def all_hyper_parameters(algorithm: Any) -> set[str]:
    """The names of hyperparameters, also of wrapped algorithms."""
    recipe = recipe_of(algorithm)
    if recipe is None:
        return set()
    inner = [all_hyper_parameters(v) for v in recipe.arguments.values() if _is_inner(v)]
    return set(hyper_parameters(recipe.function)).union(*inner)


def _known(algorithm: Any, numbers: Mapping[str, Any]) -> dict[str, Any]:
    known = all_hyper_parameters(algorithm)
    return {name: value for name, value in numbers.items() if name in known}


def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Calls a function with arguments by name, also those that `*args` collects."""
    bound = inspect.signature(function).bind_partial()
    bound.arguments.update(arguments)
    return function(*bound.args, **bound.kwargs)


def _is_inner(value: Any) -> bool:
    return isinstance(getattr(value, "recipe", None), Recipe)


def _is_number(value: Any) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(
        isinstance(x, (int, float, jax.Array)) and not isinstance(x, bool)
        for x in leaves
    )


def short(value: Any) -> str:
    """Words for an argument; for functions and rules, the name of what made them."""
    if isinstance(value, optax.GradientTransformation):
        value = value.update
        if value.__module__ == optax.stateless.__module__ and value.__closure__:
            return short(value.__closure__[0].cell_contents)  # around a function
    if callable(value):
        words = getattr(value, "__qualname__", type(value).__name__)
        return words.partition(".")[0]
    text = repr(value)
    return text if len(text) < 40 else f"{text[:36]}..."


# (value, words of its parts) -> words for it, or None where it has none of its own
Say = Callable[[Any, Callable[[Any], str]], str | None]


def described(algorithm: Any, say: Say | None = None) -> dict[str, str]:
    """The function and the arguments that made an algorithm, and those inside it.

    The text is the same in all processes, so that two of them can compare theirs.

    Args:
      say: As in `in_words`.

    Example:
      >>> described(fedprox(lr=0.1, mu=0.01))["lr"]
      '0.1'
    """
    return _described("", algorithm, say)


def _described(prefix: str, algorithm: Any, say: Say | None) -> dict[str, str]:
    recipe = recipe_of(algorithm)
    if recipe is None:
        return {f"{prefix}algorithm": "one without a recipe"}
    words = {f"{prefix}algorithm": in_words(recipe.function, say=say)}
    for name, value in recipe.arguments.items():
        if "recipe" in getattr(value, "_fields", ()):
            words |= _described(f"{prefix}{name}.", value, say)
        else:
            words[f"{prefix}{name}"] = in_words(value, say=say)
    return words


def in_words(value: Any, inside: tuple[Any, ...] = (), say: Say | None = None) -> str:
    """Text of an argument that is the same in all processes; it never raises.

    Args:
      inside: What the value is a part of, which may refer to itself.
      say: What is asked first for the words of every part.
    """
    if any(value is outer for outer in inside):
        return type_name(value)
    try:
        words = functools.partial(in_words, inside=(*inside, value), say=say)
        said = None if say is None else say(value, words)
        return _in_words(value, words) if said is None else said
    except Exception:  # objects do what they like, also in `__repr__`
        return type_name(value)


def type_name(value: Any) -> str:
    """The name of a function, or of an object's type."""
    with contextlib.suppress(Exception):  # of a `__getattr__`
        if callable(value) and isinstance(value.__qualname__, str):
            return f"{value.__module__}.{value.__qualname__}"
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _in_words(value: Any, words: Callable[[Any], str]) -> str:
    value = plain(value)
    if isinstance(value, functools.partial):
        values = [*map(words, value.args)]
        values += [f"{k}={words(v)}" for k, v in sorted(value.keywords.items())]
        return f"{words(value.func)}({', '.join(values)})"
    if isinstance(value, inspect.Signature):  # in the closure of `recorded`
        return f"({', '.join(value.parameters)})"
    is_object = dataclasses.is_dataclass(value) and not isinstance(value, type)
    if is_object:  # such as a Flax module, or a cohort
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        given = [f"{k}={words(v)}" for k, v in fields.items() if v is not None]
        return f"{type_name(value)}({', '.join(given)})"
    if callable(getattr(value, "fun", None)):  # in a `jax.tree_util.Partial`
        return words(value.fun)
    if callable(value):
        cells = getattr(value, "__closure__", None)
        inner = [_of_cell(cell, words) for cell in cells or ()]
        return f"{type_name(value)}[{', '.join(inner)}]" if inner else type_name(value)
    if isinstance(value, Mapping):
        pairs = [f"{words(k)}: {words(v)}" for k, v in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(words, value))})"
    if isinstance(value, set | frozenset):  # their order differs between processes
        return f"{{{', '.join(sorted(map(words, value)))}}}"
    if isinstance(value, jax.Array | np.ndarray):
        is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(value) if is_key else value)
        if array.size <= 64 or array.dtype.hasobject:
            return words(array.tolist())
        return hashlib.sha256(array.tobytes()).hexdigest()
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _of_cell(cell: Any, words: Callable[[Any], str]) -> str:
    try:
        return words(cell.cell_contents)
    except ValueError:  # the function's variable has no value
        return "empty"

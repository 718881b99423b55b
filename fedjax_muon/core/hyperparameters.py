"""Hyperparameters: numbers or schedules, and their ranges."""

import contextlib
import difflib
import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import tree
from fedjax_muon.core.algorithm import Round

Schedule = Callable[[jax.Array], Any]  # round index -> number
# A hyperparameter may also be a prefix of the parameters' tree, see `tree`.
Hyper = float | jax.Array | Schedule | tuple["Hyper", ...]
Number = float | jax.Array  # a hyperparameter that cannot be a schedule
P = ParamSpec("P")
T = TypeVar("T")
LARGEST = 2**31 - 1  # whole number that JAX's programs take


def plain(value: Any) -> Any:
    """A number of NumPy or JAX, or a tuple of them, as Python's; others as they are."""
    if isinstance(value, tuple):
        entries = [plain(entry) for entry in value]
        numbers = all(isinstance(entry, int | float) for entry in entries)
        return getattr(value, "_make", tuple)(entries) if numbers else value
    is_array = isinstance(value, np.generic | np.ndarray | jax.Array)
    if not is_array or value.shape or isinstance(value, jax.core.Tracer):
        return value
    is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)
    return value if is_key else value.item()


def several(values: Any) -> Any:
    """The entries of an iterable of numbers as a tuple; anything else as it is."""
    if isinstance(values := plain(values), str) or not isinstance(values, Iterable):
        return values
    return tuple(map(plain, values))


def plain_numbers(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator of a function that takes numbers of NumPy and JAX as Python's."""

    @functools.wraps(function)
    def take(*args: P.args, **kwargs: P.kwargs) -> T:
        given: Any = {name: plain(value) for name, value in kwargs.items()}
        return function(*map(plain, args), **given)

    return take


def value_at(value: Hyper, round: Round) -> Any:
    """Evaluates a hyperparameter in a round.

    Example:
      >>> third = fm.Round(jnp.int32(2), jax.random.key(0), 5, 8, 0.5)
      >>> fm.value_at(lambda index: 0.1 * index, third)
      Array(0.2, dtype=float32, weak_type=True)
    """
    return tree.map(lambda v: v(round.index) if callable(v) else v, value)


def after_first(value: Hyper, first: float = 0.0) -> Hyper:
    """Returns `first` in round 0 and `value` afterwards, such as a momentum of 0.

    Example:
      >>> momentum = fm.after_first(0.9)
      >>> [round(float(momentum(index)), 1) for index in (0, 1)]
      [0.0, 0.9]
    """

    def schedule(value: Any) -> Schedule:
        later = value if callable(value) else lambda index: value
        return lambda index: jnp.where(index == 0, first, later(index))

    return tree.map(schedule, value)


def check_range(
    name: str,
    value: Any,
    low: Number = 0.0,
    high: Number = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
    schedules: bool = True,
) -> None:
    """Checks that a hyperparameter is a number in [low, high].

    Traced numbers pass, as do schedules where they are allowed, since their values are
    unknown when an algorithm is made. In a named tuple every field is checked.
    """
    if hasattr(value, "_fields"):
        check = functools.partial(
            check_range, open_low=open_low, open_high=open_high, schedules=schedules
        )
        for part, entry in zip(value._fields, value, strict=True):
            check(f"{name}.{part}", entry, low, high)
        return
    if isinstance(value, jax.core.Tracer) or (schedules and callable(value)):
        return
    is_bool = isinstance(value, bool) or getattr(value, "dtype", None) == jnp.bool_
    is_number = isinstance(value, (int, float)) or getattr(value, "shape", None) == ()
    if is_bool or not is_number:
        allowed = "a number or a schedule" if schedules else "a number"
        raise TypeError(f"{name} must be {allowed}, got {value!r}")
    number = float(value)  # since jax.Arrays would compile the comparisons
    above = number > low if open_low else number >= low
    below = number < high if open_high else number <= high
    if not (above and below and math.isfinite(number)):
        start = f"{'(' if open_low else '['}{low:g}"
        infinite = math.isinf(high)
        end = "infinity)" if infinite else f"{high:g}{')' if open_high else ']'}"
        raise ValueError(f"{name} must lie in {start}, {end}, got {value}")


def check_choice(name: str, value: str, known: Iterable[str]) -> str:
    """Returns a name that is among those that are known; raises `ValueError` if not."""
    known = [*known]
    if value in known:
        return value
    near = difflib.get_close_matches(value, known, 1, 0.5)
    advice = f"did you mean {near[0]}? " if near else ""
    raise ValueError(
        f"unknown {name} {value!r}; {advice}choose one of {', '.join(known)}"
    )


def check_function(name: str, value: Any, example: str) -> None:
    """Checks that a value is a function, rather than one of ours that makes it.

    Args:
      example: How such a function is made, for the error message, as "median()".
    """
    module, qualname = (
        getattr(value, key, "") for key in ("__module__", "__qualname__")
    )
    ours = f"{module}.".startswith("fedjax_muon.") and "<" not in qualname
    if callable(value) and not ours:
        return
    called = f"; call it first: {qualname}(...)" if callable(value) else ""
    given = qualname if called else f"{value!r:.60}"
    raise TypeError(f"{name} must be a function such as {example}, got {given}{called}")


def check_count(
    name: str, value: Any, low: int = 1, high: int = LARGEST, *, limit: str = ""
) -> None:
    """Checks that a value is an integer in [low, high].

    Args:
      limit: What `high` is, for the error message, such as "the agent's examples".
    """
    number: int | None = None
    with contextlib.suppress(TypeError):
        number = operator.index(value)
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if number < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")
    if number > high:
        bound = f"{high}, {limit}" if limit else f"{high}"
        raise ValueError(f"{name} must be at most {bound}, got {value}")

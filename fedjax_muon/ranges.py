"""Ranges of hyper-parameters, checked where they are given."""

import functools
import math

import jax


def check_range(
    name: str,
    value,
    low: float = 0.0,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
    schedules: bool = True,
) -> None:
    """Refuses a concrete number outside [low, high], whose ends may be left out.

    Tracers pass, and so do functions of the round index where `schedules` are allowed:
    their values are not known when a factory is called. The fields of a named tuple
    are checked each. Raises `ValueError` for a number out of range or not finite, and
    `TypeError` for what is no number.
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
    if not isinstance(value, (int, float)) and getattr(value, "shape", None) != ():
        allowed = "a number or a schedule" if schedules else "a number"
        raise TypeError(f"{name} must be {allowed}, got {value!r}")
    above = value > low if open_low else value >= low
    below = value < high if open_high else value <= high
    if not (above and below and math.isfinite(value)):
        start = f"{'(' if open_low else '['}{low:g}"
        infinite = math.isinf(high)
        end = "infinity)" if infinite else f"{high:g}{')' if open_high else ']'}"
        raise ValueError(f"{name} must lie in {start}, {end}, got {value}")

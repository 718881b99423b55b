"""Ranges of hyper-parameters, checked where they are given."""

import math

import jax
import jax.numpy as jnp


def check_range(
    name: str,
    value,
    low: float = 0.0,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Refuses a concrete number outside [low, high], whose ends may be left out.

    Schedules and tracers pass: their values are not known when a factory is called.
    Raises `ValueError` for a number out of range or not finite, and `TypeError` for
    what is no number.
    """
    if callable(value) or isinstance(value, jax.core.Tracer):
        return
    if not isinstance(value, (int, float)) and jnp.ndim(value) != 0:
        raise TypeError(f"{name} must be a number or a schedule, got {value!r}")
    above = value > low if open_low else value >= low
    below = value < high if open_high else value <= high
    if not (above and below and math.isfinite(value)):
        start = f"{'(' if open_low else '['}{low:g}"
        infinite = math.isinf(high)
        end = "infinity)" if infinite else f"{high:g}{')' if open_high else ']'}"
        raise ValueError(f"{name} must lie in {start}, {end}, got {value}")

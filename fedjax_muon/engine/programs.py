"""Dtype promotion while programs are traced."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

P = ParamSpec("P")
T = TypeVar("T")


def promoting(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator that allows mixed dtypes in whatever the function traces.

    Optax rules such as Adam need it where `jax_numpy_dtype_promotion` is "strict".
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    return run

"""Methods by name: data about functions that make algorithms."""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Method:
    """A function that makes an algorithm, and what tables say of it."""

    function: Callable[..., Any]  # of hyper-parameters, returns an algorithm
    label: str  # as tables and legends call it
    paper: str
    grid: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    # `grid` is as published

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__

    def takes(self, argument: str) -> bool:
        """Whether the function has an argument of that name."""
        return argument in inspect.signature(self.function).parameters


def by_name(*methods: Method) -> dict[str, Method]:
    """A table of methods, in the given order."""
    return {method.name: method for method in methods}


def find(name: str, methods: Mapping[str, Method]) -> Method:
    """The method of that name; `ValueError` with the nearest names if there is none."""
    if name in methods:
        return methods[name]
    nearest = difflib.get_close_matches(name, methods, n=3, cutoff=0.0)
    raise ValueError(
        f"unknown algorithm {name!r}; did you mean {', '.join(nearest)}? "
        "`fedjax-muon list` shows all"
    )

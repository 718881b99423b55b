"""Registries of methods: data about the functions that make algorithms."""

import dataclasses
import difflib
import enum
import inspect
from collections.abc import Callable, Mapping
from typing import Any


class Source(enum.StrEnum):
    """What the update of a method was compared with, besides its transcription."""

    TEXT = "paper's text"
    AUTHORS = "authors' code"
    INDEPENDENT = "independent code"
    UNVERIFIED = "not verified"
    OURS = "defined here"


@dataclasses.dataclass(frozen=True)
class Method:
    """A function that makes an algorithm, and its entries in tables."""

    function: Callable[..., Any]  # hyper-parameters -> algorithm
    label: str  # name in tables and legends
    paper: str
    grid: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    # published values of hyper-parameters by name
    source: Source = Source.UNVERIFIED

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__

    def takes(self, argument: str) -> bool:
        """Checks whether the function has an argument.

        Returns:
          Whether there is an argument with this name.
        """
        return argument in inspect.signature(self.function).parameters


def by_name(*methods: Method) -> dict[str, Method]:
    """Makes a registry.

    Args:
      *methods: Methods, in the order of the registry.

    Returns:
      The methods by the names of their functions.
    """
    return {method.name: method for method in methods}


def find(name: str, methods: Mapping[str, Method]) -> Method:
    """Looks up a method.

    Args:
      methods: A registry.
    """
    if name in methods:
        return methods[name]
    nearest = difflib.get_close_matches(name, methods, n=3, cutoff=0.0)
    raise ValueError(
        f"unknown algorithm {name!r}; did you mean {', '.join(nearest)}? "
        "`fedjax-muon list` shows all"
    )

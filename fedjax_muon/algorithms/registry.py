"""Registries of methods: data about the functions that make algorithms."""

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping
from typing import Any


class Source(enum.StrEnum):
    """What the update of a method was compared with, besides its transcription."""

    TEXT = "paper's text"
    AUTHORS = "authors' code"
    # whoever runs the authors' code with the same options gets another run; docstrings
    # and pages say how
    DEPARTS = "authors' code, departs"
    INDEPENDENT = "independent code"
    UNVERIFIED = "not verified"
    OURS = "defined here"


@dataclasses.dataclass(frozen=True)
class Method:
    """A function that makes an algorithm, and its entries in tables."""

    function: Callable[..., Any]  # hyperparameters -> algorithm
    label: str  # name in tables and legends
    paper: str
    source: Source = Source.UNVERIFIED
    grid: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    # published values of hyperparameters by name
    color: str = ""  # hexadecimal, of its curves; empty for a shade of grey

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__


def by_name(*methods: Method) -> dict[str, Method]:
    """The methods by the names of their functions, in the given order."""
    return {method.name: method for method in methods}


def base_of(function: Callable[..., Any]) -> str:
    """The method that a preset is with other arguments; empty if it is not one.

    Its docstring says so, as "The same as `fm.fedavg(rule=heavy_ball(momentum))`".
    """
    text = " ".join((function.__doc__ or "").split())
    same = re.search(r"The same as `fm\.([\w.]+)\(", text)
    return same[1] if same else ""

"""What a file of vectors is made of: a reference, and the departures from it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

Axes = dict[str, dict[str, "Change"]]


class Change(NamedTuple):
    """What a choice changes; the first choice of an axis changes nothing."""

    edits: tuple = ()  # (function, old code, new code)
    settings: Mapping[str, Any] = MappingProxyType({})
    trace: Callable[[Any], Any] | None = None


def lines(scope: str, *pairs: str) -> Change:
    """Other code in a function: old, new, old, new, ..."""
    both = zip(pairs[::2], pairs[1::2], strict=True)
    return Change(tuple((scope, old, new) for old, new in both))


def setting(**settings) -> Change:
    """Another setting of the reference."""
    return Change(settings=settings)


def data(trace: Callable[[Any], Any]) -> Change:
    """Another trace."""
    return Change(trace=trace)


SAME = Change()


class Family(NamedTuple):
    """A file of vectors, but for its numbers."""

    name: str
    kind: str
    source: str
    formula: str
    reference: tuple[str, str]  # module and function
    settings: dict[str, Any]
    hyper: dict[str, float]
    axes: Axes
    problem: Any  # what the reference gets, and what implementations are given
    free: tuple[str, ...] = ()
    base: tuple = ()  # edits of the reference that fit it to the problem
    together: int = 2  # departures at a time

"""An algorithm by its name: what tables of methods hold."""

import difflib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedjax_muon.core import Algorithm, GradFn

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Method(NamedTuple):
    """An algorithm ready to be given a gradient: `method(grad_fn, **hyper)`."""

    label: str  # as tables and legends call it
    paper: str
    factory: Callable[..., Algorithm]
    # where it differs from the factory's defaults
    settings: Mapping[str, Any] = NOTHING
    grid: Mapping[str, tuple[float, ...]] = NOTHING  # as published

    def __call__(self, grad_fn: GradFn, **hyper) -> Algorithm:
        return self.factory(grad_fn, **{**self.settings, **hyper})


def find(name: str, methods: Mapping[str, Method]) -> Method:
    """The method of that name; `ValueError` with the nearest names if there is none."""
    if name in methods:
        return methods[name]
    nearest = difflib.get_close_matches(name, methods, n=3, cutoff=0.0)
    raise ValueError(
        f"unknown algorithm {name!r}; did you mean {', '.join(nearest)}? "
        "`fedjax-muon list` shows all"
    )

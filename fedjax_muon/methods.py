"""An algorithm by its name: what tables of methods hold."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_muon.core import GradFn


@dataclasses.dataclass(frozen=True)
class Method:
    """An algorithm ready to be given a gradient: `method(grad_fn, **hyper)`."""

    label: str  # as tables and legends call it
    paper: str
    factory: Callable[..., Any]  # of an `Algorithm`, or of a `Gossip`
    # where it differs from the factory's defaults
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grid: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    # `grid` is as published

    def __call__(self, grad_fn: GradFn, **hyper) -> Any:
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

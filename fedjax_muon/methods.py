"""An algorithm by its name: what tables of methods hold."""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

from fedjax_muon.core import GradFn
from fedjax_muon.transforms import (
    has_momentum,
    orthogonalizes,
    with_momentum,
    with_polar,
)


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

    @property
    def rule(self) -> optax.GradientTransformation | None:
        """The local rule, if there is one to choose."""
        parameter = inspect.signature(self.factory).parameters.get("rule")
        default = None if parameter is None else parameter.default
        return self.settings.get("rule", default)

    @property
    def orthogonalizes(self) -> bool:
        """Whether the local rule does, so that `with_polar` has something to change."""
        return self.rule is not None and orthogonalizes(self.rule)

    def with_polar(self, polar: Callable[[jax.Array], jax.Array]) -> "Method":
        """The same method, its local rule with another way to find polar factors.

        Raises `ValueError` for a method that orthogonalizes nothing.
        """
        if self.rule is None:
            raise ValueError(f"{self.label} has no local rule that could orthogonalize")
        return self._with_rule(with_polar(self.rule, polar))

    @property
    def has_momentum(self) -> bool:
        """Whether the local rule is built on `transforms.muon`, so that `with_momentum`
        has something to change."""
        return self.rule is not None and has_momentum(self.rule)

    def with_momentum(self, momentum: float) -> "Method":
        """The same method with another momentum of Muon in its local rule.

        Raises `ValueError` for a method without one, and a momentum outside [0, 1).
        """
        if self.rule is None:
            raise ValueError(f"{self.label} has no local rule with a momentum")
        return self._with_rule(with_momentum(self.rule, momentum))

    def _with_rule(self, rule: optax.GradientTransformation) -> "Method":
        return dataclasses.replace(self, settings={**self.settings, "rule": rule})


def find(name: str, methods: Mapping[str, Method]) -> Method:
    """The method of that name; `ValueError` with the nearest names if there is none."""
    if name in methods:
        return methods[name]
    nearest = difflib.get_close_matches(name, methods, n=3, cutoff=0.0)
    raise ValueError(
        f"unknown algorithm {name!r}; did you mean {', '.join(nearest)}? "
        "`fedjax-muon list` shows all"
    )

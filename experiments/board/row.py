"""A row of the board: a method, and where the search of its options begins.

A file with `ROWS` is all that the board needs to know of a method:

    import fedjax_muon as fm
    from experiments.board.row import Row

    def normuon():
        rule = fm.transforms.scale_by_normuon()
        return fm.transforms.by_rank(rule)

    ROWS = {"fedavg_normuon": Row("FedAvg(NorMuon)", normuon, {"lr": 0.03})}

`python -m experiments.board check FILE.py` then tells where it stands.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import optax

import fedjax_muon as fm
from fedjax_muon.core import Algorithm, Hyper, recorded
from fedjax_muon.decentralized import Gossip

Method = Callable[..., Algorithm | Gossip | optax.GradientTransformation]


class Row(NamedTuple):
    """A method with its space."""

    label: str  # its name in tables and figures
    # (lr=, and the other option; rounds= if it asks) -> a method, whose rate is a
    # schedule; or, without an argument lr, a rule of optax for the steps in FedAvg
    method: Method
    # where the search begins: "lr", and at most one other option
    space: Mapping[str, float]
    tracks: tuple[str, ...] = ("digits",)
    # arguments of `federate` in place of the track's, such as those of the authors
    sizes: Mapping[str, Any] = {}
    minimax: bool = False  # whether it trains the AUC on the ring
    # whether private clients clip every field of their messages separately
    fields_apart: bool = False
    # what a client sends in a round, in copies of the parameters, if the file says so
    sends: float | None = None
    # what one types for options, where it is another name; and options that are fixed
    typed: Mapping[str, str] = {}
    fixed: Mapping[str, float] = {}

    @property
    def option(self) -> str | None:
        """The name of the other option."""
        return next((name for name in self.space if name != "lr"), None)

    def words(self, hyper: Mapping[str, float]) -> str:
        """The options of a run as one types them, such as `lr=0.1, mu=0.01`."""
        other = self.option
        rest = {} if other is None or other in hyper else {other: self.space[other]}
        values = {**hyper, **rest, **self.fixed}
        typed = {self.typed.get(name, name): value for name, value in values.items()}
        return ", ".join(f"{name}={value:g}" for name, value in typed.items())


def check_name(name: Any) -> str:
    """Returns the name of a row; raises `ValueError` for one that can't name a file."""
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.]*", name):
        raise ValueError(
            "the name of a row must be letters, digits, underscores and dots, got "
            f"{name!r}"
        )
    return name


def check_row(name: str, row: Any) -> None:
    """Raises `ValueError` if a row is not one."""
    if not isinstance(row, Row):
        raise ValueError(f"{name} must be a Row, got {type(row).__name__}")
    check_name(name)
    numbers = all(isinstance(x, int | float) and x > 0 for x in row.space.values())
    if "lr" not in row.space or len(row.space) > 2 or not numbers:
        raise ValueError(
            f"{name}: the space must be positive numbers, lr and at most one other "
            f"option, such as {{'lr': 0.1, 'mu': 0.01}}, got {dict(row.space)!r}"
        )
    if not callable(row.method):
        raise ValueError(f"{name}: the method must be a function, got {row.method!r}")
    known = inspect.signature(row.method).parameters
    if row.option is not None and row.option not in known:
        raise ValueError(f"{name}: the method has no argument {row.option!r}")


@recorded
def algorithm_of(
    row: Row, rounds: int, *, lr: Hyper = 1.0, other: Hyper = 1.0
) -> Algorithm:
    """The method of a row at a point, its rate falling from `lr` to 0 by a cosine."""
    falling = optax.cosine_decay_schedule(lr, rounds)
    takes = inspect.signature(row.method).parameters
    given: dict[str, Any] = {} if row.option is None else {row.option: other}
    if "lr" in takes:
        given["lr"] = falling
    if "rounds" in takes:
        given["rounds"] = rounds
    made: Any = row.method(**given)
    if isinstance(made, optax.GradientTransformation):
        return fm.fedavg(falling, rule=made)
    if isinstance(made, Algorithm | Gossip):
        return made  # type: ignore[return-value]  # both have a recipe
    raise TypeError(
        f"{row.label}: the method must return an Algorithm, a Gossip or a rule of "
        f"optax, got {type(made).__name__}"
    )

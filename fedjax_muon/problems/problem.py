"""What is trained, on which data, and how the data are divided, as a value."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import flax.linen as nn
import jax
import numpy as np

from fedjax_muon.core import streams
from fedjax_muon.core.hyperparameters import check_choice, plain, plain_numbers
from fedjax_muon.data import Dataset
from fedjax_muon.data.dataset import hold_out
from fedjax_muon.simulation.evaluation import Examples
from fedjax_muon.tasks.task import Task

P = ParamSpec("P")
Parts = Sequence[np.ndarray]  # for every client, the ids of its examples


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is trained, on which data, and how the data are divided."""

    name: str  # in titles of tables and figures
    task: Task
    dataset: Dataset
    # (dataset, key of a seed) -> parts
    divided: Callable[[Dataset, jax.Array], Parts]
    # arguments of `federate` and `decentralize`, where an experiment gives no others
    sizes: Mapping[str, Any]
    # (dataset, key of a seed, parts) -> the ids of the test examples of every client
    tested: Callable[[Dataset, jax.Array, Parts], Parts] | None = None
    # (number of agents, key of a seed) -> their mixing weights; None needs a server
    weights: Callable[[int, jax.Array], np.ndarray] | None = None
    validation: Examples | None = None  # that no client has
    # dataset -> the task of private runs and of agents, where that above has something
    # of each client that would tell of its examples
    public_task: Callable[[Dataset], Task] | None = None
    model: nn.Module | None = None  # whose parameters are trained, for `model.apply`
    # the function that made it, and its arguments, see `named`
    call: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # makes it again with other arguments
    remade: Callable[..., "Problem"] | None = None

    def varied(self, **changes: Any) -> "Problem":
        """The problem that the same function makes with other arguments.

        Example:
          >>> harder = problem.varied(alpha=0.05)
        """
        if self.remade is None:
            raise ValueError(
                f"{self.name} does not know the function that made it; decorate it "
                "with problems.named"
            )
        return self.remade(**changes)

    def parts(self, seed: int) -> Parts:
        """The ids of the training examples of every client of a seed."""
        return self.divided(self.dataset, key_of(seed, streams.PARTITION))

    def tests(self, seed: int, parts: Parts) -> Parts | None:
        """The ids of the test examples of every client, if clients have their own."""
        if self.tested is None:
            return None
        key = jax.random.fold_in(key_of(seed, streams.PARTITION), 1)
        return self.tested(self.dataset, key, parts)

    def mixing(self, seed: int, agents: int) -> np.ndarray:
        """The mixing weights of agents, on another random graph for every seed."""
        if self.weights is None:
            raise ValueError(
                f"{self.name} has no graph for agents without a server; choose a "
                "method with a server, or give the problem weights"
            )
        return self.weights(agents, key_of(seed, streams.AGENTS))

    def with_validation(self, share: float = 0.1) -> "Problem":
        """The same problem, with a share of the training examples held out."""
        if self.validation is not None:
            return self
        rest, held = hold_out(self.dataset, share)
        return dataclasses.replace(self, dataset=rest, validation=held)


def key_of(seed: int, stream: int) -> jax.Array:
    """The key of one of `core.streams`, of a seed."""
    seed = plain(seed)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"a seed must be a whole number, got {seed!r}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"a seed must lie in [0, 2^32), got {seed}")
    return jax.random.fold_in(jax.random.key(seed), stream)


def named(function: Callable[P, Problem]) -> Callable[P, Problem]:
    """Decorator of a function that makes a problem: the problem knows its call.

    Directories of runs then name the argument that differs, and know other code of the
    function as another problem.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    @plain_numbers
    def make(*args: P.args, **kwargs: P.kwargs) -> Problem:
        made = function(*args, **kwargs)
        if not isinstance(made, Problem):
            kind = type(made).__name__
            raise TypeError(f"{function.__name__} must return a Problem, got {kind}")
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        # neither copies of the data, nor where they lie on this machine
        kept = {k: _named(v) for k, v in bound.arguments.items() if k != "data_dir"}
        again = functools.partial(_again, make, bound)
        return dataclasses.replace(
            made, call={"problem": function, **kept}, remade=again
        )

    return make


def _again(
    make: Callable[..., Problem], bound: inspect.BoundArguments, **changes: Any
) -> Problem:
    """Calls the function of a problem again, with other arguments."""
    known = bound.signature.parameters
    for name in changes:
        check_choice("argument of the problem", name, [*known])
    places = [k for k, p in known.items() if p.kind is p.VAR_KEYWORD]
    given = {k: v for k, v in bound.arguments.items() if k not in places}
    given |= {k: v for place in places for k, v in bound.arguments[place].items()}
    return make(**{**given, **changes})


def _named(value: Any) -> Any:
    if isinstance(value, Dataset):
        return value.name  # its arrays are known by their digest
    if isinstance(value, Mapping) and all(isinstance(x, str) for x in value.values()):
        return f"{len(value)} texts"
    return value.name if isinstance(value, Path) else value

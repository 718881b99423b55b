"""What the references and the implementations are given."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tests.oracles.problem import Trace

Arrays = dict[str, np.ndarray]


def joined(tree: Arrays) -> np.ndarray:
    return np.concatenate([np.ravel(v) for v in tree.values()])


class Rounds(NamedTuple):
    """Five clients with a linear model, of whom three take part in each round.

    A client has at least five examples: with fewer than four, the gradients of its
    matrix have a lower rank, and their polar factors are a matter of convention.
    """

    x0: Arrays
    data: list
    sizes: list[int]
    cohorts: list[list[int]]
    steps: int
    change: Callable[[Trace], Trace] = lambda trace: trace

    @property
    def shapes(self) -> dict[str, tuple]:
        return {k: v.shape for k, v in self.x0.items()}

    @property
    def start(self) -> np.ndarray:
        return joined(self.x0)

    @property
    def numbers(self) -> dict[str, float]:
        N, S = len(self.sizes), len(self.cohorts[0])
        return {"K": self.steps, "N": N, "S": S, "S/N": S / N}

    @property
    def given(self) -> dict[str, Any]:
        return {k: v for k, v in self._asdict().items() if k != "change"}

    def results(self, method, settings) -> np.ndarray:
        batches = [(X, Y, np.ones(len(X))) for X, Y in self.data]
        first = [[batch] for batch in batches]
        cohort = lambda ids: (ids, [[batches[i]] * self.steps for i in ids])
        rounds = [cohort(ids) for ids in self.cohorts]
        trace = Trace(gradient, len(self.sizes), first, rounds, self.sizes)
        path = method(self.x0, self.change(trace), **settings)
        return np.array([joined({k: x[k] for k in self.x0}) for x in path])


def gradient(x: Arrays, batch) -> Arrays:
    """Of the mean over all entries of (X w' + b - Y)^2."""
    X, Y, _ = batch
    error = 2 / Y.size * (X @ x["w"].T + x["b"] - Y)
    return {"w": error.T @ X, "b": error.sum(0)}


def on_trace(change: Callable[[Trace], Trace]) -> Callable[[Rounds], Rounds]:
    """A change of the trace as a change of the problem."""
    return lambda problem: problem._replace(
        change=lambda trace: change(problem.change(trace))
    )


def rounds(seed: int = 0) -> Rounds:
    rng = np.random.default_rng(seed)
    sizes, data = [5, 9, 6, 14, 7], []
    for n in sizes:
        X = rng.standard_normal((n, 4)) + rng.standard_normal(4)
        Y = X @ rng.standard_normal((4, 6)) + rng.standard_normal(6)
        data.append((X, Y + 0.1 * rng.standard_normal((n, 6))))
    x0 = {
        "w": 0.3 * rng.standard_normal((6, 4)),
        "b": 0.3 * rng.standard_normal(6),
    }
    return Rounds(x0, data, sizes, [[0, 1, 2], [3, 4, 0], [2, 4, 1]], 3)


class Steps(NamedTuple):
    """Gradients for an optimizer of matrices."""

    x0: Arrays
    gradients: list[Arrays]

    @property
    def numbers(self) -> dict[str, float]:
        return {}

    @property
    def shapes(self) -> dict[str, tuple]:
        return {k: v.shape for k, v in self.x0.items()}

    @property
    def start(self) -> np.ndarray:
        return joined(self.x0)

    @property
    def given(self) -> dict[str, Any]:
        return self._asdict()

    def results(self, method, settings) -> np.ndarray:
        path = method(self.x0, self.gradients, **settings)
        return np.array([joined({k: x[k] for k in self.x0}) for x in path])


def steps(seed: int, count: int, **shapes: tuple) -> Steps:
    rng = np.random.default_rng(seed)
    draw = lambda: {k: rng.standard_normal(s) for k, s in shapes.items()}
    return Steps(draw(), [draw() for _ in range(count)])


class Cases(NamedTuple):
    """Messages for a rule of the server, and the shapes and origin of its results."""

    cases: list[dict[str, Any]]
    shapes: dict[str, tuple]
    start: np.ndarray
    given: Mapping[str, Any] = MappingProxyType({})

    @property
    def numbers(self) -> dict[str, float]:
        return {"n": len(self.cases[0]["messages"])}

    def results(self, method, settings) -> np.ndarray:
        return np.array([joined(method(case, **settings)) for case in self.cases])


def robust_case(seed: int) -> dict[str, Any]:
    """Messages of unequal widths; those of odd seeds have two attacks."""
    rng, n = np.random.default_rng(seed), 7 + seed // 2 % 2
    shapes = {"w": (3, 4), "b": (5,)}
    draw = lambda u: {k: 1 + u * rng.standard_normal(s) for k, s in shapes.items()}
    messages = [draw(u) for u in rng.uniform(0.05, 1, n)]
    for j in range(2 * (seed % 2)):
        attack = {"w": 8 * rng.standard_normal((3, 4)), "b": draw(1)["b"] - 5}
        messages[-1 - j] = attack
    weights = np.array([3.0, 9, 5, 14, 7, 4, 6, 2])[:n]
    return {"messages": messages, "weights": weights}


def robust_cases(seeds: list[int]) -> Cases:
    cases = [robust_case(seed) for seed in seeds]
    return Cases(cases, {"w": (3, 4), "b": (5,)}, np.zeros(17))


def adapter_cases(seed: int = 5) -> Cases:
    """Adapters of three clients in the layout of PEFT: the kernel is w + s B A."""
    rng = np.random.default_rng(seed)
    draw = lambda: {"A": rng.standard_normal((2, 5)), "B": rng.standard_normal((4, 2))}
    messages, w = [draw() for _ in range(3)], rng.standard_normal((4, 5))
    case = {"messages": messages, "weights": np.array([3.0, 9.0, 5.0]), "w": w}
    origin = np.concatenate([w.ravel(), np.zeros(20)])
    return Cases([case], {"w": (4, 5), "BA": (4, 5)}, origin)

"""What the references and the implementations are given."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tests.oracles.gossip import GossipTrace
from tests.oracles.problem import Trace

Arrays = dict[str, np.ndarray]


def joined(tree: Arrays) -> np.ndarray:
    return np.concatenate([np.ravel(v) for v in tree.values()])


# ------------------------------------------------- results of references, and of others
def nested(x: Arrays) -> Any:
    """As references have the two players of a minimax problem."""
    if "v" not in x:
        return x
    return {"x": {k: x[k] for k in "wb"}, "y": {k: x[k] for k in "vc"}}


def flat(point: Any) -> Arrays:
    """One dictionary of arrays, as implementations give it.

    Agents are a list of points. Personal models are a pair: a point, and a list of what
    clients own, whose names begin with own_.
    """
    if isinstance(point, list):
        points = [flat(one) for one in point]
        return {k: np.stack([one[k] for one in points]) for k in points[0]}
    if isinstance(point, tuple):
        shared, own = point
        return flat(shared) | {f"own_{k}": v for k, v in flat(own).items()}
    return point["x"] | point["y"] if "y" in point else point


@dataclasses.dataclass(frozen=True)
class Problem(abc.ABC):
    """What a reference and an implementation are given, x0 first."""

    x0: Arrays

    @property
    def first(self) -> Any:
        """The start, as the reference would give it."""
        return nested(self.x0)

    @property
    def shapes(self) -> dict[str, tuple]:
        return {k: v.shape for k, v in flat(self.first).items()}

    @property
    def start(self) -> np.ndarray:
        return joined(flat(self.first))

    @property
    def numbers(self) -> dict[str, float]:
        return {}

    @property
    def given(self) -> dict[str, Any]:
        hidden = ("change", "own")
        return {
            k: v for k, v in vars(self).items() if k not in hidden and v is not None
        }

    @property
    @abc.abstractmethod
    def arguments(self) -> tuple:
        """Of the reference."""

    def results(self, method, settings) -> np.ndarray:
        path = map(flat, method(*self.arguments, **settings))
        return np.array([joined({k: x[k] for k in self.shapes}) for x in path])


@dataclasses.dataclass(frozen=True)
class Rounds(Problem):
    """Five clients with a linear model, of whom three take part in each round.

    A client has at least five examples: with fewer than four, the gradients of its
    matrix have a lower rank, and their polar factors are a matter of convention.
    """

    data: list
    sizes: list[int]
    cohorts: list[list[int]]
    steps: int
    starts: list[list[int]] | None = None  # whose models clients began at
    own: tuple[str, ...] = ()  # arrays that every client has for itself
    rows: list | None = None  # [r][j][k], examples of a step; all if there are none
    change: Callable[[Trace], Trace] = lambda trace: trace

    @property
    def first(self) -> Any:
        if not self.own:
            return nested(self.x0)
        own = {k: self.x0[k] for k in self.own}
        shared = {k: v for k, v in self.x0.items() if k not in own}
        return shared or self.x0, [own for _ in self.sizes]

    @property
    def numbers(self) -> dict[str, float]:
        N, S = len(self.sizes), len(self.cohorts[0])
        return {"K": self.steps, "N": N, "S": S, "S/N": S / N}

    @property
    def arguments(self) -> tuple:
        batches = [(X, Y, np.ones(len(X))) for X, Y in self.data]
        first = [[batch] for batch in batches]
        whole = lambda ids: [[batches[i]] * self.steps for i in ids]
        some = lambda i, own: [tuple(a[at] for a in batches[i]) for at in own]
        given = (
            [[*map(some, *pair)] for pair in zip(self.cohorts, self.rows, strict=True)]
            if self.rows
            else map(whole, self.cohorts)
        )
        rounds = [*zip(self.cohorts, given, strict=True)]
        trace = Trace(gradient, len(self.sizes), first, rounds, self.sizes, loss)
        more = [self.starts] if self.starts else []
        return nested(self.x0), self.change(trace), *more


def gradient(x: Any, batch) -> Any:
    """Of the mean over all entries of E^2, E = X w' + b - Y.

    With a second player, D = X v' + c, of E^2 + 2 E D - D^2.
    """
    (X, Y, _), x = batch, flat(x)
    E = X @ x["w"].T + x["b"] - Y
    D = X @ x["v"].T + x["c"] if "v" in x else 0 * E
    left, right = 2 / Y.size * (E + D), 2 / Y.size * (E - D)
    g = {"w": left.T @ X, "b": left.sum(0), "v": right.T @ X, "c": right.sum(0)}
    return nested({k: g[k] for k in x})


def loss(x: Any, batch) -> float:
    """Of one player."""
    X, Y, _ = batch
    return float(np.mean((X @ x["w"].T + x["b"] - Y) ** 2))


def on_trace(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A change of the trace as a change of the problem."""
    return lambda problem: dataclasses.replace(
        problem, change=lambda trace: change(problem.change(trace))
    )


def rounds(seed: int = 0, *, players: int = 1, **more: Any) -> Rounds:
    rng = np.random.default_rng(seed)
    sizes, data = [5, 9, 6, 14, 7], []
    for n in sizes:
        X = rng.standard_normal((n, 4)) + rng.standard_normal(4)
        Y = X @ rng.standard_normal((4, 6)) + rng.standard_normal(6)
        data.append((X, Y + 0.1 * rng.standard_normal((n, 6))))
    x0 = {}
    for w, b in (("w", "b"), ("v", "c"))[:players]:
        x0[w] = 0.3 * rng.standard_normal((6, 4))
        x0[b] = 0.3 * rng.standard_normal(6)
    cohorts = more.pop("cohorts", [[0, 1, 2], [3, 4, 0], [2, 4, 1]])
    return Rounds(x0, data, sizes, cohorts, 3, **more)


def batched(size: int) -> Rounds:
    """Rounds of all five clients, with so many examples in a step."""
    rng, cohorts = np.random.default_rng(1), [[*range(5)]] * 3
    plain = rounds(cohorts=cohorts)
    draw = lambda n: sorted(rng.permutation(n)[:size].tolist())
    step = lambda ids: [[draw(plain.sizes[i]) for _ in range(3)] for i in ids]
    return dataclasses.replace(plain, rows=[step(ids) for ids in cohorts])


@dataclasses.dataclass(frozen=True)
class Agents(Problem):
    """The same clients without a server; W has no symmetry, and rows and columns of 1.

    Their gradients are of all their examples, or of those in `rows` [t][i]; `clip`
    bounds those of single examples.
    """

    data: list
    sizes: list[int]
    mixing: np.ndarray
    iterations: int
    rows: list[list[list[int]]] | None = None
    change: Callable[[GossipTrace], GossipTrace] = lambda trace: trace

    @property
    def first(self) -> Any:
        return [nested(self.x0) for _ in self.sizes]

    @property
    def numbers(self) -> dict[str, float]:
        return {"m": len(self.sizes)}

    @property
    def arguments(self) -> tuple:
        batches = []
        for t in range(self.iterations):
            of = self.rows[t] if self.rows else [slice(None)] * len(self.sizes)
            pairs = zip(self.data, of, strict=True)
            batches.append([(X[i], Y[i], np.ones(len(X[i]))) for (X, Y), i in pairs])
        trace = GossipTrace(gradient, batches, lambda t: self.mixing)
        return nested(self.x0), self.change(trace)


def agents(*, players: int = 1, size: int = 0) -> Agents:
    """Batches have so many examples, or all."""
    whole = rounds(players=players)
    shift = lambda *places: np.eye(5)[[*places]]
    W = 0.3 * np.eye(5) + 0.3 * shift(1, 2, 3, 4, 0)
    W += 0.25 * shift(1, 0, 2, 4, 3) + 0.15 * shift(0, 2, 1, 3, 4)
    rng = np.random.default_rng(1)
    draw = lambda n: sorted(rng.permutation(n)[:size].tolist())
    rows = [[draw(n) for n in whole.sizes] for _ in range(4)] if size else None
    return Agents(whole.x0, whole.data, whole.sizes, W, 4, rows)


@dataclasses.dataclass(frozen=True)
class Steps(Problem):
    """Gradients for an optimizer of matrices."""

    gradients: list[Arrays]

    @property
    def arguments(self) -> tuple:
        return self.x0, self.gradients


class Updates(Steps):
    """The reference gives what is subtracted from a matrix, over the learning rate."""

    def results(self, method, settings) -> np.ndarray:
        settings = dict(settings)
        lr, found = settings.pop("lr"), {}
        for k, x in self.x0.items():
            updates = np.array([*method([g[k] for g in self.gradients], **settings)])
            found[k] = x - lr * np.cumsum(updates, axis=0)
        rows = range(len(self.gradients))
        return np.array([joined({k: v[t] for k, v in found.items()}) for t in rows])


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

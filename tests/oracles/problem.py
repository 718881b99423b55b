"""What the oracles share: fixed traces, a toy model, arithmetic on dicts of arrays.

A trace fixes everything random (which clients, which batches), so that two
implementations which are given the same trace must produce the same parameters.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Params = dict[str, np.ndarray]
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]  # x [B, d], y [B, c], weight [B]
Rate = float | Callable[[int], float]


class Trace(NamedTuple):
    """One fixed course of events, to be replayed by any federated algorithm.

    Attributes:
        grad: ``(params, batch) -> gradient``, dicts with the same keys.
        num_clients: N, the number of all clients.
        first: for each of the N clients the batches it is given before round 0.
        rounds: per round ``(ids, data)``; ``data[j][k]`` is the k-th batch of the
            client ``ids[j]``.
        sizes: the number of examples of each of the N clients.
        loss: ``(params, batch) -> the loss`` whose gradient `grad` is.
    """

    grad: Callable[[Params, Batch], Params]
    num_clients: int
    first: list[list[Batch]]
    rounds: list[tuple[list[int], list[list[Batch]]]]
    sizes: list[int]
    loss: Callable[[Params, Batch], float] = lambda x, batch: 0.0


# ---------------------------------------------------------------- the toy model
def toy_loss(params: Params, batch: Batch) -> float:
    """Weighted mean over examples of the mean over outputs of (tanh(xw+b)-y)^2."""
    x, y, weight = batch
    error = np.tanh(x @ params["w"] + params["b"]) - y
    return float(np.sum(weight * np.mean(error**2, axis=1)) / np.sum(weight))


def toy_grad(params: Params, batch: Batch) -> Params:
    """Gradient of `toy_loss`, by the chain rule: tanh' = 1 - tanh^2."""
    x, y, weight = batch
    out = np.tanh(x @ params["w"] + params["b"])
    share = weight / np.sum(weight)  # [B]
    into = share[:, None] * (2.0 / y.shape[1]) * (out - y) * (1.0 - out**2)  # [B, c]
    return {"w": x.T @ into, "b": np.sum(into, axis=0)}


def draw_params(seed: int, features=4, outputs=3) -> Params:
    """Parameters of the toy model: ``w [features, outputs]`` and ``b [outputs]``."""
    rng = np.random.default_rng(seed)
    w = 0.3 * rng.standard_normal((features, outputs))
    return {"w": w, "b": 0.3 * rng.standard_normal(outputs)}


# ------------------------------------------------------------------------- traces
def _draw_batch(
    rng: np.random.Generator, owned: tuple[np.ndarray, np.ndarray], size: int
) -> Batch:
    """Distinct examples of one client; a client with too few pads with weight 0."""
    xs, ys = owned
    count = min(size, len(xs))
    chosen = rng.permutation(len(xs))[:count]
    x, y = np.zeros((size, xs.shape[1])), np.zeros((size, ys.shape[1]))
    x[:count], y[:count] = xs[chosen], ys[chosen]
    return x, y, (np.arange(size) < count).astype(np.float64)


def draw_trace(
    seed: int,
    num_clients: int,
    cohort_size: int,
    steps: int,
    batch: int,
    rounds: int,
    sizes: Sequence[int],
    *,
    features=4,
    outputs=3,
    first=1,
) -> Trace:
    """A trace of unequal clients: client i owns ``sizes[i]`` examples and its own map.

    Cohorts are random subsets without repetition, in random order. Every batch has
    ``batch`` rows; the rows that a small client lacks are zeros with weight 0.
    ``first`` is the number of batches that each client gets before round 0.
    """
    rng = np.random.default_rng(seed)
    owned = []
    for i in range(num_clients):
        xs = rng.standard_normal((sizes[i], features)) + rng.standard_normal(features)
        true_w = rng.standard_normal((features, outputs))
        noise = 0.1 * rng.standard_normal((sizes[i], outputs))
        owned.append((xs, np.tanh(xs @ true_w + rng.standard_normal(outputs)) + noise))
    before = [
        [_draw_batch(rng, owned[i], batch) for _ in range(first)]
        for i in range(num_clients)
    ]
    events = []
    for _ in range(rounds):
        ids = [int(i) for i in rng.permutation(num_clients)[:cohort_size]]
        data = [[_draw_batch(rng, owned[i], batch) for _ in range(steps)] for i in ids]
        events.append((ids, data))
    return Trace(toy_grad, num_clients, before, events, list(sizes), toy_loss)


def first_gradient(trace, x, i: int) -> Params:
    """Client i's gradient at x, the mean over its batches before round 0."""
    return mean([trace.grad(x, batch) for batch in trace.first[i]])


def rate(lr: Rate, r: int) -> float:
    """The learning rate of round r: constant inside a round, maybe scheduled."""
    return lr(r) if callable(lr) else lr


# ------------------------------------------------------ arithmetic on dicts of arrays
def each(f: Callable[..., np.ndarray], *trees: Params) -> Params:
    """f on the leaves of the same name."""
    return {name: f(*(tree[name] for tree in trees)) for name in trees[0]}


def zeros(x: Params) -> Params:
    """Zeros shaped as x."""
    return each(np.zeros_like, x)


def add(a: Params, b: Params) -> Params:
    """a + b."""
    return each(lambda u, v: u + v, a, b)


def sub(a: Params, b: Params) -> Params:
    """a - b."""
    return each(lambda u, v: u - v, a, b)


def times(s: float, a: Params) -> Params:
    """s a."""
    return each(lambda u: s * u, a)


def total(trees: Sequence[Params]) -> Params:
    """The sum of a list of dicts."""
    return each(lambda *leaves: np.sum(np.stack(leaves), axis=0), *trees)


def mean(trees: Sequence[Params]) -> Params:
    """The plain mean of a list of dicts."""
    return times(1.0 / len(trees), total(trees))


def mean_direction(moved: Params, K: int, eta: float, last: Params) -> Params:
    """``-moved / (K eta)``; the last one where eta = 0, since nothing moved."""
    return times(-1 / (K * eta), moved) if eta else last


# -------------------------------------------------------------------- directions
def polar(m: np.ndarray) -> np.ndarray:
    """U V^T of the reduced SVD over the non-zero singular values; 0 gives 0."""
    u, s, vt = np.linalg.svd(m, full_matrices=False)
    rank = int(np.sum(s > max(m.shape) * np.finfo(np.float64).eps * s[0]))
    return u[:, :rank] @ vt[:rank]


def normalise(m: np.ndarray) -> np.ndarray:
    """m / |m| with the Euclidean norm of this leaf; 0 gives 0."""
    norm = np.sqrt(np.sum(m**2))
    return m / norm if norm > 0 else np.zeros_like(m)


def direct(v: Params, direction, ratio=1.0, everywhere=False) -> Params:
    """``direction`` on matrix leaves, ``ratio`` times the identity on the others.

    With ``everywhere`` every leaf goes through ``direction``.
    """
    return each(lambda u: direction(u) if everywhere or u.ndim > 1 else ratio * u, v)


class Moments(NamedTuple):
    """Adam's first and second moment and the number of gradients seen."""

    m: Params
    v: Params
    t: int


def adam(
    g: Params, state: Moments, b1: float, b2: float, eps: float
) -> tuple[Params, Moments]:
    """Adam's direction with bias correction (Kingma & Ba 2015, Algorithm 1)."""
    t = state.t + 1
    m = each(lambda m, g: b1 * m + (1 - b1) * g, state.m, g)
    v = each(lambda v, g: b2 * v + (1 - b2) * g**2, state.v, g)
    step = each(lambda m, v: (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps), m, v)
    return step, Moments(m, v, t)


def assert_same(a, b, atol=1e-12):
    """Equal at every round, up to rounding."""
    assert len(a) == len(b) > 0
    for u, v in zip(a, b, strict=True):
        assert u.keys() == v.keys()
        for name in u:
            np.testing.assert_allclose(u[name], v[name], rtol=0, atol=atol)

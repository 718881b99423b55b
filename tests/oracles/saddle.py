"""A toy minimax problem and its traces: min over x, max over y, in dicts of arrays."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .problem import Batch, Params, Rate, add, draw_trace, mean, rate, sub, times

Saddle = dict[str, Params]  # {"x": minimised, "y": maximised}

CURVATURE = 0.5  # the modulus of strong concavity in y


class SaddleTrace(NamedTuple):
    """A `problem.Trace` whose gradient has the parts x and y; fields as there."""

    grad: Callable[[Saddle, Batch], Saddle]
    num_clients: int
    first: list[list[Batch]]
    rounds: list[tuple[list[int], list[list[Batch]]]]
    sizes: list[int]


# -------------------------------------------------------------- the toy problem
#
# x = {"w": [d, c], "b": [c], "s": []} is a model, out = tanh(s (a w) + b), and
# y = {"v": [c, 2], "t": []} weighs its errors, z = (out - target) v + t.


def saddle_loss(params: Saddle, batch: Batch) -> float:
    """Bounded and nonconvex in x, `CURVATURE`-strongly concave in y.

    The weighted mean over examples of ``mean_c error^2 + sum_k (target_k z_k -
    z_k^2/2)``, less ``CURVATURE/2 (|v|^2 + t^2)``, with z = error v + t [B, 2] and the
    first two targets.
    """
    a, target, weight = batch
    x, y = params["x"], params["y"]
    error = np.tanh(x["s"] * (a @ x["w"]) + x["b"]) - target
    z = error @ y["v"] + y["t"]
    payoff = np.sum(target[:, :2] * z - 0.5 * z**2, axis=1)
    value = np.sum(weight * (np.mean(error**2, axis=1) + payoff)) / np.sum(weight)
    return float(value - 0.5 * CURVATURE * (np.sum(y["v"] ** 2) + y["t"] ** 2))


def saddle_grad(params: Saddle, batch: Batch) -> Saddle:
    """Gradient of `saddle_loss` in x and in y, by the chain rule: tanh' = 1 - tanh^2.

    Both parts have the sign of the loss: y ascends along its part.
    """
    a, target, weight = batch
    x, y = params["x"], params["y"]
    linear = a @ x["w"]  # [B, c]
    out = np.tanh(x["s"] * linear + x["b"])
    error = out - target
    share = (weight / np.sum(weight))[:, None]
    into_z = share * (target[:, :2] - (error @ y["v"] + y["t"]))  # [B, 2]
    into_error = share * (2.0 / target.shape[1]) * error + into_z @ y["v"].T
    into = into_error * (1.0 - out**2)  # [B, c]
    return {
        "x": {
            "w": x["s"] * (a.T @ into),
            "b": np.sum(into, axis=0),
            "s": np.sum(linear * into),
        },
        "y": {
            "v": error.T @ into_z - CURVATURE * y["v"],
            "t": np.sum(into_z) - CURVATURE * y["t"],
        },
    }


def draw_saddle(seed: int, features=4, outputs=3) -> Saddle:
    """A starting point: a matrix, a vector and a scalar in x, all but a vector in y."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: 0.3 * np.asarray(rng.standard_normal(shape))
    x = {"w": draw(features, outputs), "b": draw(outputs), "s": 1.0 + draw()}
    return {"x": x, "y": {"v": draw(outputs, 2), "t": draw()}}


def draw_saddle_trace(
    seed: int,
    num_clients=5,
    cohort_size=3,
    steps=4,
    batch=6,
    rounds=5,
    sizes: Sequence[int] = (3, 9, 5, 14, 7),
    *,
    features=4,
    outputs=3,
    first=2,
) -> SaddleTrace:
    """The toy minimax problem on the data of `problem.draw_trace`.

    By default five unequal clients of which three take part, four local steps, five
    rounds; the two smallest clients pad their batches with weight 0, and every client
    has two batches before round 0.
    """
    trace = draw_trace(
        seed,
        num_clients,
        cohort_size,
        steps,
        batch,
        rounds,
        sizes,
        features=features,
        outputs=outputs,
        first=first,
    )
    return SaddleTrace(saddle_grad, num_clients, trace.first, trace.rounds, trace.sizes)


def first_saddle_gradient(trace, start, i: int) -> Saddle:
    """Client i's gradient at the start, the mean over its batches before round 0."""
    seen = [trace.grad(start, batch) for batch in trace.first[i]]
    return {"x": mean([g["x"] for g in seen]), "y": mean([g["y"] for g in seen])}


# ------------------------------------------------------------ both variables at once
def both(x: Any, y: Any) -> dict[str, Any]:
    """Settings of the two variables."""
    return {"x": x, "y": y}


def rates(lr_x: Rate, lr_y: Rate, r: int) -> dict[str, float]:
    """The learning rates of round r."""
    return both(rate(lr_x, r), rate(lr_y, r))


def moved(at: Saddle, eta: dict[str, float], d: Saddle) -> Saddle:
    """``x - eta_x d_x`` and ``y + eta_y d_y``: descent in x, ascent in y, at once."""
    return {
        "x": sub(at["x"], times(eta["x"], d["x"])),
        "y": add(at["y"], times(eta["y"], d["y"])),
    }


def averaged(points: Sequence[Saddle]) -> Saddle:
    """The plain means of both variables."""
    return {v: mean([point[v] for point in points]) for v in "xy"}


def mixed(share: dict[str, float], new: Saddle, old: Saddle) -> Saddle:
    """``share new + (1 - share) old``, each variable with its own share."""
    weigh = lambda v: add(times(share[v], new[v]), times(1 - share[v], old[v]))
    return {v: weigh(v) for v in "xy"}


def combined(f: Callable[..., Params], *saddles: Saddle) -> Saddle:
    """f of the x parts and of the y parts."""
    return {v: f(*(saddle[v] for saddle in saddles)) for v in "xy"}


def two_sided(
    at: Saddle, ends: Sequence[Saddle], server_lr: dict[str, float]
) -> Saddle:
    """``at + server_lr mean(end - at)``, each variable with its own rate."""
    step = lambda v: times(server_lr[v], mean([sub(end[v], at[v]) for end in ends]))
    return {v: add(at[v], step(v)) for v in "xy"}

"""Stalling of Local Muon on heterogeneous clients, and FedMuon with bias correction.

arXiv:2509.26337, Theorem 1, has the example f_1(x) = x^2/2 and f_2(x) = (x + a)^2/2,
started at x = -a/4 with zero momenta. The two clients always move by the same distance
in opposite directions, so that Local Muon never moves, and neither does MuLoCo, whose
server has momentum. The gradient there is a/4, the optimum is -a/2, and zeta_*^2 =
mean_i |f_i'(-a/2)|^2 = a^2/4.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from experiments.theory import quadratics
from experiments.theory.finding import TAKEZAWA, Finding, Study, verdict
from fedjax_muon.algorithms import diloco, fedmuon_correct, local_muon_persistent
from fedjax_muon.core import Algorithm
from fedjax_muon.linalg import lmo
from fedjax_muon.linalg.newton_schulz import polar
from fedjax_muon.reporting.style import line_of
from fedjax_muon.transforms import orthogonalize, scale_by_lmo

A = 4.0  # the counterexample's a: a power of two, so that nothing is rounded
SIZE = 8  # of the square matrices
BETA = 0.1  # of the heterogeneous clients
SHOWN = 100  # rounds of the counterexample in the figure
THEOREM = f"{TAKEZAWA}, Theorem 1"


class Size(NamedTuple):
    rounds: int  # of the counterexample
    betas: tuple[float, ...]  # weights of the new gradient in the momentum
    lrs: tuple[float, ...]  # of the counterexample
    clients: int
    long_rounds: int  # of the heterogeneous clients
    long_lrs: tuple[float, ...]
    steps: tuple[int, ...]


SIZES = {
    "smoke": Size(40, (0.1, 1.0), (0.01, 0.1), 4, 400, (0.1, 0.02), (1,)),
    "full": Size(
        1000,
        (0.01, 0.1, 0.5, 1.0),
        (0.001, 0.01, 0.1),
        8,
        3000,
        (0.1, 0.03, 0.01, 0.003),
        (1, 5),
    ),
}


class Case(NamedTuple):
    """A problem with its start and its norm."""

    clients: quadratics.Quadratics
    x: jax.Array
    rule: object  # minus the LMO of the norm


def counterexample(a: np.ndarray, rule) -> Case:
    """Returns f_1(X) = ||X||^2/2 and f_2(X) = ||X + A||^2/2, started at -A/4."""
    ones = np.broadcast_to(np.eye(len(a), dtype=np.float32), (2, len(a), len(a)))
    clients = quadratics.Quadratics(jnp.array(ones), jnp.array([0 * a, -a]))
    return Case(clients, jnp.array(-a / 4), rule)


def scalar_case() -> Case:
    return counterexample(np.full((1, 1), A, np.float32), scale_by_lmo(lmo.euclidean))


def matrix_case() -> Case:
    """Returns the counterexample for a matrix A with singular values from 1 to 2."""
    two = np.asarray(jax.random.normal(jax.random.key(0), (2, SIZE, SIZE)), float)
    u, v = np.linalg.qr(two)[0]
    a = u @ np.diag(np.linspace(1, 2, SIZE)) @ v
    return counterexample(a.astype(np.float32), orthogonalize(polar))


def paths(algorithm, case: Case, size: Size):
    """Returns the parameters [beta, lr, rounds + 1, m, n] of the counterexample."""

    def one(beta, lr):
        method = algorithm(lr=lr, momentum=1 - beta, rule=case.rule)
        key = jax.random.key(0)  # nothing is random here
        run = partial(quadratics.run, rounds=size.rounds, steps=1)
        return run(method, case.clients, case.x, key, observe=lambda x: x)

    grid = jax.vmap(jax.vmap(one, (None, 0)), (0, None))
    return np.asarray(
        quadratics.compiled(grid)(jnp.array(size.betas), jnp.array(size.lrs))
    )


def muloco(lr, momentum, rule) -> Algorithm:
    """Returns MuLoCo with another norm than its own."""
    return diloco(lr, rule=optax.chain(optax.trace(momentum), rule))


def stall_finding(
    method: str, name: str, case: Case, path, tolerance: float
) -> Finding:
    """Returns whether a method stays at its start, with a gradient of zeta_*/2."""
    x = np.asarray(case.x)
    distance = np.linalg.norm(path - x, axis=(-2, -1)).max() / np.linalg.norm(x)
    best = quadratics.optimum(case.clients)
    squares = np.sum((path - best) ** 2, axis=(-2, -1))  # curvatures are 1
    zeta = quadratics.dissimilarity(case.clients, best)
    ratio = squares.min() / zeta**2
    numbers = {"largest relative move": distance, "zeta_*^2": zeta**2}
    numbers |= {"least |grad f|^2": squares.min(), "least |grad f|^2 / zeta_*^2": ratio}
    return Finding(
        f"{method} never leaves its start, {name}: |grad f|^2 >= Omega(zeta_*^2)",
        THEOREM if method == "Local Muon" else f"{TAKEZAWA}, Section 3",
        f"no parameter moves by more than {tolerance:g} of its norm in any round, and "
        "|grad f|^2 >= 0.24 zeta_*^2",
        f"moves {distance:.1e}; |grad f|^2 = {squares.min():.4g}, zeta_*^2 = "
        f"{zeta**2:.4g}, ratio {ratio:.3f}",
        verdict(distance <= tolerance and ratio >= 0.24),
        {k: float(v) for k, v in numbers.items()},
    )


def heterogeneous(size: Size) -> quadratics.Quadratics:
    key = jax.random.key(1)
    shape = (SIZE, SIZE)
    return quadratics.random(key, size.clients, shape, 0.1, 1.0)


def floors(algorithm, clients, steps: int, size: Size):
    """Returns ||grad f||_F / zeta_* over rounds, [lr, rounds + 1], from zero."""
    zeta = quadratics.dissimilarity(clients, quadratics.optimum(clients))

    def one(lr):
        rule = orthogonalize(polar)
        method = algorithm(lr=lr, momentum=1 - BETA, rule=rule)
        return quadratics.run(
            method,
            clients,
            jnp.zeros((SIZE, SIZE)),
            jax.random.key(0),
            rounds=size.long_rounds,
            steps=steps,
            observe=quadratics.norm_of_gradient(clients),
        )

    return np.asarray(
        quadratics.compiled(jax.vmap(one))(jnp.array(size.long_lrs)) / zeta
    )


def last(curves):
    """Returns the mean over the last tenth of the rounds."""
    return curves[..., -max(1, curves.shape[-1] // 10) :].mean(-1)


def heterogeneous_findings(steps: int, size: Size, stuck, moving):
    """Returns the findings on both algorithms at the smallest learning rate."""
    name = f"{size.clients} clients with random targets, K = {steps}"
    a, b = float(last(stuck)[-1]), float(last(moving)[-1])
    return (
        Finding(
            f"Local Muon does not converge on {name}",
            f"{TAKEZAWA}, Section 3",
            "at the smallest learning rate ||grad f|| stays above 10 times that of "
            "FedMuon with bias correction",
            f"||grad f|| / zeta_* = {a:.4f} against {b:.4f}",
            verdict(a >= 10 * b),
            {"Local Muon": a, "FedMuon with bias correction": b},
        ),
        Finding(
            f"FedMuon with bias correction converges on {name}",
            f"{TAKEZAWA}, Theorem 2",
            "at the smallest learning rate ||grad f|| <= 0.02 zeta_*",
            f"||grad f|| / zeta_* = {b:.4f}",
            verdict(b <= 0.02),
            {"FedMuon with bias correction": b},
        ),
    )


def study(
    size: Size,
    *,
    local=local_muon_persistent,
    corrected=fedmuon_correct,
    server_momentum=muloco,
) -> Study:
    """Runs the algorithms on the counterexample, and two of them on random targets.

    The counterexample is run with scalars and with matrices.
    """
    scalar, matrix = scalar_case(), matrix_case()
    path, moved = paths(local, scalar, size), paths(corrected, scalar, size)
    scalars = "scalars, Euclidean norm"
    # its momentum would amplify the rounding of other rates
    exact = size._replace(lrs=tuple(2.0 ** round(np.log2(lr)) for lr in size.lrs))
    found = [
        stall_finding("Local Muon", scalars, scalar, path, 0.0),
        stall_finding(
            "Local Muon",
            f"{SIZE}x{SIZE} matrices, spectral norm",
            matrix,
            paths(local, matrix, size),
            1e-3,
        ),
        stall_finding(
            "MuLoCo", scalars, scalar, paths(server_momentum, scalar, exact), 0.0
        ),
    ]
    clients, curves = heterogeneous(size), {}
    for steps in size.steps:
        pair = tuple(floors(f, clients, steps, size) for f in (local, corrected))
        found += heterogeneous_findings(steps, size, *pair)
        curves[steps] = pair
    drawn = {
        "paths": [x[:, -1, : SHOWN + 1, 0, 0] for x in (path, moved)],
        "last": {steps: [last(x) for x in pair] for steps, pair in curves.items()},
    }
    return Study(tuple(found), drawn)


def draw(drawn: Mapping[str, Any], size: Size) -> Figure:
    """Draws the scalar's path, and the last gradients at every learning rate."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = "Local Muon", "FedMuon, bias correction"
    known = "Local Muon", "FedMuon(bias correction)"
    colors = [line_of(name).color for name in known]
    for x, label, color in zip(drawn["paths"], names, colors, strict=True):
        for i in range(len(size.betas)):
            left.plot(
                x[i],
                color=color,
                alpha=0.4 + 0.6 * (i + 1) / len(size.betas),
                label=label if i + 1 == len(size.betas) else None,
            )
    left.axhline(-A / 2, color="0.4", ls=":", label="optimum")
    left.set_xlim(0, min(size.rounds, SHOWN))
    left.set_xlabel("round")
    left.set_ylabel("x, one line for every beta")
    left.set_title(f"counterexample of Theorem 1, learning rate {size.lrs[-1]:g}")
    left.legend()
    for steps, pair in drawn["last"].items():
        for name, color, norms in zip(names, colors, pair, strict=True):
            style = {"color": color, "ls": "-" if int(steps) == 1 else "--"}
            label = f"{name}, K = {steps}"
            right.loglog(size.long_lrs, norms, marker="o", label=label, **style)
    right.set_xlabel("learning rate")
    right.set_ylabel(r"$\|\nabla f\|_F\ /\ \zeta_*$, last tenth")
    right.set_title(f"{size.clients} clients with random targets")
    right.legend()
    return figure

"""Stalling of Local Muon on heterogeneous clients, and FedMuon with bias correction.

arXiv:2509.26337, Theorem 1, has the example f_1(x) = x^2/2 and f_2(x) = (x + a)^2/2,
started at x = -a/4 with zero momenta. The two clients always move by the same distance
in opposite directions, so that Local Muon never moves, and neither does MuLoCo, whose
server has momentum. The gradient there is a/4, the optimum is -a/2, and zeta_*^2 =
mean_i |f_i'(-a/2)|^2 = a^2/4.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.theory import quadratics
from experiments.theory.frame import TAKEZAWA, Finding, verdict
from fedjax_muon.algorithms import diloco, fedmuon_correct, local_muon_persistent
from fedjax_muon.core import Algorithm
from fedjax_muon.linalg import lmo
from fedjax_muon.linalg.newton_schulz import polar
from fedjax_muon.runs.style import NOTE, Label, drawing, label_ends, line_of
from fedjax_muon.transforms import orthogonalize, scale_by_lmo

A = 4.0  # the counterexample's a: a power of two, so that nothing is rounded
SIZE = 8  # of the square matrices
BETA = 0.1  # of the heterogeneous clients
SHOWN = 100  # rounds of the counterexample in the figure
LOCAL, CORRECTED = "Local Muon", "FedMuon with bias correction"


class Size(NamedTuple):
    rounds: int = 1000  # of the counterexample
    betas: tuple[float, ...] = (0.01, 0.1, 0.5, 1.0)  # weights of the new gradient
    lrs: tuple[float, ...] = (0.001, 0.01, 0.1)  # of the counterexample
    clients: int = 8
    long_rounds: int = 3000  # of the heterogeneous clients
    long_lrs: tuple[float, ...] = (0.1, 0.03, 0.01, 0.003)
    steps: tuple[int, ...] = (1, 5)


FULL = Size()


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
    key = jax.random.key(0)  # nothing is random here
    how = {"rounds": size.rounds, "steps": 1, "observe": lambda x: x}

    def one(beta, lr):
        method = quadratics.muon(algorithm, lr, beta, case.rule)
        return quadratics.run(method, case.clients, case.x, key, **how)

    return quadratics.over_grid(one, size.betas, size.lrs)


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
    square = np.sum((path - best) ** 2, axis=(-2, -1)).min()  # curvatures are 1
    zeta = quadratics.dissimilarity(case.clients, best)
    ratio = square / zeta**2
    return Finding(
        f"{method} never leaves its start, {name}: |grad f|^2 >= Omega(zeta_*^2)",
        f"{TAKEZAWA}, {'Theorem 1' if method == LOCAL else 'Section 3'}",
        f"no parameter moves by more than {tolerance:g} of its norm in any round, and "
        "|grad f|^2 >= 0.24 zeta_*^2",
        f"moves {distance:.1e}; |grad f|^2 = {square:.4g}, zeta_*^2 = {zeta**2:.4g}, "
        f"ratio {ratio:.3f}",
        verdict(distance <= tolerance and ratio >= 0.24),
    )


def heterogeneous(size: Size) -> quadratics.Quadratics:
    return quadratics.random(jax.random.key(1), size.clients, (SIZE, SIZE), 0.1, 1.0)


def floors(algorithm, clients, steps: int, size: Size):
    """Returns ||grad f||_F / zeta_* over rounds, [lr, rounds + 1], from zero."""
    begin, key = jnp.zeros((SIZE, SIZE)), jax.random.key(0)
    observe = quadratics.gradient_norm(clients)
    how = {"rounds": size.long_rounds, "steps": steps, "observe": observe}
    method = lambda lr: quadratics.muon(algorithm, lr, BETA)
    one = lambda lr: quadratics.run(method(lr), clients, begin, key, **how)
    zeta = quadratics.dissimilarity(clients, quadratics.optimum(clients))
    return quadratics.over_grid(one, size.long_lrs) / zeta


def last(curves):
    """Returns the mean over the last tenth of the rounds."""
    return curves[..., -max(1, curves.shape[-1] // 10) :].mean(-1)


def heterogeneous_findings(steps: int, size: Size, stuck, moving):
    """Returns the findings on both algorithms at the smallest learning rate."""
    name = f"{size.clients} clients with random targets, K = {steps}"
    a, b = float(last(stuck)[-1]), float(last(moving)[-1])
    return (
        Finding(
            f"{LOCAL} does not converge on {name}",
            f"{TAKEZAWA}, Section 3",
            "at the smallest learning rate ||grad f|| stays above 10 times that of "
            f"{CORRECTED}",
            f"||grad f|| / zeta_* = {a:.4f} against {b:.4f}",
            verdict(a >= 10 * b),
        ),
        Finding(
            f"{CORRECTED} converges on {name}",
            f"{TAKEZAWA}, Theorem 2",
            "at the smallest learning rate ||grad f|| <= 0.02 zeta_*",
            f"||grad f|| / zeta_* = {b:.4f}",
            verdict(b <= 0.02),
        ),
    )


def study(size: Size = FULL) -> tuple[list[Finding], dict[str, Any]]:
    """Runs the algorithms on the counterexample, and two of them on random targets.

    The counterexample is run with scalars and with matrices. The second value is what
    `draw` takes.
    """
    scalar, matrix = scalar_case(), matrix_case()
    pair = (local_muon_persistent, fedmuon_correct)
    path, moved = (paths(algorithm, scalar, size) for algorithm in pair)
    # server momentum would amplify the rounding of other rates
    exact = size._replace(lrs=tuple(2.0 ** round(np.log2(lr)) for lr in size.lrs))
    scalars, matrices = "scalars, Euclidean norm", f"{SIZE}x{SIZE} matrices, spectral"
    found = [
        stall_finding(LOCAL, scalars, scalar, path, 0.0),
        stall_finding(
            LOCAL, f"{matrices} norm", matrix, paths(pair[0], matrix, size), 1e-3
        ),
        stall_finding("MuLoCo", scalars, scalar, paths(muloco, scalar, exact), 0.0),
    ]
    clients, ends = heterogeneous(size), {}
    for steps in size.steps:
        curves = [floors(algorithm, clients, steps, size) for algorithm in pair]
        found += heterogeneous_findings(steps, size, *curves)
        ends[steps] = list(map(last, curves))
    shown = [x[:, -1, : SHOWN + 1, 0, 0] for x in (path, moved)]
    return found, {"paths": shown, "last": ends}


def draw(drawn: Mapping[str, Any], path: Path) -> None:
    """Draws the scalar's path, and the last gradients at every learning rate."""
    size, names = FULL, (LOCAL, "FedMuon(bias correction)")
    colors = [line_of(name).color for name in names]
    with drawing(path, (10.5, 3.4)) as figure:
        left, right = figure.subplots(1, 2)
        (still, *_), moved = drawn["paths"]
        left.plot(still, color=colors[0])
        ends = [Label(f"{LOCAL}, any β", SHOWN, still[-1], colors[0])]
        for beta, line in zip(size.betas, moved, strict=True):
            shade = 0.35 + 0.65 * size.betas.index(beta) / (len(size.betas) - 1)
            left.plot(line, color=colors[1], alpha=shade)
            ends.append(Label(f"FedMuon, β = {beta:g}", SHOWN, line[-1], colors[1]))
        left.axhline(-A / 2, color="0.4", ls=":")
        left.text(0.5, -2.03, "optimum", va="top", fontsize=7, color=NOTE)
        left.set(xlim=(0, SHOWN), xlabel="round", ylabel="parameter x")
        left.set_title(f"counterexample, learning rate {size.lrs[-1]:g}")
        label_ends(left, ends, 2.6)
        ends = []
        for steps, norms in drawn["last"].items():
            for name, color, norm in zip(names, colors, norms, strict=True):
                style = {"color": color, "ls": "-" if int(steps) == 1 else "--"}
                right.loglog(size.long_lrs, norm, marker="o", **style)
                text = f"{name.partition('(')[0]}, K = {steps}"
                ends.append(Label(text, size.long_lrs[0], norm[0], color))
        right.set(
            xlabel="learning rate", title=f"{size.clients} clients, random targets"
        )
        right.set_ylabel("final norm of the gradient / ζ*")
        right.autoscale_view()
        label_ends(right, ends, 2.6)
        title = "Local Muon stalls; FedMuon with bias correction converges"
        figure.suptitle(title, x=0.01, ha="left")

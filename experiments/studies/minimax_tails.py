"""Minimax under heavy-tailed noise on quadratics whose primal gradient is known.

    python -m experiments.studies.minimax_tails          # ten minutes on a core

Zhang and Gao, "Federated Stochastic Minimax Optimization Under Heavy-Tailed Noises":
normalized and orthogonalized steps converge where gradients have no second moment. The
methods run on one nonconvex-PL family (`tasks.quadratic`) with 8 clients, which all
participate, and 4 local steps. Every entry of every gradient has symmetric Pareto noise
of tail index 1.5, or Gaussian noise. y has ten times the rate of x, as in the theory;
at equal rates all methods circle around the solution. The learning rate of every method
is the best of one grid by the norm of the primal gradient, averaged over seeds and over
the last tenth of the rounds. Every seed has its own problem.
"""

import re
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.machine import machine
from experiments import dots
from experiments.arguments import call
from experiments.dots import Dot
from fedjax_muon import engine
from fedjax_muon.algorithms.minimax import ALL
from fedjax_muon.core import Objective
from fedjax_muon.core.pair import Pair
from fedjax_muon.engine import plans
from fedjax_muon.tasks import quadratic
from fedjax_muon.tasks.heavy_tails import gaussian, noisy, pareto

CLIENTS, STEPS, RATIO = 8, 4, 10.0
RATES = (0.00001, 0.00003, 0.0001, 0.0003, 0.001)
# Pareto entries have the mean absolute value 3
NOISES = {"tail index 1.5": pareto(1.5, 1.0), "Gaussian": gaussian(3.0)}
OURS, OTHERS = ("fed_nsgda_m", "fedmuon_da"), ("local_sgdam", "fedsgda_m")
METHODS = (*OURS, *OTHERS)
BAR = 0.5  # fraction of the others' norm, set before any run


def norms(name: str, noise, problem, lr, key, rounds: int) -> jax.Array:
    """Returns the norm of the primal gradient after every round."""
    objective = Objective(noisy(quadratic.gradient(problem), noise))
    algorithm = ALL[name].function(lr=Pair(lr, RATIO * lr))
    number = len(problem.B)
    state = engine.init(algorithm, quadratic.start(problem), number)
    cohort = jnp.arange(number)
    batches = jnp.broadcast_to(cohort[:, None], (number, STEPS))
    rest = cohort, batches, jnp.ones(number), key
    start = engine.make_prologue(algorithm, objective, number, plans.vmapped)
    state, _ = start(state, *rest)
    hessian, solution = quadratic.hessian(problem), quadratic.solution(problem).x
    run = engine.make_round(algorithm, objective, number, plans.vmapped)

    def body(state, _):
        state, _ = run(state, *rest)
        gradient = hessian @ (state.server.params.x - solution)
        return state, jnp.linalg.norm(gradient)

    return jax.lax.scan(body, state, None, rounds)[1]


def curves(name: str, noise, rates, seeds: int, rounds: int) -> np.ndarray:
    """Returns norms of primal gradients, [rates, seeds, rounds]."""

    @jax.jit
    def all_cells(rates, keys):
        def one(lr, key):
            problem_key, key = jax.random.split(key)
            problem = quadratic.draw_quadratic(problem_key, CLIENTS)
            return norms(name, noise, problem, lr, key, rounds)

        over_seeds = jax.vmap(one, in_axes=(None, 0))
        return jax.vmap(over_seeds, in_axes=(0, None))(rates, keys)

    keys = jax.random.split(jax.random.key(0), seeds)
    return np.asarray(all_cells(jnp.asarray(rates), keys))


def last(found: np.ndarray) -> np.ndarray:
    """Returns means over the last tenth of the rounds [rates, seeds].

    They are infinite for diverged runs.
    """
    tenth = max(1, found.shape[2] // 10)
    return np.nan_to_num(found[:, :, -tenth:].mean(2), nan=np.inf)


def best(found: np.ndarray) -> int:
    """Returns the index of the rate with the smallest mean of `last` over seeds."""
    return int(np.argmin(last(found).mean(1)))


def ratio(results) -> float:
    """Returns the worst of `OURS` over the best of `OTHERS`, in means over seeds."""
    mean = {name: last(found).mean(1).min() for name, found in results.items()}
    return float(max(mean[a] for a in OURS) / min(mean[b] for b in OTHERS))


def rows(noise: str, results) -> list[str]:
    """Returns the rows of the table, one for each method."""
    lines = []
    for name, found in results.items():
        at = best(found)
        ends = last(found)[at]
        edge = " (edge)" if at in (0, len(RATES) - 1) else ""
        numbers = f"{RATES[at]:g}{edge} | {ends.mean():.3f} | {np.median(ends):.3f}"
        lines.append(f"| {noise} | {ALL[name].label} | {numbers} | {ends.max():.3f} |")
    return lines


def draw(page: Path, path: Path, title: str = "") -> None:
    """Draws the means and the worst seeds of the table in tails.md."""
    lines = re.findall(r"^\| (.*) \|$", page.read_text(), re.M)
    shown = []
    for line in lines[1:]:
        noise, method, _, mean, _, worst = line.split(" | ")
        for series, norm in (("worst seed", worst), ("mean", mean)):
            unit = "norm of the primal gradient"
            shown.append(Dot(noise, method, float(norm), series=series, unit=unit))
    dots.draw(shown, path, title=title, note="of all seeds")


def main(
    rounds: int = 16_000, seeds: int = 10, output: Path = Path("results/minimax")
) -> None:
    """Runs the study; writes tails.md and tails.png.

    Args:
      rounds: Rounds of every run.
      seeds: Number of seeds, each with its own problem.
      output: Directory of the results.
    """
    began = time.perf_counter()
    results = {
        noise: {name: curves(name, draws, RATES, seeds, rounds) for name in METHODS}
        for noise, draws in NOISES.items()
    }
    lines = [
        "# Minimax under heavy tails",
        "",
        "| noise | method | best lr of x | mean | median | worst seed |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for noise, methods in results.items():
        lines += rows(noise, methods)
    heavy = ratio(results[next(iter(NOISES))])
    labels = [" and ".join(ALL[n].label for n in names) for names in (OURS, OTHERS)]
    about = machine("experiments.studies.minimax_tails")
    lines += [
        "",
        f"Norm of the primal gradient, averaged over the last tenth of {rounds} "
        f"rounds, {seeds} seeds. At tail index 1.5 the worse of {labels[0]} reaches "
        f"{heavy:.2f} times the norm of the better of {labels[1]}. The criterion, at "
        f"most {BAR:g}, {'holds' if heavy <= BAR else 'does not hold'}.",
        "",
        f"`{about['command']}`, {time.perf_counter() - began:.0f} seconds, "
        f"{about['cores']} cores of {about['cpu']}, jax {about['jax']}.",
        "",
        "![norm of the primal gradient at the end, by method](tails.png)",
        "",
    ]
    output.mkdir(parents=True, exist_ok=True)
    (output / "tails.md").write_text("\n".join(lines))
    draw(output / "tails.md", output / "tails.png")
    print("\n".join(lines))


if __name__ == "__main__":
    call(main, __doc__)

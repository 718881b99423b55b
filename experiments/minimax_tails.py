"""Minimax under heavy-tailed noise on quadratics whose primal gradient is known.

    python -m experiments.minimax_tails          # about three minutes on 2 cores

Zhang and Gao, Federated stochastic minimax optimization under heavy-tailed noises:
normalised and orthogonalised steps converge where gradients have no second moment. All
methods are run on one nonconvex-PL family (`problems.quadratic`, 8 clients, all of them
in every round, 4 local steps, 300 rounds), with symmetric Pareto noise of tail index
1.5 and with Gaussian noise on every gradient. For every method the learning rate is the
best of one grid, by the median over 10 seeds of the primal gradient's norm, averaged
over the last 30 rounds. Prints a Markdown table, and writes it to docs/minimax with a
figure.
"""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.figure import Figure

from fedjax_muon import engine
from fedjax_muon.minimax import ALL
from fedjax_muon.noise import gaussian, noisy, pareto
from fedjax_muon.plots import STYLE
from fedjax_muon.problems import quadratic

CLIENTS, STEPS, ROUNDS, LAST, SEEDS = 8, 4, 300, 30, 10
RATES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
NOISES = {"tail index 1.5": pareto(1.5, 0.3), "Gaussian": gaussian(1.0)}
OURS, OTHERS = ("fed_nsgda_m", "fedmuon_da"), ("local_sgdam", "fedsgda_m")
PLACE = Path("docs/minimax")


def norms(name: str, noise, problem, lr, key, rounds: int = ROUNDS) -> jax.Array:
    """Norm of the primal gradient after every round."""
    algorithm = ALL[name](noisy(quadratic.gradient(problem), noise), lr=lr)
    number = len(problem.B)
    state = engine.init(algorithm, quadratic.start(problem), number)
    everyone = jnp.arange(number)
    batches = jnp.broadcast_to(everyone[:, None], (number, STEPS))
    rest = everyone, batches, jnp.ones(number), key
    state, _ = engine.make_prologue(algorithm, number, engine.vmapped)(state, *rest)
    play = engine.make_round(algorithm, number, engine.vmapped)

    def body(state, _):
        state, _ = play(state, *rest)
        gradient = quadratic.primal_gradient(problem, state.server.params.x)
        return state, jnp.linalg.norm(gradient)

    return jax.lax.scan(body, state, None, rounds)[1]


def curves(name: str, noise, rates=RATES, seeds=SEEDS, rounds=ROUNDS) -> np.ndarray:
    """[rates, seeds, rounds]; every seed has its own problem and its own noise."""

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


def best(found: np.ndarray) -> int:
    """The rate whose median over seeds of the last rounds' mean is least."""
    last = np.nan_to_num(found[:, :, -LAST:].mean(2), nan=np.inf)
    return int(np.argmin(np.median(last, axis=1)))


def draw(results, path: Path) -> None:
    """Medians over seeds against rounds, at the best rate."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 4), layout="constrained")
        panels = figure.subplots(1, len(results), sharey=True)
        for axis, (noise, methods) in zip(panels, results.items(), strict=True):
            for i, (name, (found, at)) in enumerate(methods.items()):
                median = np.median(found[at], axis=0)
                axis.plot(median, color=f"C{i}", lw=1.3, label=ALL[name].label)
            axis.set_title(noise)
            axis.set_yscale("log")
            axis.set_xlabel("round")
        panels[0].set_ylabel("norm of the primal gradient, median of seeds")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
        figure.savefig(path, dpi=110)


def main() -> None:
    """Runs everything."""
    began = time.perf_counter()
    results = {
        label: {name: (found := curves(name, noise), best(found)) for name in ALL}
        for label, noise in NOISES.items()
    }
    lines = [
        "| noise | method | best lr | median | worst seed |",
        "|---|---|---:|---:|---:|",
    ]
    medians: dict[tuple[str, str], float] = {}
    for noise, methods in results.items():
        for name, (found, at) in methods.items():
            last = found[at][:, -LAST:].mean(1)
            medians[noise, name] = float(np.median(last))
            edge = " (edge)" if at in (0, len(RATES) - 1) else ""
            numbers = f"{RATES[at]:g}{edge} | {np.median(last):.3f} | {last.max():.3f}"
            lines.append(f"| {noise} | {ALL[name].label} | {numbers} |")
    heavy = next(iter(NOISES))
    ratio = max(medians[heavy, a] for a in OURS) / min(
        medians[heavy, b] for b in OTHERS
    )
    verdict = "holds" if ratio <= 0.5 else "does not hold"
    lines.append("")
    lines.append(
        f"Under tail index 1.5 the worse of {' and '.join(ALL[n].label for n in OURS)} "
        f"reaches {ratio:.2f} times the better of "
        f"{' and '.join(ALL[n].label for n in OTHERS)}; that it is at most half "
        f"{verdict}. `python -m experiments.minimax_tails`, "
        f"{time.perf_counter() - began:.0f} seconds."
    )
    PLACE.mkdir(parents=True, exist_ok=True)
    text = "\n".join(lines)
    print(text)
    (PLACE / "tails.md").write_text(
        f"# Minimax under heavy tails\n\n{text}\n\n![](tails.png)\n"
    )
    draw(results, PLACE / "tails.png")


if __name__ == "__main__":
    main()

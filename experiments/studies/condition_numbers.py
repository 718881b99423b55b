"""Liu et al., "FedMuon", arXiv:2510.27403, figure 4 (a): what a local optimizer costs,
and what it makes of the weight matrices.

    python -m experiments.studies.condition_numbers --data-dir DATA  # a core, 10 min

The paper says that under SGD and AdamW matrices become ill-conditioned and under Muon
they do not, and draws it beside the memory of the optimizers' states and the time, for
ViT-Tiny on CIFAR-100, without numbers. It does not say which matrices: here those of
the server's model, and how far they have moved since the start. A condition number is
the largest singular value over the least; for a model, the geometric mean over its
matrices, kernels of convolutions as matrices of [window and inputs, outputs].

The setting is that of `python -m experiments.papers.fedmuon_004 table_2` under
Dirichlet(0.1), with the learning rates that were best there on a CPU (FedMuon's: among
those that the paper has).
"""

import csv
import dataclasses
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, NamedTuple

import jax
import numpy as np
import optax
import tyro
from matplotlib.figure import Figure

from benchmarks.machine import machine
from experiments.papers import fedmuon_004
from experiments.papers.frame import Scale, shown
from experiments.papers.paper_report import interval
from fedjax_muon.runs.build import simulation_of, start_key
from fedjax_muon.runs.config import METHODS, Config, Run
from fedjax_muon.runs.errors import refusing
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.transforms import muon

RATES = {
    "fedavg": 0.1,
    "local_adamw": 0.003,
    "local_muon": 0.03,
    "fedmuon_align": 0.003,
}
RULES = {  # local ones
    "fedavg": optax.identity(),
    "local_adamw": optax.scale_by_adam(),
    "local_muon": muon(),
    "fedmuon_align": muon(),
}
EVERY = 10  # rounds between two measurements
MEASURES = {
    "weights": "condition number of the weights",
    "moves": "condition number of their moves",
    "accuracy": "test accuracy, %",
    "state": "kB of a local optimizer's state",
    "seconds": "ms a local step",
}


class Course(NamedTuple):
    """A run of one method and seed; condition numbers after every `EVERY` rounds."""

    rounds: list[int]
    weights: list[float]
    moves: list[float]
    accuracy: float
    state: int  # bytes
    seconds: float  # of a local step, but for the first call's, which compiles

    def value(self, measure: str) -> float:
        """After the last round, in the units of `MEASURES`."""
        last = {"weights": self.weights[-1], "moves": self.moves[-1]}
        scaled = {
            "accuracy": 100 * self.accuracy,
            "state": self.state / 1e3,
            "seconds": 1e3 * self.seconds,
        }
        return (last | scaled)[measure]


def condition_number(params) -> float:
    """The geometric mean over the matrices of a model."""
    matrices = [
        np.asarray(x, np.float64) for x in jax.tree.leaves(params) if x.ndim > 1
    ]
    numbers = [np.linalg.cond(x.reshape(-1, x.shape[-1])) for x in matrices]
    return float(np.exp(np.mean(np.log(numbers))))


def state_bytes(method: str, params) -> int:
    """Of the local rule's state."""
    state = jax.eval_shape(RULES[method].init, params)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))


def course(method: str, seed: int, config: Config, train) -> Course:
    """Trains, and measures on the way."""
    run = Run(method, {"lr": RATES[method]}, seed, config)
    simulation = simulation_of(run, train)
    state = simulation.init(start_key(seed))
    start = jax.tree.map(np.asarray, state.params)
    rounds, weights, moves, seconds = [0], [condition_number(start)], [np.nan], []
    while rounds[-1] < config.rounds:
        count = min(EVERY, config.rounds - rounds[-1])
        began = perf_counter()
        state, _ = jax.block_until_ready(simulation.train_rounds(state, count))
        steps = count * config.cohort_size * config.local_steps
        seconds.append((perf_counter() - began) / steps)
        params = jax.tree.map(np.asarray, state.params)
        rounds.append(rounds[-1] + count)
        weights.append(condition_number(params))
        moves.append(condition_number(jax.tree.map(np.subtract, params, start)))
    accuracy = float(simulation.evaluate(state)["test_accuracy"])
    used = state_bytes(method, start)
    return Course(
        rounds, weights, moves, accuracy, used, float(np.median(seconds[1:] or seconds))
    )


def draw(courses: dict[str, list[Course]], path: Path) -> None:
    """Condition numbers against rounds, a line for every method."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("weights", "moves"), strict=True):
        for method, runs in courses.items():
            numbers = np.array([getattr(run, name) for run in runs])
            line = np.exp(np.log(numbers).mean(0))
            (drawn,) = axes.plot(runs[0].rounds, line, label=METHODS[method].label)
            low, high = numbers.min(0), numbers.max(0)
            axes.fill_between(
                runs[0].rounds, low, high, color=drawn.get_color(), alpha=0.2, lw=0
            )
        axes.set(xlabel="round", ylabel=MEASURES[name], yscale="log")
    lines, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside right center")
    figure.savefig(path, dpi=150)


def write(courses: dict[str, list[Course]], config: Config, place: Path) -> None:
    """result.md, result.csv and result.png."""
    about = machine("experiments.studies.condition_numbers")
    seeds = len(next(iter(courses.values())))
    lines = [
        "# fedmuon_004, figure_4: condition numbers of matrices, and costs",
        "",
        f"{config.model} on {config.dataset}, Dirichlet({config.alpha:g}), after "
        f"{config.rounds} rounds; mean ± 95 % interval over {seeds} seeds.",
        "",
        f"| method | at | {' | '.join(MEASURES.values())} |",
        f"|---|---|{'---:|' * len(MEASURES)}",
    ]
    table = []
    for method, runs in courses.items():
        cells = []
        for measure, name in MEASURES.items():
            values = np.array([run.value(measure) for run in runs])
            half = interval(values)
            mean = f"{values.mean():.4g}"
            cells.append(mean if half is None else f"{mean} ± {half:.2g}")
            by_seed = " ".join(map(str, values))
            table.append((name, METHODS[method].label, values.mean(), half, by_seed))
        label = METHODS[method].label
        lines.append(f"| {label} | lr={RATES[method]:g} | {' | '.join(cells)} |")
    lines += [
        "",
        "![condition numbers against rounds](result.png)",
        "",
        "Lines are geometric means over seeds, bands their range. "
        f"`{shown('studies.condition_numbers', sys.argv[1:])}` on one core of "
        f"{about['cpu']}, jax {about['jax']}.",
        "",
    ]
    place.mkdir(parents=True, exist_ok=True)
    (place / "result.md").write_text("\n".join(lines))
    with (place / "result.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("setting", "method", "score", "interval", "by_seed"))
        writer.writerows(table)
    draw(courses, place / "result.png")


def main(
    data_dir: Path | None = None,
    scale: Annotated[Scale, tyro.conf.arg(help="as of the papers' modules")] = "cpu",
    output: Path | None = None,
) -> None:
    """Trains all methods; writes a table and a figure."""
    model = "vit_tiny" if scale == "full" else "resnet18"  # LeNet, on a CPU
    config = fedmuon_004.config(model, 0.1, scale)
    config = dataclasses.replace(config, data_dir=data_dir)
    seeds = fedmuon_004.SEEDS[: {"smoke": 1, "cpu": 3, "full": 5}[scale]]
    with refusing():
        train = dataset_of(config)
    courses = {}
    for method in RATES:
        courses[method] = [course(method, seed, config, train) for seed in seeds]
        print(method, courses[method][0], flush=True)
    write(courses, config, output or Path("runs/fedmuon_004") / f"figure_4-{scale}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)

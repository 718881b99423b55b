"""Condition numbers of weight matrices, and costs of local optimizers.

    python -m experiments.studies.condition_numbers --data-dir DATA  # a core, 10 min

This is figure 4 (a) of Liu et al., "FedMuon", arXiv:2510.27403. The paper states that
matrices become ill-conditioned under SGD and AdamW, and not under Muon. It shows this
for ViT-Tiny on CIFAR-100, with the memory of optimizer states and the time, as bars
without numbers. It does not say which matrices these are; here they are those of the
server's model, and their total updates since the start. A condition number is the
largest singular value divided by the smallest. For a model it is the geometric mean
over its matrices; convolution kernels are matrices [window and inputs, outputs].

The setting is that of `python -m experiments.papers.fedmuon_004 table_2` under
Dirichlet(0.1), with the learning rates that were best there on a CPU (FedMuon's is one
of the paper's).
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

from benchmarks.machine import machine
from experiments.papers import fedmuon_004
from experiments.papers.frame import Scale, public_command
from fedjax_muon.reporting import intervals
from fedjax_muon.reporting.style import drawing, styles
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
RULES = {  # local rules
    "fedavg": optax.identity(),
    "local_adamw": optax.scale_by_adam(),
    "local_muon": muon(),
    "fedmuon_align": muon(),
}
EVERY = 10  # rounds between two measurements
MEASURES = {
    "weights": "condition number of the weights",
    "updates": "condition number of their updates",
    "accuracy": "test accuracy, %",
    "state": "kB of a local optimizer's state",
    "seconds": "ms per local step",
}


class Result(NamedTuple):
    """A run of one method and seed; condition numbers after every `EVERY` rounds."""

    rounds: list[int]
    weights: list[float]
    updates: list[float]
    accuracy: float
    state: int  # bytes
    seconds: float  # of a local step, without the first call, which compiles

    def value(self, measure: str) -> float:
        """Returns the value after the last round, in the units of `MEASURES`."""
        last = {"weights": self.weights[-1], "updates": self.updates[-1]}
        scaled = {
            "accuracy": 100 * self.accuracy,
            "state": self.state / 1e3,
            "seconds": 1e3 * self.seconds,
        }
        return (last | scaled)[measure]


def condition_number(params) -> float:
    """Returns the geometric mean of condition numbers over a model's matrices."""
    matrices = [
        np.asarray(x, np.float64) for x in jax.tree.leaves(params) if x.ndim > 1
    ]
    numbers = [np.linalg.cond(x.reshape(-1, x.shape[-1])) for x in matrices]
    return float(np.exp(np.mean(np.log(numbers))))


def state_bytes(method: str, params) -> int:
    """Returns the bytes of the local rule's state."""
    state = jax.eval_shape(RULES[method].init, params)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))


def measured(method: str, seed: int, config: Config, train) -> Result:
    """Trains, and measures every `EVERY` rounds."""
    run = Run(method, {"lr": RATES[method]}, seed, config)
    simulation = simulation_of(run, train)
    state = simulation.init(start_key(seed))
    start = jax.tree.map(np.asarray, state.params)
    rounds, weights, updates, seconds = [0], [condition_number(start)], [np.nan], []
    while rounds[-1] < config.rounds:
        count = min(EVERY, config.rounds - rounds[-1])
        began = perf_counter()
        state, _ = jax.block_until_ready(simulation.train_rounds(state, count))
        steps = count * config.cohort_size * config.local_steps
        seconds.append((perf_counter() - began) / steps)
        params = jax.tree.map(np.asarray, state.params)
        rounds.append(rounds[-1] + count)
        weights.append(condition_number(params))
        updates.append(condition_number(jax.tree.map(np.subtract, params, start)))
    accuracy = float(simulation.evaluate(state)["test_accuracy"])
    used = state_bytes(method, start)
    median = float(np.median(seconds[1:] or seconds))
    return Result(rounds, weights, updates, accuracy, used, median)


def draw(results: dict[str, list[Result]], path: Path) -> None:
    """Draws condition numbers against rounds, one line for every method."""
    lines = styles(METHODS[method].label for method in results)
    with drawing(path, (9, 3.6)) as figure:
        both = figure.subplots(1, 2)
        for axes, name in zip(both, ("weights", "updates"), strict=True):
            for method, runs in results.items():
                numbers = np.array([getattr(run, name) for run in runs])
                line = np.exp(np.log(numbers).mean(0))
                label = METHODS[method].label
                axes.plot(runs[0].rounds, line, label=label, **lines[label])
                band = numbers.min(0), numbers.max(0)
                color = lines[label]["color"]
                axes.fill_between(runs[0].rounds, *band, color=color, alpha=0.15, lw=0)
            axes.set(xlabel="round", ylabel=MEASURES[name], yscale="log")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center")


def write(results: dict[str, list[Result]], config: Config, run_dir: Path) -> None:
    """Writes result.md, result.csv and result.png."""
    about = machine("experiments.studies.condition_numbers")
    seeds = len(next(iter(results.values())))
    lines = [
        "# fedmuon_004, figure_4: condition numbers of matrices, and costs",
        "",
        f"{config.model} on {config.dataset}, Dirichlet({config.alpha:g}), after "
        f"{config.rounds} rounds; mean ± 95% interval over {seeds} seeds.",
        "",
        f"| method | hyper-parameters | {' | '.join(MEASURES.values())} |",
        f"|---|---|{'---:|' * len(MEASURES)}",
    ]
    table = []
    for method, runs in results.items():
        cells = []
        for measure, name in MEASURES.items():
            values = np.array([run.value(measure) for run in runs])
            half = float(intervals.half_width(values))
            mean = f"{values.mean():.4g}"
            cells.append(mean if np.isnan(half) else f"{mean} ± {half:.2g}")
            by_seed = " ".join(map(str, values))
            kept = "" if np.isnan(half) else half
            table.append((name, METHODS[method].label, values.mean(), kept, by_seed))
        label = METHODS[method].label
        lines.append(f"| {label} | lr={RATES[method]:g} | {' | '.join(cells)} |")
    lines += [
        "",
        "![condition numbers against rounds](result.png)",
        "",
        "Lines are geometric means over seeds, bands their range. "
        f"`{public_command('studies.condition_numbers', sys.argv[1:])}` on one core of "
        f"{about['cpu']}, jax {about['jax']}.",
        "",
    ]
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "result.md").write_text("\n".join(lines))
    with (run_dir / "result.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("setting", "method", "score", "interval", "by_seed"))
        writer.writerows(table)
    draw(results, run_dir / "result.png")


def main(
    data_dir: Path | None = None,
    scale: Annotated[Scale, tyro.conf.arg(help="as in the papers' modules")] = "cpu",
    output: Path | None = None,
) -> None:
    """Trains all methods; writes a table and a figure."""
    model = "vit_tiny" if scale == "full" else "resnet18"  # LeNet, on a CPU
    config = fedmuon_004.config(model, 0.1, scale)
    config = dataclasses.replace(config, data_dir=data_dir)
    seeds = fedmuon_004.SEEDS[: {"smoke": 1, "cpu": 3, "full": 5}[scale]]
    with refusing():
        train = dataset_of(config)
    results = {}
    for method in RATES:
        results[method] = [measured(method, seed, config, train) for seed in seeds]
        print(method, results[method][0], flush=True)
    write(results, config, output or Path("runs/fedmuon_004") / f"figure_4-{scale}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)

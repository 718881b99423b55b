"""Client-level privacy: a comparison of ways to bound a client's update.

    python -m experiments.studies.client_privacy          # minutes on a core

Handwritten digits are divided over 100 clients by Dirichlet(1); the network 64-32-10
has no biases. Muon's updates have a known bound (`muon_bound`), so that no clip
norm has to be tuned. This is compared with clipping, with updates of fixed length, and
with Muon at the server, where it costs no privacy. Clients are drawn by Poisson
sampling, or all participate in every round. For every method, cohort and noise
multiplier z, the best point of a small grid is chosen by the mean validation accuracy
over seeds, on examples that no client has; the accounting does not cover this choice.
"""

import csv
import itertools
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from experiments.arguments import call
from experiments.machine import machine
from experiments.studies.muon_bound import muon_bound
from fedjax_muon.algorithms import fedavg
from fedjax_muon.core import Algorithm, Hyper, Number, recorded
from fedjax_muon.data import loading
from fedjax_muon.data.dataset import hold_out
from fedjax_muon.data.partition import dirichlet
from fedjax_muon.privacy import FullBatch, Poisson, report
from fedjax_muon.privacy.client_mechanism import private_clients
from fedjax_muon.privacy.client_privacy import client_spec
from fedjax_muon.runs import intervals
from fedjax_muon.runs.style import NOTE, drawing, logarithmic, styles
from fedjax_muon.simulation.cohorts import PoissonDraw, fixed_cohort, sampled
from fedjax_muon.simulation.federated import federate
from fedjax_muon.simulation.sweeps import Cell, run_cells
from fedjax_muon.tasks.classification import classification
from fedjax_muon.transforms import muon

CLIENTS, EXPECTED, ROOM = 100, 20, 40
ROUNDS, STEPS, BATCH, DELTA = 30, 4, 8, 1e-3
NOISES = (0.0, 0.3, 1.0, 3.0)
SHORT = 1e-3  # far below any update, so that all are clipped to it
MUON = muon(0.9)


class Network(nn.Module):
    """A network of matrices only, so that Muon's bound holds for the whole update."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(32, use_bias=False)(x.reshape(len(x), -1)))
        return nn.Dense(10, use_bias=False)(x)


TASK = classification(Network(), (8, 8, 1))


def unit_bound() -> float:
    """Returns Muon's bound for a learning rate of 1."""
    params = jax.eval_shape(TASK.init, jax.random.key(0))
    return muon_bound(params, lr=1.0, steps=STEPS)


def private(algorithm: Algorithm, limit, noise, cohort: int) -> Algorithm:
    """Returns the algorithm with private clients."""
    return private_clients(
        algorithm,
        clip_norm=limit,
        noise_multiplier=noise,
        clients=CLIENTS,
        cohort=cohort,
    )


# every method takes the noise, the cohort size, and the options of its grid
@recorded
def clipped(
    *, noise: Hyper = 0.0, cohort: int, lr: Hyper = 0.1, limit: Hyper = 1.0
) -> Algorithm:
    return private(fedavg(lr), limit, noise, cohort)


@recorded
def normalized(
    *, noise: Hyper = 0.0, cohort: int, lr: Hyper = 0.1, length: Number = 1.0
) -> Algorithm:
    return private(fedavg(lr, server_lr=length / SHORT), SHORT, noise, cohort)


@recorded
def local_muon(
    *, noise: Hyper = 0.0, cohort: int, lr: Number = 0.01, share: Number = 1.0
) -> Algorithm:
    return private(fedavg(lr, rule=MUON), share * lr * unit_bound(), noise, cohort)


@recorded
def server_muon(
    *, noise: Hyper = 0.0, cohort: int, limit: Hyper = 1.0, server_lr: Hyper = 0.1
) -> Algorithm:
    algorithm = fedavg(0.3, server_lr=server_lr, server_rule=MUON)
    return private(algorithm, limit, noise, cohort)


class Entry(NamedTuple):
    """A way to bound the clients' messages, and its grid."""

    label: str
    make: Callable[..., Algorithm]
    grid: Mapping[str, tuple[float, ...]]


METHODS = (
    Entry(
        "FedAvg, clipped",
        clipped,
        {"lr": (0.1, 0.3, 1.0), "limit": (0.3, 1.0, 3.0)},
    ),
    Entry(
        "FedAvg, of one length",
        normalized,
        {"lr": (0.1, 0.3, 1.0), "length": (0.3, 1.0, 3.0)},
    ),
    Entry(
        "Local Muon, clipped",
        local_muon,
        {"lr": (0.1, 0.3), "share": (0.125, 0.25, 0.5)},
    ),
    Entry(
        "Local Muon, at its bound",
        local_muon,
        {"lr": (0.03, 0.1, 0.3), "share": (1.0,)},
    ),
    Entry(
        "Muon at the server",
        server_muon,
        {"limit": (0.3, 1.0), "server_lr": (0.1, 0.3, 1.0)},
    ),
)


class Cohorts(NamedTuple):
    """Sampled clients, and their sampling in the accounting."""

    label: str
    size: int
    draw: Callable
    sampling: Any


COHORTS = (
    Cohorts(
        f"Poisson, {EXPECTED} of {CLIENTS}",
        EXPECTED,
        PoissonDraw(ROOM),
        Poisson(CLIENTS, EXPECTED, ROOM),
    ),
    Cohorts(f"all {CLIENTS}", CLIENTS, fixed_cohort, FullBatch(CLIENTS)),
)


class Result(NamedTuple):
    """The result of one run."""

    method: str
    cohort: str
    noise: float
    hyper: dict[str, float]
    seed: int
    validation: float
    test: float


def results(entry: Entry, cohorts: Cohorts, rounds: int, seeds: int) -> list[Result]:
    """Returns the results of the whole grid at all levels of noise."""
    dataset, validation = hold_out(loading.read("digits")[0], 0.2)
    key = jax.random.key(0)
    keys = [jax.random.fold_in(key, seed) for seed in range(seeds)]
    parts = [
        dirichlet(
            dataset.y_train, CLIENTS, 1.0, min_size=1, key=jax.random.fold_in(k, 1)
        )
        for k in keys
    ]
    members = sampled(cohorts.size, draw=cohorts.draw)
    sizes: dict[str, Any] = {"local_steps": STEPS, "batch_size": BATCH}
    algorithm = entry.make(cohort=cohorts.size)
    simulation = federate(algorithm, TASK, dataset, parts[0], cohort=members, **sizes)
    points = [
        (noise, dict(zip(entry.grid, values, strict=True)), seed)
        for noise in NOISES
        for values in itertools.product(*entry.grid.values())
        for seed in range(seeds)
    ]
    cells = [
        Cell({"noise": noise, **hyper}, keys[seed], parts[seed])
        for noise, hyper, seed in points
    ]
    found = run_cells(
        simulation,
        cells,
        rounds=rounds,
        evaluate_every=rounds,
        validation=validation,
        drop_nonfinite=True,
    )
    ends = [outcome.rows[-1] for group in found for outcome in group]
    return [
        Result(
            entry.label,
            cohorts.label,
            *one,
            end["validation_accuracy"],
            end["test_accuracy"],
        )
        for one, end in zip(points, ends, strict=True)
    ]


class Best(NamedTuple):
    """The best point of a grid."""

    method: str
    cohort: str
    noise: float
    hyper: dict[str, float]
    accuracy: np.ndarray  # [seeds], on the test set


def best(found: list[Result]) -> list[Best]:
    """Returns the best points of every z by mean validation accuracy over seeds."""
    chosen = []
    same = lambda r: (r.method, r.cohort, r.noise)
    for _, group in itertools.groupby(found, same):
        cells: dict[tuple, list[Result]] = {}
        for result in group:
            cells.setdefault(tuple(result.hyper.items()), []).append(result)
        score = lambda runs: np.mean([run.validation for run in runs])
        runs = max(cells.values(), key=score)
        accuracy = np.array([run.test for run in runs])
        chosen.append(Best(*runs[0][:4], accuracy))
    return chosen


def epsilons(cohorts: Cohorts, rounds: int) -> dict[float, float]:
    """Returns the epsilon of a client for every z at `DELTA`."""
    facts: dict[str, Any] = {"rounds": rounds, "delta": DELTA}
    facts |= {"prologue": False, "private_states": False}  # of FedAvg with any rule
    spec = partial(client_spec, cohorts.sampling, **facts)
    return {z: report(spec(noise_multiplier=z)).epsilon for z in NOISES}


def table(chosen: list[Best], cohorts: Cohorts, rounds: int) -> list[str]:
    """Returns test accuracies in percent as Markdown: mean and standard deviation."""
    spent = epsilons(cohorts, rounds)
    heads = [f"z = {z:g}, epsilon {spent[z]:.3g}" for z in NOISES]
    lines = [
        f"## {cohorts.label} in every round",
        "",
        f"| method | {' | '.join(heads)} |",
        f"|---|{'---:|' * len(heads)}",
    ]
    for entry in METHODS:
        here = (entry.label, cohorts.label)
        row = [b for b in chosen if (b.method, b.cohort) == here]
        cells = [
            f"{100 * b.accuracy.mean():.1f} ± {100 * b.accuracy.std():.1f}" for b in row
        ]
        lines.append(f"| {entry.label} | {' | '.join(cells)} |")
    return [*lines, ""]


def marked(chosen: Best) -> list[str]:
    """Returns the hyper-parameters, and marks those at an edge of their grid."""
    grid = next(entry.grid for entry in METHODS if entry.label == chosen.method)
    ends = {name: (min(tried), max(tried)) for name, tried in grid.items()}
    at_edge = lambda name, value: len(grid[name]) > 1 and value in ends[name]
    return [
        f"{name} {value:g}" + " (edge)" * at_edge(name, value)
        for name, value in chosen.hyper.items()
    ]


SHOWN = {  # labels in the figure
    "FedAvg, of one length": "FedAvg, scaled to one norm",
    "Local Muon, at its bound": "Local Muon, at its largest norm",
}


def draw(chosen: list[Best], path: Path, rounds: int = ROUNDS) -> None:
    """Draws accuracy against epsilon, one panel for each kind of cohort."""
    with drawing(path, (9.5, 3.8)) as figure:
        panels = figure.subplots(1, len(COHORTS), sharex=True, sharey=True)
        lines = styles(entry.label for entry in METHODS)
        for axis, cohorts in zip(panels, COHORTS, strict=True):
            spent = epsilons(cohorts, rounds)
            for entry in METHODS:
                here = (entry.label, cohorts.label)
                row = [b for b in chosen if (b.method, b.cohort) == here and b.noise]
                runs = 100 * np.array([b.accuracy for b in row])
                x, means = [spent[b.noise] for b in row], runs.mean(1)
                half, how = intervals.half_width(runs.T), lines[entry.label]
                label = SHOWN.get(entry.label, entry.label)
                axis.errorbar(x, means, half, label=label, **how)
                for place, mean, b in zip(x, means, row, strict=True):
                    at_edge = any("edge" in words for words in marked(b))
                    inside = "none" if at_edge else how["color"]
                    axis.plot(place, mean, "o", ms=5, color=how["color"], mfc=inside)
            axis.set_title(f"{cohorts.label} in every round")
            axis.set_xlabel("epsilon of a client")
        logarithmic(panels[0], list(spent.values())[1:])
        panels[0].set_ylabel("test accuracy, %")
        title = "Without a clip below its bound, Local Muon loses most to the noise"
        figure.suptitle(title, x=0.01, ha="left")
        note = (
            f"{intervals.WORDS}; hollow: the best rate or norm is at an end of its grid"
        )
        figure.supxlabel(note, fontsize=7.5, color=NOTE)
        legend = panels[0].get_legend_handles_labels()
        figure.legend(*legend, loc="outside right center")


def read(path: Path) -> list[Result]:
    """Reads what `write` wrote."""
    with path.open(newline="") as file:
        return [
            Result(
                *(line["method"], line["cohort"], float(line["z"])),
                {k: float(v) for k, v in (w.split("=") for w in line["hyper"].split())},
                *(int(line["seed"]), float(line["validation"]), float(line["test"])),
            )
            for line in csv.DictReader(file)
        ]


def write(found: list[Result], path: Path) -> None:
    """Writes one line per run."""
    with path.open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        names = ("method", "cohort", "z", "hyper", "seed", "validation", "test")
        lines.writerow(names)
        for result in found:
            hyper = " ".join(f"{k}={v:g}" for k, v in result.hyper.items())
            scores = f"{result.validation:.4f}", f"{result.test:.4f}"
            lines.writerow((*result[:3], hyper, result.seed, *scores))


def main(
    rounds: int = ROUNDS, seeds: int = 5, output: Path = Path("results/privacy")
) -> None:
    """Runs the study; writes clients.csv, clients.md and clients.png.

    Args:
      rounds: Rounds of every run.
      seeds: Number of seeds, of partitions, initial parameters and noise.
      output: Directory of the results.
    """
    began = time.perf_counter()
    found = []
    for entry, cohorts in itertools.product(METHODS, COHORTS):
        found += results(entry, cohorts, rounds, seeds)
        print(entry.label, cohorts.label, f"{time.perf_counter() - began:.0f} s")
    chosen = best(found)
    lines = ["# Client-level privacy: bounds on updates", ""]
    for cohorts in COHORTS:
        lines += table(chosen, cohorts, rounds)
    about = machine("experiments.studies.client_privacy")
    lines += [
        f"Test accuracy in percent, mean ± standard deviation of {seeds} seeds, after "
        f"{rounds} rounds of {STEPS} local steps. Delta is {DELTA:g}; neighboring data "
        "sets differ by one client with all its examples. z is the noise multiplier of "
        "a round. Every cell is the best of a small grid, chosen on examples that no "
        "client has; the accounting does not cover this choice. Every seed has other "
        "clients, so epsilon is that of one run: the runs of several seeds do not "
        "compose.",
        "",
        "Chosen grid points:",
        "",
        "| cohort | method | z | hyper-parameters |",
        "|---|---|---:|---|",
    ]
    for b in chosen:
        hyper = ", ".join(marked(b))
        lines.append(f"| {b.cohort} | {b.method} | {b.noise:g} | {hyper} |")
    lines += [
        "",
        f"`{about['command']}`, {time.perf_counter() - began:.0f} seconds, "
        f"{about['cores']} cores of {about['cpu']}, jax {about['jax']}.",
        "",
        "![test accuracy against epsilon](clients.png)",
        "",
    ]
    output.mkdir(parents=True, exist_ok=True)
    write(found, output / "clients.csv")
    (output / "clients.md").write_text("\n".join(lines))
    draw(chosen, output / "clients.png", rounds)
    print("\n".join(lines))


if __name__ == "__main__":
    call(main, __doc__)

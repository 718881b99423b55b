"""The methods of the DPMixSGD paper at equal privacy, on its problems.

    python -m experiments.papers.dpmixsgd_equal --data-dir DATA

Every private method clips the gradients of examples. It has the least noise that makes
all releases of an agent (epsilon, delta)-private for one of its examples, whatever its
neighbors do (docs/privacy.md). There are 5 agents on a random graph, and delta is 1e-5.
Learning rates are the best of seven by the AUC on a tenth of the training examples,
with one seed, for each epsilon; the accounting does not cover this choice. Every
finished run is written to disk, and the same command resumes an interrupted comparison.

Robust logistic regression has one weight per agent here. With one per example, the
gradient of an example is 30,000 times larger in its own weight than in the model, and
clipping both together would remove the model's part.
"""

import dataclasses
import functools
import math
from pathlib import Path

import jax
import numpy as np
import tyro

from benchmarks.machine import machine
from experiments.papers.dpmixsgd_002 import COLUMNS, STORM, mean_and_spread, read_rows
from experiments.papers.dpmixsgd_jobs import Job, Problem, logistic, mlp, paired
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized import ALL
from fedjax_muon.decentralized.private import (
    PRIVATE,
    Mechanism,
    calibrate,
    noise_scale_of,
)
from fedjax_muon.decentralized.simulation import Simulation, decentralize
from fedjax_muon.privacy import Cyclic, Poisson
from fedjax_muon.reporting import metrics_csv, plots
from fedjax_muon.runs.errors import refusing
from fedjax_muon.simulation import training
from fedjax_muon.simulation.batching import always, cyclic, poisson, shuffled_epochs

REFERENCES = ("dsgda", "dm_hsgd")
AGENTS, CONNECTIVITY, DELTA, BETA = 5, 0.5, 1e-5, 0.1
RATES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
JOBS = {
    "a8a": logistic("a8a", "agents"),
    "a9a": logistic("a9a", "agents"),
    "ijcnn1": mlp("ijcnn1"),
    "mnist": mlp("mnist"),
    "fashion_mnist": mlp("fashion_mnist"),
}


def mechanism(job: Job) -> Mechanism:
    """Returns the clip norms: near the median norm of an example's first gradient.

    The clip norm of changes is a tenth of it.
    """
    clip_norm = 0.2 if job.kind == "mlp" else 1.0
    return Mechanism(clip_norm, clip_norm / 10, BETA, job.batch_size)


def room(job: Job) -> int:
    """Returns the largest Poisson batch: 8 standard deviations above its mean."""
    return job.batch_size + math.ceil(8 * math.sqrt(job.batch_size))


class Runner:
    """Runs cells; cells that differ in numbers only share compiled programs."""

    def __init__(self, data_dir: Path | None):
        self.problem = functools.cache(
            lambda job, validate: Problem(job, AGENTS, data_dir, validate)
        )
        self.simulation = functools.cache(self._simulation)
        self.noise = functools.cache(self._noise)

    def _noise(self, job: Job, name: str, epsilon: float) -> float:
        examples = self.problem(job, False).fewest
        sampling = (
            Poisson(examples, job.batch_size, max_batch=room(job))
            if PRIVATE[name].amplified
            else Cyclic(examples, job.batch_size)
        )
        steps = job.iterations + 1
        return noise_scale_of(
            calibrate(name, mechanism(job), epsilon, sampling, steps=steps, delta=DELTA)
        )

    def _simulation(self, job: Job, name: str, validate: bool) -> Simulation:
        problem = self.problem(job, validate)
        if name in REFERENCES:
            rest = {"beta": BETA} if name in STORM else {}
            algorithm = ALL[name].function(**rest)
            sampler = always(shuffled_epochs)
        else:
            method = PRIVATE[name]
            algorithm = method.build(mechanism(job), 1.0, Pair(0.1, 0.1))
            sampler = always(poisson(room(job))) if method.amplified else cyclic
        return decentralize(
            algorithm,
            problem.task,
            problem.dataset,
            problem.parts(0),
            weights=problem.weights(0, 1.0),
            batch_size=job.batch_size,
            sampler=sampler,
        )

    def auc(self, job, name, epsilon, seed, lr, validate=False) -> float:
        """Returns the test or validation AUC at the end of a run."""
        problem = self.problem(job, validate)
        hyper = paired({"lr_x": lr, "lr_y": lr})
        if name not in REFERENCES:
            hyper |= {"noise_scale": self.noise(job, name, epsilon)}
        simulation = self.simulation(job, name, validate).vary(
            parts=problem.parts(seed),
            weights=problem.weights(seed, CONNECTIVITY),
            hyper=hyper,
        )
        rounds = job.iterations
        _, rows = training.train(
            simulation,
            simulation.init(jax.random.key(seed)),
            rounds=rounds,
            evaluate_every=rounds,
            drop_nonfinite=True,
        )
        return rows[-1]["test_auc"]

    def tuned(self, job: Job, name: str, epsilon: float) -> float:
        """Returns the best learning rate by validation."""
        scores = [self.auc(job, name, epsilon, 0, lr, validate=True) for lr in RATES]
        return RATES[int(np.argmax(np.nan_to_num(scores, nan=-1.0)))]


def run(runner: Runner, job: Job, epsilons, seeds: int, path: Path) -> None:
    """Runs the cells that the file does not have yet."""
    known = {tuple(row[column] for column in COLUMNS) for row in read_rows(path)}
    runs = [(name, math.inf) for name in REFERENCES]
    runs += [(name, epsilon) for name in PRIVATE for epsilon in epsilons]
    for name, epsilon in runs:
        about = [
            (job.dataset, "epsilon", f"{epsilon:g}", name, str(seed))
            for seed in range(seeds)
        ]
        if known.issuperset(about):
            continue
        lr = runner.tuned(job, name, epsilon)
        for seed, row in enumerate(about):
            if row not in known:
                score = runner.auc(job, name, epsilon, seed, lr)
                row_of = dict(zip(COLUMNS, row, strict=True))
                metrics_csv.append(path, row_of | {"auc": score, "lr": lr})
        print(job.dataset, name, epsilon, lr, flush=True)


def label(name: str) -> str:
    """Returns a method's label in tables."""
    return ALL[name].label if name in REFERENCES else PRIVATE[name].label


def report(run_dir: Path, seeds: int) -> str:
    """Returns a table for every data set as Markdown, and draws a figure."""
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for row in read_rows(run_dir / "runs.csv"):
        runs = found.setdefault(row["dataset"], {})
        runs.setdefault((row["method"], row["value"]), []).append(float(row["auc"]))
    epsilons = list(dict.fromkeys(e for runs in found.values() for _, e in runs))
    about = machine("experiments.papers.dpmixsgd_equal")
    lines = [
        "# At equal privacy",
        "",
        f"Test AUC, mean ± standard deviation over {seeds} seeds, of {AGENTS} agents "
        f"on random graphs at delta {DELTA:g}; `{about['command']}` on "
        f"{about['cores']} cores of {about['cpu']}, jax {about['jax']}.",
    ]
    for dataset, runs in found.items():
        lines += ["", f"## {dataset}", ""]
        heads = " | ".join(f"epsilon {e}" for e in epsilons)
        lines += [f"| method | {heads} |", "|---|" + "---:|" * len(epsilons)]
        curves: dict[str, dict[float, list[float]]] = {}
        for name in dict.fromkeys(name for name, _ in runs):
            cells = []
            for epsilon in epsilons:
                scores = runs.get((name, epsilon), [])
                cells.append(mean_and_spread(scores))
                if scores:
                    curves.setdefault(label(name), {})[float(epsilon)] = scores
            lines.append(f"| {label(name)} | {' | '.join(cells)} |")
        figure = f"equal_{dataset}.png"
        plots.utility(curves, run_dir / figure, title=f"{dataset}, delta {DELTA:g}")
        lines += ["", f"![test AUC against epsilon on {dataset}]({figure})"]
    return "\n".join([*lines, ""])


def main(
    data_dir: Path | None = None,
    datasets: tuple[str, ...] = tuple(JOBS),
    epsilons: tuple[float, ...] = (1.0, 8.0),
    iterations: int | None = None,
    seeds: int = 5,
    output: Path = Path("runs/dpmixsgd_equal"),
) -> None:
    """Compares the methods at equal epsilon.

    Args:
      data_dir: Directory of the data sets' files; by default the environment variable
        FEDJAX_MUON_DATA.
      datasets: Some of a8a, a9a, ijcnn1, mnist and fashion_mnist.
      epsilons: Epsilons of all iterations together, for one example of an agent.
      iterations: Iterations after the first; by default 500, and 200 for the MLP.
      seeds: Number of seeds, of partitions, graphs, parameters, batches and noise.
      output: Directory; existing runs in it are reused.
    """
    with refusing():
        for name in datasets:
            if name not in JOBS:
                raise ValueError(f"there are {', '.join(JOBS)}, got {name!r}")
        runner = Runner(data_dir)
        output.mkdir(parents=True, exist_ok=True)
        for name in datasets:
            job = JOBS[name]
            if iterations is not None:
                job = dataclasses.replace(job, iterations=iterations)
            run(runner, job, epsilons, seeds, output / "runs.csv")
    text = report(output, seeds)
    (output / "equal.md").write_text(text)
    print(text)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)

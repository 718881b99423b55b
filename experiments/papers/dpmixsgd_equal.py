"""The methods of the DPMixSGD paper and DP-FTRL at equal privacy, on its problems.

    python -m experiments.papers.dpmixsgd_equal --data-dir DATA

Every private method clips the gradients of examples. It has the least noise that makes
all releases of an agent (epsilon, delta)-private for one of its examples, whatever its
neighbors do (docs/privacy.md). There are 5 agents on a random graph, and delta is 1e-5.
Batch size, clip norm and learning rate are the best of a grid, the same for all
methods, by the AUC on a tenth of the training examples, with one seed, for each
epsilon; the accounting does not cover this choice. Every finished run is written to
disk, and the same command resumes an interrupted comparison. Batches and noise are
drawn from the seed, so that all runs can be repeated; such runs have no privacy.

Robust logistic regression has one weight per agent here. With one per example, the
gradient of an example is 30,000 times larger in its own weight than in the model, and
clipping both together would remove the model's part.
"""

import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro

from benchmarks.machine import machine
from experiments import dots
from experiments.papers.dpmixsgd_002 import COLUMNS, STORM, mean_and_spread, read_rows
from experiments.papers.dpmixsgd_jobs import Job, Problem, logistic, mlp, paired
from experiments.papers.frame import public_command
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized import ALL
from fedjax_muon.decentralized.agent_privacy import AgentPrivacy
from fedjax_muon.decentralized.private import PRIVATE, Mechanism
from fedjax_muon.decentralized.simulation import Simulation, decentralize
from fedjax_muon.privacy import Banded, best_banded
from fedjax_muon.reporting import intervals, metrics_csv
from fedjax_muon.runs.errors import refusing
from fedjax_muon.simulation import training
from fedjax_muon.simulation.batching import always, shuffled_epochs

REFERENCES = ("dsgda", "dm_hsgd")
METHODS = ("dp_sgda", "dp_ftrl", "dpmixsgd", "private_storm")
OURS = "dp_ftrl"  # compared with the others in pairs of runs on the same seed
AGENTS, CONNECTIVITY, DELTA, BETA = 5, 0.5, 1e-5, 0.1
RATES = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
CLIPS = (1.0, 3.0)  # over `clip_norm`
JOBS = {
    "a8a": logistic("a8a", "agents"),
    "a9a": logistic("a9a", "agents"),
    "ijcnn1": mlp("ijcnn1"),
    "mnist": mlp("mnist"),
    "fashion_mnist": mlp("fashion_mnist"),
}
# gradients of single examples of images need too much memory in large batches
BATCHES = {"a8a": (20, 256), "a9a": (20, 256), "ijcnn1": (64, 256)}


class Point(NamedTuple):
    """A point of the grid."""

    lr: float
    batch_size: int
    clip: float  # over `clip_norm`


def clip_norm(job: Job) -> float:
    """Returns a norm near the median of an example's first gradient."""
    return 0.2 if job.kind == "mlp" else 1.0


def mechanism(job: Job, point: Point, strategy: Banded | None = None) -> Mechanism:
    """Returns how examples are bounded; changes are clipped to a tenth."""
    norm = point.clip * clip_norm(job)
    return Mechanism(norm, norm / 10, BETA, point.batch_size, strategy)


def grid(job: Job, name: str) -> list[Point]:
    """Returns the points that are tried, as many for every private method."""
    sizes = BATCHES.get(job.dataset, (job.batch_size,))
    if name in REFERENCES:
        return [Point(lr, job.batch_size, 1.0) for lr in RATES]
    return [Point(*one) for one in itertools.product(RATES, sizes, CLIPS)]


class Runner:
    """Runs cells; cells that differ in numbers only share compiled programs."""

    def __init__(self, data_dir: Path | None):
        self.problem = functools.cache(
            lambda job, validate: Problem(job, AGENTS, data_dir, validate)
        )
        self.simulation = functools.cache(self._simulation)
        self.noise = functools.cache(self._noise)
        self.strategy = functools.cache(self._strategy)

    def privacy(
        self,
        job: Job,
        name: str,
        point: Point,
        strategy: Banded | None,
        **noise: Any,
    ) -> AgentPrivacy:
        """Returns the mechanism of a method, by `epsilon` or by `noise_scale`."""
        size = point.batch_size
        return AgentPrivacy(
            PRIVATE[name],
            mechanism(job, point, strategy),
            rounds=job.iterations,
            delta=DELTA,
            max_batch=size + math.ceil(8 * math.sqrt(size)),
            insecure_fixed_noise=True,
            **noise,
        )

    def _strategy(
        self, job: Job, name: str, size: int, epsilon: float
    ) -> Banded | None:
        """Returns the correlation of DP-FTRL's noise, which is not tuned on data."""
        if name != "dp_ftrl":
            return None
        examples, steps = self.problem(job, True).fewest, job.iterations + 1
        return best_banded(examples, size, steps, epsilon=epsilon, delta=DELTA)

    def _noise(
        self,
        job: Job,
        name: str,
        point: Point,
        strategy: Banded | None,
        epsilon: float,
    ) -> float:
        examples = self.problem(job, False).fewest
        privacy = self.privacy(job, name, point, strategy, epsilon=epsilon)
        return privacy.calibrated([examples]).noise_scale

    def _simulation(
        self,
        job: Job,
        name: str,
        point: Point,
        strategy: Banded | None,
        validate: bool,
    ) -> Simulation:
        problem = self.problem(job, validate)
        given: dict[str, Any] = {
            "batch_size": point.batch_size,
            "sampler": always(shuffled_epochs),
        }
        if name in REFERENCES:
            rest = {"beta": BETA} if name in STORM else {}
            algorithm = ALL[name].function(**rest)
        else:
            algorithm = PRIVATE[name].base(lr=Pair(0.1, 0.1))
            privacy = self.privacy(job, name, point, strategy, noise_scale=1.0)
            given = {"privacy": privacy}
        return decentralize(
            algorithm,
            problem.task,
            problem.dataset,
            problem.parts(0),
            weights=problem.weights(0, 1.0),
            **given,
        )

    def auc(self, job, name, epsilon, seed, point, validate=False) -> float:
        """Returns the test or validation AUC at the end of a run."""
        problem = self.problem(job, validate)
        changes: dict[str, Any] = {}
        strategy = self.strategy(job, name, point.batch_size, epsilon)
        if name not in REFERENCES:
            # that of the whole training set, also where a tenth of it is left out
            unit = point._replace(lr=0.0, clip=1.0)
            scale = self.noise(job, name, unit, strategy, epsilon)
            if name == "dpmixsgd":  # a standard deviation, not a multiplier
                scale *= point.clip
            noise = {"noise_scale": scale}
            changes["privacy"] = self.privacy(job, name, point, strategy, **noise)
        first = self.simulation(job, name, point._replace(lr=0.0), strategy, validate)
        simulation = first.vary(
            parts=problem.parts(seed),
            weights=problem.weights(seed, CONNECTIVITY),
            hyper=paired({"lr_x": point.lr, "lr_y": point.lr}),
            **changes,
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

    def tuned(self, job: Job, name: str, epsilon: float) -> Point:
        """Returns the best point of the grid by validation."""
        points = grid(job, name)
        scores = [self.auc(job, name, epsilon, 0, one, validate=True) for one in points]
        return points[int(np.argmax(np.nan_to_num(scores, nan=-1.0)))]


def run(runner: Runner, job: Job, epsilons, seeds: int, path: Path) -> None:
    """Runs the cells that the file does not have yet."""
    known = {tuple(row[column] for column in COLUMNS) for row in read_rows(path)}
    runs = [(name, math.inf) for name in REFERENCES]
    runs += [(name, epsilon) for name in METHODS for epsilon in epsilons]
    for name, epsilon in runs:
        about = [
            (job.dataset, "epsilon", f"{epsilon:g}", name, str(seed))
            for seed in range(seeds)
        ]
        if known.issuperset(about):
            continue
        point = runner.tuned(job, name, epsilon)
        for seed, row in enumerate(about):
            if row not in known:
                score = runner.auc(job, name, epsilon, seed, point)
                row_of = dict(zip(COLUMNS, row, strict=True))
                metrics_csv.append(path, row_of | {"auc": score} | point._asdict())
        print(job.dataset, name, epsilon, point, flush=True)


def label(name: str) -> str:
    """Returns a method's label in tables."""
    return ALL[name].label if name in REFERENCES else PRIVATE[name].label


def difference(ours: list[float], others: list[float]) -> str:
    """Returns the mean difference of paired runs and its 95% interval, in points."""
    pairs = 100 * (np.array(ours) - np.array(others))
    return f"{pairs.mean():+.1f} ± {intervals.half_width(pairs):.1f}"


Cells = dict[tuple[str, str], list[float]]  # AUC of all seeds by method and epsilon


def table(cells: Cells, epsilons: list[str]) -> list[str]:
    """Returns the table of a data set, with the lead of `OURS` over each method."""
    heads = [f"epsilon {e}" for e in epsilons]
    leads = [f"lead at {e}" for e in epsilons if e != "inf"]
    lines = [f"| method | {' | '.join([*heads, *leads])} |"]
    lines.append("|---|" + "---:|" * len([*heads, *leads]))
    for name in dict.fromkeys(name for name, _ in cells):
        row = [mean_and_spread(cells.get((name, e), [])) for e in epsilons]
        for e in epsilons:
            if e == "inf":
                continue
            ours, others = cells.get((OURS, e), []), cells.get((name, e), [])
            paired = name != OURS and len(ours) == len(others) > 1
            row.append(difference(ours, others) if paired else "")
        lines.append(f"| {label(name)} | {' | '.join(row)} |")
    return lines


def draw(rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """Draws the test AUC of all methods, a panel for every data set."""
    runs: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        key = row["dataset"], row["method"], row["value"]
        runs.setdefault(key, []).append(100 * float(row["auc"]))
    shown = [
        dots.dot(name, label(method), aucs, f"epsilon {e}" if e != "inf" else "", "AUC")
        for (name, method, e), aucs in runs.items()
    ]
    title = f"Test AUC in % at equal privacy, delta {DELTA:g}"
    dots.draw(shown, path, title=title)


def report(run_dir: Path, seeds: int) -> str:
    """Returns a table for every data set as Markdown, and draws a figure."""
    found: dict[str, Cells] = {}
    for row in read_rows(run_dir / "runs.csv"):
        runs = found.setdefault(row["dataset"], {})
        runs.setdefault((row["method"], row["value"]), []).append(float(row["auc"]))
    epsilons = list(dict.fromkeys(e for runs in found.values() for _, e in runs))
    about = machine("experiments.papers.dpmixsgd_equal")
    command = public_command("papers.dpmixsgd_equal", sys.argv[1:])
    lines = [
        "# At equal privacy",
        "",
        f"Test AUC, mean ± standard deviation over {seeds} seeds, of {AGENTS} agents "
        f"on random graphs at delta {DELTA:g}; `{command}` on "
        f"{about['cores']} cores of {about['cpu']}, jax {about['jax']}. Leads are "
        f"those of {label(OURS)} over a method, in points of AUC: the mean of paired "
        "differences and its 95% interval.",
    ]
    lines += ["", "![test AUC against epsilon, a panel for each data set](equal.png)"]
    for dataset, runs in found.items():
        lines += ["", f"## {dataset}", "", *table(runs, epsilons)]
    draw(read_rows(run_dir / "runs.csv"), run_dir / "equal.png")
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

"""The tables of "Decentralized minimax with privacy, DPMixSGD", as in the paper.

    python -m experiments.papers.dpmixsgd_002 table_2 --data-dir DATA
    python -m experiments.papers.dpmixsgd_002 table_2 --kind agents --data-dir DATA
    python -m experiments.papers.dpmixsgd_002 table_3 --data-dir DATA
    python -m experiments.papers.dpmixsgd_002 table_4 --data-dir DATA
    python -m experiments.papers.dpmixsgd_002 table_4 --scale smoke

Test AUC of D-SGDA ("SGDA"), DP-SGDA, DM-HSGD and DPMixSGD. By default there are 5
agents on a random graph and privacy budgets theta and gamma; each panel changes one of
these. Learning rates and beta are the best of the paper's sets by the AUC on a tenth of
the training examples, in the first column with one seed. Every finished cell is written
to disk, and the same command resumes an interrupted table.
`experiments.papers.dpmixsgd_equal` compares the methods at equal privacy, which these
tables do not.

None of these runs is private: no gradient of an example is clipped, and the noise is
scaled as in the paper. The methods are `dp_sgda_unclipped` and `dpmixsgd_unclipped`.
DPMixSGD's noise is that of Theorem 3 with the constant that makes it 1 in the first
column; with the theorem's own constant it would be above 10^6. DP-SGDA's is that of its
paper, sqrt(T log(1/gamma)) / (n theta), with n the examples of an agent.
"""

import csv
import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.arguments import call
from experiments.machine import machine
from experiments.papers.dpmixsgd_jobs import Job, Problem, logistic, mlp, paired
from experiments.papers.frame import Scale
from experiments.papers.theorem_3 import theorem_3_constant, theorem_3_sigma
from fedjax_muon.cli.main import ending
from fedjax_muon.core import Hyper, recorded
from fedjax_muon.decentralized import ALL
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.simulation import Simulation, decentralize
from fedjax_muon.privacy.clipping import clipped
from fedjax_muon.runs import metrics_csv
from fedjax_muon.simulation import training
from fedjax_muon.tasks.task import Batch

Table = Literal["table_2", "table_3", "table_4"]
METHODS = ("dsgda", "dp_sgda_unclipped", "dm_hsgd", "dpmixsgd_unclipped")
STORM = ("dm_hsgd", "dpmixsgd_unclipped")
NOISY = ("dp_sgda_unclipped", "dpmixsgd_unclipped")
CLIPPED = {"dpmixsgd_clipped_batches": "dpmixsgd_unclipped"}  # in table 3
PRINTED = {  # names in the file of published numbers
    "dp_sgda_unclipped": "dp_sgda",
    "dpmixsgd_unclipped": "dpmixsgd",
    "dpmixsgd_clipped_batches": "dpmixsgd_clip",
}
PANELS: dict[str, dict[str, Any]] = {
    "agents": {"5": 5, "10": 10, "15": 15, "20": 20},
    "connectivity": {"0.2": 0.2, "0.5": 0.5, "0.8": 0.8, "1.0": 1.0},
    "theta": {"0.005": 0.005, "0.01": 0.01, "0.05": 0.05, "0.1": 0.1},
    "gamma": {f"1/{n}": 1 / n for n in (60000, 30000, 5000, 1000)},
}
COLUMNS = ("dataset", "panel", "value", "method", "seed")
PUBLISHED = Path(__file__).parent / "dpmixsgd_002_published.csv"


class Cell(NamedTuple):
    """Values that the panels change.

    The paper does not state its defaults; these are the values on which most panels of
    a table agree.
    """

    agents: int = 5
    connectivity: float = 0.5
    theta: float = 0.01
    gamma: float = 1 / 30000


def sigma(name: str, job: Job, cell: Cell, examples: int) -> float:
    """Returns the standard deviation of a method's noise."""
    first = Cell()
    budgets = first.theta, first.gamma
    if name == "dpmixsgd_unclipped":
        steps = job.iterations
        constant = theorem_3_constant(1.0, steps, first.agents, *budgets)
        return theorem_3_sigma(steps, cell.agents, cell.theta, cell.gamma, constant)
    if name == "dp_sgda_unclipped":
        root = math.sqrt(job.iterations * math.log(1 / cell.gamma))
        return root / (examples * cell.theta)
    return 0.0


@recorded
def clip_batches(algorithm: Gossip, limit: Hyper = math.inf) -> Gossip:
    """Returns the algorithm with the gradients of batches clipped as a whole."""

    def bounded(objective):
        grad = lambda *batch: clipped(limit, objective.grad(*batch))
        return objective._replace(grad=grad)

    return Gossip(
        lambda objective, *rest: algorithm.start(bounded(objective), *rest),
        lambda objective, *rest: algorithm.step(bounded(objective), *rest),
    )


class Runner:
    """Runs cells; cells that differ in numbers only share compiled programs."""

    def __init__(self, data_dir: Path | None):
        self.problem = functools.cache(
            lambda job, agents, validate: Problem(job, agents, data_dir, validate)
        )
        self.simulation = functools.cache(self._simulation)

    def _simulation(
        self, job: Job, name: str, agents: int, validate: bool
    ) -> Simulation:
        problem = self.problem(job, agents, validate)
        first = job.batch_size
        if name in STORM:
            first = min(job.first_size, problem.fewest)
        return decentralize(
            clip_batches(ALL[name].function()),
            problem.task,
            problem.dataset,
            problem.parts(0),
            weights=problem.weights(0, 1.0),
            batch_size=job.batch_size,
            first_size=first,
        )

    def trained(self, job, name, cell, seed, hyper, validate=False):
        """Returns the simulation of a cell, its last state, and its AUC."""
        problem = self.problem(job, cell.agents, validate)
        simulation = self.simulation(job, name, cell.agents, validate)
        level = sigma(name, job, cell, problem.fewest)
        noise = {"sigma": level} if name in NOISY else {}
        simulation = simulation.at(
            parts=problem.parts(seed),
            weights=problem.weights(seed, cell.connectivity),
            hyper={"limit": math.inf} | noise | paired(hyper),
        )
        state = simulation.init(jax.random.key(seed))
        rounds = job.iterations
        state, rows = training.run(
            simulation, state, rounds=rounds, evaluate_every=rounds, drop_nonfinite=True
        )
        return simulation, state, rows[-1]["test_auc"]

    def tuned(self, job: Job, name: str, cell: Cell) -> dict[str, float]:
        """Returns the best of the paper's sets by validation."""
        grid = {"lr_x": job.rates, "lr_y": job.rates}
        grid |= {"beta": job.betas} if name in STORM else {}
        points = [
            dict(zip(grid, values, strict=True))
            for values in itertools.product(*grid.values())
        ]
        scores = [
            self.trained(job, name, cell, 0, point, validate=True)[2]
            for point in points
        ]
        return points[int(np.argmax(np.nan_to_num(scores, nan=-1.0)))]

    def limit(self, job: Job, cell: Cell, hyper: dict[str, float]) -> float:
        """Returns the norm that a fifth of the batches' gradients exceed.

        Gradients are taken at the last parameters of DM-HSGD.
        """
        simulation, state, _ = self.trained(job, "dm_hsgd", cell, 0, hyper)
        problem = self.problem(job, cell.agents, False)
        mean = jax.tree.map(lambda x: x.mean(0), state.params)
        rows = jax.random.choice(
            jax.random.key(1), len(problem.dataset.y_train), (256, job.batch_size)
        )

        def norm(ids):
            x, y = simulation.clients.x[ids], simulation.clients.y[ids]
            batch = Batch(x, y, jnp.ones(len(ids)), ids=ids)
            g = problem.task.grad(mean, batch, jax.random.key(0))
            return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(g)))

        return float(jnp.quantile(jax.lax.map(norm, rows), 0.8))


class Entry(NamedTuple):
    """One number of a table."""

    panel: str
    value: str  # of the quantity that the panel changes, as printed
    method: str
    cell: Cell
    hyper: dict[str, float]


def panels(table: Table, scale: Scale = "full") -> Iterator[tuple[str, str, str, Cell]]:
    """Yields panel, value, method and cell of tables 2 and 4.

    A smoke test has the first value of every panel only.
    """
    usual = Cell(connectivity=0.8) if table == "table_4" else Cell()
    for panel, values in PANELS.items():
        for value, number in list(values.items())[: 1 if scale == "smoke" else None]:
            cell = usual._replace(**{panel: number})
            yield from ((panel, value, name, cell) for name in METHODS)


def entries(
    runner: Runner,
    table: Table,
    job: Job,
    tuned: dict[str, dict[str, float]],
    scale: Scale,
) -> Iterator[Entry]:
    """Yields all numbers of a table for one data set."""
    if table != "table_3":
        for panel, value, name, cell in panels(table, scale):
            yield Entry(panel, value, name, cell, tuned[name])
        return
    cell, best = Cell(), tuned["dm_hsgd"]
    limit = runner.limit(job, cell, best)
    yield Entry("sigma", "0", "dm_hsgd", cell, best)
    for level in (0.5, 1.0):
        noise = best | {"sigma": level}
        yield Entry("sigma", f"{level:g}", "dpmixsgd_unclipped", cell, noise)
        clip = noise | {"limit": limit}
        yield Entry("sigma", f"{level:g}", "dpmixsgd_clipped_batches", cell, clip)


def same_run(job: Job, one: Entry) -> tuple:
    """Returns a key that equal runs share; some methods ignore the budgets."""
    name = CLIPPED.get(one.method, one.method)
    level = sigma(name, job, one.cell, 1)
    return name, one.cell.agents, one.cell.connectivity, level, *one.hyper.items()


def run(
    runner: Runner, table: Table, job: Job, seeds: int, run_dir: Path, scale: Scale
) -> None:
    """Runs the cells that run_dir/runs.csv does not have yet."""
    path = run_dir / "runs.csv"
    known = {tuple(row[column] for column in COLUMNS) for row in read_rows(path)}
    names = ("dm_hsgd",) if table == "table_3" else METHODS
    usual = Cell(connectivity=0.8) if table == "table_4" else Cell()
    tuned = {name: rates(runner, job, name, usual, run_dir) for name in names}
    scores: dict[tuple, float] = {}
    for one in entries(runner, table, job, tuned, scale):
        for seed in range(seeds):
            row = (job.dataset, one.panel, one.value, one.method, str(seed))
            if row in known:
                continue
            key = (*same_run(job, one), seed)
            if key not in scores:
                name = CLIPPED.get(one.method, one.method)
                scores[key] = runner.trained(job, name, one.cell, seed, one.hyper)[2]
            about = dict(zip(COLUMNS, row, strict=True))
            metrics_csv.append(path, about | {"auc": scores[key]})
        print(job.dataset, one.panel, one.value, one.method, flush=True)


def rates(runner: Runner, job: Job, name: str, cell: Cell, run_dir: Path):
    """Returns tuned hyper-parameters; run_dir/rates.jsonl stores them."""
    path = run_dir / "rates.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    for found in map(json.loads, lines):
        if (found["dataset"], found["method"]) == (job.dataset, name):
            return found["hyper"]
    hyper = runner.tuned(job, name, cell)
    with path.open("a") as file:
        about = {"dataset": job.dataset, "method": name, "hyper": hyper}
        file.write(json.dumps(about) + "\n")
    return hyper


def read_rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def mean_and_spread(scores: Sequence[float]) -> str:
    """Formats the mean and standard deviation over seeds; empty without scores."""
    if not scores:
        return ""
    spread = f"{np.std(scores, ddof=1):.3f}" if len(scores) > 1 else "-"
    return f"{np.mean(scores):.3f} ± {spread}"


def label(name: str) -> str:
    """Returns a method's label in tables."""
    clipped_batches = "DPMixSGD (batches clipped, no privacy)"
    return clipped_batches if name in CLIPPED else ALL[name].label


def report(table: Table, run_dir: Path, seeds: int) -> str:
    """Returns every number with the published one, as Markdown."""
    printed = {
        tuple(row[column] for column in COLUMNS[:4]): row["auc"]
        for row in read_rows(PUBLISHED)
        if row["table"] == table
    }
    found: dict[tuple, list[float]] = {}
    for row in read_rows(run_dir / "runs.csv"):
        key = tuple(row[column] for column in COLUMNS[:4])
        found.setdefault(key, []).append(float(row["auc"]))
    lines = []
    for dataset, panel in dict.fromkeys(key[:2] for key in found):
        keys = [key for key in found if key[:2] == (dataset, panel)]
        values = list(dict.fromkeys(key[2] for key in keys))
        lines += ["", f"### {dataset}, {panel}", ""]
        lines += [f"| method | {' | '.join(values)} |", "|---|" + "---:|" * len(values)]
        for name in dict.fromkeys(key[3] for key in keys):
            cells = []
            for value in values:
                text = mean_and_spread(found.get((dataset, panel, value, name), []))
                key = dataset, panel, value, PRINTED.get(name, name)
                cells.append(f"{text} ({printed.get(key, '-')})" if text else "")
            lines.append(f"| {label(name)} | {' | '.join(cells)} |")
    about = machine("experiments.papers.dpmixsgd_002")
    head = (
        f"Test AUC, mean ± standard deviation over {seeds} seeds (published number); "
        f"`{about['command']}` on {about['cores']} cores of {about['cpu']}, jax "
        f"{about['jax']}."
    )
    return "\n".join(
        [f"# {table.replace('_', ' ').capitalize()}", "", head, *lines, ""]
    )


JOBS: dict[Table, Callable[[str], Job]] = {
    "table_2": lambda name: logistic(name, "examples"),
    "table_3": lambda name: mlp(name, 2000),
    "table_4": mlp,
}
DATASETS: dict[Table, tuple[str, ...]] = {
    "table_2": ("a8a", "a9a"),
    "table_3": ("mnist", "fashion_mnist", "ijcnn1"),
    "table_4": ("fashion_mnist",),
}


def main(
    table: Table,
    scale: Scale = "full",
    data_dir: Path | None = None,
    kind: Literal["examples", "agents"] = "examples",
    datasets: tuple[str, ...] = (),
    iterations: int | None = None,
    seeds: int = 5,
    output: Path | None = None,
) -> None:
    """Runs one table of the paper and prints it with the published numbers.

    Args:
      table: 2, robust logistic regression; 3, an MLP, also clipped; 4, an MLP.
      scale: The paper's sizes fit a 2-core CPU, so cpu equals full; smoke takes three
        iterations, one seed and scikit-learn's breast cancer cells.
      data_dir: Directory of the data sets' files; by default the environment variable
        FEDJAX_MUON_DATA.
      kind: Dual weights of table 2: one per example, or one per agent.
      datasets: Some of the table's data sets; all by default.
      iterations: Iterations after the first; by default 500, 2000 and 200 for tables
        2, 3 and 4.
      seeds: Number of seeds, of partitions, graphs, parameters, batches and noise.
      output: Directory; existing runs in it are reused.
    """
    run_dir = output or Path("runs/dpmixsgd_002") / (
        f"{table}-{kind}" if table == "table_2" else table
    )
    known = DATASETS[table]
    if scale == "smoke":
        known, iterations, seeds = ("breast_cancer",), 3, 1
    with ending():
        for name in datasets or known:
            if name not in known:
                raise ValueError(f"{table} has {', '.join(known)}, got {name!r}")
        runner = Runner(data_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        for name in datasets or known:
            job = JOBS[table](name)
            job = dataclasses.replace(job, kind=kind) if table == "table_2" else job
            if iterations is not None:
                job = dataclasses.replace(job, iterations=iterations)
            run(runner, table, job, seeds, run_dir, scale)
    text = report(table, run_dir, seeds)
    (run_dir / f"{table}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    call(main, __doc__)

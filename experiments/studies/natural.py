"""Muon with natural clients: hospitals, and the speakers of Shakespeare's plays.

    python -m experiments.studies.natural heart_disease
    python -m experiments.studies.natural plays

Every method has the same grid of learning rates, and of server rates if it has one. The
best point has the highest mean validation accuracy after the last round, on seeds that
the test does not use; while it is at an edge, the grid is extended. The clients keep
their training examples but a fifth, which is for validation. Then the best points are
trained on all training examples.

Finished points are kept in points_NAME.jsonl, so an interrupted study goes on where it
was. The study writes NAME.md and NAME.csv beside it.
"""

import csv
import itertools
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import tyro

import fedjax_muon as fm
from experiments.studies.learning_rates import rate
from experiments.studies.natural_problems import Problem, hospitals, speakers
from fedjax_muon.algorithms import ALL
from fedjax_muon.core import streams
from fedjax_muon.data import Dataset
from fedjax_muon.reporting.comparison import Point, best
from fedjax_muon.runs.errors import refusing
from fedjax_muon.simulation import Simulation, by_examples, uniform
from fedjax_muon.sweeps.sweep import Cell, sweep

METHODS = (
    "fedavg",
    "scaffold",
    "fedadam",
    "fedmuon",
    "fedmuon_align",
    "fedmuon_correct",
)
UNIFORM_ALONE = ("scaffold", "fedmuon_correct")  # not defined with other weights
WEIGHTINGS = {"examples": by_examples, "uniform": uniform}
MOST = 8  # extensions of a grid
SHARE = 0.2  # of the training examples, for validation
# "Pooled Test" in FLamby's results_benchmark_fed_heart_disease, mean of seeds 42 to 46
PUBLISHED = {
    ("fedavg", "examples"): 0.748,
    ("scaffold", "uniform"): 0.748,
    ("fedadam", "examples"): 0.779,
}
PROBLEMS = {"heart_disease": hospitals, "plays": speakers}
TITLES = {
    "heart_disease": "Heart disease by hospital",
    "plays": "Shakespeare by speaker",
}
PUBLISHED_RATE = {"lr": 0.001}  # of FedAvg
Hyper = Mapping[str, float]


class Variant(NamedTuple):
    """A method with the weights of its mean over clients."""

    method: str
    weighting: str


def divided(dataset: Dataset) -> tuple[Dataset, tuple[np.ndarray, np.ndarray]]:
    """Holds every fifth training example of each client out, for validation."""
    assert dataset.owners is not None
    parts = fm.partition.by_owner(dataset.owners)
    step = round(1 / SHARE)
    held = np.sort(np.concatenate([part[step - 1 :: step] for part in parts]))
    kept = np.setdiff1d(np.arange(len(dataset.y_train)), held)
    rest = fm.data.dataset.subset(dataset, kept)
    return rest, (dataset.x_train[held], dataset.y_train[held])


def simulation_of(
    problem: Problem, variant: Variant, hyper: Hyper, dataset: Dataset
) -> Simulation:
    """Prepares a method on all clients of a data set."""
    assert dataset.owners is not None
    return fm.federate(
        ALL[variant.method].function(**hyper),
        fm.tasks.classification(problem.model, dataset),
        dataset,
        fm.partition.by_owner(dataset.owners),
        cohort_size=problem.cohort_size,
        local_steps=problem.local_steps,
        batch_size=problem.batch_size,
        weighting=WEIGHTINGS[variant.weighting],
    )


def start_key(seed: int) -> jax.Array:
    """The key of a seed."""
    return jax.random.fold_in(jax.random.key(seed), streams.TRAINING)


def points_of(
    problem: Problem, variant: Variant, hypers: Sequence[Hyper]
) -> list[Point]:
    """Trains a method at points of its grid, with a validation set."""
    train, validation = divided(problem.dataset)
    assert train.owners is not None
    parts = fm.partition.by_owner(train.owners)
    simulation = simulation_of(problem, variant, hypers[0], train)
    seeds = problem.tuning_seeds
    cells = [Cell(h, start_key(seed), parts) for h in hypers for seed in seeds]
    groups = sweep(
        simulation,
        cells,
        rounds=problem.rounds,
        evaluate_every=problem.rounds,
        validation=validation,
    )
    outcomes = [outcome for group in groups for outcome in group]
    made = []
    for i, hyper in enumerate(hypers):
        ours = outcomes[i * len(seeds) : (i + 1) * len(seeds)]
        runs = [
            {name: np.array([row[name] for row in one.rows]) for name in one.rows[0]}
            for one in ours
            if one.diverged is None
        ]
        made.append(Point(hyper, runs, len(ours) - len(runs)))
    return made


class Record:
    """The finished points of a study, in a file with a line for each."""

    def __init__(self, path: Path):
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def points(self, variant: Variant) -> list[Point]:
        """Returns the points of a variant."""
        return [
            Point(
                row["hyper"],
                [{k: np.array([v]) for k, v in run.items()} for run in row["runs"]],
                row["diverged"],
            )
            for row in self.rows
            if (row["method"], row["weighting"]) == variant
        ]

    def add(self, variant: Variant, point: Point) -> None:
        """Writes a point."""
        kinds = ("validation_accuracy", "validation_loss")
        runs = [{k: round(float(run[k][-1]), 6) for k in kinds} for run in point.runs]
        about = {"hyper": dict(point.hyper), "runs": runs, "diverged": point.diverged}
        row = variant._asdict() | about
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def tuned(problem: Problem, variant: Variant, record: Record) -> Point:
    """Returns the best point of a method, inside of its grid."""
    names = ("lr", "server_lr") if variant.method == "fedadam" else ("lr",)
    axes = {name: [*problem.exponents[name]] for name in names}
    for _ in range(1 + MOST):
        known = [dict(point.hyper) for point in record.points(variant)]
        grid = itertools.product(*(map(rate, axis) for axis in axes.values()))
        hypers = [dict(zip(axes, values, strict=True)) for values in grid]
        todo = [hyper for hyper in hypers if hyper not in known]
        if todo:
            for point in points_of(problem, variant, todo):
                record.add(variant, point)
        chosen = best(record.points(variant))
        if chosen is None:
            raise ValueError(f"{variant.method} diverged at all rates")
        if not _extended(axes, chosen.hyper):
            return chosen
    raise ValueError(
        f"the best rate of {variant.method} is at an edge: {dict(chosen.hyper)}"
    )


def _extended(axes: dict[str, list[int]], hyper: Hyper) -> bool:
    """Extends the axes at whose edge a point lies."""
    found = False
    for name, axis in axes.items():
        if hyper[name] == rate(axis[0]):
            axis.insert(0, axis[0] - 1)
            found = True
        elif hyper[name] == rate(axis[-1]):
            axis.append(axis[-1] + 1)
            found = True
    return found


def tested(problem: Problem, variant: Variant, hyper: Hyper) -> list[dict[str, float]]:
    """Trains on all training examples; returns test scores of every seed."""
    simulation = simulation_of(problem, variant, hyper, problem.dataset)
    rows = []
    for seed in problem.seeds:
        state = simulation.init(start_key(seed))
        state, _ = simulation.train_rounds(state, problem.rounds)
        logits = partial(logits_of, problem.model, jax.device_get(state.params))
        row = {"test": float(simulation.evaluate(state)["test_accuracy"])}
        rows.append(row | problem.scores(logits))
    return rows


def logits_of(model: nn.Module, params: Any, x: np.ndarray) -> np.ndarray:
    """Logits of inputs."""
    return np.asarray(model.apply({"params": params}, x))


def page(name: str, problem: Problem, rows: Sequence[Mapping[str, Any]]) -> str:
    """The results as a page in Markdown."""
    owners = problem.dataset.owners
    assert owners is not None
    return (
        f"# {TITLES[name]}\n\n{len(np.unique(owners))} clients, "
        f"{problem.cohort_size} per round, {len(owners)} training examples, "
        f"{len(problem.dataset.y_test)} test examples, {problem.rounds} rounds of "
        f"{problem.local_steps} steps with batches of {problem.batch_size}. Accuracies "
        f"are means ± standard deviations over {len(problem.seeds)} seeds. Rates are "
        f"chosen by validation on {len(problem.tuning_seeds)} other "
        f"{'seeds' if len(problem.tuning_seeds) > 1 else 'seed'}; points_{name}.jsonl "
        f"has the grids. `python -m experiments.studies.natural {name}`.\n\n"
        f"{table(rows)}\n"
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results of all methods in Markdown."""
    about = ("method", "weighting", "seed", "lr", "server_lr")
    scores = [key for key in rows[0] if key not in about]
    has_published = "hospitals" in scores
    head = ["method", "weights", "learning rate", *scores]
    head += ["FLamby"] if has_published else []
    lines = [f"| {' | '.join(head)} |", "|---|---|" + "---:|" * (len(head) - 2)]
    keys = ("method", "weighting", "lr", "server_lr")
    for key, group in itertools.groupby(rows, lambda row: [row[k] for k in keys]):
        ours, (method, weighting, lr, server_lr) = list(group), key
        server = "" if server_lr is None else f", server {server_lr:g}"
        cells = [ALL[method].label, weighting, f"{lr:g}{server}"]
        cells += [_spread([row[score] for row in ours]) for score in scores]
        if has_published:
            published = PUBLISHED.get((method, weighting))
            cells.append("-" if published is None else f"{published:.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def main(
    name: Annotated[Literal["heart_disease", "plays"], tyro.conf.Positional],
    output: Path = Path("results/natural"),
) -> None:
    """Tunes and tests all methods on a data set with natural clients.

    Args:
      name: Data set.
      output: Directory of the results.
    """
    with refusing():
        output.mkdir(parents=True, exist_ok=True)
        problem = PROBLEMS[name]()
        record = Record(output / f"points_{name}.jsonl")
        rows: list[dict[str, Any]] = []
        todo: list[tuple[Variant, Hyper | None]] = [
            (Variant(method, weighting), None)
            for weighting in problem.weightings
            for method in METHODS
            if weighting == "uniform" or method not in UNIFORM_ALONE
        ]
        if name == "heart_disease":
            todo.insert(0, (Variant("fedavg", "examples"), PUBLISHED_RATE))
        for variant, given in todo:
            hyper = given or tuned(problem, variant, record).hyper
            print(*variant, dict(hyper), flush=True)
            rates = {"lr": hyper["lr"], "server_lr": hyper.get("server_lr")}
            found = tested(problem, variant, hyper)
            for seed, scores in zip(problem.seeds, found, strict=True):
                rows.append(variant._asdict() | rates | {"seed": seed} | scores)
        with (output / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        text = page(name, problem, rows)
        (output / f"{name}.md").write_text(text)
        print(text)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)

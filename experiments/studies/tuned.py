"""Runs of a study at equal tuning: appended when finished, the best by validation.

A setting is a NamedTuple of strings and numbers, such as a method and a rule. Its runs
are all learning rates and seeds in one program; seeds draw the partition as well.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import fedjax_muon as fm
from fedjax_muon.core import Algorithm
from fedjax_muon.data.dataset import Dataset
from fedjax_muon.simulation.sweeps import Cell, run_cells

Row = dict[str, Any]


class Problem(NamedTuple):
    """A task whose clients are drawn by Dirichlet(alpha)."""

    task: fm.Task
    data: Dataset  # without the examples of `held`
    held: tuple[Any, Any]  # for validation
    clients: int
    alpha: float
    min_size: int = 10

    def parts(self, seed: int) -> Any:
        key = jax.random.key(seed)
        sizes: dict[str, Any] = {"alpha": self.alpha, "min_size": self.min_size}
        return fm.partition.dirichlet(self.data.y_train, self.clients, key=key, **sizes)


def problem(
    model: Any,
    data: Dataset,
    *,
    held: int,
    clients: int,
    alpha: float,
    min_size: int = 10,
) -> Problem:
    """Classification; the first `held` of the test examples are for validation."""
    validation = data.x_test[:held], data.y_test[:held]
    data = data._replace(x_test=data.x_test[held:], y_test=data.y_test[held:])
    task = fm.tasks.classification(model, data)
    return Problem(task, data, validation, clients, alpha, min_size)


def trained(
    algorithm: Algorithm,
    problem: Problem,
    rates: Sequence[float],
    seeds: Sequence[int],
    rounds: int,
    *,
    evaluate_every: int | None = None,
    curve: Sequence[str] = (),
    **options: Any,
) -> Iterator[Row]:
    """Trains all rates and seeds in one program; a diverged run scores 0.

    Args:
      curve: Columns of which a row has the values of all evaluations.
      options: Of `federate`.
    """
    points = [(lr, seed) for lr in rates for seed in seeds]
    parts = {seed: problem.parts(seed) for seed in seeds}
    cells = [
        Cell({"lr": lr}, jax.random.key(100 + seed), parts[seed]) for lr, seed in points
    ]
    simulation = fm.federate(
        algorithm, problem.task, problem.data, parts[seeds[0]], **options
    )
    groups = run_cells(
        simulation,
        cells,
        rounds=rounds,
        evaluate_every=evaluate_every or rounds,
        validation=problem.held,
    )
    outcomes = [outcome for group in groups for outcome in group]
    for (lr, seed), outcome in zip(points, outcomes, strict=True):
        last = outcome.rows[-1] if outcome.diverged is None else {}
        yield {
            "lr": lr,
            "seed": seed,
            "accuracy": float(last.get("test_accuracy", 0.0)),
            "validation": float(last.get("validation_accuracy", 0.0)),
            **{name: [row[name] for row in outcome.rows] for name in curve},
        }


def read(path: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise ValueError(
                f"line {number} of {path} is damaged; delete it, and the rows of its "
                "setting before it"
            ) from None
    return rows


def finish(
    settings: Iterable[Any],
    runs: Callable[[Any], Iterable[Row]],
    output: Path,
    part: int = 0,
    parts: int = 1,
) -> bool:
    """Trains what `output` lacks of one part of the settings; True if all is there."""
    settings = list(settings)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.touch()
    done = lambda: {
        tuple(row[name] for name in settings[0]._fields) for row in read(output)
    }
    known = done()
    for setting in settings[part::parts]:
        if tuple(setting) not in known:
            rows = [setting._asdict() | row for row in runs(setting)]
            with output.open("a") as file:
                file.write("".join(f"{json.dumps(row)}\n" for row in rows))
            best = max(row["accuracy"] for row in rows)
            print(*setting, f"{best:.3f}", flush=True)
    return done() >= {tuple(setting) for setting in settings}


def of(rows: list[Row], setting: Any) -> list[Row]:
    """The runs of a setting."""
    return [r for r in rows if all(r[k] == v for k, v in setting._asdict().items())]


def chosen(rows: list[Row], setting: Any) -> tuple[float, np.ndarray]:
    """Returns the best rate and its accuracies in percent, [seeds]."""
    runs = of(rows, setting)
    rates = sorted({row["lr"] for row in runs})
    at = lambda lr, name: np.array([row[name] for row in runs if row["lr"] == lr])
    best = max(rates, key=lambda lr: at(lr, "validation").mean())
    return best, 100 * at(best, "accuracy")

"""FedMuon with fewer Newton-Schulz steps, under two normalizations, or on blocks.

    python -m experiments.studies.newton_schulz_steps digits     # minutes on a core
    python -m experiments.studies.newton_schulz_steps fashion_mnist --data-dir ~/data

Fewer steps cost less and leave small singular values small. Division by the Schatten-8
norm instead of the Frobenius norm makes all singular values larger at the start, at no
cost. Blocks of matrices cost less than whole ones. FedMuon runs on the default job of
`fedjax-muon compare` with Jordan's coefficients. Several learning rates are tried,
since fewer steps give shorter updates, which a larger rate may compensate. A seed has
the same partition, initial parameters, cohorts and batches in every row.
"""

import csv
import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

import fedjax_muon as fm
from benchmarks.machine import machine
from experiments import dots
from experiments.arguments import call
from fedjax_muon import data, problems, tasks, transforms
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.linalg.newton_schulz import orthogonalize
from fedjax_muon.runs.simulate import start_key
from fedjax_muon.transforms.variants import blocks_of

TABLE = """
| learning rate | Newton-Schulz | flops | final accuracy, % | difference \
| mean over rounds, % | difference |
|---:|---|---:|---:|---:|---:|---:|"""
NORMS = {"Frobenius": kernel.frobenius, "Schatten-8": kernel.schatten8}


class Variant(NamedTuple):
    changes: dict[str, Any]  # arguments of `fedmuon`
    steps: int | None  # None without Newton-Schulz
    period: int = 1  # whole matrices are orthogonalized in one step of so many
    blocks: int = 1  # the others have so many blocks


def few_steps(steps: int, norm: Any) -> Variant:
    polar = partial(orthogonalize, steps=steps, normalization=norm)
    return Variant({"polar": polar}, steps)


def in_blocks(period: int, blocks: int) -> Variant:
    rule = transforms.by_rank(transforms.orthogonalize_blocks(period, blocks))
    return Variant({"rule": rule}, 5, period, blocks)


NEWTON_SCHULZ = {
    f"{name}, {t} steps": few_steps(t, norm)
    for name, norm in NORMS.items()
    for t in (5, 4, 3, 2)
}
BLOCKS = {f"{b} blocks, whole every 5th step": in_blocks(5, b) for b in (2, 4)}
ALL = NEWTON_SCHULZ | BLOCKS | {"Exact, by SVD": Variant({"polar": kernel.polar}, None)}


class Job(NamedTuple):
    model: problems.Model
    rates: tuple[float, ...]
    variants: Mapping[str, Variant]
    stride: int  # one in that many examples is used


JOBS = {
    "digits": Job(problems.mlp, (0.01, 0.03, 0.1), ALL, 1),
    "fashion_mnist": Job(problems.lenet, (0.01,), NEWTON_SCHULZ | BLOCKS, 10),
}


def flops(shape: tuple[int, int], steps: int) -> int:
    """Returns the flops of one matrix, in the form that `orthogonalize` chooses.

    A stage of k steps has two products with the matrix and 4 k - 3 products of small
    symmetric matrices, whose symmetry is not exploited. The product for the Schatten-8
    norm is also the first step's.
    """
    short, long = sorted(shape)
    form = kernel.gram if long > 1.5 * short else kernel.plain
    stages = form(kernel.rows(kernel.JORDAN, steps), np.dtype("float32"))
    sizes = [4 * short**2 * long + 2 * short**3 * (4 * len(s) - 3) for s in stages]
    return sum(sizes)


def model_flops(task: tasks.Task, variant: Variant) -> float:
    """Returns the flops of all matrices, on average over the steps of a period."""
    leaves = jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0)))
    shapes = [(x.size // x.shape[-1], x.shape[-1]) for x in leaves if x.ndim > 1]
    whole = sum(flops(shape, variant.steps) for shape in shapes)
    divided = 0
    for shape in shapes:
        rows, columns = blocks_of(shape, variant.blocks)
        block = shape[0] // rows, shape[1] // columns
        divided += rows * columns * flops(block, variant.steps)
    return (whole + (variant.period - 1) * divided) / variant.period


def trained(rates, changes, problem: problems.Problem, rounds: int, seeds):
    """Returns the columns of all runs by (rate, seed)."""
    points = list(itertools.product(rates, seeds))
    parts = {seed: problem.parts(seed) for seed in seeds}
    cells = [fm.Cell({"lr": lr}, start_key(seed), parts[seed]) for lr, seed in points]
    prepared = fm.simulate(fm.fedmuon(lr=rates[0], **changes), problem, seeds[0])
    groups = fm.run_cells(prepared, cells, rounds=rounds, evaluate_every=5)
    found = [outcome.rows for group in groups for outcome in group]
    columns = [{k: np.array([r[k] for r in rows]) for k in rows[0]} for rows in found]
    return dict(zip(points, columns, strict=True))


def row(first: np.ndarray, own: np.ndarray) -> list[str]:
    """Returns cells of test accuracies and of their differences from `first`.

    Both are [seeds, evaluations]; differences are taken seed by seed.
    """
    last, mean = lambda scores: scores[:, -1], lambda scores: scores.mean(1)
    cells = [last(own), last(own - first), mean(own), mean(own - first)]
    return [f"{100 * v.mean():.1f} ± {100 * v.std(ddof=1):.1f}" for v in cells]


def draw(
    found: Mapping[float, Mapping[str, np.ndarray]], path: Path, title: str = ""
) -> None:
    """Draws last differences from the first variant, by learning rate and variant.

    Scores are [seeds, evaluations]; differences are taken seed by seed.
    """
    shown = []
    for lr, scores in found.items():
        first, *others = scores
        unit = f"accuracy minus {first.partition(', ')[2]}, points"
        for name in others:
            lead = 100 * (scores[name] - scores[first])[:, -1]
            shown.append(dots.dot(f"learning rate {lr:g}", name, lead, unit=unit))
    dots.draw(shown, path, title=title)


def main(
    dataset: Literal["digits", "fashion_mnist"],
    data_dir: Path | None = None,
    rounds: int = 60,
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    output: Path = Path("results/newton_schulz"),
) -> None:
    """Trains all variants; writes a table, the curves of all runs, and figures."""
    job, given = JOBS[dataset], data.load(dataset, data_dir)
    for name in ("x_train", "y_train", "x_test", "y_test"):
        given = given._replace(**{name: getattr(given, name)[:: job.stride]})
    problem = problems.classification(given, model=job.model)
    about = machine("experiments.studies.newton_schulz_steps")
    runs = {}
    usual = model_flops(problem.task, next(iter(job.variants.values())))
    for label, variant in job.variants.items():
        made = trained(job.rates, variant.changes, problem, rounds, seeds)
        for point, run in made.items():
            runs[label, *point] = run
            print(label, *point, run["test_accuracy"][-1], flush=True)
    output.mkdir(parents=True, exist_ok=True)
    with (output / f"{dataset}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("variant", "lr", "seed", "round", "accuracy"))
        for point, run in runs.items():
            for at, score in zip(run["round"], run["test_accuracy"], strict=True):
                writer.writerow((*point, at, f"{score:.4f}"))
    lines = [
        f"# Newton-Schulz steps on {dataset}\n",
        f"{len(given.y_train)} training examples, {rounds} rounds, mean ± standard "
        f"deviation over {len(seeds)} seeds. Differences from the first row of a rate "
        "are taken seed by seed. Flops are those of all matrices of the model, "
        f"relative to five steps. `{about['command']}` on one core of {about['cpu']}, "
        f"jax {about['jax']}.",
        TABLE,
    ]
    found: dict[float, dict[str, np.ndarray]] = {}
    for lr in job.rates:
        scores = found[lr] = {
            label: np.array([runs[label, lr, seed]["test_accuracy"] for seed in seeds])
            for label in job.variants
        }
        for label, variant in job.variants.items():
            cost = ""
            if variant.steps:
                cost = f"{model_flops(problem.task, variant) / usual:.2f}"
            first = next(iter(scores.values()))
            cells = [f"{lr:g}", label, cost, *row(first, scores[label])]
            lines.append(f"| {' | '.join(cells)} |")
    draw(found, output / f"{dataset}.png")
    (output / f"{dataset}.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    call(main, __doc__)

"""Accuracy of bfloat16: in the model, in Newton-Schulz, in both.

    python -m experiments.studies.precision     # minutes on 2 cores

FedMuon is trained on digits, on the default job of `fedjax-muon compare`. A seed has
the same partition, initial parameters, cohorts and batches in every row, so rows differ
by rounding, which training can amplify. The row with another order of the same sums,
the gram form of Newton-Schulz, shows by how much. Parameters, gradients, momenta and
messages are always float32. The table is written to results/precision.md. Speed is not
measured: few CPUs have fast bfloat16 products.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import tyro

from benchmarks.machine import machine
from fedjax_muon import data, models, simulation, tasks
from fedjax_muon.algorithms import fedmuon
from fedjax_muon.linalg.newton_schulz import gram, orthogonalize, plain
from fedjax_muon.runs.build import parts_of, start_key
from fedjax_muon.runs.config import Config
from fedjax_muon.sweeps.sweep import Cell, sweep

LR = 0.01
SIZES: dict[str, Any] = {
    "patch": 2,
    "width": 64,
    "depth": 2,
    "heads": 4,
    "head_width": 16,
}
MODELS: dict[str, Callable[..., Any]] = {
    "MLP 64-64": partial(models.MLP, features=(64, 64)),
    "ViT, width 64, depth 2": partial(models.ViT, **SIZES, hidden=128, dropout=0.0),
}


class Numbers(NamedTuple):
    label: str
    model: Any = None
    polar: Callable[..., Any] = partial(orthogonalize, form=plain)


HALF = partial(orthogonalize, form=plain, dtype=jnp.bfloat16)
ROWS = (
    Numbers("float32"),
    Numbers("float32, sums in another order", None, partial(orthogonalize, form=gram)),
    Numbers("bfloat16 model", jnp.bfloat16),
    Numbers("bfloat16 Newton-Schulz", None, HALF),
    Numbers("bfloat16 model and Newton-Schulz", jnp.bfloat16, HALF),
)


def scores(model, numbers: Numbers, seeds, config: Config) -> np.ndarray:
    """Returns test accuracy and test loss after the last round, [seeds, 2]."""
    dataset = data.load(config.dataset)
    parts = [parts_of(config, dataset, seed) for seed in seeds]
    prepared = simulation.federate(
        fedmuon(lr=LR, polar=numbers.polar),
        tasks.classification(model(dtype=numbers.model), dataset.x_train.shape[1:]),
        dataset,
        parts[0],
        cohort_size=config.cohort_size,
        local_steps=config.local_steps,
        batch_size=config.batch_size,
    )
    cells = [
        Cell({"lr": LR}, start_key(seed), part)
        for seed, part in zip(seeds, parts, strict=True)
    ]
    groups = sweep(prepared, cells, rounds=config.rounds, evaluate_every=config.rounds)
    last = [outcome.rows[-1] for group in groups for outcome in group]
    return np.array([[row["test_accuracy"], row["test_loss"]] for row in last])


def over_seeds(values: np.ndarray, scale: int, digits: int) -> str:
    spread = np.std(values, ddof=1)
    return f"{scale * values.mean():.{digits}f} ± {scale * spread:.{digits}f}"


def main(rounds: int = 60, seeds: tuple[int, ...] = (0, 1, 2)) -> None:
    """Trains every model in every precision, and writes a table."""
    about = machine("experiments.studies.precision")
    lines = [
        "# Accuracy in bfloat16",
        "",
        f"FedMuon on digits after {rounds} rounds, mean ± standard deviation over "
        f"{len(seeds)} seeds. Differences from the first row are taken seed by seed. "
        "The inputs of products are rounded to bfloat16; parameters and momenta are "
        f"float32. `{about['command']}` on {about['cores']} cores of {about['cpu']}, "
        f"jax {about['jax']}.",
        "",
        "| model | numbers | test accuracy, % | difference | test loss | difference |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, model in MODELS.items():
        exact = None
        for numbers in ROWS:
            found = scores(model, numbers, seeds, Config(rounds=rounds))
            exact = found if exact is None else exact
            (accuracy, loss), (more, higher) = found.T, (found - exact).T
            four = (accuracy, 100, 1), (more, 100, 1), (loss, 1, 4), (higher, 1, 4)
            cells = [over_seeds(*one) for one in four]
            lines.append(f"| {name} | {numbers.label} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    Path("results/precision.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)

"""Kinds of normalization under FedAvg and FedMuon, on clients that differ.

    python -m experiments.studies.batch_norm --data-dir DATA     # 15 minutes on a core

A small convolutional network on a tenth of Fashion-MNIST, divided by Dirichlet(0.1).
Each method and kind has the rate that is best on held-out training examples. Rows are
appended to a file, and those that it has are not trained again.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

import fedjax_muon as fm
from experiments.arguments import call
from experiments.machine import machine
from fedjax_muon.models.convolution import convolution

PLACE = Path("results/batch_norm")
WIDTHS = 16, 32
SEEDS = 0, 1, 2
GRIDS = {"fedavg": (0.1, 0.3, 1.0), "fedmuon": (0.01, 0.03, 0.1)}
HOW: Mapping[str, Any] = {
    "rounds": 40,
    "evaluate_every": 40,
    "cohort": 8,
    "local_steps": 5,
    "batch_size": 32,
}


def norms(train: bool) -> dict[str, Callable[..., nn.Module]]:
    """Makers of a layer of each kind; "layer" is over height, width and channels."""
    return {
        "batch": partial(nn.BatchNorm, use_running_average=not train, momentum=0.9),
        "group": partial(nn.GroupNorm, 4),
        "layer": partial(nn.GroupNorm, 1),
    }


class Small(nn.Module):
    """Two convolutions with stride 2, each normalized, and the mean over the image."""

    norm: str

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        for width in WIDTHS:
            how: dict[str, Any] = {"conv_general_dilated": convolution}
            x = nn.Conv(width, (3, 3), strides=2, padding=1, **how)(x)
            x = nn.relu(norms(train)[self.norm]()(x))
        return nn.Dense(10, name="head")(x.mean((1, 2)))


def rows_of(name: str, norm: str, data: fm.Dataset) -> list[dict[str, Any]]:
    """The runs at the best rate of a method with a kind of normalization."""
    problem = fm.problems.classification(
        data, alpha=0.1, model=lambda data: Small(norm), train_share=0.1
    )
    grid = {"lr": GRIDS[name]}
    how = {**HOW, "seeds": SEEDS, "extend": False, "progress": False}
    ((swept),) = fm.sweep([getattr(fm, name)], problem, grid, **how).values()
    best = swept.best
    if best is None:
        return [{"method": name, "norm": norm, "diverged": True}]
    about = {"method": name, "norm": norm, "lr": best.hyper["lr"]}
    return [
        {**about, "seed": seed, "accuracy": round(float(run["test_accuracy"][-1]), 4)}
        for seed, run in zip(SEEDS, best.runs, strict=True)
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and standard deviation (n - 1) over seeds, in percent."""
    kinds, lines = list(norms(train=False)), []
    lines.append("| method | " + " | ".join(kinds) + " |")
    lines.append("|---" * (1 + len(kinds)) + "|")
    for name in GRIDS:
        cells = []
        for kind in kinds:
            here = [r for r in rows if (r["method"], r["norm"]) == (name, kind)]
            scores = 100 * np.array([r["accuracy"] for r in here if "accuracy" in r])
            said = "diverged"
            if len(scores):
                spread = scores.std(ddof=1)
                said = f"{scores.mean():.1f} ± {spread:.1f}, lr {here[0]['lr']:.3g}"
            cells.append(said)
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(data_dir: Path | None = None, output: Path = PLACE) -> None:
    """Trains what is missing, and prints the table."""
    data = fm.data.load("fashion_mnist", data_dir)
    path = output / "rows.jsonl"
    output.mkdir(parents=True, exist_ok=True)
    found = [*map(json.loads, path.read_text().splitlines())] if path.exists() else []
    done = {(row["method"], row["norm"]) for row in found}
    for norm in norms(train=False):
        for name in GRIDS:
            if (name, norm) in done:
                continue
            new = rows_of(name, norm, data)
            with path.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)
            found += new
            print(name, norm, new, flush=True)
    print(table(found), json.dumps(machine("experiments.studies.batch_norm")), sep="\n")


if __name__ == "__main__":
    call(main, __doc__)

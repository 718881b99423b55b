"""Peak memory of processes that train two rounds on a CPU: python -m benchmarks.memory

Each run is a process of its own, whose examples are random numbers, and prints one line
of Markdown: what it is, its parameters, and its largest resident set. A process that
makes its examples has them once as an array of NumPy, and once for training.
"""

import argparse
import resource
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import numpy as np

import fedjax_muon as fm

IMAGES = (32, 32, 3)


class Run(NamedTuple):
    """A simulation of clients with equally many examples."""

    about: str
    algorithm: Any  # () -> algorithm
    model: Any  # () -> module
    examples: int
    clients: int
    shape: tuple[int, ...] = IMAGES
    classes: int = 10
    cohort: int = 10


VITS: Any = {"examples": 4000, "clients": 20, "classes": 100, "cohort": 4}
RUNS = (
    Run(
        "FedMuon with LeNet, 1,000 clients, 50,000 images of 32 x 32 x 3",
        fm.fedmuon,
        lambda: fm.models.LeNet(10),
        50_000,
        1000,
    ),
    Run(
        "the same with 200,000 images",
        fm.fedmuon,
        lambda: fm.models.LeNet(10),
        200_000,
        1000,
    ),
    Run(
        "SCAFFOLD with the EMNIST CNN, 1,000 clients that keep a state",
        fm.scaffold,
        lambda: fm.models.EmnistCNN(62),
        20_000,
        1000,
        (28, 28, 1),
        62,
    ),
    Run(
        "FedMuon with ViT-Tiny, batches of 20",
        fm.fedmuon,
        lambda: fm.models.vit_tiny(100),
        **VITS,
    ),
    Run(
        "FedMuon with a ViT of width 512, batches of 20",
        fm.fedmuon,
        lambda: fm.models.vit_tiny(100, width=512, heads=8, hidden=2048),
        **VITS,
    ),
)


def measured(run: Run) -> str:
    """Trains two rounds; the line of this process."""
    x = np.random.default_rng(0).random((run.examples, *run.shape), np.float32)
    y = np.arange(run.examples, dtype=np.int32) % run.classes
    few = slice(10 * run.classes)
    names = tuple(map(str, range(run.classes)))
    dataset = fm.data.Dataset(x, y, x[few], y[few], names)
    parts = np.array_split(np.arange(run.examples), run.clients)
    task = fm.tasks.classification(run.model(), dataset)
    sizes: Any = {"cohort": run.cohort, "local_steps": 2, "batch_size": 20}
    simulation = fm.federate(run.algorithm(), task, dataset, parts, **sizes)
    state = simulation.init(jax.random.key(0))
    state, _ = simulation.train_rounds(state, 2)
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # of kB on Linux
    return f"| {run.about} | {count / 1e6:.2g} million | {peak:.1f} GB |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=int, help="number of a run, from 0")
    one = parser.parse_args().run
    if one is not None:
        print(measured(RUNS[one]), flush=True)
        return
    for number in range(len(RUNS)):
        words = [sys.executable, "-m", "benchmarks.memory", f"{number}"]
        subprocess.run(words, check=True)


if __name__ == "__main__":
    main()

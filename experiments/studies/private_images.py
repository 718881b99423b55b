"""Private classification of images: agents and clients, accuracy against epsilon.

    python -m experiments.studies.private_images --data-dir DATA

Histograms of oriented gradients (HOG), which learn nothing, are the features of a
linear model, as ScatterNet's are in Tramer and Boneh 2021, arXiv:2011.11660. In
`examples`, one example of a central data set is protected, at delta 1e-5: DP-SGD,
DP-FTRL, and Muon on noisy gradients. In `clients`, a client with all its examples is
protected, at delta of half of one over the number of clients: DP-FedAvg with a fixed
and with an adaptive clip norm, DP-FTRL, and Muon at the server.

The learning rate of every method is the best of its grid at each epsilon by the
accuracy on a tenth of the training examples, with one seed; the accounting does not
cover this choice. A grid is extended while its best rate is at an edge, at most three
times. Batches, cohorts and noise are drawn from the seed, so that all runs
can be repeated; such runs have no privacy. Every finished run is written to disk, and
the same command resumes an interrupted study.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro

from benchmarks.machine import machine
from experiments import dots
from experiments.papers.dpmixsgd_002 import read_rows
from experiments.studies.hog import features
from fedjax_muon import models
from fedjax_muon.algorithms import fedavg
from fedjax_muon.data import Dataset, partition
from fedjax_muon.decentralized.agent_privacy import AgentPrivacy
from fedjax_muon.decentralized.dsgd import dsgd
from fedjax_muon.decentralized.private import PRIVATE, Mechanism
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.privacy import AdaptiveClip, ClientPrivacy, best_banded
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs.errors import refusing
from fedjax_muon.simulation import training
from fedjax_muon.simulation.federated import federate
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.tasks.classification import classification
from fedjax_muon.transforms import muon
from fedjax_muon.transforms.noise_bias import muon_with_noise

SEEDS, EXTENSIONS = 3, 3
MOMENTUM = 0.9
# (accuracy in percent, epsilon, delta, source), of central training
PUBLISHED = {
    "mnist": (98.1, 2.93, 1e-5, "Papernot et al. 2021, arXiv:2007.14191, a CNN"),
    "fashion_mnist": (86.1, 2.7, 1e-5, "Papernot et al. 2021, arXiv:2007.14191, a CNN"),
}
COMMAND = "python -m experiments.studies.private_images --data-dir DATA"
COLUMNS = ("unit", "dataset", "method", "epsilon", "seed")


class Method(NamedTuple):
    """A private method, and the learning rates that are tried."""

    label: str
    make: Callable[..., Simulation]  # (dataset, epsilon, lr, seed, size) -> simulation
    rates: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Study:
    """Who is protected, at which epsilons, on which data."""

    unit: str
    epsilons: tuple[float, ...]
    rounds: int
    size: dict[str, Any]  # by data set: expected batches, or clients and cohorts


EXAMPLES = Study(
    "examples",
    (0.5, 3.0),
    200,
    {"mnist": 1024, "fashion_mnist": 1024},
)
CLIENTS = Study(
    "clients",
    (2.0, 8.0),
    100,
    {"digits": (300, 60), "fashion_mnist": (2000, 200)},
)


# -------------------------------------------------------------------------- one example


def _central(
    dataset: Dataset,
    epsilon: float,
    lr: float,
    batch: int,
    method: str,
    rule: Callable[[float], Any] | None,
) -> Simulation:
    steps = EXAMPLES.rounds + 1
    clip_norm = 0.1
    strategy = None
    if method == "dp_ftrl":
        strategy = best_banded(
            len(dataset.y_train), batch, steps, epsilon=epsilon, delta=1e-5
        )
    privacy = AgentPrivacy(
        PRIVATE[method],
        Mechanism(clip_norm, clip_norm, 1.0, batch, strategy),
        rounds=EXAMPLES.rounds,
        delta=1e-5,
        epsilon=epsilon,
        max_batch=batch + math.ceil(8 * math.sqrt(batch)),
        insecure_fixed_noise=True,
    )
    examples = len(dataset.y_train)
    rules = {}
    if rule is not None:
        scale = _scale(privacy, examples)
        rules = {"rule": rule(scale * clip_norm / batch)}
    return decentralize(
        dsgd(lr=lr, **rules),
        classification(models.MLP(10, ()), dataset.x_train.shape[1:]),
        dataset,
        [np.arange(examples)],
        weights=np.ones((1, 1)),
        privacy=privacy,
    )


@functools.cache
def _scale(privacy: AgentPrivacy, examples: int) -> float:
    return privacy.calibrated([examples]).noise_scale


def central(method: str, rule: Callable[[float], Any] | None = None) -> Callable:
    """Returns a function that prepares central training."""

    def make(dataset, epsilon, lr, seed, batch):
        del seed
        return _central(dataset, epsilon, lr, batch, method, rule)

    return make


SGD_RATES = (1000.0, 300.0, 100.0)
MUON_RATES = (1.0, 0.3, 0.1)
OF_EXAMPLES = (
    Method("DP-SGD", central("dp_sgda"), SGD_RATES),
    Method("DP-FTRL", central("dp_ftrl"), SGD_RATES),
    Method("DP-Muon", central("dp_sgda", lambda std: muon(MOMENTUM)), MUON_RATES),
    Method(
        "DP-Muon, bias corrected",
        central("dp_sgda", lambda std: muon_with_noise(std, momentum=MOMENTUM)),
        MUON_RATES,
    ),
)


# --------------------------------------------------------------------------- one client


def federated(adaptive: bool = False, ftrl: bool = False, server: Any = None):
    """Returns a function that prepares federated training with private clients."""

    def make(dataset, epsilon, lr, seed, sizes):
        clients, cohort = sizes
        delta, strategy = 0.5 / clients, None
        if ftrl:
            strategy = best_banded(
                clients, cohort, CLIENTS.rounds, epsilon=epsilon, delta=delta
            )
        privacy = ClientPrivacy(
            clip_norm=AdaptiveClip(initial=0.3, count_noise=10.0) if adaptive else 0.3,
            cohort_size=cohort,
            rounds=CLIENTS.rounds,
            delta=delta,
            epsilon=epsilon,
            insecure_fixed_noise=True,
            strategy=strategy,
        )
        key = jax.random.fold_in(jax.random.key(seed), 1)
        rules = {} if server is None else {"server_rule": server}
        return federate(
            fedavg(1.0, server_lr=lr, **rules),
            classification(models.MLP(10, ()), dataset.x_train.shape[1:]),
            dataset,
            partition.iid(dataset.y_train, clients, key=key),
            local_steps=4,
            batch_size=4,
            privacy=privacy,
        )

    return make


FED_RATES = (10.0, 3.0, 1.0)
OF_CLIENTS = (
    Method("DP-FedAvg", federated(), FED_RATES),
    Method("DP-FedAvg, adaptive clip", federated(adaptive=True), FED_RATES),
    Method("DP-FTRL", federated(ftrl=True), FED_RATES),
    Method("DP-FedMuon", federated(server=muon(MOMENTUM)), MUON_RATES),
)
METHODS = {"examples": OF_EXAMPLES, "clients": OF_CLIENTS}


# ----------------------------------------------------------------------------- the runs


def accuracy(method: Method, dataset: Dataset, epsilon, lr, seed, size, rounds):
    """Returns the test accuracy at the end of a run."""
    simulation = method.make(dataset, epsilon, lr, seed, size)
    _, rows = training.train(
        simulation,
        simulation.init(jax.random.key(seed)),
        rounds=rounds,
        evaluate_every=rounds,
        drop_nonfinite=True,
    )
    return rows[-1]["test_accuracy"]


def best_rate(
    score: Callable[[float], float], rates: tuple[float, ...]
) -> tuple[float, bool]:
    """Returns the rate of the highest score, and whether it is the last one tried.

    Args:
      score: Returns the score of a rate; NaN is lower than all others.
      rates: The first ones, each 1 or 3 times a power of ten.
    """
    tried = {lr: np.nan_to_num(score(lr), nan=-1.0) for lr in rates}
    for _ in range(EXTENSIONS):
        best = max(tried, key=lambda lr: tried[lr])
        if best not in (min(tried), max(tried)):
            break
        half_decade = round(2 * math.log10(best)) + (1 if best == max(tried) else -1)
        beyond = float(f"{10 ** (half_decade / 2):.1g}")
        tried[beyond] = np.nan_to_num(score(beyond), nan=-1.0)
    best = max(tried, key=lambda lr: tried[lr])
    return best, best in (min(tried), max(tried))


def run(study: Study, name: str, data_dir: Path | None, path: Path) -> None:
    """Runs what the file does not have yet."""
    known = {tuple(row[column] for column in COLUMNS) for row in read_rows(path)}
    size = study.size[name]
    for method in METHODS[study.unit]:
        for epsilon in study.epsilons:
            rows = [
                (study.unit, name, method.label, f"{epsilon:g}", str(seed))
                for seed in range(SEEDS)
            ]
            if known.issuperset(rows):
                continue
            score = functools.partial(accuracy, method, size=size, rounds=study.rounds)
            held = features(name, data_dir, True)
            held_score = functools.partial(score, held, epsilon, seed=0)
            lr, edge = best_rate(held_score, method.rates)
            whole = features(name, data_dir, False)
            for seed, row in enumerate(rows):
                if row not in known:
                    found = score(whole, epsilon, lr, seed)
                    about = dict(zip(COLUMNS, row, strict=True))
                    about |= {"accuracy": found, "lr": lr, "edge": edge}
                    metrics_csv.append(path, about)
            print(name, method.label, epsilon, lr, flush=True)


# --------------------------------------------------------------------------- the report

Cells = dict[tuple[str, float], np.ndarray]  # accuracies in percent by method, epsilon


def cells_of(rows: list[dict[str, str]], unit: str, name: str) -> Cells:
    """Returns the accuracies of all seeds."""
    found: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        if (row["unit"], row["dataset"]) == (unit, name):
            key = row["method"], float(row["epsilon"])
            found.setdefault(key, []).append(100 * float(row["accuracy"]))
    return {key: np.array(values) for key, values in found.items()}


def edges_of(rows: list[dict[str, str]], unit: str, name: str) -> set:
    """Returns methods and epsilons whose best rate is at an edge of the grid."""
    return {
        (row["method"], float(row["epsilon"]))
        for row in rows
        if (row["unit"], row["dataset"]) == (unit, name) and row["edge"] == "True"
    }


def table(study: Study, name: str, cells: Cells, edges: set) -> list[str]:
    """Returns accuracies in percent as Markdown: mean and standard deviation."""
    heads = " | ".join(f"epsilon {e:g}" for e in study.epsilons)
    lines = [f"| method | {heads} |", "|---|" + "---:|" * len(study.epsilons)]
    for method in METHODS[study.unit]:
        shown = []
        for epsilon in study.epsilons:
            c = cells.get((method.label, epsilon))
            mark = "*" * ((method.label, epsilon) in edges)
            text = f"{c.mean():.1f} ± {c.std(ddof=1):.1f}" if c is not None else ""
            shown.append(f"{text}{mark}")
        lines.append(f"| {method.label} | {' | '.join(shown)} |")
    if edges:
        said = "the best learning rate is the smallest or largest that was tried."
        lines += ["", f"\\*: {said}"]
    if study.unit == "examples":
        percent, epsilon, delta, source = PUBLISHED[name]
        lines += ["", f"Published: {percent} at ({epsilon}, {delta:g}), {source}."]
    return lines


def draw(study: Study, name: str, cells: Cells, path: Path) -> None:
    """Draws the accuracy of every method at every epsilon."""
    unit = "test accuracy, %"
    shown = [
        dots.dot(name, method, scores, f"epsilon {epsilon:g}", unit)
        for (method, epsilon), scores in sorted(
            cells.items(), key=lambda cell: cell[0][1]
        )
    ]
    if study.unit == "examples":
        percent, epsilon, _, source = PUBLISHED[name]
        row = f"{source.split(',')[0]}, a CNN (epsilon {epsilon})"
        shown.append(dots.Dot(name, row, percent, unit=unit))
    title = f"Privacy of {study.unit}"
    dots.draw(shown, path, title=title)


def report(output: Path) -> str:
    """Writes tables and figures of all finished runs; returns the text."""
    rows = read_rows(output / "images.csv")
    about = machine("experiments.studies.private_images")
    lines = [
        "# Private classification of images",
        "",
        f"Test accuracy in percent, mean ± standard deviation over {SEEDS} seeds; "
        f"`{COMMAND}` on {about['cores']} cores of {about['cpu']}, jax "
        f"{about['jax']}. A linear model on HOG features; {EXAMPLES.rounds} steps for "
        f"examples, {CLIENTS.rounds} rounds for clients.",
    ]
    for study in (EXAMPLES, CLIENTS):
        for name in study.size:
            cells = cells_of(rows, study.unit, name)
            if not cells:
                continue
            figure = f"images_{study.unit}_{name}.png"
            draw(study, name, cells, output / figure)
            lines += ["", f"## {name}, privacy of {study.unit}", ""]
            lines += table(study, name, cells, edges_of(rows, study.unit, name))
            lines += ["", f"![accuracy against epsilon]({figure})"]
    text = "\n".join([*lines, ""])
    (output / "images.md").write_text(text)
    return text


def main(
    data_dir: Path | None = None,
    units: tuple[str, ...] = ("examples", "clients"),
    output: Path = Path("runs/private_images"),
) -> None:
    """Compares private methods on images.

    Args:
      data_dir: Directory of the data sets' files; by default the environment variable
        FEDJAX_MUON_DATA.
      units: Who is protected, `examples` or `clients`.
      output: Directory; existing runs in it are reused.
    """
    with refusing():
        output.mkdir(parents=True, exist_ok=True)
        for study in (EXAMPLES, CLIENTS):
            if study.unit in units:
                for name in study.size:
                    run(study, name, data_dir, output / "images.csv")
    print(report(output))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)

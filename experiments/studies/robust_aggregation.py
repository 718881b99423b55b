"""FedAvg and three FedMuons under attack, by aggregator.

    python -m experiments.studies.robust_aggregation --part 0 --parts 2
    python -m experiments.studies.robust_aggregation --part 1 --parts 2

Handwritten digits, 20 clients by Dirichlet(1), all in every round. None, two or four of
them attack. Every cell has the same three learning rates per method; the table shows
the one whose accuracy, averaged over seeds, is highest on validation examples. Finished
runs are appended to a file, and left out the next time. The part that finishes last
writes the table and the figure.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro

import fedjax_muon as fm
from benchmarks.machine import machine
from experiments import dots
from fedjax_muon import aggregators, attacks
from fedjax_muon.core import Algorithm
from fedjax_muon.reporting.intervals import half_width
from fedjax_muon.sweeps.sweep import Cell, sweep

PLACE = Path("results/robust")
CLIENTS, ROUNDS, SEEDS = 20, 40, (0, 1, 2, 3, 4)
SIZES = {"cohort_size": CLIENTS, "local_steps": 5, "batch_size": 32}
VALIDATION = 180  # of the test examples

METHODS: dict[str, tuple[Callable[..., Algorithm], tuple[float, ...]]] = {
    "FedAvg": (fm.fedavg, (0.03, 0.1, 0.3)),
    "FedMuon": (fm.fedmuon, (0.01, 0.03, 0.1)),
    "FedMuon(alignment)": (fm.fedmuon_align, (0.003, 0.01, 0.03)),
    "FedMuon(bias correction)": (fm.fedmuon_correct, (0.01, 0.03, 0.1)),
}
AGGREGATORS = {
    "mean": None,
    "median": aggregators.median(),
    "trimmed mean": aggregators.trimmed_mean(0.2),
    "multi-Krum": aggregators.krum(0.2, chosen=None),
    "mixing, median": aggregators.chain(
        aggregators.nearest_neighbor_mixing(0.2), aggregators.median()
    ),
    "clipping": aggregators.centered_clipping(1.0, 3),
}
ATTACKS = {
    "sign flip": attacks.sign_flip(),
    "inner product": attacks.inner_product(2.0),
    "ALIE": attacks.alie(1.5),
    "Gaussian": attacks.gaussian(1.0),
}


class Setting(NamedTuple):
    method: str
    aggregator: str
    attack: str  # "none", or one of `ATTACKS`
    attackers: int

    def algorithm(self) -> Algorithm:
        make, rates = METHODS[self.method]
        algorithm = make(lr=rates[0])
        if self.attackers:
            clients = range(self.attackers)
            algorithm = fm.attack(algorithm, ATTACKS[self.attack], clients)
        aggregator = AGGREGATORS[self.aggregator]
        return algorithm if aggregator is None else fm.robust(algorithm, aggregator)


def settings() -> Iterator[Setting]:
    """All settings, unattacked ones first."""
    for attack, attackers in (
        ("none", 0),
        *((attack, number) for number in (4, 2) for attack in ATTACKS),
    ):
        for method in METHODS:
            for aggregator in AGGREGATORS:
                yield Setting(method, aggregator, attack, attackers)


def runs(setting: Setting, rounds: int, seeds: tuple[int, ...]) -> Iterator[dict]:
    """Trains all rates and seeds of a setting in one program."""
    digits = fm.data.load("digits")
    held = digits.x_test[:VALIDATION], digits.y_test[:VALIDATION]
    digits = digits._replace(
        x_test=digits.x_test[VALIDATION:], y_test=digits.y_test[VALIDATION:]
    )
    task = fm.tasks.classification(fm.models.MLP(10, (64, 64)), digits)
    parts = {
        seed: fm.partition.dirichlet(
            digits.y_train, CLIENTS, alpha=1.0, key=jax.random.key(seed)
        )
        for seed in seeds
    }
    points = [(lr, seed) for lr in METHODS[setting.method][1] for seed in seeds]
    cells = [
        Cell({"lr": lr}, jax.random.key(100 + seed), parts[seed]) for lr, seed in points
    ]
    simulation = fm.federate(
        setting.algorithm(), task, digits, parts[seeds[0]], **SIZES
    )
    groups = sweep(
        simulation, cells, rounds=rounds, evaluate_every=rounds, validation=held
    )
    outcomes = [outcome for group in groups for outcome in group]
    for (lr, seed), outcome in zip(points, outcomes, strict=True):
        last = outcome.rows[-1] if outcome.diverged is None else {}
        yield setting._asdict() | {
            "lr": lr,
            "seed": seed,
            "accuracy": float(last.get("test_accuracy", 0.0)),
            "validation": float(last.get("validation_accuracy", 0.0)),
        }


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main(
    part: int = 0,
    parts: int = 1,
    rounds: int = ROUNDS,
    seeds: tuple[int, ...] = SEEDS,
    output: Path = PLACE / "digits.jsonl",
) -> None:
    """Trains what is missing of one part of the settings."""
    output.parent.mkdir(parents=True, exist_ok=True)
    known = read(output) if output.exists() else []
    done = {tuple(row[name] for name in Setting._fields) for row in known}
    for number, setting in enumerate(settings()):
        if number % parts == part and tuple(setting) not in done:
            rows = list(runs(setting, rounds, seeds))
            with output.open("a") as file:
                file.writelines(f"{json.dumps(row)}\n" for row in rows)
            best = max(row["accuracy"] for row in rows)
            print(*setting, f"{best:.3f}", flush=True)
    known = {tuple(row[name] for name in Setting._fields) for row in read(output)}
    if known >= {tuple(setting) for setting in settings()}:
        table(output)


def chosen(rows: list[dict[str, Any]], setting: Setting) -> np.ndarray | None:
    """Returns the accuracies of the best rate, [seeds]; None if it was not run."""
    own = [r for r in rows if all(r[k] == v for k, v in setting._asdict().items())]
    rates = {row["lr"] for row in own}
    if not rates:
        return None
    of = lambda lr, name: np.array([row[name] for row in own if row["lr"] == lr])
    best = max(sorted(rates), key=lambda lr: of(lr, "validation").mean())
    return 100 * of(best, "accuracy")


def table(source: Path) -> None:
    """Writes the table and the figure of kept runs, next to them."""
    rows = read(source)
    about = machine("experiments.studies.robust_aggregation")
    lines = [
        "# Robust aggregation on digits\n",
        f"Test accuracy in percent after {ROUNDS} rounds, mean ± 95% interval over "
        f"{len({row['seed'] for row in rows})} seeds; 20 clients by Dirichlet(1), all "
        "in every round, each cell at the best of three rates by validation. "
        f"`python -m experiments.studies.robust_aggregation` on {about['cpu']}, jax "
        f"{about['jax']}.",
    ]
    shown = []
    for attack, attackers in dict.fromkeys((s.attack, s.attackers) for s in settings()):
        title = (
            f"{attack}, {attackers} of {CLIENTS} clients" if attackers else "no attack"
        )
        lines += [
            f"\n## {title[0].upper()}{title[1:]}\n",
            f"| method | {' | '.join(AGGREGATORS)} |",
            "|---|" + "---:|" * len(AGGREGATORS),
        ]
        for method in METHODS:
            cells = []
            for aggregator in AGGREGATORS:
                own = chosen(rows, Setting(method, aggregator, attack, attackers))
                if own is None:
                    cells.append("")
                    continue
                cells.append(f"{own.mean():.1f} ± {half_width(own):.1f}")
                if attackers != 2:
                    shown.append(
                        dots.dot(title, method, own, aggregator, "accuracy, %")
                    )
            lines.append(f"| {method} | {' | '.join(cells)} |")
    source.with_suffix(".md").write_text("\n".join([*lines, ""]))
    dots.draw(shown, source.with_suffix(".png"), title="Test accuracy under attack")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)

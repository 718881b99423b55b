"""Local rules of Muon's family in federated training.

    python -m experiments.studies.rules digits --part 0 --parts 2
    python -m experiments.studies.rules digits --part 1 --parts 2
    python -m experiments.studies.rules fashion_mnist --data-dir DATA

20 clients by Dirichlet(0.3), half of them in every round. Clients train by a rule whose
state is fresh in every round, with FedAvg and, on digits, with SCAFFOLD. Leaves that
are not matrices have Adam everywhere but in SGD and Scion. Every cell has five learning
rates, or three on Fashion-MNIST, a factor of 3 apart. The table shows the one whose
accuracy, averaged over seeds, is highest on validation examples. Finished runs are
appended to a file, and left out the next time. The part that finishes last writes the
table and the figure.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import optax

import fedjax_muon as fm
from benchmarks.machine import machine
from experiments import dots
from experiments.arguments import call
from experiments.studies import tuned
from fedjax_muon import transforms
from fedjax_muon.core import Algorithm
from fedjax_muon.runs.intervals import half_width

PLACE = Path("results/rules")
SEEDS = (0, 1, 2, 3, 4)
SIZES = {"cohort": 10, "local_steps": 5, "batch_size": 32}

Name = Literal["digits", "fashion_mnist"]


class Scale(NamedTuple):
    """What depends on the dataset."""

    model: Any
    held: int  # validation examples
    rounds: int
    algorithms: tuple[str, ...]
    spread: tuple[float, ...]  # of the learning rates


SCALES: dict[str, Scale] = {
    "digits": Scale(
        fm.models.MLP(10, (64, 64)),
        180,
        40,
        ("FedAvg", "SCAFFOLD"),
        (1 / 9, 1 / 3, 1.0, 3.0, 9.0),
    ),
    "fashion_mnist": Scale(
        fm.models.LeNet(10), 2000, 40, ("FedAvg",), (1 / 3, 1.0, 3.0)
    ),
}
ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "FedAvg": fm.fedavg,
    "SCAFFOLD": fm.scaffold,
}
ADAM = optax.scale_by_adam(0.9, 0.95, 1e-10)


def _muon(
    *before: optax.GradientTransformation,
    after: Any = (),
    scale: Any = transforms.jordan,
) -> optax.GradientTransformation:
    """Muon with Nesterov momentum, and rules before and after its polar factor."""
    matrices = optax.chain(
        *before, transforms.orthogonalize(), *after, transforms.scale_by_shape(scale)
    )
    return transforms.by_rank(matrices, ADAM)


NESTEROV = optax.trace(0.95, nesterov=True)
SCION = transforms.by_rank(transforms.spectral_direction(), transforms.rms_direction())
RULES: dict[str, tuple[optax.GradientTransformation, float]] = {  # and the middle rate
    "SGD": (optax.identity(), 0.1),
    "Adam": (ADAM, 0.003),
    "SOAP": (transforms.by_rank(transforms.scale_by_soap(), ADAM), 0.003),
    "Muon": (_muon(NESTEROV), 0.03),
    "NorMuon": (transforms.by_rank(transforms.scale_by_normuon(), ADAM), 0.03),
    "Muon+": (
        _muon(
            NESTEROV,
            after=(transforms.normalize_axes("out", "in"),),
            scale=transforms.spectral,
        ),
        0.03,
    ),
    "MuonEq": (
        _muon(NESTEROV, transforms.equilibrate("out"), scale=transforms.moonlight),
        0.03,
    ),
    "AdaMuon": (transforms.by_rank(transforms.scale_by_adamuon(), ADAM), 0.03),
    "Muon2": (transforms.by_rank(transforms.scale_by_muon2(), ADAM), 0.03),
    "MARS-M": (
        _muon(
            transforms.scale_by_mars(0.95),
            optax.trace(0.95),
            scale=transforms.moonlight,
        ),
        0.03,
    ),
    "Scion": (transforms.scale_by_scion(), 0.03),
    "Clipped Scion": (
        optax.chain(
            optax.ema(0.9, debias=False), transforms.clip_by_dual_norm(SCION, 1.0)
        ),
        0.1,
    ),
}


class Setting(NamedTuple):
    dataset: str
    algorithm: str
    rule: str

    @property
    def rates(self) -> list[float]:
        return [factor * RULES[self.rule][1] for factor in SCALES[self.dataset].spread]


def settings(dataset: str) -> Iterator[Setting]:
    """All settings of a dataset."""
    for algorithm in SCALES[dataset].algorithms:
        for rule in RULES:
            yield Setting(dataset, algorithm, rule)


def runs(
    setting: Setting, data_dir: Path | None, rounds: int | None, seeds: tuple[int, ...]
) -> Iterator[tuned.Row]:
    """Trains all rates and seeds of a setting in one program."""
    scale = SCALES[setting.dataset]
    problem = tuned.problem(
        scale.model,
        fm.data.load(setting.dataset, data_dir=data_dir),
        held=scale.held,
        clients=20,
        alpha=0.3,
    )
    algorithm = ALGORITHMS[setting.algorithm](
        lr=setting.rates[0], rule=RULES[setting.rule][0]
    )
    return tuned.trained(
        algorithm, problem, setting.rates, seeds, rounds or scale.rounds, **SIZES
    )


def main(
    dataset: Name,
    /,
    data_dir: Path | None = None,
    part: int = 0,
    parts: int = 1,
    rounds: int | None = None,
    seeds: tuple[int, ...] = SEEDS,
    output: Path = PLACE,
) -> None:
    """Trains what is missing of one part of the settings."""
    run = lambda setting: runs(setting, data_dir, rounds, seeds)
    path = output / f"{dataset}.jsonl"
    if tuned.finish(settings(dataset), run, path, part, parts):
        table(path)


def table(source: Path) -> None:
    """Writes the table and the figure of kept runs, next to them."""
    rows, dataset = tuned.read(source), source.stem
    name, about = dots.in_words(dataset), machine("experiments.studies.rules")
    lines = [
        f"# Rules on {name}\n",
        f"Test accuracy in percent after {SCALES[dataset].rounds} rounds, mean ± 95% "
        f"interval over {len({row['seed'] for row in rows})} seeds, at the best of "
        f"{len(SCALES[dataset].spread)} rates by validation (*: at the edge of the "
        "grid); the paired difference "
        "from Muon, marked where its interval excludes 0. "
        f"`python -m experiments.studies.rules {dataset}` on {about['cpu']}, jax "
        f"{about['jax']}.",
    ]
    for algorithm in SCALES[dataset].algorithms:
        lines += [
            f"\n## {algorithm}\n",
            "| rule | learning rate | accuracy | minus Muon |",
            "|---|---:|---:|---:|",
        ]
        _, muon = tuned.chosen(rows, Setting(dataset, algorithm, "Muon"))
        for rule in RULES:
            setting = Setting(dataset, algorithm, rule)
            lr, scores = tuned.chosen(rows, setting)
            edge = "*" if lr in (setting.rates[0], setting.rates[-1]) else ""
            apart, width = (scores - muon).mean(), half_width(scores - muon)
            mark = "**" if abs(apart) > width else ""
            lines.append(
                f"| {rule} | {lr:.2g}{edge} | {scores.mean():.1f} ± "
                f"{half_width(scores):.1f} | {mark}{apart:+.1f} ± {width:.1f}{mark} |"
            )
    source.with_suffix(".md").write_text("\n".join([*lines, ""]))
    draw(source, source.with_suffix(".png"))


def draw(source: Path, path: Path, title: str = "") -> None:
    """Draws paired differences from Muon of kept runs."""
    rows, dataset = tuned.read(source), source.stem
    shown, unit = [], "accuracy minus Muon's, points"
    for algorithm in SCALES[dataset].algorithms:
        every = {rule: Setting(dataset, algorithm, rule) for rule in RULES}
        scores = {rule: tuned.chosen(rows, one)[1] for rule, one in every.items()}
        muon, panel = scores.pop("Muon"), f"{algorithm}, {dataset}"
        for rule, own in scores.items():
            shown.append(dots.dot(panel, rule, own - muon, unit=unit))
    dots.draw(shown, path, title=title)


if __name__ == "__main__":
    call(main, __doc__)

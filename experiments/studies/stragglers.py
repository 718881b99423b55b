"""Synchronous rounds, deadlines and asynchronous rounds with clients of unequal speed.

    python -m experiments.studies.stragglers digits --part 0 --parts 2
    python -m experiments.studies.stragglers digits --part 1 --parts 2
    python -m experiments.studies.stragglers fashion_mnist --data-dir DATA

200 clients by Dirichlet(0.3), 20 at work at any time. A job of the slowest client takes
as many times that of the fastest one as the spread says; between them, speeds are
log-uniform. Every cell receives as many messages, and has three learning rates; the
table shows the one with the highest validation accuracy after all messages, averaged
over five seeds for digits, and of the first seed for Fashion-MNIST. Finished runs are
appended to a file, and left out the next time. The part that finishes last writes the
table and the figure.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np

import fedjax_muon as fm
from experiments.arguments import call
from experiments.machine import machine
from experiments.studies import tuned
from fedjax_muon.core import Algorithm
from fedjax_muon.runs.intervals import half_width
from fedjax_muon.runs.style import drawing, logarithmic, styles

matplotlib.use("Agg")

PLACE = Path("results/stragglers")
SEEDS = (0, 1, 2, 3, 4)
CLIENTS, WORKERS, BUFFER = 200, 20, 5
SPREADS = (1, 4, 16)

Name = Literal["digits", "fashion_mnist"]


class Scale(NamedTuple):
    """What depends on the dataset."""

    model: Any
    held: int  # validation examples
    messages: int
    target: float
    points: int  # evaluations
    tuning_seeds: int  # the rate is chosen on so many of the seeds


SCALES = {
    "digits": Scale(fm.models.MLP(10, (64, 64)), 180, 1600, 0.9, 20, 5),
    "fashion_mnist": Scale(fm.models.LeNet(10), 2000, 800, 0.7, 10, 1),
}
METHODS: dict[str, tuple[Callable[..., Algorithm], tuple[float, ...]]] = {
    "FedAvg": (fm.fedavg, (0.03, 0.1, 0.3)),
    "FedMuon": (fm.fedmuon, (0.003, 0.01, 0.03)),
}
MODES: dict[str, Callable[[np.ndarray, Any], Any]] = {
    "synchronous": lambda seconds, clock: fm.timed(WORKERS, clock),
    # the slowest third takes no part
    "deadline": lambda seconds, clock: fm.timed(
        WORKERS, clock, deadline=float(np.quantile(seconds, 2 / 3))
    ),
    "buffered": lambda seconds, clock: fm.buffered(WORKERS, BUFFER, clock),
}


MODE_NAMES = {name: name for name in MODES} | {"buffered": "asynchronous"}


class Setting(NamedTuple):
    dataset: str
    spread: int
    method: str
    mode: str


def settings(dataset: str) -> Iterator[Setting]:
    for spread in SPREADS:
        for method in METHODS:
            for mode in MODES:
                yield Setting(dataset, spread, method, mode)


def runs(
    setting: Setting, data_dir: Path | None, messages: int, seeds: tuple[int, ...]
) -> Iterator[tuned.Row]:
    """Trains all rates, and all seeds at the rates that are left; rows have curves."""
    scale = SCALES[setting.dataset]
    data = fm.data.load(setting.dataset, data_dir=data_dir)
    problem = tuned.problem(
        scale.model, data, held=scale.held, clients=CLIENTS, alpha=0.3, min_size=1
    )
    make, rates = METHODS[setting.method]
    slower = setting.spread ** np.random.default_rng(0).uniform(size=CLIENTS)
    cohort = MODES[setting.mode](slower, fm.clocks.measured(slower / 5))
    rounds = messages // cohort.size

    def trained(rates: Sequence[float], seeds: Sequence[int]) -> list[tuned.Row]:
        rows = tuned.trained(
            make(lr=rates[0]),
            problem,
            rates,
            seeds,
            rounds,
            evaluate_every=max(1, rounds // scale.points),
            curve=("virtual_seconds", "bytes_up", "test_accuracy"),
            local_steps=5,
            batch_size=16,
            cohort=cohort,
        )
        return list(rows)

    first, others = seeds[: scale.tuning_seeds], seeds[scale.tuning_seeds :]
    rows = trained(rates, first)
    if others:
        best = max(rows, key=lambda row: row["validation"])["lr"]
        rows = [row for row in rows if row["lr"] == best] + trained([best], others)
    yield from rows


def main(
    dataset: Name,
    /,
    data_dir: Path | None = None,
    part: int = 0,
    parts: int = 1,
    messages: int | None = None,
    seeds: tuple[int, ...] = SEEDS,
    output: Path = PLACE,
) -> None:
    """Trains what is missing of one part of the settings."""
    number = messages or SCALES[dataset].messages
    run = lambda setting: runs(setting, data_dir, number, seeds)
    path = output / f"{dataset}.jsonl"
    if tuned.finish(settings(dataset), run, path, part, parts):
        table(path, number)


def reached(row: tuned.Row, target: float, column: str) -> float:
    """The value of a column when the target is reached first; infinite if never."""
    scores = np.array(row["test_accuracy"])
    at = np.flatnonzero(scores >= target)
    return float(row[column][at[0]]) if len(at) else float("inf")


def best(rows: list[tuned.Row], dataset: str) -> dict[Setting, list[tuned.Row]]:
    """The runs of every setting at its chosen rate."""
    found = {}
    for setting in settings(dataset):
        lr, _ = tuned.chosen(rows, setting)
        found[setting] = [row for row in tuned.of(rows, setting) if row["lr"] == lr]
    return found


def table(source: Path, messages: int) -> None:
    """Writes the table and the figure of kept runs, next to them."""
    rows, dataset = tuned.read(source), source.stem
    scale, about = SCALES[dataset], machine("experiments.studies.stragglers")
    lines = [
        f"# Unequal speeds on {dataset}\n",
        f"{CLIENTS} clients, {WORKERS} at work, {messages} messages; mean ± 95% "
        f"interval over {len({row['seed'] for row in rows})} seeds, at the best of "
        f"three rates by validation on {scale.tuning_seeds} of them. Virtual seconds "
        f"and megabytes up to a test accuracy of {scale.target:g}, where all seeds "
        "reach it; a job of the fastest client takes 1 second. "
        f"`python -m experiments.studies.stragglers {dataset}` on {about['cpu']}, jax "
        f"{about['jax']}.\n",
        "| spread | method | rounds | learning rate | accuracy, % | seconds | MB |",
        "|---:|---|---|---:|---:|---:|---:|",
    ]
    curves = best(rows, dataset)
    for setting, runs in curves.items():
        lr, scores = tuned.chosen(rows, setting)
        cells = []
        for column, factor in (("virtual_seconds", 1), ("bytes_up", 1e-6)):
            values = factor * np.array(
                [reached(row, scale.target, column) for row in runs]
            )
            whole = np.isfinite(values).all()
            shown = f"{values.mean():.1f} ± {half_width(values):.1f}" if whole else "-"
            cells.append(shown)
        lines.append(
            f"| {setting.spread} | {setting.method} | {setting.mode} | {lr:g} | "
            f"{scores.mean():.1f} ± {half_width(scores):.1f} | {' | '.join(cells)} |"
        )
    source.with_suffix(".md").write_text("\n".join([*lines, ""]))
    draw(curves, source.with_suffix(".png"), scale.target)


def draw(
    curves: dict[Setting, list[tuned.Row]], path: Path, target: float, title: str = ""
) -> None:
    """Draws the time to the target, a panel for each spread and a row for each mode."""
    with drawing(path, (9.5, 2.6)) as figure:
        share: dict[str, Any] = {"sharex": True, "sharey": True, "squeeze": False}
        panels = figure.subplots(1, len(SPREADS), **share)[0]
        colors = {name: how["color"] for name, how in styles(METHODS).items()}
        modes, ends = list(MODE_NAMES)[::-1], []
        for axis, spread in zip(panels, SPREADS, strict=True):
            for setting, rows in curves.items():
                if setting.spread != spread:
                    continue
                times = [reached(row, target, "virtual_seconds") for row in rows]
                if not np.isfinite(times).all():
                    continue
                mean, half = float(np.mean(times)), float(half_width(times))
                first = setting.method == next(iter(METHODS))
                place = modes.index(setting.mode) + (0.15 if first else -0.15)
                color, low = colors[setting.method], max(mean - half, 1.0)
                axis.plot([low, mean + half], [place, place], color=color)
                axis.plot(mean, place, "o", ms=5, color=color)
                ends += [low, mean + half]
                if axis is panels[0] and setting.mode == modes[-1]:
                    how = {"color": color, "va": "center", "fontsize": 8}
                    axis.text(1.1 * (mean + half), place, setting.method, **how)
            words = f"slowest client {spread} times slower"
            axis.set_title(words if spread > 1 else "equal speeds")
            axis.set_yticks(range(len(modes)), [MODE_NAMES[mode] for mode in modes])
            axis.set_ylim(-0.5, len(modes) - 0.5)
        if ends:
            logarithmic(panels[0], ends)
        panels[len(panels) // 2].set_xlabel(
            f"virtual seconds to a test accuracy of {target:.0%}"
        )
        figure.suptitle(title, x=0.01, ha="left")


if __name__ == "__main__":
    call(main, __doc__)

"""Client-level privacy with natural clients: hospitals, and speakers of plays.

    python -m experiments.studies.natural_privacy

The clients are four hospitals, or all 1,152 speakers of Shakespeare's plays. DP-FedAvg,
DP-FTRL and FedMuon protect a client with all its examples. DP-SGD in every hospital
protects a single patient instead. The methods are also trained with clipped messages
without noise, and without privacy.

The learning rate and the clip norm of every method and epsilon have the highest mean
validation accuracy on the seeds for tuning, where the clients keep a fifth of their
training examples back; the accounting does not cover this choice. A grid of rates is
extended at most `EXTENSIONS` times while its best rate is at an edge. Then the chosen
point is trained on all training examples, on other seeds.

Cohorts and noise are drawn from the seed, so that all runs can be repeated; such runs
have no privacy. Every run is a line of privacy.csv, and the same command resumes an
interrupted study. The study writes privacy.md beside it.
"""

import itertools
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from benchmarks.machine import machine
from experiments.papers.dpmixsgd_002 import read_rows
from experiments.studies.learning_rates import rate
from experiments.studies.natural import divided, logits_of
from experiments.studies.natural_federations import (
    FEDERATIONS,
    LEVELS,
    METHODS,
    Federation,
    clips_of,
    message_size,
    noise_of,
    params_of,
    simulation_of,
)
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs.errors import refusing
from fedjax_muon.simulation import Simulation

EXTENSIONS = 2


class Runs:
    """The finished runs of a study, in a file with a line for each."""

    keys = ("dataset", "method", "level", "clip", "rate", "split", "seed")

    def __init__(self, path: Path):
        self.path = path
        self.rows = {tuple(r[key] for key in self.keys): r for r in read_rows(path)}

    def get(self, *key: Any) -> dict[str, str] | None:
        """Returns a run, or None."""
        return self.rows.get(tuple(map(_text, key)))

    def add(self, row: dict[str, Any]) -> dict[str, str]:
        """Writes a run; returns it as it is in the file."""
        shown = {name: _text(value) for name, value in row.items()}
        metrics_csv.append(self.path, shown)
        self.rows[tuple(shown[key] for key in self.keys)] = shown
        return shown

    def of(self, name: str, method: str, level: str, split: str) -> list[dict]:
        """Returns the runs of a method at a level of privacy."""
        rows = self.rows.items()
        return [
            r for key, r in rows if (*key[:3], key[5]) == (name, method, level, split)
        ]


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class Study:
    """A method at a level of privacy on a data set."""

    def __init__(
        self, runs: Runs, name: str, federation: Federation, method: str, level: str
    ):
        self.runs, self.name, self.federation = runs, name, federation
        self.method, self.level = method, level
        self.made: dict[tuple[str, float], tuple[Simulation, Any]] = {}

    def accuracy(self, split: str, clip: float, lr: float, seed: int) -> float:
        """Returns the accuracy of a run, which is trained if it is not in the file."""
        key = (self.name, self.method, self.level, clip, lr, split, seed)
        row = self.runs.get(*key)
        if row is None:
            found = self._trained(split, clip, lr, seed)
            row = self.runs.add(dict(zip(Runs.keys, key, strict=True)) | found)
        return float(row["accuracy"])

    def _prepared(self, split: str, clip: float) -> tuple[Simulation, Any]:
        """A simulation, and the examples that score it."""
        if (split, clip) not in self.made:
            dataset = self.federation.problem.dataset
            held = dataset.x_test, dataset.y_test
            if split == "validation":
                dataset, held = divided(dataset)
            method = METHODS[self.method]
            made = simulation_of(self.federation, method, self.level, clip, dataset)
            self.made[split, clip] = made, held
        return self.made[split, clip]

    def _trained(self, split: str, clip: float, lr: float, seed: int) -> dict[str, Any]:
        problem, method = self.federation.problem, METHODS[self.method]
        simulation, (x, y) = self._prepared(split, clip)
        params = params_of(simulation, method, lr, seed, problem.rounds)
        logits = partial(logits_of, problem.model, params)
        return {
            "accuracy": float((logits(x).argmax(1) == y).mean()),
            "hospitals": problem.scores(logits).get("hospitals", math.nan),
            "noise": noise_of(simulation),
        }

    def best(self) -> tuple[float, float]:
        """Returns the clip norm and the rate of the highest validation accuracy."""
        exponents = [*self.federation.exponents[self.method]]
        clips = clips_of(self.federation, self.method, self.level)
        seeds = self.federation.problem.tuning_seeds
        for _ in range(1 + EXTENSIONS):
            scores = {
                (clip, lr): np.mean(
                    [self.accuracy("validation", clip, lr, seed) for seed in seeds]
                )
                for clip, lr in itertools.product(clips, map(rate, exponents))
            }
            clip, lr = max(scores, key=lambda point: scores[point])
            if lr == rate(exponents[0]):
                exponents.insert(0, exponents[0] - 1)
            elif lr == rate(exponents[-1]):
                exponents.append(exponents[-1] + 1)
            else:
                break
        return clip, lr

    def run(self) -> None:
        """Tunes and tests."""
        clip, lr = self.best()
        seeds = self.federation.problem.seeds
        found = [self.accuracy("test", clip, lr, seed) for seed in seeds]
        print(self.name, self.method, self.level, clip, lr, *found, flush=True)


# --------------------------------------------------------------------------- the report


def _percent(rows: Sequence[dict[str, str]], score: str) -> str:
    values = 100 * np.array([float(row[score]) for row in rows])
    return f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"


def accuracies(runs: Runs, name: str, federation: Federation, score: str) -> list[str]:
    """Returns test accuracies in percent as Markdown: mean and standard deviation."""
    heads = " | ".join(LEVELS.values())
    lines = [f"| method | {heads} |", "|---|" + "---:|" * len(LEVELS)]
    for method in federation.exponents:
        rows = [runs.of(name, method, level, "test") for level in LEVELS]
        cells = [_percent(each, score) if each else "" for each in rows]
        lines.append(f"| {METHODS[method].label} | {' | '.join(cells)} |")
    return lines


def points(runs: Runs, name: str, federation: Federation) -> list[str]:
    """Returns the chosen points, and the noise, as Markdown."""
    lines = [
        "| method | privacy | rate | clip norm | runs for tuning | z | noise |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for method, level in itertools.product(federation.exponents, LEVELS):
        tested = runs.of(name, method, level, "test")
        if not tested:
            continue
        tried = runs.of(name, method, level, "validation")
        rates = [float(row["rate"]) for row in tried]
        (chosen,) = {(row["rate"], row["clip"], row["noise"]) for row in tested}
        lr, clip, z = map(float, chosen)
        edge = "*" * (lr in (min(rates), max(rates)))
        one = METHODS[method]
        noise = "-"
        if z and one.algorithm and not one.correlated:
            size = message_size(federation, one)
            noise = f"{z * math.sqrt(size) / federation.problem.cohort_size:.2g}"
        cells = (
            one.label,
            LEVELS[level],
            f"{lr:g}{edge}",
            f"{clip:g}" if clip else "-",
        )
        shown = (*cells, str(len(tried)), f"{z:.3g}" if z else "-", noise)
        lines.append(f"| {' | '.join(shown)} |")
    return lines


def section(runs: Runs, name: str, federation: Federation) -> list[str]:
    """Returns the results on a data set as Markdown."""
    problem = federation.problem
    clients = len(np.unique(np.asarray(problem.dataset.owners)))
    lines = [
        f"## {federation.title}",
        "",
        f"{clients} clients, {problem.cohort_size} per round, {problem.rounds} rounds "
        f"of {problem.local_steps} steps with batches of {problem.batch_size}, delta "
        f"{federation.delta:g}, {len(problem.seeds)} seeds.",
        "",
        *accuracies(runs, name, federation, "accuracy"),
        "",
    ]
    if problem.scores(lambda x: np.zeros((len(x), 2))):
        lines += ["Mean of the hospitals' own test patients:", ""]
        lines += [*accuracies(runs, name, federation, "hospitals"), ""]
    return [*lines, *points(runs, name, federation), ""]


def report(runs: Runs, federations: dict[str, Federation]) -> str:
    """Returns the results of all finished runs as Markdown."""
    about = machine("experiments.studies.natural_privacy")
    lines = [
        "# Client-level privacy with natural clients",
        "",
        "Test accuracy in percent, mean ± standard deviation over seeds. Neighboring "
        "data sets differ by one client with all its examples; under DP-SGD for single "
        "patients, by one patient. z is the noise multiplier of a round, and noise the "
        "root mean square of the noise in the clients' mean over the clip norm. Points "
        "are chosen by validation on other seeds, which the accounting does not cover. "
        "\\*: the rate is the smallest or largest that was tried. Empty: not run.",
        "",
    ]
    for name, federation in federations.items():
        lines += section(runs, name, federation)
    lines += [
        f"`{about['command']}`, {about['cores']} cores of {about['cpu']}, jax "
        f"{about['jax']}.",
        "",
    ]
    return "\n".join(lines)


def main(
    datasets: tuple[Literal["heart_disease", "plays"], ...] = tuple(FEDERATIONS),
    output: Path = Path("results/natural"),
) -> None:
    """Tunes and tests private methods on data sets with natural clients.

    Args:
      datasets: Data sets; privacy.md describes these alone.
      output: Directory of the results; existing runs in it are reused.
    """
    with refusing():
        output.mkdir(parents=True, exist_ok=True)
        runs = Runs(output / "privacy.csv")
        federations = {name: FEDERATIONS[name]() for name in datasets}
        for name, federation in federations.items():
            for method, level in itertools.product(federation.exponents, LEVELS):
                if level in METHODS[method].levels:
                    Study(runs, name, federation, method, level).run()
        text = report(runs, federations)
        (output / "privacy.md").write_text(text)
        print(text)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)

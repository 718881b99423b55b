"""Empirical audits of the private methods, and of mistakes that should be found.

    python -m experiments.studies.audit --output results/privacy

`experiments.studies.flaws` has the mechanisms. An audit has three scores of the
releases of agent 0: the best test of the claimed mechanism; the first release alone,
which may lack noise; and the largest difference of consecutive releases, which shows
reused noise. The result is the largest of the three bounds. The confidence of each is
chosen such that the result holds with 95%.
"""

import csv
import functools
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro

from benchmarks.machine import machine
from experiments.studies.flaws import (
    AGENTS,
    CASES,
    CLAIM,
    DELTA,
    STEPS,
    Case,
    Flaw,
    deviations,
    flaws,
    pattern,
    run,
    traces,
)
from fedjax_muon import audits
from fedjax_muon.privacy import Poisson
from fedjax_muon.reporting.style import drawing

SHOWN = {  # in the figure
    "noise / 10": "a tenth of the noise",
    "clean at t = 0": "no noise at first",
    "no clip": "nothing is clipped",
    "clip of the mean": "only the mean is clipped",
    "reused key": "the same noise every time",
    "memory forgotten": "noise ignores the memory",
    "counted for the mean": "noise for the agents' mean",
}
CONFIDENCE = 1 - 0.05 / 3  # of each of three bounds


def scores(case: Case, found) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the three scores: best test, first release, largest difference."""
    trace = traces(case) / deviations(case)
    if isinstance(case.sampling, Poisson):
        best = audits.likelihood_ratio(found, trace, case.probability)
    else:
        best = audits.matched_filter(found, trace)
    return best, found[..., 0], audits.largest_difference(found)


def multi_run(case: Case, flaw: Flaw, number: int, seed: int = 0) -> float:
    """Returns a lower bound of epsilon from `number` worlds with and without canary."""
    rng = np.random.default_rng(seed)
    weights = np.zeros((number, 2, STEPS))  # alternately without and with
    weights[:, 1] = pattern(case)
    if isinstance(case.sampling, Poisson):
        weights *= rng.random(weights.shape) < case.probability
    found = run(case, flaw, weights.reshape(-1, STEPS, 1), seed)
    found = found.reshape(number, 2, STEPS)
    lower = []
    for score, level in zip(scores(case, found), thresholds(case), strict=True):
        absent, present = score.T
        if isinstance(case.sampling, Poisson):
            bound = functools.partial(
                audits.epsilon_bound, delta=DELTA, confidence=CONFIDENCE
            )
            half = number // 2  # worlds that choose the threshold
            level = audits.best_threshold(absent[:half], present[:half], bound)
            lower.append(bound(audits.errors(absent[half:], present[half:], level)))
        else:
            errors = audits.errors(absent, present, level)
            lower.append(audits.gaussian_epsilon_bound(errors, DELTA, CONFIDENCE))
    return max(lower)


def thresholds(case: Case) -> tuple[float, float, float]:
    """Returns half of the scores without noise."""
    trace = traces(case) / deviations(case)
    whole, jump = np.linalg.norm(trace), audits.largest_difference(trace)
    return float(whole) / 2, float(trace[0]) / 2, float(jump) / 2


def one_run(case: Case, flaw: Flaw, number: int, seed: int = 0) -> float:
    """Returns a lower bound of epsilon from one world with random canaries.

    Each of `number` canaries is included by a fair coin.
    """
    rng = np.random.default_rng(seed)
    included = rng.random(number) < 0.5
    weights = pattern(case)[:, None] * included
    if isinstance(case.sampling, Poisson):
        weights = weights * (rng.random(weights.shape) < case.probability)
    found = run(case, flaw, weights[None], seed)[0]
    guesses = number // 4 * 2
    lower = []
    for score in scores(case, found):
        right = audits.correct_guesses(score, included, guesses)
        lower.append(audits.one_run_bound(number, guesses, right, DELTA, CONFIDENCE))
    return max(lower)


class Row(NamedTuple):
    """A line of the table."""

    mechanism: str
    variant: str  # "correct", or the name of a mistake
    claim: float
    many: float  # lower bounds
    one: float

    @property
    def alarms(self) -> tuple[str, ...]:
        bounds = {"many runs": self.many, "one run": self.one}
        return tuple(name for name, bound in bounds.items() if bound > self.claim)

    @property
    def verdict(self) -> str:
        return f"ALARM: {', '.join(self.alarms)}" if self.alarms else "no alarm"


def summary(rows: list[Row]) -> str:
    """Returns a summary of the rows in words."""
    correct = [row for row in rows if row.variant == "correct"]
    flawed = [row for row in rows if row.variant != "correct"]
    false = sum(bool(row.alarms) for row in correct)
    many, one = (
        sum(name in row.alarms for row in flawed) for name in ("many runs", "one run")
    )
    missed = [f"{row.variant} ({row.mechanism})" for row in flawed if not row.alarms]
    return (
        f"Of {len(correct)} correct mechanisms {false} raise an alarm. Of "
        f"{len(flawed)} mistakes many runs find {many}, and one run finds {one}. Found "
        f"by neither: "
        f"{'; '.join(missed) or 'none'}."
    )


def table(rows: list[Row]) -> list[str]:
    """Returns the rows as Markdown."""
    lines = [
        "| mechanism | variant | claimed epsilon | many runs | one run | verdict |",
        "|---|---|---:|---:|---:|---|",
    ]
    for row in rows:
        numbers = f"{row.claim:g} | {row.many:.2f} | {row.one:.2f}"
        lines.append(f"| {row.mechanism} | {row.variant} | {numbers} | {row.verdict} |")
    return lines


def text(rows: list[Row], worlds: int, canaries: int, about, seconds) -> list[str]:
    """Returns the page as Markdown."""
    guesses = canaries // 4 * 2
    right = audits.Errors(0, worlds, 0, worlds)
    most = (
        audits.gaussian_epsilon_bound(right, DELTA, CONFIDENCE),
        audits.one_run_bound(canaries, guesses, guesses, DELTA, CONFIDENCE),
    )
    return [
        "# Audits of privacy",
        "",
        f"Lower bounds of epsilon at delta {DELTA:g}, each with a confidence of 95%, "
        f"from attacks on agent 0 of a ring of {AGENTS} agents in {STEPS} iterations. "
        + summary(rows),
        "",
        *table(rows),
        "",
        f"Many runs: {worlds} worlds with one canary and as many without. Without "
        "sampling, the bound follows from the errors at fixed thresholds and the "
        "trade-off function of Gaussian mechanisms. Under Poisson sampling it follows "
        "from the errors alone, at thresholds that half of the worlds chose. One run: "
        f"{canaries} canaries, each included by a fair coin, and {guesses} guesses. It "
        "cannot detect a clip of the mean, which all canaries share. An attack without "
        f"errors proves {most[0]:.1f} without sampling, and {most[1]:.2f} in one run. "
        "`experiments/studies/flaws.py` describes the mistakes. The absence of an "
        "alarm is not a proof of privacy.",
        "",
        f"`{about['command']}`, {seconds:.0f} seconds, "
        f"{about['cores']} cores of {about['cpu']}, jax {about['jax']}.",
        "",
        "![lower bounds of epsilon against the claim](audit.png)",
        "",
    ]


def draw(rows: list[Row], path: Path) -> None:
    """Draws lower bounds and the claim, one panel for every mechanism."""
    mechanisms = list(dict.fromkeys(row.mechanism for row in rows))
    names = list(dict.fromkeys(row.variant for row in rows))
    left = 0.1  # smaller bounds are drawn here
    with drawing(path, (12.5, 3.6)) as figure:
        panels = figure.subplots(1, len(mechanisms), sharey=True, squeeze=False)[0]
        for axis, mechanism in zip(panels, mechanisms, strict=True):
            panel = [row for row in rows if row.mechanism == mechanism]
            y = [names.index(row.variant) for row in panel]
            for which, marker, color, label in (
                ("many", "o", "#1f6fd6", "many runs, one canary"),
                ("one", "s", "#e8820c", "one run, many canaries"),
            ):
                x = [max(left, getattr(row, which)) for row in panel]
                axis.plot(x, y, marker, color=color, ms=5, label=label)
            label = "above the claimed epsilon: an alarm"
            axis.axvspan(panel[0].claim, 100, color="#d62728", alpha=0.1, label=label)
            axis.set_xscale("log")
            axis.set_xlim(0.8 * left, 100)
            axis.set_xticks([left, 1, 10, 100], [f"≤ {left:g}", "1", "10", "100"])
            axis.minorticks_off()
            axis.set_title(mechanism.replace(", ", ",\n"))
            axis.set_xlabel("lower bound of epsilon")
        panels[0].set_yticks(range(len(names)), [SHOWN.get(n, n) for n in names])
        panels[0].invert_yaxis()
        handles = panels[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=3)


def write(rows: list[Row], lines: list[str], output: Path) -> None:
    """Writes audit.csv, audit.md (the lines) and audit.png."""
    output.mkdir(parents=True, exist_ok=True)
    with (output / "audit.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*Row._fields, "verdict"])
        writer.writerows([*row, row.verdict] for row in rows)
    (output / "audit.md").write_text("\n".join(lines))
    draw(rows, output / "audit.png")


def main(
    worlds: int = 20_000, canaries: int = 1000, output: Path = Path("results/privacy")
) -> None:
    """Runs all audits; writes audit.csv, audit.md and audit.png.

    Args:
      worlds: Worlds with the canary, and as many without, in an audit of many runs.
      canaries: Canaries in an audit of one run.
      output: Directory of the results.
    """
    began = time.perf_counter()
    rows = []
    for seed, (mechanism, case) in enumerate(CASES.items()):
        for name, flaw in flaws(case).items():
            many = multi_run(case, flaw, worlds, seed)
            row = Row(mechanism, name, CLAIM, many, one_run(case, flaw, canaries, seed))
            rows.append(row)
            print(*row, row.verdict, flush=True)
    seconds = time.perf_counter() - began
    lines = text(rows, worlds, canaries, machine("experiments.studies.audit"), seconds)
    write(rows, lines, output)
    print("\n".join(lines))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)

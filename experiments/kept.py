"""Numbers that figures are drawn from, kept next to the figures.

    python -m experiments.kept RUN results/sweeps/curves.json

The command keeps the curves of a finished `compare` or `sweep`; experiments and studies
keep theirs themselves. `python -m experiments.figures` draws the figures again.

A file is JSON: nested names and lists of numbers, with six digits.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from fedjax_muon.files import write as write_text
from fedjax_muon.reporting import comparison
from fedjax_muon.reporting.comparison import History
from fedjax_muon.runs import compare, directory, sweep
from fedjax_muon.runs.config import Comparison, Sweep
from fedjax_muon.runs.errors import refusing

Runs = Mapping[str, Sequence[History]]
Curves = Mapping[str, Sequence[Mapping[str, Sequence[float]]]]  # runs as they are kept
DRAWN = ("round", "bytes_down", "bytes_up", "train_loss")  # and a score


def write(path: Path, numbers: Mapping[str, Any]) -> None:
    """Writes numbers.

    Args:
      path: File to write.
      numbers: Nested mappings, tuples, lists and arrays of numbers and texts.
    """
    write_text(path, json.dumps(_plain(numbers), separators=(",", ":")) + "\n")


def read(path: Path) -> dict[str, Any]:
    """Returns the numbers of a file, as nested dictionaries and lists."""
    return json.loads(path.read_text())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list | np.ndarray):
        return [_plain(one) for one in value]
    if isinstance(value, float | np.floating):
        rounded = float(f"{value:.6g}")
        whole = math.isfinite(rounded) and rounded.is_integer()
        return int(rounded) if whole else rounded
    return value.item() if hasattr(value, "item") else value


def curves(runs: Runs, title: str, target: float | None = None) -> dict[str, Any]:
    """Returns the numbers of a figure of `plots.curves`.

    Args:
      runs: Runs of every method by name.
      title: Title of the figure.
      target: Score that is marked.
    """
    return {
        "title": title,
        "target": target,
        "methods": {
            name: [
                {c: run[c] for c in (*DRAWN, comparison.score_column(run))}
                for run in seeds
            ]
            for name, seeds in runs.items()
        },
    }


def best_curves(job: Sweep, run_dir: Path) -> dict[str, Sequence[History]]:
    """Returns the runs of the best point of every method, as many as are drawn."""
    best = {name: sweep.best_of(job, name, run_dir) for name in job.algorithms}
    runs = {sweep.label(job, name): p.runs for name, p in best.items() if p is not None}
    rows = comparison.summarize(runs, comparison.target_score(runs))
    rows.sort(key=lambda row: -row.score_mean)
    return {row.method: runs[row.method] for row in rows[: sweep.DRAWN]}


def main(
    run: Annotated[Path, tyro.conf.Positional],
    output: Annotated[Path, tyro.conf.Positional],
) -> None:
    """Keeps the curves of a finished run.

    Args:
      run: Directory of `fedjax-muon compare` or `fedjax-muon sweep`.
      output: File to write, such as results/sweeps/curves.json.
    """
    with refusing():
        job = directory.read(run)
        if isinstance(job, Comparison):
            runs, title = compare.curves_of(job, run), job.config.title
        elif isinstance(job, Sweep):
            runs = best_curves(job, run)
            title = f"{job.config.title}, {job.config.rounds} rounds"
        else:
            raise ValueError(f"{run} is not of compare or sweep")
        write(output, curves(runs, title, comparison.target_score(runs)))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)

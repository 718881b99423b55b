"""Numbers that figures are drawn from, kept next to the figures.

    result = fm.compare(methods, problem)
    kept.write(Path("curves.json"), kept.curves(result.runs, result.title))

Experiments and studies keep theirs themselves. `python -m experiments.figures` draws
the figures again. A file is JSON: nested names and lists of numbers, with six digits.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.files import write as write_text
from fedjax_muon.reporting import comparison
from fedjax_muon.reporting.comparison import History

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

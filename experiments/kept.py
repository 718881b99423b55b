"""Numbers that figures are drawn from, kept next to the figures.

Experiments and studies keep theirs themselves. `python -m experiments.figures` draws
the figures again. A file is JSON: nested names and lists of numbers, with six digits.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.files import write as write_text


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

"""Means over clients whose weights are not those of the reference."""

from typing import Any

import numpy as np


def shares(trace: Any, r: int, kind: str) -> list[float]:
    """The weights of the cohort of round r."""
    ids, sizes = trace.rounds[r][0], np.array(trace.sizes, float)
    n = sizes[np.array(ids)]
    uniform = np.ones(len(ids))
    if kind.startswith("only "):
        return [float(j == int(kind[5:])) for j in range(len(ids))]
    return {
        "examples": n / n.sum(),
        "uniform": uniform / len(ids),
        "examples of all": n / sizes.sum(),
        "uniform over all": uniform / len(sizes),
        "sum": uniform,
    }[kind].tolist()


def weighed(trace: Any, r: int, kind: str, trees: list) -> Any:
    """A weighted sum of dictionaries of arrays."""
    w = shares(trace, r, kind)
    names = trees[0]
    pairs = lambda k: zip(w, trees, strict=True)
    return {k: sum(s * tree[k] for s, tree in pairs(k)) for k in names}

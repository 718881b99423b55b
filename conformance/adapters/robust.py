"""Public robust rules of servers."""

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.adapters.entry import Arrays, Entry, Package
from conformance.adapters.servers import aggregate


def flat(rule: Callable) -> Callable:
    """A rule of rows, for messages."""

    def of_messages(messages: list[Arrays], weights: list[float]) -> Arrays:
        first = messages[0]
        rows = [np.concatenate([v.ravel() for v in m.values()]) for m in messages]
        row = np.asarray(rule(np.stack(rows)))
        ends = itertools.accumulate(v.size for v in first.values())
        pieces = zip(first, np.split(row, [*ends][:-1]), strict=True)
        return {k: v.reshape(first[k].shape) for k, v in pieces}

    return of_messages


# ------------------------------------------------------------------------- byzfl, krum
def byzfl(name: str, *names: str, **more: Any) -> Callable:
    def build(module, task):
        given = {k: int(task.hyper[k]) for k in names}
        return flat(getattr(module, name)(**given, **more))

    return aggregate(build)


def krum(
    file: str, name: str, names: Callable = lambda task: {}, **more: Any
) -> Callable:
    """A rule of the package krum, of rows of PyTorch."""

    def build(module, task):
        import torch

        rule = getattr(importlib.import_module(f"{module.__name__}.{file}"), name)
        given = {"n": len(task.messages), **names(task), **more}
        return flat(lambda rows: rule.aggregate([*torch.tensor(rows)], **given))

    return aggregate(build)


f = lambda task: {"f": int(task.hyper["f"])}
NEIGHBORS = "its page has n - f neighbors, itself included, `aggregators.py:{}`"
PACKAGES = (
    Package(
        "byzfl",
        "byzfl",
        "0.0.11",
        (
            Entry("Median", ("coordinate_median",), byzfl("Median")),
            Entry("TrMean", ("trimmed_mean",), byzfl("TrMean", "f")),
            Entry("Krum", ("krum",), byzfl("Krum", "f"), NEIGHBORS.format(531)),
            Entry(
                "MultiKrum",
                ("multi_krum",),
                byzfl("MultiKrum", "f"),
                NEIGHBORS.format(648),
            ),
            Entry(
                "GeometricMedian",
                ("geometric_median",),
                byzfl("GeometricMedian"),
                "the number of iterations is an option",
            ),
            Entry(
                "GeometricMedian, T=2000",
                ("geometric_median",),
                byzfl("GeometricMedian", nu=1e-9, T=2000),
            ),
            Entry(
                "CenteredClipping",
                ("centered_clipping",),
                aggregate(
                    lambda m, t: flat(
                        m.CenteredClipping(L=int(t.hyper["rounds"]), tau=t.hyper["tau"])
                    )
                ),
            ),
        ),
    ),
    Package(
        "krum",
        "krum.primitives.aggregators",
        "0.9.1",
        (
            Entry("Krum", ("krum",), krum("krum", "Krum", f)),
            Entry(
                "MultiKrum, m = n - f",
                ("multi_krum",),
                krum(
                    "multikrum",
                    "MultiKrum",
                    lambda t: f(t) | {"m": len(t.messages) - f(t)["f"]},
                ),
            ),
            Entry("Median", ("coordinate_median",), krum("median", "Median")),
            Entry(
                "TrimmedMean", ("trimmed_mean",), krum("trimmed_mean", "TrimmedMean", f)
            ),
            Entry(
                "GeometricMedian, nu=1e-9, max_iter=2000",
                ("geometric_median",),
                krum(
                    "geometric_median",
                    "GeometricMedian",
                    nu=1e-9,
                    tol=0.0,
                    max_iter=2000,
                    f=2,
                ),
            ),
        ),
    ),
)

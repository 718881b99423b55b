"""Public robust rules of servers."""

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.adapters.entry import Arrays, Entry, package
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
n_minus_f = lambda task: len(task.messages) - int(task.hyper["f"])


def byzpy(file: str, name: str, given: Callable = lambda task: {}) -> Callable:
    def build(module, task):
        import torch

        aggregators = importlib.import_module(f"{module.__name__}.{file}")
        rule = getattr(aggregators, name)(**given(task))
        return flat(lambda rows: rule.aggregate([*torch.tensor(rows)]))

    return aggregate(build)


def playground(name: str, given: Callable = lambda task: {}) -> Callable:
    """A rule of fed-playground, of rows that are not encrypted."""

    def build(module, task):
        rule = getattr(module, name)(**given(task))
        plain = importlib.import_module("fed_playground.src.encryption").NoEncryption()
        return flat(lambda rows: rule.aggregate([*rows], plain))

    return aggregate(build)


def qora(method: Callable) -> Callable:
    """`method(task)` is the name of a rule of Qora, which runs in float32."""

    def build(module, task):
        one = module.ByzantineAggregator(method(task), 2 / len(task.messages))
        names = [f"client {i}" for i in range(len(task.messages))]
        given = lambda rows: [*rows.astype(np.float32)[:, None]]
        return flat(lambda rows: one.aggregate(given(rows), names)[0])

    return aggregate(build)


OTHERS = "documented: n - f - 1 neighbors, `geometric_wise/krum.py:89`"
NEIGHBORS = "its page has n - f neighbors, itself included, `aggregators.py:{}`"
PACKAGES = (
    package(
        "byzfl",
        "byzfl",
        "0.0.11",
        Entry("Median", "coordinate_median", byzfl("Median")),
        Entry("TrMean", "trimmed_mean", byzfl("TrMean", "f")),
        Entry("Krum", "krum", byzfl("Krum", "f"), NEIGHBORS.format(531)),
        Entry(
            "MultiKrum", "multi_krum", byzfl("MultiKrum", "f"), NEIGHBORS.format(648)
        ),
        Entry(
            "GeometricMedian",
            "geometric_median",
            byzfl("GeometricMedian"),
            "the number of iterations is an option",
        ),
        Entry(
            "GeometricMedian, T=2000",
            "geometric_median",
            byzfl("GeometricMedian", nu=1e-9, T=2000),
        ),
        Entry(
            "CenteredClipping",
            "centered_clipping",
            aggregate(
                lambda m, t: flat(
                    m.CenteredClipping(L=int(t.hyper["rounds"]), tau=t.hyper["tau"])
                )
            ),
        ),
    ),
    package(
        "byzpy",
        "byzpy.aggregators",
        "0.1.4",
        Entry(
            "CoordinateWiseMedian",
            "coordinate_median",
            byzpy("coordinate_wise", "CoordinateWiseMedian"),
            "the lower of the two in the middle, as `torch.median`, "
            "`engine/backend/ndarray/torch.py:20`",
        ),
        Entry(
            "CoordinateWiseTrimmedMean",
            "trimmed_mean",
            byzpy("coordinate_wise", "CoordinateWiseTrimmedMean", f),
        ),
        Entry("Krum", "krum", byzpy("geometric_wise", "Krum", f), OTHERS),
        Entry(
            "MultiKrum, q = n - f",
            "multi_krum",
            byzpy("geometric_wise", "MultiKrum", lambda t: f(t) | {"q": n_minus_f(t)}),
            OTHERS,
        ),
        Entry(
            "GeometricMedian, tol=1e-12, max_iter=2000",
            "geometric_median",
            byzpy(
                "geometric_wise",
                "GeometricMedian",
                lambda t: {"tol": 1e-12, "max_iter": 2000},
            ),
        ),
        Entry(
            'CenteredClipping, init="zero"',
            "centered_clipping",
            byzpy(
                "norm_wise",
                "CenteredClipping",
                lambda t: {
                    "c_tau": t.hyper["tau"],
                    "M": int(t.hyper["rounds"]),
                    "init": "zero",
                },
            ),
        ),
    ),
    package(
        "fed-playground",
        "fed_playground.src.aggregation",
        "0.2.1",
        Entry(
            "MedianAggregation", "coordinate_median", playground("MedianAggregation")
        ),
        Entry(
            "TrimmedMeanAggregation, trim_fraction = f / n",
            "trimmed_mean",
            playground(
                "TrimmedMeanAggregation",
                lambda t: {"trim_fraction": t.hyper["f"] / len(t.messages)},
            ),
        ),
        Entry(
            "KrumAggregation",
            "krum",
            playground("KrumAggregation", lambda t: {"n_byzantine": f(t)["f"]}),
        ),
        Entry(
            "KrumAggregation, n_selected = n - f",
            "multi_krum",
            playground(
                "KrumAggregation",
                lambda t: {"n_byzantine": f(t)["f"], "n_selected": n_minus_f(t)},
            ),
        ),
        Entry(
            "GeometricMedianAggregation, max_iter=2000",
            "geometric_median",
            playground("GeometricMedianAggregation", lambda t: {"max_iter": 2000}),
        ),
        Entry(
            "MeanAggregation",
            "mean_by_examples",
            playground("MeanAggregation"),
            "documented: the arithmetic mean",
        ),
    ),
    package(
        "qora-fl",
        "qora",
        "0.4.0",
        Entry("median", "coordinate_median", qora(lambda t: "median")),
        Entry(
            "trimmed_mean, trim_fraction = f / n",
            "trimmed_mean",
            qora(lambda t: "trimmed_mean"),
        ),
        Entry("krum:f", "krum", qora(lambda t: f"krum:{f(t)['f']}")),
    ),
    package(
        "krum",
        "krum.primitives.aggregators",
        "0.9.1",
        Entry("Krum", "krum", krum("krum", "Krum", f)),
        Entry(
            "MultiKrum, m = n - f",
            "multi_krum",
            krum(
                "multikrum",
                "MultiKrum",
                lambda t: f(t) | {"m": len(t.messages) - f(t)["f"]},
            ),
        ),
        Entry("Median", "coordinate_median", krum("median", "Median")),
        Entry("TrimmedMean", "trimmed_mean", krum("trimmed_mean", "TrimmedMean", f)),
        Entry(
            "GeometricMedian, nu=1e-9, max_iter=2000",
            "geometric_median",
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
)

"""Rules of servers, and averages of low-rank adapters."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from conformance.family import SAME, Family, lines, setting
from conformance.problems import Cases, adapter_cases, robust_cases
from conformance.variants import VISIBLE, alone, existing
from tests.oracles.problem import Trace

HERE = "conformance.references"


def server_rule(name, source, formula, axes, *, scope=None, both=(), **settings):
    """A family of this kind; the numbers are settings, and pairs of departures from the
    axes in `both` are told apart, too."""
    reference, hyper = (HERE, scope or name), {k: v for k, v in settings.items() if v}
    family = Family(
        name, "aggregate", source, formula, reference, settings, hyper, axes, None
    )
    return family._replace(problem=robust_cases(separating(family, both)))


def separating(family: Family, both: tuple, most: int = 8) -> list[int]:
    """Seeds of few cases that together tell all single departures apart.

    Random messages alone do not: Krum picks the same one by many numbers of neighbors.
    """
    choices = [{}, *alone(family)]
    pairs = itertools.product(*([*family.axes[axis]][1:] for axis in both))
    choices += [dict(zip(both, pair, strict=True)) for pair in pairs if both]
    everywhere = family._replace(problem=robust_cases([*range(200)]))
    values = [existing(everywhere, one) for one in choices]
    size = np.linalg.norm(values[0], axis=1)
    far = [[np.linalg.norm(a - b, axis=1) / size for b in values] for a in values]
    told: Any = np.array(far) > 10 * VISIBLE  # [choices, choices, seeds]
    seeds = [0, 1]
    while len(seeds) < most:
        open_pairs = ~told[:, :, seeds].any(2)
        gains = (told & open_pairs[:, :, None]).sum((0, 1))
        if not gains.max():
            break
        seeds.append(int(gains.argmax()))
    return seeds


def krum_axes(chosen: int | None) -> dict:
    to = lambda *pairs: lines("krum", *pairs)
    counts = {"1": 1, "n - f": None}
    first = "1" if chosen else "n - f"
    which = {first: SAME}
    which |= {name: setting(chosen=n) for name, n in counts.items() if name != first}
    which["n - f - 2"] = to("[: chosen or N - f]", "[: N - f - 2]")
    nearest = "[: N - f - 2]"
    found = {
        "neighbors": {
            "n - f - 2": SAME,
            **{
                name: to(
                    f"np.sort(apart){nearest}",
                    f"np.sort(apart)[: {name.replace('n', 'N')}]",
                )
                for name in ("n - f - 1", "n - f", "n - f - 3", "n - 1")
            },
            "n - f - 2 with itself": to(
                "np.delete(((V - V[i]) ** 2).sum(1), i)", "((V - V[i]) ** 2).sum(1)"
            ),
        },
        "distances": {
            "squared": SAME,
            "not squared": to(".sum(1), i)", ".sum(1) ** 0.5, i)"),
            "sums over arrays, not squared": to(
                "((V - V[i]) ** 2).sum(1)",
                "sum((p**2).sum(1) ** 0.5 for p in np.split(V - V[i], [12], 1))",
            ),
        },
        "chosen": which,
        "best": {
            "least score": SAME,
            "largest score": to("np.argsort(scores", "np.argsort(-np.array(scores)"),
        },
    }
    del found["neighbors"]["n - f - 2 with itself"]  # n - f - 3 without
    if chosen is None:
        found["weights"] = {
            "uniform": SAME,
            "by examples": to("w = np.ones(len(best))", 'w = case["weights"][best]'),
        }
    return found


def robust() -> dict[str, Callable[[], Family]]:
    ends = {"f at each end": SAME}
    for name, kept in {
        "f at the upper end": "0 : len(V) - f",
        "f at the lower end": "f:",
        "f/2 at each end": "f // 2 : len(V) - f // 2",
        "f + 1 at each end": "f + 1 : len(V) - f - 1",
        "none": ":",
    }.items():
        ends[name] = lines("trimmed_mean", "f : len(V) - f", kept)
    mean_of = lambda scope, new: lines(scope, "np.mean(moves, axis=0)", new)
    share = 'np.average(moves, axis=0, weights=case["weights"][: len(moves)])'
    clip = lambda new: lines(
        "centered_clipping", "d * min(1.0, tau / np.linalg.norm(d))", new
    )
    clip_one = lambda new: lines(
        "norm_clipping", "d * min(1.0, tau / np.linalg.norm(d))", new
    )
    clipped = "p * min(1.0, tau / np.linalg.norm(p))"
    by_array = f"np.concatenate([{clipped} for p in np.split(d, [12])])"
    middle = "(s[(len(V) - 1) // 2] + s[len(V) // 2]) / 2"
    geometric = lambda *pairs: lines("geometric_median", *pairs)
    start = "z = w @ V / w.sum()"
    few = lambda number, begin=start: lines(
        "geometric_median", start, begin, "range(rounds)", f"range({number})"
    )
    weighted = {
        "by examples": SAME,
        "uniform": lines(
            "mean_by_examples", "n / n.sum()", "np.full(len(n), 1 / len(n))"
        ),
        "sum": lines("mean_by_examples", "n / n.sum()", "np.ones(len(n))"),
        "by examples, not normalized": lines("mean_by_examples", "n / n.sum()", "n"),
        "by square roots of examples": lines(
            "mean_by_examples", "n / n.sum()", "n**0.5 / (n**0.5).sum()"
        ),
    }
    rules = [
        partial(
            server_rule,
            "mean_by_examples",
            "McMahan et al. 2017, arXiv:1602.05629",
            "sum n_i x_i / sum n_i",
            {"weights": weighted},
        ),
        partial(
            server_rule,
            "coordinate_median",
            "Yin et al. 2018, arXiv:1803.01498",
            "median of each coordinate",
            {
                "middle of an even number": {
                    "mean of two": SAME,
                    "the lower": lines(
                        "coordinate_median", middle, "s[(len(V) - 1) // 2]"
                    ),
                    "the upper": lines("coordinate_median", middle, "s[len(V) // 2]"),
                },
                "values": {
                    "all": SAME,
                    "absolute": lines(
                        "coordinate_median", "np.sort(V,", "np.sort(abs(V),"
                    ),
                },
            },
        ),
        partial(
            server_rule,
            "trimmed_mean",
            "Yin et al. 2018, arXiv:1803.01498",
            "mean of each coordinate without its f smallest and f largest",
            {
                "cut": ends,
                "weights": {
                    "uniform": SAME,
                    "by examples": lines(
                        "trimmed_mean", "np.ones(len(V))[kept]", 'case["weights"][kept]'
                    ),
                },
                "order": {
                    "by value": SAME,
                    "by size": lines(
                        "trimmed_mean", "np.argsort(V,", "np.argsort(abs(V),"
                    ),
                },
            },
            f=2,
        ),
        partial(
            server_rule,
            "krum",
            "Blanchard et al. 2017, arXiv:1703.02757",
            "the message with the least sum of squared distances to its n - f - "
            "2 nearest others",
            krum_axes(1),
            both=("neighbors", "distances"),
            f=2,
            chosen=1,
        ),
        partial(
            server_rule,
            "multi_krum",
            "Blanchard et al. 2017, arXiv:1703.02757",
            "the mean of the n - f messages with the least scores of Krum",
            krum_axes(None),
            both=("neighbors", "distances"),
            scope="krum",
            f=2,
            chosen=None,
        ),
        partial(
            server_rule,
            "geometric_median",
            "Pillutla et al. 2019, arXiv:1912.13445",
            "the point with the least sum of distances, converged",
            {
                "iterations": {
                    "to convergence": SAME,
                    **{f"{k} from the mean": few(k) for k in (1, 2, 3, 4, 5, 8, 10)},
                    **{f"{k} from 0": few(k, "z = 0 * V[0]") for k in (1, 3, 5, 10)},
                    **{
                        f"{k} from the median": few(k, "z = np.median(V, axis=0)")
                        for k in (1, 3)
                    },
                },
                "weights": {
                    "uniform": SAME,
                    "by examples": geometric(
                        "w = np.ones(len(V))", 'w = case["weights"]'
                    ),
                },
                "distances": {
                    "whole messages": SAME,
                    "squared, which is the mean": geometric(
                        "np.linalg.norm(V - z, axis=1)", "np.ones(len(V))"
                    ),
                    "square roots": geometric(
                        "np.linalg.norm(V - z, axis=1)",
                        "np.linalg.norm(V - z, axis=1) ** 0.5",
                    ),
                },
            },
        ),
        partial(
            server_rule,
            "centered_clipping",
            "Karimireddy et al. 2021, arXiv:2012.10333",
            "v <- v + mean((x_i - v) min(1, tau/|x_i - v|)), from v = 0",
            {
                "clipped": {
                    "whole messages": SAME,
                    "each array": clip(by_array),
                    "each coordinate": clip("np.clip(d, -tau, tau)"),
                    "scaled to tau always": clip("d * tau / np.linalg.norm(d)"),
                },
                "iterations": {
                    "given": SAME,
                    "1": setting(rounds=1),
                    "one more": setting(rounds=4),
                },
                "mean": {
                    "uniform": SAME,
                    "sum": mean_of("centered_clipping", "np.sum(moves, axis=0)"),
                    "by examples": mean_of("centered_clipping", share),
                },
                "start": {
                    "0": SAME,
                    "the mean": lines(
                        "centered_clipping", "np.zeros(V.shape[1])", "V.mean(0)"
                    ),
                    "the median": lines(
                        "centered_clipping",
                        "np.zeros(V.shape[1])",
                        "np.median(V, axis=0)",
                    ),
                },
            },
            tau=2.0,
            rounds=3,
        ),
        partial(
            server_rule,
            "norm_clipping",
            "McMahan et al. 2018, arXiv:1710.06963, without noise",
            "mean(x_i min(1, tau/|x_i|))",
            {
                "clipped": {
                    "whole messages": SAME,
                    "each array": clip_one(by_array),
                    "each coordinate": clip_one("np.clip(d, -tau, tau)"),
                    "scaled to tau always": clip_one("d * tau / np.linalg.norm(d)"),
                    "the mean, not the messages": lines(
                        "norm_clipping", "for d in V]", "for d in V.mean(0)[None]]"
                    ),
                    "dropped if longer": clip_one("d * (np.linalg.norm(d) <= tau)"),
                },
                "mean": {
                    "uniform": SAME,
                    "sum": mean_of("norm_clipping", "np.sum(moves, axis=0)"),
                    "by examples": mean_of("norm_clipping", share),
                },
            },
            tau=4.0,
        ),
    ]
    return {rule.args[0]: rule for rule in rules}


# ------------------------------------------------------------------- low-rank adapters
ORACLE = "tests.oracles.lora"
TRAINED = "train(trace, w, start, batches, rate(lr, r), scale, moving)"


class Adapters(Cases):
    """Messages are what the clients end with; the oracle's A B is PEFT's B A."""

    def results(self, method, settings):
        found = []
        for case in self.cases:
            ends = [{"A": m["B"], "B": m["A"]} for m in case["messages"]]
            n = len(ends)
            rounds: list = [([*range(n)], ends)]
            trace = Trace(lambda x, batch: x, n, [], rounds, [*case["weights"]])
            x = {"w": case["w"], **ends[0], "b": np.zeros(0)}
            (last,), _ = method(x, trace, weights=case["weights"], **settings)
            found.append(
                np.concatenate([last["w"].ravel(), (last["A"] @ last["B"]).ravel()])
            )
        return np.array(found)


def adapters() -> dict[str, Callable[[], Family]]:
    here = "adapters"
    to = lambda *pairs: lines(here, *pairs)
    residual = 'w = w + scale * (product - mean["A"] @ mean["B"])'
    weights = {
        "by examples": SAME,
        "uniform": to(
            "shares = shares / shares.sum()", "shares = np.ones(len(ids)) / len(ids)"
        ),
    }
    method = lambda name: setting(method=name)
    kinds = {
        "fedit": "none (FedIT): means of A and of B",
        "fedex_lora": "w + s (mean(B A) - mean(B) mean(A)) (FedEx-LoRA)",
        "flexlora": "A and B by the truncated SVD of mean(B A) (FlexLoRA)",
    }
    scales = {
        "alpha/r": SAME,
        "1": setting(scale=1.0),
        "alpha/sqrt(r)": setting(scale=8 / 2**0.5),
        "(alpha/r)^2": setting(scale=16.0),
    }
    sources = {
        "fedit": "Zhang et al. 2023, arXiv:2305.05644, as we read it",
        "fedex_lora": "Singhal et al. 2024, arXiv:2410.09432, as we read it",
        "flexlora": "Bai et al. 2024, arXiv:2402.11505, as we read it",
    }
    found: dict[str, Callable[[], Family]] = {}
    for name, kind in kinds.items():
        others = {k: method(key) for key, k in kinds.items() if key != name}
        axes = {"residual": {kind: SAME, **others}, "weights": weights}
        if name == "fedex_lora":
            axes["residual"] |= {
                "its sign flipped": to(
                    residual, residual.replace("scale *", "-scale *")
                ),
                "mean(B A), nothing subtracted": to(
                    residual, "w = w + scale * product"
                ),
                "mean(B) mean(A) subtracted from nothing": to(
                    residual, 'w = w - scale * mean["A"] @ mean["B"]'
                ),
            }
            axes["scale"] = scales
        if name == "flexlora":
            axes["singular values"] = {
                "in one factor": SAME,
                "lost": to("s[:q, None] * vt[:q]", "vt[:q]"),
                "in both factors": to(
                    "s[:q, None] * vt[:q]", "s[:q, None] ** 2 * vt[:q]"
                ),
            }
        found[name] = partial(
            Family,
            name,
            "aggregate",
            sources[name],
            f"kernel w + s B A, s = alpha/r; {kind}; gives w and the product BA "
            "of the new factors",
            (ORACLE, here),
            {"lr": 0.0, "scale": 4.0, "method": name},
            {"alpha": 8.0, "rank": 2},
            axes,
            Adapters(*adapter_cases()),
            base=((here, TRAINED, "{**start, **batches}"),),
        )
    return found


FAMILIES = robust() | adapters()

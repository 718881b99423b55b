"""Methods of one bit per parameter: votes of signs, around the orthogonalization."""

from collections.abc import Callable
from functools import partial

import numpy as np

from conformance.axes import MUON_AXES
from conformance.family import SAME, Axes, Family, lines, setting
from conformance.problems import Cases, rounds
from tests.oracles.problem import polar

HERE = "tests.oracles.sign_vote"
PAPER = "Smirnova and Kravatskiy 2026, arXiv:2607.29674, without AdamW for vectors"
# with these, nothing is near zero before its sign is taken
SEEDS = {"sign_vote": 8, "signmuon": 1236, "muonusign": 1604, "muonsign": 107}
COHORTS = [[0, 1, 2], [2, 0, 3], [1, 4, 0], [3, 0, 2]]
# the votes and the step of matrices, as arguments of the transcription
AROUND = {
    "sign_vote": ("none: sign(M_i)", ""),
    "signmuon": ("sign(O(M_i)) by clients", ", before=direction"),
    "muonusign": ("O(V) by the server", ", after=direction"),
    "muonsign": ("sign(O(V)) by the server", ", after=lambda v: np.sign(direction(v))"),
    "": ("sign(O(sign(M_i))) by clients", ", before=lambda m: direction(np.sign(m))"),
}
FORMS = {
    "sign_vote": "V = sign(sum_i sign(M_i)); x <- x - lr V",
    "signmuon": "V = sign(sum_i sign(O(M_i))); x <- x - lr V",
    "muonusign": "V = sign(sum_i sign(M_i)); x <- x - lr O(V)",
    "muonsign": "V = sign(sum_i sign(M_i)); x <- x - lr sign(O(V))",
}
SIGNS = "each(np.sign, direct(M[i], before))"
SENT = f"sent.append({SIGNS})"
VOTE = "vote = each(np.sign, total(sent))"
STEP = "x = sub(x, times(rate(lr, r), direct(vote, after)))"
to = partial(lines, "sign_vote")


def scaled(shape: str):
    """The rate of a matrix, times a number of its rows and columns."""
    size = f"lambda u: u * (({shape}) ** 0.5 if u.ndim > 1 else 1)"
    return to(
        STEP, STEP.replace("direct(vote, after)", f"each({size}, direct(vote, after))")
    )


def vote(name: str) -> Family:
    """A method of this name."""
    old = f"return sign_vote(x, trace, lr{AROUND[name][1]})"
    others = {
        said: lines(name, old, old.replace(AROUND[name][1], new))
        for k, (said, new) in AROUND.items()
        if k != name
    }
    if name == "sign_vote":  # which is the transcription itself
        kinds = {"signmuon": "before", "muonusign": "after"}
        others = {AROUND[k][0]: setting(**{at: polar}) for k, at in kinds.items()}
    fresh = "M[i] = add(times(1 - b, M[i]), times(b, g))"
    vectors = lambda mine: to(
        SENT,
        f'sent.append({{**{SIGNS}, "b": {mine}["b"]}})',
        VOTE,
        VOTE.replace("each", "{**each") + ', "b": mean(sent)["b"]}',
    )
    axes: Axes = {
        "vote": {
            "sign of the sum of signs": SAME,
            "sign of the sum": to(SIGNS, "direct(M[i], before)"),
            "mean of signs": to(VOTE, "vote = mean(sent)"),
            "sum of signs": to(VOTE, "vote = total(sent)"),
        },
        "signs": {
            "bare": SAME,
            "times the mean size": to(
                SIGNS,
                SIGNS.replace("np.sign", "lambda v: np.sign(v) * np.mean(abs(v))"),
            ),
        },
        "place of O": {AROUND[name][0]: SAME, **others},
        "momentum": {
            "weight 1 - b, or a sum of the same weights": SAME,
            "none": to("b=0.1", "b=1.0"),
            "b weighs the past": to("b=0.1", "b=0.9"),
            "Nesterov": to(
                "direct(M[i], before)",
                "direct(add(times(1 - b, M[i]), times(b, g)), before)",
            ),
            "begun at the first gradient": to(
                fresh, f"{fresh[:4]} = g if not M[i]['w'].any() else {fresh[7:]}"
            ),
            "of the votes, at the server": to(
                fresh,
                "M[i] = g",
                "M = [zeros(x) for _",
                "u, M = zeros(x), [zeros(x) for _",
                VOTE,
                f"{VOTE}\n        u = vote = add(times(1 - b, u), times(b, vote))",
            ),
        },
        "vectors": {
            "signs, as matrices": SAME,
            "the mean momentum": vectors("M[i]"),
            "the mean gradient": vectors("g"),
        },
        "weights": {
            "uniform": SAME,
            "by examples": to("total(sent)", 'weighed(trace, r, "examples", sent)'),
        },
        "gradient": {
            "one, at x": SAME,
            "(x - x_i) / lr of K local steps": to(
                "g = mean([trace.grad(x, batch) for batch in batches])",
                "xi = x\n            for batch in batches:\n                xi = sub("
                "xi, times(rate(lr, r), trace.grad(xi, batch)))\n"
                "            g = sub(x, xi)",
            ),
        },
        "step": {"x - lr": SAME, "x + lr": to(STEP, STEP.replace("sub", "add"))},
        "rate": {
            "lr": SAME,
            "lr / sqrt(cols)": scaled("1 / u.shape[1]"),
            "lr sqrt(max(1, rows/cols))": scaled("max(1, u.shape[0] / u.shape[1])"),
        },
    }
    settings: dict = {"lr": 0.2}
    if name != "sign_vote":
        series = MUON_AXES["orthogonalization"]
        axes["orthogonalization"] = {k: series[k] for k in ("exact", "Jordan x5")}
        settings |= {"orth": "exact", "shape": "none"}
    return Family(
        name,
        "rounds",
        "Bernstein et al. 2019, arXiv:1810.05291, Algorithm 1"
        if name == "sign_vote"
        else PAPER,
        f"M_i <- (1-b) M_i + b g_i(x), 0 at first; {FORMS[name]}; one gradient a "
        "round; absent clients keep M_i; vectors: without O, the polar factor",
        (HERE, name),
        settings,
        {"lr": 0.2, "b": 0.1},
        axes,
        rounds(SEEDS[name], cohorts=COHORTS),
        free=("rate", *(["orthogonalization"] if name != "sign_vote" else [])),
    )


def majority() -> Family:
    """Zeros and ties, which the methods' vectors have not."""
    rng, shapes = np.random.default_rng(0), {"w": (3, 4), "b": (5,)}
    size = {k: lambda s=s: 0.5 * rng.integers(-2, 3, s) for k, s in shapes.items()}
    draw = lambda n: [{k: f() for k, f in size.items()} for _ in range(n)]
    examples = np.array([3.0, 9, 5, 14])
    cases = [{"messages": draw(n), "weights": examples[:n]} for n in (4, 3)]
    at = partial(lines, "majority")
    sent, kept = "np.where(V == 0, 1.0, np.sign(V))", "return arrays(case, vote)"
    draws = lambda of: {
        "a draw, here +1": SAME,
        "0": at(f"np.where({of} == 0, 1.0, np.sign({of}))", f"np.sign({of})"),
        "-1": at(f"np.where({of} == 0, 1.0,", f"np.where({of} == 0, -1.0,"),
    }
    axes: Axes = {
        "sign of 0": draws("V"),
        "tie": draws("total"),
        "vote": {
            "sign of the sum of signs": SAME,
            "sign of the sum": at(sent, "V"),
            "mean of signs": at(kept, "return arrays(case, total / len(V))"),
            "sum of signs": at(kept, "return arrays(case, total)"),
        },
        "signs": {
            "bare": SAME,
            "times the mean size": at(sent, f"{sent} * abs(V).mean(1, keepdims=True)"),
        },
        "weights": {
            "uniform": SAME,
            "by examples": at("sent.sum(0)", 'case["weights"] @ sent'),
        },
    }
    return Family(
        "majority",
        "aggregate",
        "Bernstein et al. 2019, arXiv:1810.05291, Algorithm 1",
        "sign(sum_i sign(x_i)); where a sign is drawn at random, draw +1",
        ("conformance.references", "majority"),
        {},
        {},
        axes,
        Cases(cases, shapes, np.zeros(17)),
        free=("sign of 0", "tie"),
    )


FAMILIES: dict[str, Callable[[], Family]] = {
    **{name: partial(vote, name) for name in SEEDS},
    "majority": majority,
}

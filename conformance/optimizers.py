"""Muon alone: tables of directions, whose scales the checker solves for."""

from typing import Any

import numpy as np

from conformance.check import sketch
from conformance.directions import SCALES, SERIES, orthogonalized
from conformance.family import SAME, Family, lines, setting
from conformance.make import head, packed
from conformance.problems import Steps, Updates, joined, steps
from conformance.variants import VISIBLE

HERE = "conformance.references"
JORDAN = "sqrt(max(1, rows/cols))"
OTHER_SCALES = ("none", "0.2 sqrt(max(rows, cols))", "sqrt(rows/cols)")
LARGE = "sqrt(max(rows, cols))"
OTHER_SERIES = (
    "exact",
    "Polar Express x5, safety 1.01",
    "Polar Express x5, cushion 0.02",
    "growing quintics (4.0848, ...) x5",
)
SOURCE = "Jordan et al. 2024, https://kellerjordan.github.io/posts/muon"
FORMULA = "M <- b M + (1-b) g; x <- x - lr sqrt(max(1, rows/cols)) NS5((1-b) g + b M)"


def momenta(gradients: list[np.ndarray], b: float) -> dict[str, list[np.ndarray]]:
    """What is orthogonalized after each gradient, up to its size."""
    ball = average = begun = other = 0 * gradients[0]
    found: dict[str, list[np.ndarray]] = {}
    for t, g in enumerate(gradients, 1):
        other = 0.95 * other + g
        ball, average = b * ball + g, b * average + (1 - b) * g
        begun = g if t == 1 else b * begun + (1 - b) * g
        corrected = b * average / (1 - b ** (t + 1)) + (1 - b) * g / (1 - b**t)
        for name, value in {
            "Nesterov": g + b * ball,
            "plain": ball,
            "none": g,
            "Nesterov with NAdam's bias correction": corrected,
            "Nesterov, g + b average": g + b * average,
            "Nesterov, g + average": g + average,
            "Nesterov, (1-b) g + b heavy ball": (1 - b) * g + b * ball,
            "Nesterov, g + heavy ball": g + ball,
            "Nesterov, momentum 0.95": g + 0.95 * other,
            "average begun at the first gradient": begun,
            "average begun at the first gradient, Nesterov": (1 - b) * g + b * begun,
        }.items():
            found.setdefault(name, []).append(value)
    return found


LAYOUTS = {
    "out x (in kh kw)": lambda f, v: f(v.reshape(len(v), -1)).reshape(v.shape),
    "kh x kw, batched": lambda f, v: np.stack(
        [f(a) for a in v.reshape(-1, *v.shape[2:])]
    ).reshape(v.shape),
    "(out in kh) x kw": lambda f, v: f(v.reshape(-1, v.shape[3])).reshape(v.shape),
    "(out in) x (kh kw)": lambda f, v: f(
        v.reshape(v.shape[0] * v.shape[1], -1)
    ).reshape(v.shape),
    "not orthogonalized": lambda f, v: v,
}
SIZES = {
    "": (5, 24),
    " of (kh, kw)": (3, 2),
    " of (out, in)": (5, 4),
    " of (out in, kh kw)": (20, 6),
    " of (out in kh, kw)": (60, 2),
}


def table(name: str, problem: Steps, layouts: dict, scales: dict) -> dict[str, Any]:
    """A file whose directions are all momenta, orthogonalizations and layouts."""
    hyper = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0}
    kinds = [*SERIES, "exact", "none"] if len(layouts) == 1 else [*SERIES, "exact"]
    free = ("orthogonalization",) if "rank_one" in problem.x0 else ()
    rows: list[tuple[int, ...]] = []
    by_leaf: dict[str, list] = {k: [] for k in problem.x0}
    words = {
        "momentum": [*momenta([np.zeros(1)], 0.5)],
        "orthogonalization": kinds,
        "layout": [*layouts],
        "order": [
            "momentum, then orthogonalization",
            "orthogonalization, then momentum",
        ],
    }
    paths = {k: [g[k] for g in problem.gradients] for k in problem.x0}
    for o, kind in enumerate(kinds):
        for y, how in enumerate(layouts.values()):
            turn = lambda v, how=how, kind=kind: (
                how(lambda a: orthogonalized(a, kind), v)
                if how
                else orthogonalized(v, kind)
            )
            if kind != kinds[0] and how and [*layouts][y] == "not orthogonalized":
                continue
            for k, g in paths.items():
                first = momenta([turn(v) for v in g], 0.9)
                plain = momenta(g, 0.9)
                some = [[turn(v) for v in value] for value in plain.values()]
                by_leaf[k] += [*some, first["Nesterov"], first["plain"]]
            rows += [(m, o, y, 0) for m in range(len(words["momentum"]))]
            rows += [(0, o, y, 1), (1, o, y, 1)]
    order = sorted(range(len(rows)), key=lambda j: sum(map(bool, rows[j])))
    values = [
        np.array(by_leaf[k]).reshape(len(rows), len(problem.gradients), -1)
        for k in by_leaf
    ]
    sketches = sketch(np.concatenate(values, axis=2)[order], problem.shapes)
    rows = [rows[j] for j in order]
    check_visible(name, rows, sketches, free)
    x: dict[str, np.ndarray] = problem.x0
    want = []
    for t in range(len(problem.gradients)):
        rates = {
            k: hyper["lr"] * scale for k, scale in next(iter(scales.values())).items()
        }
        x = {k: x[k] - rates[k] * by_leaf[k][0][t] for k in x}
        want.append(joined(x))
    family = Family(
        name, "rule", SOURCE, FORMULA, (HERE, "muon"), {}, hyper, {}, problem
    )
    return head(family) | {
        "free": list(free),
        "axes": words,
        "variants": rows,
        "scales": scales,
        "sources": [],
        "start": packed(problem.start),
        "reference": packed(want),
        "table": packed(sketches, "<f4"),
    }


def check_visible(name, rows, sketches, free) -> None:
    """Every single departure has directions of its own."""
    V = np.moveaxis(sketches, 1, 0).reshape(len(rows), -1)
    for j, row in enumerate(rows):
        if sum(map(bool, row)) == 1 and not (free and row[1]):
            scale = V[0] @ V[j] / max(V[j] @ V[j], 1e-30)
            if np.linalg.norm(V[0] - scale * V[j]) < VISIBLE * np.linalg.norm(V[0]):
                raise ValueError(f"{name} does not show {row}")


def scales_of(shapes: dict[str, tuple], first: str = JORDAN) -> dict[str, dict]:
    names = [first, *(name for name in SCALES if name != first)]
    return {n: {k: SCALES[n](*s) for k, s in shapes.items()} for n in names}


def muon() -> dict[str, Any]:
    problem = steps(1, 4, tall=(9, 4), wide=(4, 10), square=(5, 5))
    return table("muon", problem, {"matrix": None}, scales_of(problem.shapes))


def muon_kernel() -> dict[str, Any]:
    problem = steps(2, 3, kernel=(5, 4, 3, 2))
    scales = {}
    for words, size in SIZES.items():
        for name, found in scales_of({"kernel": size}).items():
            scales[name + words] = found
    return table("muon_kernel", problem, LAYOUTS, scales)


def muon_rank() -> dict[str, Any]:
    problem = steps(3, 3, rank_one=(6, 5), zero=(4, 5), tiny=(6, 4))
    for g in problem.gradients:
        g["rank_one"] = np.outer(g["rank_one"][:, 0], g["rank_one"][0])
        g["zero"], g["tiny"] = 0 * g["zero"], 1e-3 * g["tiny"]
    return table("muon_rank", problem, {"matrix": None}, scales_of(problem.shapes))


def muon_decay() -> Family:
    step = "new[k] = (1 - lr * decay) * v - lr * u"
    to = lambda *pairs: lines("muon", *pairs)
    by = lambda new: to(step, f"new[k] = {new}")
    ahead = "ahead = (1 - momentum) * g[k] + momentum * M[k]"
    coupled = "M[k] = momentum * M[k] + (1 - momentum) * "
    return Family(
        "muon_decay",
        "rule",
        "Jordan et al. 2024, with decoupled decay as in Loshchilov and Hutter 2019",
        "x <- (1 - lr decay) x - lr scale NS5((1-b) g + b M)",
        (HERE, "muon"),
        {
            "lr": 0.1,
            "momentum": 0.9,
            "decay": 0.5,
            "orth": "Jordan x5",
            "shape": JORDAN,
        },
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.5},
        {
            "decay": {
                "decoupled, before the step": SAME,
                "decoupled, after the step": by("(1 - lr * decay) * (v - lr * u)"),
                "coupled: g + decay x": to(
                    coupled + "g[k]",
                    "h = g[k] + decay * v\n            " + coupled + "h",
                    "(1 - momentum) * g[k] + momentum * M[k]",
                    "(1 - momentum) * h + momentum * M[k]",
                    step,
                    "new[k] = v - lr * u",
                ),
                "without lr": by("(1 - decay) * v - lr * u"),
                "times lr^2": by("(1 - lr**2 * decay) * v - lr * u"),
                "none": by("v - lr * u"),
                "cautious: only where step and x agree in sign": by(
                    "v - lr * decay * v * (u * v > 0) - lr * u"
                ),
                "cautious: only where gradient and x agree in sign": by(
                    "v - lr * decay * v * (g[k] * v > 0) - lr * u"
                ),
                "times sqrt(max(1, rows/cols))": by(
                    "(1 - lr * decay * max(1, v.shape[0] / v.shape[1]) ** 0.5) * "
                    "v - lr * u"
                ),
                "times 0.2 sqrt(max(rows, cols))": by(
                    "(1 - lr * decay * 0.2 * max(v.shape) ** 0.5) * v - lr * u"
                ),
                "cautious, times sqrt(max(1, rows/cols))": by(
                    "v - lr * decay * max(1, v.shape[0] / v.shape[1]) ** 0.5 * v * "
                    "(u * v > 0) - lr * u"
                ),
                "the sign flipped": by("(1 + lr * decay) * v - lr * u"),
            },
            "orthogonalization": {
                "Jordan x5": SAME,
                **{k: setting(orth=k) for k in OTHER_SERIES},
            },
            "scale": {
                JORDAN: SAME,
                **{k: setting(shape=k) for k in (*OTHER_SCALES, LARGE)},
            },
            "momentum": {
                "Nesterov": SAME,
                "plain": to(ahead, "ahead = M[k]"),
                "Nesterov with NAdam's bias correction": to(
                    ahead,
                    "t = len(history) + 1\n            ahead = "
                    "(1 - momentum) * g[k] / (1 - momentum**t) + "
                    "momentum * M[k] / (1 - momentum ** (t + 1))",
                ),
                "Nesterov, g + b average": to(ahead, "ahead = g[k] + momentum * M[k]"),
                "Nesterov, g + average": to(ahead, "ahead = g[k] + M[k]"),
            },
        },
        steps(4, 2, tall=(6, 4), wide=(4, 5)),
        free=("orthogonalization", "scale", "momentum"),
        together=1,
    )


VARIANTS = "tests.oracles.variants"
PLAIN = {
    "(1-b) g + b M": SAME,
    "M": lines(
        "nesterov", "found.append((1 - beta) * g + beta * m)", "found.append(m)"
    ),
    "g + b M": lines("nesterov", "found.append((1 - beta) * g", "found.append(g"),
}


def series(first: str) -> dict:
    others = ("Jordan x5", "Polar Express x5, safety 1.01")
    return {first: SAME, **{k: setting(orth=k) for k in others}}


def normuon() -> Family:
    to = lambda *pairs: lines("normuon", *pairs)
    v, out = "np.mean(O[p] ** 2)", "hat * norm(O) / (norm(hat) + 1e-10)"
    loop = "        for p in range(o):\n"
    at_once = lambda new: to(
        loop,
        f"        V = beta2 * V + (1 - beta2) * {new}\n"
        f"        hat = O / (np.sqrt(V) + 1e-10)\n{loop}",
        "hat[p] = O[p] / (np.sqrt(v[p]) + 1e-10)",
        "pass",
        "    v = np.zeros(o)\n",
        "    v, V = np.zeros(o), 0\n",
    )
    axes = {
        "v": {
            "mean of O^2 over columns": SAME,
            "mean of O^2 over rows": at_once("np.mean(O**2, axis=0, keepdims=True)"),
            "O^2 of every entry": at_once("O**2"),
            "of the momentum": to(v, "np.mean(n[p] ** 2)"),
            "none, or one number": to("(np.sqrt(v[p]) + 1e-10)", "1"),
        },
        "start of v": {
            "0": SAME,
            "the first square": to(
                f"v[p] = beta2 * v[p] + (1 - beta2) * {v}",
                f"v[p] = (beta2 * v[p] + (1 - beta2) * {v}) if v[p] else {v}",
            ),
        },
        "b2": {"weighs v": SAME, "weighs the new square": setting(beta2=0.2)},
        "divisor": {"sqrt(v)": SAME, "v": to("np.sqrt(v[p]) + 1e-10", "v[p]")},
        "norm": {
            "that of O": SAME,
            "not restored": to(out, "hat"),
            "1": to(out, "hat / norm(hat)"),
        },
        "momentum": PLAIN,
        "orthogonalization": series("exact"),
        "scale": {
            JORDAN: SAME,
            **{k: setting(shape=k) for k in SCALES if k in OTHER_SCALES},
        },
    }
    hyper = {"lr": 0.1, "momentum": 0.9, "b2": 0.8, "weight_decay": 0.0}
    return Family(
        "normuon",
        "rule",
        "Li et al. 2025, NorMuon, arXiv:2510.05491",
        "M <- b M + (1-b) g; O = polar((1-b) g + b M); of every row v <- b2 v + (1-b2) "
        "mean(O^2); X = O / sqrt(v); x <- x - lr sqrt(max(1, rows/cols)) X |O|/|X|; M "
        "= v = 0 at first",
        (VARIANTS, "normuon"),
        {"lr": 0.1, "beta": 0.9, "beta2": 0.8, "orth": "exact", "shape": JORDAN},
        hyper,
        axes,
        updates(),
        free=("orthogonalization", "scale"),
        base=(("normuon", "math.sqrt(max(1, o / i)) * ", ""),),
        together=1,
    )


def adamuon() -> Family:
    to = lambda *pairs: lines("adamuon", *pairs)
    v, size = "(1 - beta) * O**2", "0.2 * math.sqrt(v.size) * hat / (norm(hat) + 1e-8)"
    square = lambda new: to(v, f"(1 - beta) * {new}")
    sized = lambda new: to(size, new)
    axes = {
        "signs": {"of the momentum": SAME, "none": to("np.sign(n)", "n")},
        "v": {
            "O^2 of every entry": SAME,
            "mean of O^2 over columns": square("np.mean(O**2, axis=1, keepdims=True)"),
            "g^2": to(
                "for n in nesterov(given, beta):",
                "for n, g in zip(nesterov(given, beta), given):",
                v,
                "(1 - beta) * g**2",
            ),
            "of the momentum": square("n**2"),
        },
        "b": {
            "weighs v": SAME,
            "weighs the new square": to(
                f"beta * v + {v}", "(1 - beta) * v + beta * O**2"
            ),
            "0.999": to(f"beta * v + {v}", "0.999 * v + 0.001 * O**2"),
        },
        "divisor": {"sqrt(v)": SAME, "v": to("np.sqrt(v) + 1e-8)", "v + 1e-8)")},
        "norm": {
            "0.2 sqrt(rows cols)": SAME,
            "not restored": sized("hat"),
            "1": sized("hat / norm(hat)"),
            "that of O": sized("norm(O) * hat / norm(hat)"),
        },
        "momentum": PLAIN,
        "orthogonalization": series("exact"),
    }
    return Family(
        "adamuon",
        "rule",
        "Si et al. 2025, AdaMuon, arXiv:2507.11005, as in the authors' code",
        "M <- b M + (1-b) g; O = polar(sign((1-b) g + b M)); v <- b v + (1-b) O^2; X = "
        "O / sqrt(v); x <- x - lr 0.2 sqrt(rows cols) X/|X|; M = v = 0 at first",
        (VARIANTS, "adamuon"),
        {"lr": 0.1, "beta": 0.9, "orth": "exact", "shape": "none"},
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0},
        axes,
        updates(),
        free=("orthogonalization",),
    )


def updates() -> Updates:
    """The signs of these momenta are far from singular, and none is almost 0."""
    return Updates(*vars(steps(119, 4, tall=(6, 4), wide=(4, 7))).values())


FAMILIES = {"muon_decay": muon_decay, "normuon": normuon, "adamuon": adamuon}
TABLES = {"muon": muon, "muon_kernel": muon_kernel, "muon_rank": muon_rank}

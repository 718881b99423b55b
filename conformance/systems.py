"""Asynchronous steps, compressed messages, personal models."""

from collections.abc import Callable
from functools import partial

import numpy as np

from conformance.axes import LOSS, MUON_AXES, MUON_FREE, NORMS, STEPS, weights
from conformance.family import SAME, Axes, Family, lines, setting
from conformance.problems import rounds
from tests.oracles.compression import largest

HERE = "conformance.references"


def late(here: str, old: str) -> Axes:
    """How staleness counts."""
    factor = "(1 + late) ** -exponent"
    by = lambda new: lines(here, old, old.replace(factor, new))
    return {
        "staleness": {
            "(1 + late)^-p": SAME,
            "none": by("1"),
            "(2 + late)^-p": by("(2 + late) ** -exponent"),
            "max(1, late)^-p": by("max(1, late) ** -exponent"),
            "(1 + late)^p": setting(exponent=-0.5),
            "1/(1 + late)": setting(exponent=1.0),
            "1/(1 + p late)": by("1 / (1 + exponent * late)"),
            "exp(-p late)": by("np.exp(-exponent * late)"),
        },
        "clients begin": {
            "at models[start]": SAME,
            "at the newest model": lines(here, "begin = models[start]", "begin = x"),
        },
        **STEPS,
        **LOSS,
    }


def fedasync() -> Family:
    a, x = (
        "a = weight * (1 + late) ** -exponent",
        "x = add(times(1 - a, x), times(a, end))",
    )
    server = lambda new: lines("fedasync", x, f"x = {new}")
    return Family(
        "fedasync",
        "rounds",
        "Xie et al. 2019, arXiv:1903.03934, Algorithm 1 without a proximal term",
        "x_i: K steps of SGD from models[start]; late = r - start, r from 0; a = "
        "weight (1 + late)^-exponent; x <- (1 - a) x + a x_i",
        (HERE, "fedasync"),
        {"lr": 0.2, "weight": 0.6, "exponent": 0.5},
        {"lr": 0.2, "weight": 0.6, "exponent": 0.5},
        {
            "server": {
                "(1 - a) x + a x_i": SAME,
                "x + a (x_i - models[start])": server(
                    "add(x, times(a, sub(end, models[start])))"
                ),
                "a x + (1 - a) x_i": server("add(times(a, x), times(1 - a, end))"),
                "(1 - weight) x + a x_i": server(
                    "add(times(1 - weight, x), times(a, end))"
                ),
            },
            **late("fedasync", a),
        },
        rounds(
            cohorts=[[0], [1], [3], [0], [4], [1]],
            starts=[[0], [0], [0], [1], [0], [2]],
        ),
    )


def fedbuff() -> Family:
    to = lambda *pairs: lines("fedbuff", *pairs)
    divisor = lambda new: to("by = len(ids)", f"by = {new}")
    rate = "x = add(x, times(server_lr, step))"
    return Family(
        "fedbuff",
        "rounds",
        "Nguyen et al. 2022, arXiv:2106.06639, Algorithm 1; the authors' FLSim divides "
        "by the sum of the weights",
        "x_i: K steps of SGD from models[start]; late = r - start, r from 0; x <- x + "
        "server_lr mean((1 + late)^-exponent (x_i - models[start]))",
        (HERE, "fedbuff"),
        {"lr": 0.2, "server_lr": 0.8, "exponent": 0.5},
        {"lr": 0.2, "server_lr": 0.8, "exponent": 0.5},
        {
            "mean": {
                "over the buffer": SAME,
                "by the sum of the weights": divisor("sum(factors)"),
                "a sum": divisor("1"),
                "over all clients": divisor("trace.num_clients"),
            },
            "weights": {
                "uniform": SAME,
                "by examples": to(
                    "step = total([times(s / by, d) for s, d in zip(factors, deltas, "
                    "strict=True)])",
                    'w = [len(ids) / by * v for v in shares(trace, r, "examples")]\n'
                    "        parts = zip(w, factors, deltas)\n"
                    "        step = total([times(v * s, d) for v, s, d in parts])",
                ),
            },
            "change": {
                "x_i - models[start]": SAME,
                "x_i - x": to("batches, lr), models[start])", "batches, lr), x)"),
            },
            "server rate": {
                "used": SAME,
                "not used": to(rate, "x = add(x, step)"),
                "used twice": to(rate, rate.replace("server_lr", "server_lr**2")),
            },
            **late("fedbuff", "factors.append((1 + late) ** -exponent)"),
        },
        rounds(
            cohorts=[[0, 1, 2], [1, 3, 0], [4, 2, 1], [0, 3, 2]],
            starts=[[0, 0, 0], [1, 0, 1], [0, 1, 2], [2, 2, 3]],
        ),
        free=("weights",),
    )


COMPRESSION = "tests.oracles.compression"
SHARE = 1 / 3  # of the entries of an array: 8 of 24, and 2 of 6

LONGER = [[0, 1, 2], [3, 4, 0], [2, 4, 1], [0, 3, 2], [1, 0, 4]]


def of_rows(v: np.ndarray) -> np.ndarray:
    return np.stack([largest(SHARE)(row) for row in np.atleast_2d(v)]).reshape(v.shape)


def fedavg_top_k() -> Family:
    here = "fedavg"
    sent = lambda *pairs: lines("send", *pairs)
    error, whole = "errors[i] = sub(whole, sent)", "whole = add(times("
    kept = lambda compress: setting(compress=compress)
    last = "x = sub(x, times(1 / sum(weights), total(heard)))"
    axes: Axes = {
        "error": {
            "e + message - sent": SAME,
            "none": setting(feedback=None),
            "message - sent": sent(error, "errors[i] = sub(message, sent)"),
            "sent - message - e": sent(error, "errors[i] = sub(sent, whole)"),
            "2 e + message sent": setting(feedback=2.0),
            "e/2 + message sent": setting(feedback=0.5),
            "of all clients together": sent(f"    {whole}", f"    i = 0\n    {whole}"),
            "0 for absent clients": lines(
                here,
                last,
                f"{last}\n        errors = [e if i in ids else zeros(x) for i, e in "
                "enumerate(errors)]",
            ),
        },
        "kept": {
            "the largest magnitudes of every array": SAME,
            "of all arrays together": sent(
                "    sent = each(compress, whole)\n",
                "    flat = np.concatenate([v.ravel() for v in whole.values()])\n"
                "    ends = np.cumsum([v.size for v in whole.values()])[:-1]\n"
                "    flat = np.split(compress(flat), ends)\n"
                "    shaped = zip(whole.items(), flat)\n"
                "    sent = {k: a.reshape(v.shape) for (k, v), a in shaped}\n",
            ),
            "of every row": kept(of_rows),
            "one more": kept(lambda v: largest(SHARE + 1 / v.size)(v)),
            "times 1/share": kept(lambda v: largest(SHARE)(v) / SHARE),
            "all": kept(lambda v: v),
        },
        "server": {
            "the mean": SAME,
            "the mean compressed too": lines(
                here,
                last,
                "x = sub(x, each(compress, times(1 / sum(weights), total(heard))))",
            ),
        },
        "weights": {
            "by examples": SAME,
            "uniform": lines(
                here,
                "heard.append(times(trace.sizes[i], got))",
                "heard.append(got)",
                last,
                'x = sub(x, weighed(trace, r, "uniform", heard))',
            ),
        },
        **STEPS,
        **LOSS,
    }
    return Family(
        "fedavg_top_k",
        "rounds",
        "Karimireddy et al. 2019, arXiv:1901.09847, for the messages of FedAvg",
        "e_i <- e_i + x - x_i; sent = its round(share size) entries of largest "
        "magnitude in every array, else 0; e_i <- e_i - sent; x <- x - mean of sent, "
        "by examples; e_i = 0 at first",
        (COMPRESSION, here),
        {"lr": 0.2, "compress": largest(SHARE), "feedback": 1.0},
        {"lr": 0.2, "share": SHARE},
        axes,
        rounds(cohorts=LONGER),
        free=("weights",),
        base=((here, "return history, kept", "return history"),),
    )


def of_matrices(v: np.ndarray) -> np.ndarray:
    """Signs of vectors, which EF21-Muon broadcasts, have no largest entries."""
    return largest(SHARE)(v) if v.ndim > 1 else v


def scaled_signs(v: np.ndarray) -> np.ndarray:
    return np.mean(abs(v)) * np.sign(v)


def ef21_muon(bits: bool = False) -> Family:
    """With C of the largest entries of matrices, or of scaled signs."""
    here = "ef21_muon"
    C = scaled_signs if bits else of_matrices
    bare = {"mean|v| sign(v)": SAME, "sign(v) of clients": setting(compress=np.sign)}
    to = lambda *pairs: lines(here, *pairs)
    R = "R.append(each(compress, sub(M[i], G_j[i])))"
    own = "G_j[i] = add(G_j[i], R[-1])"
    W = "W = add(W, each(broadcast, sub(X, W)))"
    vectors = lambda new: to("else np.sign(g)", f"else {new}")
    return Family(
        f"{here}_signs" if bits else here,
        "rounds",
        "Gruntkowska et al. 2025, arXiv:2510.00643, as we read it; absent clients "
        "take no part",
        "M_i = G_i = gradients of all clients at x, G = mean; x <- x - lr polar(G), "
        "signs of vectors; then in a round W <- W + C(x - W), M_i <- (1-b) M_i + b "
        "g_i(W), R_i = C(M_i - G_i), G_i <- G_i + R_i, G <- G + sum(R_i) / N, and x <- "
        "x - lr polar(G); W = x at first; one gradient a round; C "
        + (
            "is mean|v| sign(v) of every array v"
            if bits
            else "keeps round(share size) "
            "largest entries of a matrix, and all of a vector"
        ),
        ("tests.oracles.outer", here),
        {
            "lr": 0.05,
            "b": 0.3,
            "compress": C,
            "broadcast": C,
            "orth": "exact",
            "shape": "none",
        },
        {"lr": 0.05, "b": 0.3} | ({} if bits else {"share": SHARE}),
        {
            "b": {
                "weighs the fresh gradient": SAME,
                "weighs the old momentum": setting(b=0.7),
                "1": setting(b=1.0),
            },
            "R": {
                "C(M - G_i)": SAME,
                "M - G_i": setting(compress=lambda v: v),
                "C(M) in place of G_i": to(
                    R, "R.append(sub(each(compress, M[i]), G_j[i]))"
                ),
            },
            "G_i": {
                "G_i + R": SAME,
                "M": to(own, "G_j[i] = M[i]"),
                "that of the start": to(own, "pass"),
            },
            "G": {
                "G + sum(R) / N": SAME,
                "G + sum(R) / S": to("times(1 / N, total(R))", "mean(R)"),
            },
            "broadcast": {
                "W + C(x - W)": SAME,
                "x": setting(broadcast=lambda v: v),
                "C(x)": to(W, "W = each(broadcast, X)"),
            },
            "start": {
                "G_i = M_i": SAME,
                "G_i = 0": to("G_j = list(M)", "G_j = [zeros(x) for _ in M]"),
                "G_i = C(M_i)": to(
                    "G_j = list(M)", "G_j = [each(compress, m) for m in M]"
                ),
            },
            "first step": {
                "before round 1": SAME,
                "none": to("X, history = moved(x, G, 0), []", "X, history = x, []"),
            },
            "vectors": {
                "signs": SAME,
                "along G": vectors("g"),
                "G / |G|": vectors("g / np.linalg.norm(g)"),
            },
            "norm": {k: v for k, v in NORMS["norm"].items() if "|M|" not in k},
            **({"C": bare} if bits else {}),
            **MUON_AXES,
        },
        rounds(cohorts=LONGER),
        free=MUON_FREE,
        base=((here, "history.append((X, W, G, list(G_j)))", "history.append(X)"),),
        together=1,
    )


PERSONAL = "tests.oracles.personal"


def fedper() -> Family:
    to = lambda *pairs: lines("fedper", *pairs)
    shared = "x = {name: x[name] if name in own else shared[name] for name in x}"
    means = "{name: shared[name] for name in own}"
    every = "for batch in batches:"
    return Family(
        "fedper",
        "rounds",
        "Arivazhagan et al. 2019, arXiv:1912.00818",
        "every client keeps its b, first that of x0: K steps of SGD of w and b; w <- "
        "mean of w_i; results: w, and own_b of all clients",
        (PERSONAL, "fedper"),
        {"lr": 0.2},
        {"lr": 0.2},
        {
            "head": {
                "kept": SAME,
                "averaged for all": to(
                    shared, f"x, kept = shared, [{means} for _ in kept]"
                ),
                "averaged for the cohort": to(
                    shared,
                    f"{shared}\n        kept = [mean([kept[j] for j in ids]) if i in "
                    "ids else v for i, v in enumerate(kept)]",
                ),
                "begun anew every round": to("**kept[i]}", "}"),
            },
            "order": {
                "head and body together": SAME,
                "K steps of the head, then of the body": to(
                    every,
                    "for head, batch in [(h, b) for h in (1, 0) for b in batches]:",
                    "local = sub(local, times(rate(lr, r), u))",
                    "local = {k: v - lr * u[k] * ((k in own) == head) for k, v in "
                    "local.items()}",
                ),
            },
            "momentum": {"none": SAME, "0.9": setting(momentum=0.9)},
            "weights": weights(
                "fedper",
                "shared = add(x, mean(changes))",
                "shared = add(x, {})",
                "changes",
            ),
            **STEPS,
            **LOSS,
        },
        rounds(cohorts=LONGER, own=("b",)),
        free=("weights",),
    )


def ditto() -> Family:
    to = lambda *pairs: lines("ditto", *pairs)
    term = "times(pull, sub(v, x))"
    step = "d = add(trace.grad(v, batch), times(pull, sub(v, x)))"
    server = "x = add(x, mean(changes))"
    later = (
        f"        {server}\n        for i, batches in zip(ids, data, strict=True):\n"
        f"            v = own[i]\n            for batch in batches:\n"
        f"                {step}\n"
        "                v = sub(v, times(personal_lr, d))\n            own[i] = v\n"
    )
    begin = "local, v = x, own[i]"
    train = f"{begin}\n            end = x\n            for batch in batches:\n"
    train += " " * 16 + "end = sub(end, times(rate(lr, r), trace.grad(end, batch)))"
    trained = lambda *pairs: to(*pairs, f"            {begin}", f"            {train}")
    return Family(
        "ditto",
        "rounds",
        "Li et al. 2021, arXiv:2012.04221, Algorithm 1",
        "x_i: K steps of SGD from x; v_i <- v_i - personal_lr (g_i(v_i) + pull (v_i - "
        "x)), K steps, x as received; x <- mean of x_i; results: w, b, and own_w, "
        "own_b of v_i",
        (PERSONAL, "ditto"),
        {"lr": 0.2, "personal_lr": 0.1, "pull": 0.7},
        {"lr": 0.2, "personal_lr": 0.1, "pull": 0.7},
        {
            "pull": {
                "pull (v - x)": SAME,
                "lr in place of personal_lr": setting(personal_lr=0.2),
                "none": setting(pull=0.0),
                "2 pull (v - x)": setting(pull=1.4),
                "the sign flipped": setting(pull=-0.7),
            },
            "anchor": {
                "x as received": SAME,
                "the new model": to(
                    "            own[i] = v\n", "", f"        {server}\n", later
                ),
                "the client's x_i": trained(term, term.replace("x", "end")),
                "the first model": to(
                    "    own, history =",
                    "    first = x\n    own, history =",
                    term,
                    term.replace("x", "first"),
                ),
                "zero": to(term, "times(pull, v)"),
            },
            "v begins": {
                "at v of its last round": SAME,
                "at x": to(begin, "local, v = x, x"),
                "at x_i": to(
                    f"            {begin}", f"            {train}\n            v = end"
                ),
            },
            "gradient": {
                "at v": SAME,
                "at x_i": trained("trace.grad(v,", "trace.grad(end,"),
            },
            "server": {
                "mean of x_i": SAME,
                "mean of v_i": to("sub(local, x))\n        x", "sub(v, x))\n        x"),
            },
            "weights": {
                k: weights("ditto", server, "x = add(x, {})", "changes")[k]
                for k in ("uniform", "by examples")
            },
            **STEPS,
            **LOSS,
        },
        rounds(own=("w", "b")),
        free=("weights",),
    )


FAMILIES: dict[str, Callable[[], Family]] = {
    "fedasync": fedasync,
    "fedbuff": fedbuff,
    "fedavg_top_k": fedavg_top_k,
    "ef21_muon": ef21_muon,
    "ef21_muon_signs": partial(ef21_muon, True),
    "fedper": fedper,
    "ditto": ditto,
}

"""The methods that are named FedMuon, Local Muons, DiLoCo and MuLoCo."""

from collections.abc import Callable
from functools import partial

from conformance.axes import (
    MUON_AXES,
    MUON_FREE,
    NORMS,
    STEPS,
    UNIFORM_REPLAY,
    weights,
)
from conformance.family import SAME, Family, lines, setting
from conformance.problems import rounds

FEDAVG, FEDMUON = "tests.oracles.fedavg", "tests.oracles.fedmuon"
SCAFFOLD, PROXIMAL = "tests.oracles.scaffold", "tests.oracles.proximal"
OUTER = "tests.oracles.outer"
PROBLEM = rounds()


def fedmuon() -> Family:
    here = "fedmuon"
    state = lambda new: lines(
        here, "m = m_0[i] if r == 0 and not synced else m_bar", f"m = {new}"
    )
    kept = lines(
        here,
        "m = m_0[i] if r == 0 and not synced else m_bar",
        "m = m_0[i]",
        "            last_m.append(m)",
        "            last_m.append(m)\n            m_0[i] = m",
    )
    swapped = (
        "                step = direct(m, direction, ratio)\n"
        "                xi = sub(times(1 - eta * decay, xi), times(eta, step))\n"
        "                m = add(times(1 - b, m), times(b, trace.grad(xi, batch)))\n"
    )
    step, move, refresh = swapped.splitlines(keepends=True)
    axes = {
        "order": {
            "step along the old M, then refresh M": SAME,
            "refresh M, then step": lines(here, swapped, refresh + step + move),
            "step, then refresh M at the x before the step": lines(
                here,
                swapped,
                "                old = trace.grad(xi, batch)\n"
                + step
                + move
                + refresh.replace("trace.grad(xi, batch)", "old"),
            ),
        },
        "b": {
            "weighs the fresh gradient": SAME,
            "weighs the old momentum": setting(b=0.9),
            "b M + g": lines(
                here,
                "times(1 - b, m), times(b, trace.grad(xi, batch))",
                "times(1 - b, m), trace.grad(xi, batch)",
            ),
        },
        "momentum": {
            "averaged by the server": SAME,
            "kept by the client": kept,
            "reset to zero every round": state("zeros(x) if r else m_0[i]"),
            "begun at the gradient every round": state("trace.grad(x, batches[0])"),
        },
        "start of M": {
            "the client's first gradient": SAME,
            "zero": lines(here, "m_bar = mean(m_0)", "m_0 = [zeros(x) for _ in m_0]"),
            "the mean of all first gradients": setting(synced=True),
        },
        "weights": weights(
            here,
            "x = mean(last_x)",
            "x = {}",
            "last_x",
            more=("m_bar = mean(last_m)", "m_bar = {}", "last_m"),
        ),
        "vectors": {
            "along M": SAME,
            "along the gradient": lines(
                here,
                "step = direct(m, direction, ratio)",
                'step = {**direct(m, direction, ratio), "b": trace.grad(xi, '
                'batch)["b"]}',
            ),
            "along M / |M|": lines(
                here,
                "step = direct(m, direction, ratio)",
                "step = direct(m, direction, ratio)\n"
                '                step["b"] = m["b"] / np.linalg.norm(m["b"])',
            ),
        },
        "server's M": {
            "the mean of M_i": SAME,
            "by examples, while x is not": lines(
                here,
                "m_bar = mean(last_m)",
                'm_bar = weighed(trace, r, "examples", last_m)',
            ),
            "of the first client": lines(
                here, "m_bar = mean(last_m)", "m_bar = last_m[0]"
            ),
        },
        **STEPS,
        **NORMS,
        **MUON_AXES,
    }
    return Family(
        "fedmuon",
        "rounds",
        "Zhang and Gao, arXiv:2510.03866, Algorithm 1",
        "x_i <- x_i - lr polar(M_i); M_i <- (1-b) M_i + b g(x_i); x, M <- means; "
        "M_i = the gradient at x_0 at first; absent clients take no part",
        (FEDMUON, here),
        {"lr": 0.05, "b": 0.1, "orth": "exact", "shape": "none"},
        {"lr": 0.05, "b": 0.1},
        axes,
        PROBLEM,
        free=MUON_FREE,
    )


def align() -> Family:
    here, server = "fedmuon_align", "_aligned"
    mix = "along = times(1 - align, direct(mixed, direction, ratio))"
    sum_of = "step = add(add(along, times(align, delta_g)), times(decay, xi))"
    mixed = "mixed = {k: m[k] if xi[k].ndim > 1 else by_adam[k] for k in xi}"
    by = "delta_g = mean_direction(delta, len(data[0]), eta, delta_g)"
    axes = {
        "mix": {
            "(1-a) O + a Delta": SAME,
            "O + a Delta": lines(here, mix, mix.replace("1 - align", "1.0")),
            "a O + (1-a) Delta": setting(align=0.7),
            "O alone": lines(here, "times(align, delta_g)", "times(0.0, delta_g)"),
        },
        "Delta": {
            "-mean(x_i - x)/(K lr)": SAME,
            "-mean(x_i - x)/K": lines(
                server, by, "delta_g = times(-1 / len(data[0]), delta)"
            ),
            "-mean(x_i - x)/lr": lines(server, by, "delta_g = times(-1 / eta, delta)"),
            "-mean(x_i - x)": lines(server, by, "delta_g = times(-1.0, delta)"),
            "the sign flipped": lines(
                server, by, by.replace("(delta,", "(times(-1.0, delta),")
            ),
        },
        "momentum": {
            "averaged by the server": SAME,
            "reset to zero every round": setting(carry=False),
        },
        "kind": {
            "heavy ball": SAME,
            "heavy ball, Nesterov": lines(
                here,
                mixed,
                "n = add(g, times(momentum, m))\n            "
                + mixed.replace("m[k] if", "n[k] if"),
            ),
        },
        "decay": {
            "decoupled": SAME,
            "none": setting(decay=0.0),
            "times (1 - a)": lines(
                here, sum_of, sum_of.replace("times(decay", "times((1 - align) * decay")
            ),
            "coupled": lines(
                here,
                "g = trace.grad(xi, batch)",
                "g = add(trace.grad(xi, batch), times(decay, xi))",
                sum_of,
                "step = add(along, times(align, delta_g))",
            ),
        },
        "vectors": {
            "Adam(0.9, 0.95)": SAME,
            "Adam(0.9, 0.999)": lines(here, "0.9, 0.95", "0.9, 0.999"),
            "along M": lines(here, mixed, "mixed = m"),
            "along the gradient": lines(here, mixed, mixed.replace("by_adam", "g")),
        },
        "weights": weights(
            server,
            "delta = mean([sub(xi, x) for xi, _ in ends])",
            "delta = {}",
            "[sub(xi, x) for xi, _ in ends]",
        ),
        **MUON_AXES,
    }
    return Family(
        "fedmuon_align",
        "rounds",
        "Liu et al. 2025, arXiv:2510.27403, Algorithm 2",
        "M <- momentum M + g; x_i <- x_i - lr [(1-a) polar(M) + a Delta + decay x_i]; "
        "Delta <- -mean(x_i - x)/(K lr); M <- mean of M_i; vectors by Adam, new "
        "every round",
        (FEDMUON, here),
        {
            "lr": 0.05,
            "momentum": 0.9,
            "align": 0.3,
            "decay": 0.1,
            "orth": "exact",
            "shape": "none",
        },
        {"lr": 0.05, "momentum": 0.9, "align": 0.3, "decay": 0.1},
        axes,
        PROBLEM,
        free=MUON_FREE,
    )


def correct(name: str, corrects: bool) -> Family:
    here = "fedmuon_correct_states"
    used = "corrected = add(sub(m, c_i[i]), c) if corrects else m"
    correction = lambda new: lines(here, used, f"corrected = {new}")
    last = "x = add(times((n - S) / n, x), times(1 / n, total(last_x)))"
    axes: dict[str, dict] = {
        "momentum": {
            "kept by the client": SAME,
            "reset to zero every round": lines(
                here, "xi, m = x, m_i[i]", "xi, m = x, zeros(x)"
            ),
            "averaged by the server": lines(
                here,
                "        m_i, c_i = fresh_m, fresh_c",
                "        if r == 0:\n            m_i = list(m_i)\n"
                "        bar = mean([fresh_m[i] for i in ids])\n"
                "        m_i, c_i = [bar] * n, fresh_c",
            ),
        },
        "server": {
            "((N-S) x + sum x_i) / N": SAME,
            "mean over the cohort": lines(here, last, "x = mean(last_x)"),
            "by examples over the cohort": lines(
                here, last, 'x = weighed(trace, r, "examples", last_x)'
            ),
        },
        "b": {
            "weighs the fresh gradient": SAME,
            "weighs the old momentum": setting(b=0.9),
            "(1-b) M + g": lines(
                here, "times(b, trace.grad(xi, batch))", "trace.grad(xi, batch)"
            ),
        },
        "start of M": {
            "zero": SAME,
            "the client's first gradient": setting(warm_start=True),
        },
        "order": {
            "refresh M, then step": SAME,
            "step along the old M, then refresh M": lines(
                here,
                "                m = add(times(1 - b, m), times(b, "
                "trace.grad(xi, batch)))",
                "                old = m\n"
                "                m = add(times(1 - b, m), times(b, "
                "trace.grad(xi, batch)))",
                used,
                used.replace("sub(m,", "sub(old,").replace("else m", "else old"),
            ),
        },
        "Nesterov": {
            "no": SAME,
            "yes": lines(
                here,
                used,
                "n_ = add(times(1 - b, m), times(b, trace.grad(xi, batch)))\n    "
                "            "
                + used.replace("sub(m,", "sub(n_,").replace("else m", "else n_"),
            ),
        },
        "vectors": {
            "along M": SAME,
            "along M / |M|": lines(
                here,
                "step = direct(corrected, direction, ratio, everywhere)",
                "step = direct(corrected, direction, ratio, everywhere)\n"
                '                step["b"] = corrected["b"] / '
                'np.linalg.norm(corrected["b"])',
            ),
        },
        **MUON_AXES,
    }
    if corrects:
        axes["correction"] = {
            "M - C_i + C": SAME,
            "none": correction("m"),
            "the sign flipped": correction("sub(add(m, c_i[i]), c)"),
            "M + C": correction("add(m, c)"),
            "M - C_i": correction("sub(m, c_i[i])"),
            "in the gradient": lines(
                here,
                "times(b, trace.grad(xi, batch))",
                "times(b, add(trace.grad(xi, batch), sub(c, c_i[i])))",
                used,
                "corrected = m",
            ),
        }
        axes["server's C"] = {
            "C + sum of changes / N": SAME,
            "C + sum of changes / S": lines(
                here, "times(1 / n, total(changes))", "mean(changes)"
            ),
            "mean of the cohort's C_i": lines(
                here,
                "c = add(c, times(1 / n, total(changes)))",
                "c = mean([c_i[i] for i in ids])",
            ),
        }
        del axes["vectors"], axes["Nesterov"]
    algorithm = "Algorithm 1" if corrects else "Algorithm 4"
    along = "M_i - C_i + C" if corrects else "M_i"
    tail = "; C_i = M_i; C <- C + sum of changes / N" if corrects else ""
    return Family(
        name,
        "rounds",
        f"Takezawa et al. 2026, arXiv:2509.26337, {algorithm}",
        f"M_i <- (1-b) M_i + b g; x_i <- x_i - lr polar({along}){tail}; "
        "x <- ((N-S) x + sum x_i) / N; vectors: without polar; M = 0 at first",
        (FEDMUON, here),
        {"lr": 0.05, "b": 0.1, "orth": "exact", "shape": "none", "corrects": corrects},
        {"lr": 0.05, "b": 0.1},
        axes,
        PROBLEM,
        free=MUON_FREE,
        base=(
            (here, "history.append(Corrected(x, c, c_i, m_i))", "history.append(x)"),
        ),
    )


def local_muon() -> Family:
    here = "local_muon"
    ball = "            m = add(times(momentum, m), g)\n"
    mixed = "mixed = {k: m[k] if xi[k].ndim > 1 else by_adam[k] for k in xi}"
    step = "xi = sub(xi, times(eta, add(step, times(decay, xi))))"
    axes = {
        "momentum": {
            "reset to zero every round": SAME,
            "averaged by the server": setting(carry=True),
            "kept by the client": lines(
                here,
                "    m_bar, last = zeros(x), []\n",
                "    m_bar, last, kept = zeros(x), [], {}\n",
                "m, moments = m_bar,",
                "m, moments = kept.get(id(batches[0][0]), m_bar),",
                "        last.append(m)\n",
                "        last.append(m)\n        kept[id(batches[0][0])] = m\n",
            ),
        },
        "kind": {
            "heavy ball": SAME,
            "average begun at the first gradient": lines(
                here,
                ball,
                "            m = add(times(momentum, m), times(1 - momentum, g)) "
                'if np.any(m["w"]) else g\n',
            ),
            "heavy ball, Nesterov": lines(
                here,
                mixed,
                "n = add(g, times(momentum, m))\n            "
                + mixed.replace("m[k] if", "n[k] if"),
            ),
            "none": lines(here, ball, "            m = g\n"),
        },
        "decay": {
            "decoupled": SAME,
            "none": setting(decay=0.0),
            "without lr": lines(
                here, step, "xi = sub(times(1 - decay, xi), times(eta, step))"
            ),
            "coupled": lines(
                here,
                "g = trace.grad(xi, batch)",
                "g = add(trace.grad(xi, batch), times(decay, xi))",
                step,
                "xi = sub(xi, times(eta, step))",
            ),
            "matrices only": lines(
                here, "times(decay, xi)", '{**times(decay, xi), "b": 0 * xi["b"]}'
            ),
        },
        "vectors": {
            "Adam(0.9, 0.95)": SAME,
            "Adam(0.9, 0.999)": lines(here, "0.9, 0.95", "0.9, 0.999"),
            "along M": lines(here, mixed, "mixed = m"),
            "along the gradient": lines(here, mixed, mixed.replace("by_adam", "g")),
        },
        "weights": weights(*UNIFORM_REPLAY),
        **MUON_AXES,
    }
    return Family(
        here,
        "rounds",
        "Liu et al. 2025, arXiv:2510.27403, section 4, equation 2",
        "M <- momentum M + g; x_i <- x_i - lr (polar(M) + decay x_i), M = 0 at "
        "the start of "
        "every round; x <- mean of x_i; vectors by Adam(0.9, 0.95, 1e-10), new "
        "every round",
        (FEDAVG, here),
        {"lr": 0.05, "momentum": 0.9, "decay": 0.1, "orth": "exact", "shape": "none"},
        {"lr": 0.05, "momentum": 0.9, "decay": 0.1},
        axes,
        PROBLEM,
        free=MUON_FREE,
    )


def outer(name: str) -> Family:
    """DiLoCo and MuLoCo."""
    step = "x = sub(x, times(outer_lr, add(delta, times(outer_momentum, u))))"
    u = "u = add(times(outer_momentum, u), delta)"
    muon = name == "muloco"
    weighs = weights(
        name,
        "delta = mean(deltas)" if muon else "delta = mean(outer_gradients)",
        "delta = {}",
        "deltas" if muon else "outer_gradients",
    )
    axes: dict[str, dict] = {
        "outer step": {
            "Nesterov: d + mu u": SAME,
            "heavy ball: u": lines(name, step, "x = sub(x, times(outer_lr, u))"),
            "plain: d": lines(name, step, "x = sub(x, times(outer_lr, delta))"),
            "u = mu u + (1-mu) d, Nesterov": lines(
                name, u, u.replace(", delta)", ", times(1 - outer_momentum, delta))")
            ),
            "u = mu u + (1-mu) d": lines(
                name,
                u,
                u.replace(", delta)", ", times(1 - outer_momentum, delta))"),
                step,
                "x = sub(x, times(outer_lr, u))",
            ),
            "mu u alone": lines(
                name, step, "x = sub(x, times(outer_lr * outer_momentum, u))"
            ),
        },
        "workers' state": {
            "kept": SAME,
            "reset every round": lines(
                name,
                "        for i, batches in zip(ids, data, strict=True):\n        "
                "    xi = x\n",
                "        for i, batches in zip(ids, data, strict=True):\n        "
                "    xi = x\n"
                + (
                    "            m_i[i] = zeros(x)\n            moments_i[i] = "
                    if muon
                    else "            moments[i] = "
                )
                + "Moments(zeros(x), zeros(x), 0)\n",
            ),
        },
        "delta": {
            "mean(x - x_i)": SAME,
            "the sign flipped": lines(name, "sub(x, xi))", "sub(xi, x))"),
        },
        "weights": weighs,
    }
    hyper = {"lr": 0.05, "outer_lr": 0.7, "outer_momentum": 0.8, "decay": 0.1}
    if muon:
        hyper["momentum"] = 0.9
        axes["kind"] = {
            "heavy ball": SAME,
            "Nesterov": setting(nesterov=True),
        }
        axes["vectors"] = {
            "Adam(0.9, 0.99)": SAME,
            "Adam(0.9, 0.95)": setting(b2=0.95),
            "along M": lines(name, "m[k] if x[k].ndim > 1 else by_adam[k]", "m[k]"),
        }
        axes |= MUON_AXES
    else:
        axes["inner"] = {
            "Adam(0.9, 0.999)": SAME,
            "Adam(0.9, 0.95)": setting(b2=0.95),
            "plain gradient": lines(
                name, "times(eta, step)", "times(eta, trace.grad(xi, batch))"
            ),
        }
        axes["bias correction"] = {
            "counts the worker's steps": SAME,
            "counts the steps of a round": lines(
                name,
                "            xi = x\n",
                "            xi = x\n"
                "            moments[i] = moments[i]._replace(t=0)\n",
            ),
        }
    axes["decay"] = {
        "decoupled": SAME,
        "none": setting(decay=0.0),
    }
    source = {
        "diloco": "Douillard et al. 2023, arXiv:2311.08105, Algorithm 1",
        "muloco": "Thérien et al. 2025, arXiv:2505.23725",
    }[name]
    inner = {
        "diloco": "AdamW(0.9, 0.999, 1e-8)",
        "muloco": "Muon (M <- momentum M + g; polar(M)), vectors by AdamW(0.9, "
        "0.99, 1e-8)",
    }[name]
    extra = {"orth": "exact", "shape": "none"} if muon else {}
    return Family(
        name,
        "rounds",
        source,
        f"x_i: K steps of {inner} with decoupled decay from x, whose state the "
        "worker keeps; "
        "d = mean(x - x_i); u <- mu u + d; x <- x - outer_lr (d + mu u)",
        (OUTER, name),
        hyper | extra,
        hyper,
        axes,
        PROBLEM,
        free=MUON_FREE if muon else (),
    )


FAMILIES: dict[str, Callable[[], Family]] = {
    "fedmuon": fedmuon,
    "fedmuon_align": align,
    "fedmuon_correct": partial(correct, "fedmuon_correct", True),
    "local_muon": local_muon,
    "local_muon_persistent": partial(correct, "local_muon_persistent", False),
    "diloco": partial(outer, "diloco"),
    "muloco": partial(outer, "muloco"),
}

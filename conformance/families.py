"""Methods with SGD at the clients: what is written, and what codes do instead."""

from collections.abc import Callable
from functools import partial

from conformance.axes import LOSS, STEPS, UNIFORM_REPLAY, local_axes, weights
from conformance.family import SAME, Family, lines, setting
from conformance.problems import rounds

FEDAVG, FEDMUON = "tests.oracles.fedavg", "tests.oracles.fedmuon"
SCAFFOLD, PROXIMAL = "tests.oracles.scaffold", "tests.oracles.proximal"
OUTER = "tests.oracles.outer"
PROBLEM = rounds()


def fedavg() -> Family:
    old = "times(trace.sizes[i] / present"
    share = lambda kind: lines(
        "fedavg_weighted", old, f'times(shares(trace, r, "{kind}")[ids.index(i)]'
    )
    weights = {
        "by examples": SAME,
        "uniform": share("uniform"),
        "by examples of all clients": share("examples of all"),
        "uniform over all clients": share("uniform over all"),
    }
    server = {
        "x + d": SAME,
        "momentum 0.9: u = 0.9 u + d; x + u": lines(
            "fedavg_weighted",
            "    history = []\n",
            "    history, u = [], zeros(x)\n",
            "x = add(x, times(server_lr, total(weighted)))",
            "u = add(times(0.9, u), total(weighted))\n        x = add(x, u)",
        ),
        "(x + d) / 2": setting(server_lr=0.5),
    }
    return Family(
        "fedavg",
        "rounds",
        "McMahan et al. 2017, arXiv:1602.05629, Algorithm 1",
        "x <- sum_i n_i x_i / sum_i n_i over the cohort; x_i: K steps of SGD from x",
        (FEDAVG, "fedavg_weighted"),
        {"lr": 0.2},
        {"lr": 0.2},
        {"weights": weights, "server": server, **local_axes()},
        PROBLEM,
    )


def fedprox() -> Family:
    old = "pull = times(proximal, sub(xi, x))"
    term = lambda new: lines("fedprox", old, new)
    norm = "np.sqrt(sum(np.sum(v**2) for v in sub(xi, x).values()))"
    anchor = lambda at: lines(
        "fedprox",
        "    def local(x, batches, eta):",
        "    seen = []\n\n    def local(x, batches, eta):\n"
        "        if not seen or seen[-1] is not x:\n            seen.append(x)\n"
        f"        anchor = {at}",
        "sub(xi, x)",
        "sub(xi, anchor)",
    )
    axes = {
        "term": {
            "mu/2 |x_i - x|^2": SAME,
            "mu |x_i - x|^2": term(old.replace("proximal", "2 * proximal")),
            "mu/4 |x_i - x|^2": term(old.replace("proximal", "proximal / 2")),
            "none": term(old.replace("proximal", "0.0")),
            "the sign flipped": term(old.replace("proximal", "-proximal")),
            "mu/2 |x_i - x|, not squared": term(
                f"pull = times(proximal / 2 / max({norm}, 1e-30), sub(xi, x))"
            ),
            "matrices only": term(
                "pull = {k: (v.ndim > 1) * proximal * v for k, v in sub(xi, x).items()}"
            ),
        },
        "anchor": {
            "the round's model": SAME,
            "the first model": anchor("seen[0]"),
            "zero": anchor("times(0.0, x)"),
            "the previous round's model": anchor("seen[-2] if len(seen) > 1 else x"),
        },
        "weights": weights(f"{FEDAVG}:replay", *UNIFORM_REPLAY[1:]),
        **STEPS,
        **LOSS,
        "local rule": {
            "SGD": SAME,
            "momentum 0.9, reset every round": lines(
                "fedprox",
                "xi = x\n",
                "xi, m = x, times(0.0, x)\n",
                "xi = sub(xi, times(eta, add(trace.grad(xi, batch), pull)))",
                "m = add(times(0.9, m), add(trace.grad(xi, batch), pull))\n"
                "            xi = sub(xi, times(eta, m))",
            ),
        },
    }
    return Family(
        "fedprox",
        "rounds",
        "Li et al. 2020, arXiv:1812.06127, Algorithm 2, K steps of SGD",
        "x_i <- x_i - lr (g + mu (x_i - x)); x <- mean of x_i",
        (PROXIMAL, "fedprox"),
        {"lr": 0.2, "proximal": 0.5},
        {"lr": 0.2, "mu": 0.5},
        axes,
        PROBLEM,
        free=("weights",),
    )


def scaffold() -> Family:
    here = "scaffold_states"
    option = "fresh = add(sub(c_i[i], c), times(1 / (K * eta), sub(x, xi)))"
    total_of = "c = add(c, times(1 / trace.num_clients, total(changes)))"
    fresh = lambda new: lines(here, option, f"fresh = {new}")
    divided = lambda by: lines(here, "times(1 / (K * eta)", f"times(1 / ({by})")
    server = lambda new: lines(here, total_of, f"c = {new}")
    used = lambda new: lines(here, "add(sub(g, c_i[i]), c)", new)
    step = "x = add(x, times(server_lr, mean(deltas)))"
    axes = {
        "weights": {
            "uniform": SAME,
            "by examples": lines(
                here, "mean(deltas)", 'weighed(trace, r, "examples", deltas)'
            ),
            "uniform over all clients": lines(
                here, "mean(deltas)", 'weighed(trace, r, "uniform over all", deltas)'
            ),
        },
        "client's variate": {
            "II: c_i - c + (x - x_i)/(K lr)": SAME,
            "I: the gradient at x": fresh("trace.grad(x, batches[0])"),
            "II without - c": fresh("add(c_i[i], times(1 / (K * eta), sub(x, xi)))"),
            "II without c_i - c": fresh("times(1 / (K * eta), sub(x, xi))"),
            "II with + c": fresh(
                "add(add(c_i[i], c), times(1 / (K * eta), sub(x, xi)))"
            ),
        },
        "divisor": {
            "K lr": SAME,
            "lr": divided("eta"),
            "K": divided("K"),
            "K lr^2": divided("K * eta**2"),
            "K lr server_lr": divided("K * eta * server_lr"),
            "(K - 1) lr": divided("(K - 1) * eta"),
        },
        "server's variate": {
            "c + sum of changes / N": SAME,
            "c + sum of changes / S": server("add(c, mean(changes))"),
            "c + weighted mean of changes": server(
                'add(c, weighed(trace, r, "examples", changes))'
            ),
            "c + sum of changes": server("add(c, total(changes))"),
            "c + mean of changes / N": server(
                "add(c, times(1 / trace.num_clients, mean(changes)))"
            ),
            "mean of the cohort's c_i": server("mean([c_i[i] for i in ids])"),
            "mean of the c_i of clients so far": server(
                "mean([c_i[i] for i in {j for e in trace.rounds[: r + 1] "
                "for j in e[0]}])"
            ),
            "never updated": server("c"),
        },
        "correction": {
            "g - c_i + c": SAME,
            "g + c_i - c": used("sub(add(g, c_i[i]), c)"),
            "g + c": used("add(g, c)"),
            "g - c_i": used("sub(g, c_i[i])"),
            "none": used("g"),
        },
        "server rate": {
            "x + server_lr mean(x_i - x)": SAME,
            "not used": lines(here, step, step.replace("server_lr", "1.0")),
            "used twice": lines(here, step, step.replace("server_lr", "server_lr**2")),
            "server_lr mean(x_i)": lines(
                here, step, "x = times(server_lr, add(x, mean(deltas)))"
            ),
        },
        **STEPS,
        **LOSS,
        "local rule": {
            "SGD": SAME,
            "momentum 0.9, reset every round": lines(
                here,
                "            xi = x\n",
                "            xi, m = x, zeros(x)\n",
                "xi = sub(xi, times(eta, add(sub(g, c_i[i]), c)))",
                "m = add(times(0.9, m), add(sub(g, c_i[i]), c))\n"
                "                xi = sub(xi, times(eta, m))",
            ),
        },
        "start of c_i": {
            "0": SAME,
            "c, whenever a client begins": lines(
                here,
                "            xi = x\n",
                "            xi = x\n"
                "            if not any(i in e[0] for e in trace.rounds[:r]):\n"
                "                c_i = [*c_i[:i], c, *c_i[i + 1 :]]\n",
            ),
        },
        "absent clients": {
            "keep c_i": SAME,
            "c_i set to 0": lines(
                here,
                "        x = add(x, times(server_lr",
                "        c_i = [c_i[j] if j in ids else zeros(x) "
                "for j in range(len(c_i))]\n        x = add(x, times(server_lr",
            ),
        },
    }
    return Family(
        "scaffold",
        "rounds",
        "Karimireddy et al. 2020, arXiv:1910.06378, Algorithm 1, option II",
        "x_i <- x_i - lr (g - c_i + c); c_i^+ = c_i - c + (x - x_i)/(K lr); "
        "x <- x + server_lr mean(x_i - x); c <- c + sum(c_i^+ - c_i)/N",
        (SCAFFOLD, "scaffold"),
        {"lr": 0.2, "server_lr": 0.7},
        {"lr": 0.2, "server_lr": 0.7},
        axes,
        PROBLEM,
    )


def adaptive(kind: str) -> Family:
    here = "adaptive_server"
    step = "step = each(lambda m, v: m / (np.sqrt(v) + tau), m, v)"
    divided = lambda by: lines(here, "np.sqrt(v) + tau", by)
    counted = lambda m, v, t="t": lines(
        here,
        "    def server(x, delta):\n        nonlocal m, v",
        "    t = 0\n\n    def server(x, delta):\n        nonlocal m, v, t\n"
        "        t += 1",
        step,
        f"step = each(lambda m, v: ({m}) / (np.sqrt({v}) + tau), m, v)",
    )
    b2 = {"fedadam": 0.99, "fedyogi": 0.99, "fedadagrad": 0.0}[kind]
    b1 = 0.0 if kind == "fedadagrad" else 0.9
    right = {
        "fedadam": "b2 * v + (1 - b2) * d**2",
        "fedyogi": "v - (1 - b2) * d**2 * np.sign(v - d**2)",
        "fedadagrad": "v + d**2",
    }
    second = lambda new: lines(
        here,
        "v = each(second, v, delta)",
        f"b2 = {b2 or 0.99}\n        v = each(lambda v, d: {new}, v, delta)",
    )
    others = {f"that of {name}": second(new) for name, new in right.items()}
    others.pop(f"that of {kind}")
    others["b2 and 1 - b2 swapped"] = second("(1 - b2) * v + b2 * d**2")
    if kind == "fedadagrad":
        others.pop("b2 and 1 - b2 swapped")
    axes: dict[str, dict] = {
        "second moment": {right[kind].replace("np.", ""): SAME, **others},
        "its start": {
            "tau^2": SAME,
            "0": lines(here, "np.full_like(leaf, tau**2)", "np.zeros_like(leaf)"),
            "tau": lines(here, "np.full_like(leaf, tau**2)", "np.full_like(leaf, tau)"),
        },
        "divisor": {
            "sqrt(v) + tau": SAME,
            "sqrt(v + tau)": divided("np.sqrt(v + tau)"),
            "sqrt(v + tau^2)": divided("np.sqrt(v + tau**2)"),
            "sqrt(v) + 1e-8": divided("np.sqrt(v) + 1e-8"),
            "v + tau": divided("v + tau"),
        },
        "delta": {
            "mean(x_i - x)": SAME,
            "times server_lr, so that the rate is used twice": lines(
                here,
                "        nonlocal m, v",
                "        nonlocal m, v\n        delta = times(server_lr, delta)",
            ),
            "its sign flipped": lines(
                here,
                "        nonlocal m, v",
                "        nonlocal m, v\n        delta = times(-1.0, delta)",
            ),
        },
        "weights": weights(*UNIFORM_REPLAY),
        **local_axes(rule_alone=True),
    }
    if b1:
        first = "times(1 - b1, delta)"
        axes["first moment"] = {
            "b1 m + (1 - b1) d": SAME,
            "b1 m + d": lines(here, first, "delta"),
            "(1 - b1) m + b1 d": lines(
                here, "times(b1, m)", "times(1 - b1, m)", first, "times(b1, delta)"
            ),
            "(1 - b1) d": lines(here, "times(b1, m)", "times(0.0, m)"),
            "d": lines(here, f"add(times(b1, m), {first})", "delta"),
        }
    if kind != "fedadagrad":
        axes["first moment"]["b1 and b2 swapped"] = setting(b1=b2, b2=b1)
        axes["second moment"]["of the round before"] = lines(
            here,
            "    def server(x, delta):\n        nonlocal m, v\n",
            "    def server(x, delta):\n        nonlocal m, v\n        old = v\n",
            "m / (np.sqrt(v) + tau), m, v)",
            "m / (np.sqrt(v) + tau), m, old)",
        )
        axes["second moment"]["of the first moment"] = lines(
            here, "v = each(second, v, delta)", "v = each(second, v, m)"
        )
        axes["bias correction"] = {
            "none": SAME,
            "Adam's": counted("m / (1 - b1**t)", f"v / (1 - {b2}**t)"),
            "Adam's, one step ahead": counted(
                "m / (1 - b1**(t + 1))", f"v / (1 - {b2}**(t + 1))"
            ),
            "of m alone": counted("m / (1 - b1**t)", "v"),
            "Adam's, in the rate, so that tau is not divided": counted(
                f"m * (1 - {b2}**t) ** 0.5 / (1 - b1**t)", "v"
            ),
            "Adam's, in the rate, one step ahead": counted(
                f"m * (1 - {b2} ** (t + 1)) ** 0.5 / (1 - b1 ** (t + 1))", "v"
            ),
        }
    hyper = {"lr": 0.1, "server_lr": 0.1, "b1": b1, "tau": 1e-2}
    settings = dict(hyper)
    if b2:
        hyper["b2"] = settings["b2"] = b2
    return Family(
        kind,
        "rounds",
        "Reddi et al. 2021, arXiv:2003.00295, Algorithm 2",
        f"d = mean(x_i - x); m <- b1 m + (1-b1) d; v <- {right[kind]}; "
        "x <- x + server_lr m / (sqrt(v) + tau); v = tau^2 at first",
        (FEDAVG, kind),
        settings,
        hyper,
        axes,
        PROBLEM,
        free=("weights",),
    )


FAMILIES: dict[str, Callable[[], Family]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "fedadam": partial(adaptive, "fedadam"),
    "fedyogi": partial(adaptive, "fedyogi"),
    "fedadagrad": partial(adaptive, "fedadagrad"),
}

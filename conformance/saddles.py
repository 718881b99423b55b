"""Minimax methods: x descends, y ascends."""

from collections.abc import Callable
from functools import partial

from conformance.axes import MUON_AXES, NORMS, STEPS
from conformance.family import SAME, Family, lines, setting
from conformance.problems import rounds

MINIMAX = "tests.oracles.minimax"
PROBLEM = rounds(players=2)
ZHANG = "Zhang and Gao 2025, arXiv:2511.04456"


def with_rates(x: float, y: float) -> dict:
    """Axes of both rates."""
    return {
        "rates": {
            "lr_x and lr_y": SAME,
            "swapped": setting(lr_x=y, lr_y=x),
            "lr_x for both": setting(lr_y=x),
        },
        "y": {"ascends": SAME, "descends": setting(lr_y=-y)},
    }


def local_sgda() -> Family:
    here, step = "fsgda", "local = moved(local, eta, trace.grad(local, batch))"
    indent = "\n" + 16 * " "
    first = lambda a, b: lines(
        here,
        step,
        f"ahead = moved(local, eta, trace.grad(local, batch)){indent}"
        f'half = {{**local, "{a}": ahead["{a}"]}}{indent}'
        f'ahead["{b}"] = moved(half, eta, trace.grad(half, batch))["{b}"]{indent}'
        "local = ahead",
    )
    at_start = lambda v: lines(
        here,
        step,
        f'd = {{**trace.grad(local, batch), "{v}": trace.grad(at, batch)["{v}"]}}'
        f"{indent}local = moved(local, eta, d)",
    )
    kept = lines(
        here,
        "    history = []\n",
        "    history, own = [], {}\n",
        "            local = at\n",
        '            local = {**at, "y": own.get(id(batches[0][0]), at["y"])}\n',
        "            ends.append(local)\n",
        "            ends.append(local)\n"
        '            own[id(batches[0][0])] = local["y"]\n',
    )
    means = lambda kind: lines(
        here,
        "at = two_sided(at, ends, server_lr)",
        f'at = combined(lambda *z: weighed(trace, r, "{kind}", z), *ends)',
    )
    axes = {
        "order": {
            "x and y at once": SAME,
            "x, then y at the new x": first("x", "y"),
            "y, then x at the new y": first("y", "x"),
        },
        **with_rates(0.1, 0.2),
        "gradients": {
            "at the local x and y": SAME,
            "of y at the server's x and y": at_start("y"),
            "of x at the server's x and y": at_start("x"),
        },
        "server": {
            "x and y averaged": SAME,
            "y kept by the client": kept,
            "(x + d) / 2": setting(server_lr_x=0.5, server_lr_y=0.5),
        },
        "weights": {"uniform": SAME, "by examples": means("examples")},
        **STEPS,
    }
    return Family(
        "local_sgda",
        "rounds",
        "Deng and Mahdavi 2021, arXiv:2102.13152, as we read it",
        "x_i <- x_i - lr_x g_x(x_i, y_i), y_i <- y_i + lr_y g_y(x_i, y_i) at once; "
        "x, y <- means",
        (MINIMAX, here),
        {"lr_x": 0.1, "lr_y": 0.2},
        {"lr_x": 0.1, "lr_y": 0.2},
        axes,
        PROBLEM,
        free=("weights",),
    )


def guided(name: str) -> Family:
    """Fed-NSGDA-M and FedMuon-DA, which differ in their directions."""
    here, muon = "guided_states", name == "fedmuon_da"
    to = partial(lines, here)
    whole = "whole = combined(sub, combined(add, raw[-1], g), g_i[i])"
    used = lambda new: to(whole, f"whole = {new}")
    control = lambda new: to("fresh[i] = averaged(raw)", f"fresh[i] = {new}")
    again = "combined(sub, combined(add, trace.grad(half, batch), g), g_i[i])"
    axes: dict[str, dict] = {
        "order": {
            "x and y at once": SAME,
            "x, then y at the new x": to(
                "local = moved(local, eta, step)",
                'half = {**local, "x": moved(local, eta, step)["x"]}\n'
                + f'{16 * " "}late = mixed(beta, {again}, momentum)["y"]\n'
                + f'{16 * " "}step["y"] = direction_y(late)\n'
                + f"{16 * ' '}local = moved(local, eta, step)",
            ),
        },
        **with_rates(0.05, 0.1),
        "correction": {
            "grad + g - g_i": SAME,
            "none": used("raw[-1]"),
            "grad + g": used("combined(add, raw[-1], g)"),
            "grad - g_i": used("combined(sub, raw[-1], g_i[i])"),
            "the sign flipped": used(
                "combined(add, combined(sub, raw[-1], g), g_i[i])"
            ),
        },
        "b": {
            "weighs the fresh gradient": SAME,
            "weighs the old momentum": setting(b_x=0.7, b_y=0.8),
            "b_x for both": setting(b_y=0.3),
        },
        "first round": {
            "weight 1": SAME,
            "weight b": to(
                "beta = both(1.0, 1.0) if r == 0 else both(b_x, b_y)",
                "beta = both(b_x, b_y)",
            ),
        },
        "momentum": {
            "of the last round": SAME,
            "refreshed by every step": to(
                "local, raw = at, []",
                "local, raw, m = at, [], momentum",
                "u_i = mixed(beta, whole, momentum)",
                "u_i = m = mixed(beta, whole, m)",
            ),
        },
        "g_i": {
            "mean of the K gradients": SAME,
            "the last gradient": control("raw[-1]"),
            "the first gradient": control("raw[0]"),
        },
        "server rates": {
            "server_lr_x and server_lr_y": SAME,
            "1": setting(server_lr_x=1.0, server_lr_y=1.0),
            "server_lr_x for both": setting(server_lr_y=0.8),
        },
        **STEPS,
    }
    if muon:
        leaf = "return polar(leaf) if leaf.ndim > 1 else vector(leaf)"
        turned = leaf.replace("polar", "direction").replace("vector", "normalise")
        vectors = lambda new: lines(name, "else normalise(leaf)", f"else {new}")
        axes["vectors"] = {
            "v / |v|": SAME,
            "along the momentum": vectors("leaf"),
            "signs": vectors("np.sign(leaf)"),
        }
        axes |= NORMS | {axis: dict(choices) for axis, choices in MUON_AXES.items()}
        del axes["orthogonalization"]["Polar Express x8, safety 1.01"]
        del axes["scale"]["sqrt(max(1, cols/rows))"]  # of matrices that are tall
        base: tuple = (
            (
                name,
                "*, vector=normalise, scalar=np.sign, **settings",
                "direction, **settings",
            ),
            (name, "def direction(leaf", "def turn(leaf"),
            (name, "return scalar(leaf)", "return np.sign(leaf)"),
            (name, leaf, turned),
            (name, "each(direction, variable)", "each(turn, variable)"),
        )
    else:
        base = ()
        norms = lambda new: lines(name, "whole = normalise_whole", f"whole = {new}")
        axes["norm"] = {
            "of x, and of y": SAME,
            "of each array": norms("lambda d: each(normalise, d)"),
            "none": norms("lambda d: d"),
            "of x and y together": lines(
                here,
                'step = both(direction_x(u_i["x"]), direction_y(u_i["y"]))',
                "size = sum(np.sum(v**2) for d in u_i.values() for v in d.values())\n"
                + f"{16 * ' '}step = combined(lambda d: times(size**-0.5, d), u_i)",
            ),
        }
    hyper = {"lr_x": 0.05, "lr_y": 0.1, "b_x": 0.3, "b_y": 0.2}
    hyper |= {"server_lr_x": 0.8, "server_lr_y": 1.2}
    direction = "polar, and v / |v| of vectors" if muon else "u / |u| of a whole player"
    return Family(
        name,
        "rounds",
        f"{ZHANG}, Algorithm {3 if muon else 1}",
        "u_i = b (grad + g - g_i) + (1-b) u, b = 1 in round 1; x_i <- x_i - lr_x "
        f"direction(u_i), y_i ascends; direction: {direction}; g_i^+ = mean of K "
        "gradients; g <- mean of g_i^+; u <- b g + (1-b) u; x <- x + server_lr_x "
        "mean(x_i - x); u = g = g_i = 0 at first",
        (MINIMAX, name),
        {**hyper, **({"orth": "exact", "shape": "none"} if muon else {})},
        hyper,
        axes,
        rounds(players=2, cohorts=[[*range(5)]] * 3),
        free=("first round", *(("vectors", "orthogonalization") if muon else ())),
        base=base,
        together=1 if muon else 2,
    )


FAMILIES: dict[str, Callable[[], Family]] = {
    "local_sgda": local_sgda,
    "fed_nsgda_m": partial(guided, "fed_nsgda_m"),
    "fedmuon_da": partial(guided, "fedmuon_da"),
}

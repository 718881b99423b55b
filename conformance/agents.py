"""Agents without a server: what they mix, when, and what they track."""

import dataclasses
from collections.abc import Callable

import numpy as np

from conformance.axes import LOSS, MUON_AXES, MUON_FREE, NORMS
from conformance.family import SAME, Axes, Change, Family, data, lines, setting
from conformance.problems import agents, flat, nested, on_trace
from conformance.saddles import with_rates
from tests.oracles.problem import mean

GOSSIP = "tests.oracles.gossip"


def weights(change: Callable) -> Change:
    """Another W."""
    changed = lambda trace: trace._replace(W=lambda t: change(trace.W(t)))
    return data(on_trace(changed))


MIXING: Axes = {
    "W": {
        "W[i][j] weighs j's message at i": SAME,
        "transposed": weights(np.transpose),
        "none": weights(lambda W: np.eye(len(W))),
        "1/m": weights(lambda W: 0 * W + 1 / len(W)),
        "uniform over neighbors": weights(lambda W: (W > 0) / (W > 0).sum(1)[:, None]),
        "mixed twice": weights(lambda W: W @ W),
    }
}


def dsgd() -> Family:
    step, mixed = "half.append(sub(x[i], times(lr, u)))", "x = mix(trace.W(t), half)"
    to = lambda *pairs: lines("dsgd", *pairs)
    return Family(
        "dsgd",
        "rounds",
        "Lian et al. 2017, arXiv:1705.09056, which has W x - lr g(x); Chen and Sayed "
        "2012 have both other orders",
        "x_i <- sum_j W_ij (x_j - lr g_j(x_j)); or W x - lr g(x); or W x - lr g(W x)",
        (GOSSIP, "dsgd"),
        {"lr": 0.1},
        {"lr": 0.1},
        {
            "order": {
                "W (x - lr g(x))": SAME,
                "W x - lr g(x)": to(
                    step,
                    "half.append(times(lr, u))",
                    mixed,
                    "x = [sub(a, b) for a, b in zip(mix(trace.W(t), x), half)]",
                ),
                "W x - lr g(W x)": to(
                    "        half = []\n",
                    "        half, x = [], mix(trace.W(t), x)\n",
                    mixed,
                    "x = half",
                ),
            },
            "neighbors": {
                "after their steps": SAME,
                "before their steps": to(
                    step,
                    "half.append(times(trace.W(t)[i, i], times(lr, u)))",
                    mixed,
                    "x = [sub(a, b) for a, b in zip(mix(trace.W(t), x), half)]",
                ),
            },
            "mixing": {
                "in every iteration": SAME,
                "in every second": to(mixed, f"{mixed} if t % 2 == 0 else half"),
                "in every second, from the second on": to(
                    mixed, f"{mixed} if t % 2 else half"
                ),
            },
            "rate": {"lr": SAME, "lr m": setting(lr=0.5), "lr / m": setting(lr=0.02)},
            **MIXING,
            **LOSS,
        },
        agents(),
        free=("order",),
    )


def tracking(here: str, v: str, fresh: str, old: str, muon: bool) -> Axes:
    """What is done with the tracker v of what is fresh.

    Along v itself, these are the same: a tracker or an x that is not mixed, and an x
    or a tracker whose step alone is not mixed. Both are published.
    """
    track = f"{v} = mix(trace.W(t), [add({v}[i], sub({fresh}[i], {old}[i])) "
    track += "for i in range(m)])"
    to = lambda new, *more: lines(here, track, f"{v} = {new}", *more)
    half = f"x, {old} = mix(trace.W(t), half), {fresh}"
    apart = f"[add(a, sub({fresh}[i], {old}[i])) "
    apart += f"for i, a in enumerate(mix(trace.W(t), {v}))]"
    x_alone = "x = [add(a, sub(h, b)) for a, h, b in zip(mix(trace.W(t), x), half, x)]"
    x_alone += f"\n        {old} = {fresh}"
    total = f"mix(trace.W(t), [add({v}[i], {fresh}[i]) for i in range(m)])"
    begun = to(f"{fresh} if t == 0 else {track.partition(' = ')[2]}")
    axes: Axes = {
        "tracker": {
            "W (v + g - g_)": SAME,
            "g, which is v + g - g_ not mixed": to(fresh),
            "W g": to(f"mix(trace.W(t), {fresh})"),
            "W (v + g)": to(total),
        },
        "first v": {"W g": SAME, "g": begun},
    }
    if not muon:
        forms = {
            "both steps mixed": SAME,
            "x or v mixed without its step": to(apart),
            "both mixed without their steps": to(apart, half, x_alone),
        }
        return axes | {"form": forms}
    axes["tracker"]["W v + g - g_"] = to(apart)
    axes["x"] = {
        "W (x - lr v)": SAME,
        "W x - lr v": lines(here, half, x_alone),
        "x - lr v, not mixed": lines(here, half, f"x, {old} = half, {fresh}"),
    }
    return axes


def gradient_tracking() -> Family:
    here = "gradient_tracking"
    return Family(
        here,
        "rounds",
        "Nedic et al. 2017, arXiv:1607.03218, which has W x - lr v and W v + g - g_; "
        "Xu et al. 2015 mix the steps too",
        "v <- W (v + g(x) - g_); x <- W (x - lr v); v = g_ = 0 at first, then g_ is "
        "the last g",
        (GOSSIP, here),
        {"lr": 0.1},
        {"lr": 0.1},
        {**tracking(here, "v", "g", "before", muon=False), **MIXING, **LOSS},
        agents(),
        free=("form", "first v"),
    )


def demuon() -> Family:
    here = "demuon"
    fresh = "after.append(add(times(beta, M[i]), times(1 - beta, g)))"
    average = lambda new: lines(here, fresh, f"after.append({new})")
    axes = tracking(here, "V", "after", "M", muon=True) | {
        "M": {
            "beta M + (1-beta) g, or beta M + g": SAME,
            "(1-beta) M + beta g": setting(beta=0.2),
            "none: g": setting(beta=0.0),
            "begun at the gradient": average(
                "add(times(beta, M[i]), times(1 - beta, g)) if t else g"
            ),
        },
        "vectors": {"v / |v|": SAME, "along V": setting(vectors=False)},
        **MIXING,
        **NORMS,
        **MUON_AXES,
    }
    turn = "lambda v: direction(v) if v.ndim > 1 else normalise(v) if vectors else v"
    begin = "m, direction = trace.agents, unit if vectors else polar"
    return Family(
        here,
        "rounds",
        "He et al. 2025, DeMuon, arXiv:2510.01377, as in a coauthor's code",
        "M <- beta M + (1-beta) g(x); V <- W (V + M - M_); x <- W (x - lr polar(V)), "
        "V / |V| of vectors; M = V = 0 at first",
        (GOSSIP, here),
        {"lr": 0.05, "beta": 0.8, "orth": "exact", "shape": "none"},
        {"lr": 0.05, "beta": 0.8},
        axes,
        agents(),
        free=MUON_FREE,
        base=(
            (here, "beta=0.8", "beta=0.8, direction=polar"),
            (here, begin, f"m, turn = trace.agents, {turn}"),
            (here, "direction, everywhere=vectors", "turn, everywhere=True"),
        ),
        together=1,
    )


def shortened(g, limit):
    return {k: v * min(1.0, limit / size_of(g)) for k, v in g.items()}


def size_of(g):
    return max(sum((v**2).sum() for v in g.values()) ** 0.5, 1e-30)


def by_players(g, limit):
    parts = ({k: g[k] for k in names} for names in ("wb", "vc"))
    return {k: v for part in parts for k, v in shortened(part, limit).items()}


def clipped(short: Callable, limit: float, batch_too: bool = True) -> Callable:
    """The mean of the gradients of examples, each made shorter."""

    def change(trace):
        def grad(x, batch):
            every = [tuple(a[j : j + 1] for a in batch) for j in range(len(batch[0]))]
            rows = every if batch_too else [batch]
            return nested(
                mean([short(flat(trace.grad(x, row)), limit) for row in rows])
            )

        return trace._replace(grad=grad)

    return change


def dpmixsgd() -> Family:
    here, limit = "dpmixsgd", 2.0
    clip = lambda *how: data(lambda p: dataclasses.replace(p, change=clipped(*how)))
    both = lambda old, new: lines(
        here,
        old,
        new,
        *(s.replace("v[", "u[").replace("v = ", "u = ").replace("g_star", "h_star")
          .replace("told_g", "told_h") for s in (old, new)),
    )  # fmt: skip
    track = "v = mix(trace.W(t), [add(v[i], sub(g_star[i], told_g[i])) "
    track += "for i in range(m)])"
    tracker = lambda new: both(track, f"v = {new}")
    mixed = "mix(trace.W(t), half_x)"
    axes = {
        "clip": {
            "each example, both players together": SAME,
            "none": clip(lambda g, limit: g, limit),
            "the batch": clip(shortened, limit, False),
            "each example, each player apart": clip(by_players, limit),
            "each example, each array apart": clip(
                lambda g, c: {k: shortened({k: v}, c)[k] for k, v in g.items()}, limit
            ),
            "each example to the length clip": clip(
                lambda g, c: {k: v * c / size_of(g) for k, v in g.items()}, limit
            ),
        },
        "estimate": {
            "g + (1-beta)(old estimate - g_)": SAME,
            "beta weighs the old estimate": setting(beta_x=0.7, beta_y=0.7),
            "g, or with g_ of its own examples": setting(beta_x=1.0, beta_y=1.0),
            "g + old estimate - g_": setting(beta_x=0.0, beta_y=0.0),
            "beta g + (1-beta) old estimate": lines(
                here,
                'add(new["x"], times(keep_x, sub(g[i], old["x"])))',
                'add(times(1 - keep_x, new["x"]), times(keep_x, g[i]))',
                'add(new["y"], times(keep_y, sub(h[i], old["y"])))',
                'add(times(1 - keep_y, new["y"]), times(keep_y, h[i]))',
            ),
        },
        "tracker": {
            "W (v + g - g_)": SAME,
            "g, which is v + g - g_ not mixed, or x - lr v not mixed": tracker(
                "g_star"
            ),
            "W (v + g)": tracker(
                "mix(trace.W(t), [add(v[i], g_star[i]) for i in range(m)])"
            ),
        },
        "x and y": {
            "W (x - lr_x v), W (y + lr_y u)": SAME,
            "x not mixed": lines(here, mixed, "half_x"),
            "y not mixed": lines(here, "mix(trace.W(t), half_y)", "half_y"),
        },
        **with_rates(0.05, 0.1),
        **MIXING,
    }
    hyper = {"lr_x": 0.05, "lr_y": 0.1}
    return Family(
        here,
        "rounds",
        "Decentralized minimax with privacy, arXiv:2508.07505, Algorithm 1, both "
        "gradients clipped, no noise",
        "g* = mean over the iteration's examples of g min(1, clip/|g|), |g| of both "
        "players together; e <- g*(x, y) + (1-beta) (e - g*(x_, y_)), e = g* at first; "
        "v <- W (v + e - e_); x <- W (x - lr_x v_x), y <- W (y + lr_y v_y)",
        (GOSSIP, here),
        {**hyper, "beta_x": 0.3, "beta_y": 0.3},
        {**hyper, "beta": 0.3, "clip": limit},
        axes,
        dataclasses.replace(
            agents(players=2, size=4), change=clipped(shortened, limit)
        ),
    )


FAMILIES: dict[str, Callable[[], Family]] = {
    "dsgd": dsgd,
    "gradient_tracking": gradient_tracking,
    "demuon": demuon,
    "dpmixsgd": dpmixsgd,
}

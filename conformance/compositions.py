"""The methods that minimize a function of the clients' losses."""

from collections.abc import Callable

from conformance.axes import MUON_AXES, MUON_FREE, NORMS, STEPS, weights
from conformance.family import SAME, Change, Family, lines, setting
from conformance.problems import batched, rounds

ORACLE = "tests.oracles.fedcomuon"
FREE = (*MUON_FREE, "vectors")
ALONG = lines("unit", "else normalise(v)", "else v")
VECTORS = {"vectors": {"along M / |M|": SAME, "along M": ALONG}}


def fedcomuon() -> Family:
    here = "fedcomuon"
    loop = "            for batch in batches:\n"
    step = "                xi = sub(xi, times(eta, unit(m, direction)))\n"
    mean_of = "u = a * trace.loss(xi, batch) + (1 - a) * u"
    z = "z = times(slope(u), trace.grad(xi, batch))"
    new = "m = add(times(b, z), times(1 - b, m))"
    ends = "            last_m.append(m)\n"
    start = "xi, m, u = x, m_bar, u_i[i]"
    m_0 = "m_bar = mean(m_0)\n    history"
    begin: Callable[[str], Change] = lambda m: lines(here, start, f"xi, m, u = {m}")
    axes = {
        "order": {
            "step along the old M, then refresh M": SAME,
            "refresh M, then step": lines(
                here, loop + step, loop, f"{new}\n", f"{new}\n{step}"
            ),
            "step, then refresh M at the x before the step": lines(
                here,
                loop + step,
                f"{loop}                old = xi\n{step}",
                mean_of,
                mean_of.replace("xi", "old"),
                "slope(u), trace.grad(xi,",
                "slope(u), trace.grad(old,",
            ),
        },
        "u": {
            "alpha g + (1-alpha) u": SAME,
            "alpha u + (1-alpha) g": setting(a=0.7),
            "the loss of the batch": setting(a=1.0),
            "the first loss": setting(a=0.0),
        },
        "u between rounds": {
            "kept by the client": SAME,
            "averaged by the server": lines(
                here,
                "        x = mean(last_x)\n",
                "        u_i = [float(np.mean([u_i[i] for i in ids]))] * len(u_i)\n"
                "        x = mean(last_x)\n",
            ),
            "begun anew at x": begin("x, m_bar, trace.loss(x, batches[0])"),
        },
        "start of u": {
            "the first loss": SAME,
            "zero": lines(here, "u_i.append(u)", "u_i.append(0.0)"),
        },
        "f'": {
            "f'(u)": SAME,
            "none": lines(
                here,
                "slope = slope or slope_of(temperature, most)",
                "slope = lambda u: 1.0",
            ),
            "at the u before": lines(
                here,
                f"{mean_of}\n                {z}",
                f"{z}\n                {mean_of}",
            ),
        },
        "beta": {
            "weighs the fresh gradient": SAME,
            "weighs the old M": setting(b=0.8),
            "M + beta Z": lines(here, "times(1 - b, m)", "m"),
        },
        "momentum": {
            "averaged by the server": SAME,
            "kept by the client": lines(
                here,
                start,
                "xi, m, u = x, own.get(i, m_bar), u_i[i]",
                ends,
                ends + "            own[i] = m\n",
                "    history = []",
                "    history, own = [], {}",
            ),
            "reset to zero every round": begin(
                "x, m_bar if r == 0 else zeros(x), u_i[i]"
            ),
        },
        "start of M": {
            "the mean of f'(u) grad": SAME,
            "zero": lines(here, m_0, "m_bar = zeros(x)\n    history"),
            "without f'": lines(
                here, "m_0.append(times(slope(u),", "m_0.append(times(1,"
            ),
            "the client's own": begin("x, m_bar if r else m_0[i], u_i[i]"),
        },
        "weights": weights(
            here,
            "x = mean(last_x)",
            "x = {}",
            "last_x",
            more=("m_bar = mean(last_m)", "m_bar = {}", "last_m"),
        ),
        **STEPS,
        **NORMS,
        **VECTORS,
        **MUON_AXES,
    }
    hyper = {"lr": 0.05, "beta": 0.2, "alpha": 0.3, "t": 4.0}
    return Family(
        "fedcomuon",
        "rounds",
        "Yan and Huang 2026, arXiv:2608.12710, Algorithm 1",
        "min mean of f(g_i), g_i the loss of a client, f(u) = t exp(u/t): "
        "x_i <- x_i - lr polar(M_i); u_i <- alpha g_i(x_i) + (1-alpha) u_i; "
        "M_i <- (1-beta) M_i + beta f'(u_i) grad g_i(x_i); x, M <- means; "
        "at first u_i = g_i(x_0), M = the mean of f'(u_i) grad g_i(x_0)",
        (ORACLE, here),
        {"lr": 0.05, "b": 0.2, "a": 0.3, "temperature": 4.0, "most": 1e9}
        | {"orth": "exact", "shape": "none"},
        hyper,
        axes,
        rounds(),
        free=FREE,
        together=1,
    )


def fedcomuon_vr() -> Family:
    here = "fedcomuon_vr"
    hyper = {"lr": 0.05, "rho": 0.2, "alpha": 0.3, "t": 4.0, "C_f": 12.0, "C_g": 3.0}
    settings = {"lr": 0.05, "rho": 0.2, "a": 0.3, "gamma": 0.3, "temperature": 4.0}
    settings |= {"most": 12.0, "radius": 3.0}
    old = "old = sub(H[i], trace.grad(x_prev[i], batch))"
    clip = "H[i] = times(min(1.0, radius / norm), H[i])"
    met = "                m_bar = mean([M[i] for i in ids])\n"
    own = "                for i in ids:\n                    M[i] = m_bar\n"
    ends = "        x = mean(list(xs.values()))\n"
    axes = {
        "averages": {
            "x before the samples, M after them": SAME,
            "x and M before the samples": lines(
                here,
                "            if k == 0:\n" + met,
                "            if k == len(data[0]) - 1:\n" + met,
            ),
            "x and M after the samples": lines(
                here,
                "xs = dict.fromkeys(ids, x)",
                "xs = dict(zip(ids, ends or [x] * N, strict=True))",
                met,
                met + "                xs = dict.fromkeys(ids, mean([*xs.values()]))\n",
                ends,
                ends + "        ends = [*xs.values()]\n",
                "    t = 0\n    history = []",
                "    t, ends = 0, []\n    history = []",
            ),
            "M never": lines(here, own, ""),
        },
        "sample": {
            "the same at both points": SAME,
            "each point its own": lines(
                here,
                "u[i] - trace.loss(x_prev[i], batch)",
                "u[i] - trace.loss(x_prev[i], last.get(i, batch))",
                old,
                old.replace("batch)", "last.get(i, batch))"),
                "        x_prev[i] = xi\n",
                "        x_prev[i], last[i] = xi, batch\n",
                "    def sample(",
                "    last = {}\n\n    def sample(",
            ),
        },
        "u": {
            "g + (1-alpha) (u - g_)": SAME,
            "the loss of the batch": setting(a=1.0),
            "alpha weighs the past": setting(a=0.7),
            "alpha g + (1-alpha) u": lines(
                here,
                "u[i] = trace.loss(xi, batch) + past",
                "u[i] = (1 - past * (1 - a)) * trace.loss(xi, batch) + past",
                "u[i] - trace.loss(x_prev[i], batch)",
                "u[i]",
            ),
        },
        "H": {
            "grad + (1-alpha) (H - grad_)": SAME,
            "the gradient of the batch": setting(gamma=1.0),
            "alpha weighs the past": setting(gamma=0.7),
            "alpha grad + (1-alpha) H": lines(
                here,
                old,
                "old = sub(H[i], trace.grad(xi, batch))",
            ),
        },
        "ball of H": {
            "of all arrays": SAME,
            "none": setting(radius=1e9),
            "of each array": lines(
                here,
                clip,
                "H[i] = {k: min(1.0, radius / np.linalg.norm(h)) * h "
                "for k, h in H[i].items()}",
            ),
            "its surface": lines(here, clip, "H[i] = times(radius / norm, H[i])"),
        },
        "f'": {
            "f'(u), at most C_f": SAME,
            "without C_f": setting(most=1e9),
            "none": lines(here, "(1 - keep) * slope(u[i])", "1 - keep"),
        },
        "rho": {
            "weighs the fresh H v": SAME,
            "weighs the old M": setting(rho=0.8),
            "M + rho H v": lines(here, "times(keep, M[i])", "times(past, M[i])"),
            "1: M = H v": setting(rho=1.0),
        },
        "x before": {
            "where the last sample was": SAME,
            "the client's last x of the round before": lines(
                here, ends, "        x_prev = [xs[i] for i in range(N)]\n" + ends
            ),
            "the mean x": lines(here, ends, ends + "        x_prev = [x] * N\n"),
        },
        "weights": weights(
            here, "x = mean(list(xs.values()))", "x = {}", "[*xs.values()]"
        ),
        **STEPS,
        **NORMS,
        **VECTORS,
        **MUON_AXES,
    }
    return Family(
        "fedcomuon_vr",
        "rounds",
        "Yan and Huang 2026, arXiv:2608.12710, Algorithm 2",
        "f(u) = t exp(u/t), v = min(f'(u), C_f); at the first step u = g(x), H = "
        "grad g(x), M = H v; then, for a step's examples at x_i and at x_i_, where "
        "they were sampled before: u <- g(x_i) + (1-alpha)(u - g(x_i_)), H <- "
        "grad(x_i) + (1-alpha)(H - grad(x_i_)) in the ball of radius C_g, M <- "
        "(1-rho) M + rho H v; M <- its mean in a round's first step; "
        "x_i <- x_i - lr polar(M); x <- mean of x_i",
        (ORACLE, here),
        settings | {"orth": "exact", "shape": "none"},
        hyper,
        axes,
        batched(4),
        free=FREE,
        together=1,
    )


FAMILIES: dict[str, Callable[[], Family]] = {
    "fedcomuon": fedcomuon,
    "fedcomuon_vr": fedcomuon_vr,
}

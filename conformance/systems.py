"""Asynchronous steps, compressed messages, personal models."""

from collections.abc import Callable

from conformance.axes import LOSS, STEPS
from conformance.family import SAME, Axes, Family, lines, setting
from conformance.problems import rounds

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
        "Nguyen et al. 2022, arXiv:2106.06639, Algorithm 1; weights as we read it",
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
    )


FAMILIES: dict[str, Callable[[], Family]] = {"fedasync": fedasync, "fedbuff": fedbuff}

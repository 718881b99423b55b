"""Axes that several families share."""

import numpy as np

from conformance.directions import SCALES
from conformance.family import SAME, Change, data, lines, setting
from conformance.problems import on_trace
from tests.oracles.problem import normalise

MUON_FREE = ("orthogonalization", "scale")
MUON_AXES = {
    "orthogonalization": {
        "exact": SAME,
        "Jordan x5": setting(orth="Jordan x5"),
        "Polar Express x8, safety 1.01": setting(orth="Polar Express x8, safety 1.01"),
    },
    "scale": {
        name: setting(shape=name) if name != "none" else SAME for name in [*SCALES][:4]
    },
}

NORMS = {
    "norm": {
        "spectral": SAME,
        "Frobenius: M / |M|": setting(norm=normalise),
        "entries: sign(M)": setting(norm=np.sign),
    }
}

# function, the line, its form, the list that is averaged
UNIFORM_REPLAY = (
    "replay",
    "x = server(x, mean([sub(xi, x) for xi in ends]))",
    "x = server(x, {})",
    "[sub(xi, x) for xi in ends]",
)


def weights(
    scope: str, old: str, form: str, trees: str, more: tuple = ()
) -> dict[str, Change]:
    """Uniform weights, and others."""

    def by(kind):
        mean = lambda what: f'weighed(trace, r, "{kind}", {what})'
        pairs = [old, form.format(mean(trees))]
        if more:
            pairs += [more[0], more[1].format(mean(more[2]))]
        return lines(scope, *pairs)

    found = {"uniform": SAME, "by examples": by("examples")}
    if form != "x = {}":  # where displacements are averaged
        found["uniform over all clients"] = by("uniform over all")
    return found


def shorter(trace):
    """A step less."""
    less = lambda batches: [steps[:-1] for steps in batches]
    return trace._replace(
        rounds=[(ids, less(batches)) for ids, batches in trace.rounds]
    )


def longer(trace):
    """A step more."""
    more = lambda batches: [[*steps, steps[0]] for steps in batches]
    return trace._replace(
        rounds=[(ids, more(batches)) for ids, batches in trace.rounds]
    )


STEPS = {
    "steps": {
        "K": SAME,
        "K - 1": data(on_trace(shorter)),
        "K + 1": data(on_trace(longer)),
    }
}


def scaled(factor) -> Change:
    """Gradients times a factor of the batch."""

    def change(trace):
        def grad(x, batch):
            return {k: factor(batch) * v for k, v in trace.grad(x, batch).items()}

        return trace._replace(grad=grad)

    return data(on_trace(change))


def clipped(trace):
    """Gradients of norm 1 at most."""

    def grad(x, batch):
        g = trace.grad(x, batch)
        norm = sum((v**2).sum() for v in g.values()) ** 0.5
        return {k: v / max(1.0, norm) for k, v in g.items()}

    return trace._replace(grad=grad)


LOSS = {
    "loss": {
        "mean over entries": SAME,
        "sum over examples": scaled(lambda batch: len(batch[0])),
        "sum over outputs": scaled(lambda batch: batch[1].shape[1]),
        "half": scaled(lambda batch: 0.5),
        "gradients clipped to norm 1": data(on_trace(clipped)),
    }
}


def local_axes(rule_alone: bool = False) -> dict[str, dict[str, Change]]:
    """What clients of FedAvg do."""
    step = "xi = sub(xi, times(eta, trace.grad(xi, batch)))"
    begin = "    def local(xi, batches, eta):\n"
    momentum = lambda first, last, ahead="m": lines(
        "plain_sgd",
        begin,
        "    kept = {}\n\n" + begin + f"        m = {first}\n",
        step,
        "g = trace.grad(xi, batch)\n            m = add(times(0.9, m), g)\n"
        f"            xi = sub(xi, times(eta, {ahead}))",
        "        return xi\n",
        f"        {last}\n        return xi\n",
    )
    starts = lambda key, value: lines(
        "plain_sgd",
        begin,
        "    kept, alive = {}, []\n\n" + begin + f"        key = {key}\n"
        "        alive.append(xi)\n        xi = kept.get(key, xi)\n",
        "        return xi\n",
        f"        kept[key] = {value}\n        return xi\n",
    )
    kept = "kept.get(id(batches[0][0]), zeros(xi))", "kept[id(batches[0][0])] = m"
    rule = {
        "SGD": SAME,
        "momentum 0.9, reset every round": momentum("zeros(xi)", "pass"),
    }
    if rule_alone:
        return {**STEPS, "local rule": rule}
    rule["momentum 0.9, kept by the client"] = momentum(*kept)
    rule["Nesterov momentum 0.9, reset every round"] = momentum(
        "zeros(xi)", "pass", "add(g, times(0.9, m))"
    )
    rule["one gradient, at the server's model"] = lines(
        "plain_sgd",
        begin,
        begin + "        first = xi\n",
        "trace.grad(xi, batch)",
        "trace.grad(first, batch)",
    )
    return {
        **STEPS,
        "local rule": rule,
        "clients begin": {
            "at the server's model": SAME,
            "at their own last model": starts("id(batches[0][0])", "xi"),
            "where the client before ended": starts("id(xi)", "xi"),
        },
        **LOSS,
        "local rate": {
            "lr": SAME,
            "lr^2": setting(lr=0.04),
            "2 lr": setting(lr=0.4),
            "lr / K": setting(lr=0.2 / 3),
            "lr / round": setting(lr=lambda r: 0.2 / (r + 1)),
        },
    }

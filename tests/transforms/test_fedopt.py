"""The adaptive rules of servers against the paper's loop, in float64 NumPy."""

import math

import jax
import numpy as np
import pytest

from fedjax_muon.transforms import (
    scale_by_fedadagrad,
    scale_by_fedadam,
    scale_by_fedyogi,
)


def adaptive(second, gradients, b1, tau):
    """Algorithm 2 of Reddi et al., lines 9 to 13, of one leaf in float64."""
    m, v = np.zeros_like(gradients[0]), np.full_like(gradients[0], tau**2)
    for g in gradients:
        m = b1 * m + (1 - b1) * g
        v = second(v, g**2)
        yield m / (np.sqrt(v) + tau)


SECOND = {
    scale_by_fedadagrad: lambda v, g2, b2: v + g2,
    scale_by_fedadam: lambda v, g2, b2: b2 * v + (1 - b2) * g2,
    scale_by_fedyogi: lambda v, g2, b2: (
        v - (1 - b2) * np.where(v > g2, g2, np.where(v < g2, -g2, 0))
    ),
}
DEFAULTS = {"b1": 0.9, "b2": 0.99, "tau": 1e-3}
UNUSUAL = {"b1": 0.8, "b2": 0.6, "tau": 0.5}  # a start of v that is felt for long


@pytest.mark.parametrize("factory", SECOND)
@pytest.mark.parametrize("given", [{}, UNUSUAL])
def test_adaptive_rules(factory, given):
    values = DEFAULTS | given
    if factory is scale_by_fedadagrad:
        values = {"b1": 0.0} | given | {"b2": None, "tau": values["tau"]}
        given = {k: v for k, v in given.items() if k != "b2"}
    second = lambda v, g2: SECOND[factory](v, g2, values["b2"])
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        draw = lambda: {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)}
        gradients = [draw() for _ in range(6)]
        gradients[0]["bias"][:2] = 0
        tx = factory(**given)
        state, update, ours = tx.init(gradients[0]), jax.jit(tx.update), []
        for g in gradients:
            u, state = update(g, state)
            ours.append(u)
        leaves = zip(*map(jax.tree.leaves, gradients), strict=True)
        columns = [
            list(adaptive(second, g, values["b1"], values["tau"])) for g in leaves
        ]
        for t, updates in enumerate(ours):
            for u, column in zip(jax.tree.leaves(updates), columns, strict=True):
                np.testing.assert_allclose(u, column[t], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("factory", "name", "value", "allowed"),
    [
        (factory, name, value, allowed)
        for factory in SECOND
        for name, values, allowed in (
            ("b1", (-0.1, 1.0, math.nan), r"lie in \[0, 1\)"),
            ("b2", (-0.1, 1.0, math.nan), r"lie in \[0, 1\)"),
            ("tau", (0.0, -1.0, math.nan), r"lie in \(0, infinity\)"),
        )
        for value in values
        if (factory, name) != (scale_by_fedadagrad, "b2")
    ],
)
def test_adaptive_rules_refuse(factory, name, value, allowed):
    with pytest.raises(ValueError, match=f"{name} must {allowed}, got {value}"):
        factory(**{name: value})


def test_no_schedules_inside_a_rule():
    with pytest.raises(TypeError, match="b1 must be a number, got <function"):
        scale_by_fedadam(b1=lambda index: 0.9)

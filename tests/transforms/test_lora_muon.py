"""LoRA-Muon against the formula in the paper's orientation, and its invariances."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon import transforms
from fedjax_muon.linalg.newton_schulz import polar

IN, OUT, RANK, SCALE, LR = 7, 5, 3, 1.7, 0.1
rng = np.random.default_rng(3)
A, B, G = (rng.normal(size=s) for s in ((IN, RANK), (RANK, OUT), (IN, OUT)))
BIAS = rng.normal(size=OUT)
close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)


def orth(x):
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    return (u * (s > 1e-12)) @ vt


def inverse_root(gram, eps):
    size = np.linalg.norm(gram)
    if not size:
        return gram
    values, vectors = np.linalg.eigh(gram / size + eps * np.eye(len(gram)))
    return vectors @ np.diag(values**-0.5) @ vectors.T / np.sqrt(size)


def literal(a, b, gradients, lr, beta=0.9, eps=1e-5):
    """W = W0 + c A B^T with B = b^T, in the paper's order, for gradients of W."""
    A, B = a, b.T
    m_A, m_B = np.zeros_like(A), np.zeros_like(B)
    for G in gradients:
        m_A = beta * m_A + (1 - beta) * SCALE * G @ B
        m_B = beta * m_B + (1 - beta) * SCALE * G.T @ A
        R_A, R_B = inverse_root(A.T @ A, eps), inverse_root(B.T @ B, eps)
        delta_A = -lr / (2 * SCALE) * orth(m_A @ R_B) @ R_B
        delta_B = -lr / (2 * SCALE) * orth(m_B @ R_A) @ R_A
        A, B = A + delta_A, B + delta_B
        yield A, B.T


def of_factors(a, b, G):
    return {"a": SCALE * G @ b.T, "b": SCALE * a.T @ G}


def train(rule, a, b, gradients, lr=LR):
    """The factors after every step, in float64."""
    with jax.enable_x64(True):
        params = {"layer": {"a": jnp.asarray(a), "b": jnp.asarray(b)}, "bias": BIAS}
        params = jax.tree.map(jnp.asarray, params)
        state, found = rule.init(params), []
        for G in gradients:
            pair = of_factors(params["layer"]["a"], params["layer"]["b"], G)
            u, state = rule.update({"layer": pair, "bias": BIAS}, state, params)
            params = jax.tree.map(lambda x, u: x - lr * u, params, u)
            found.append(jax.tree.map(np.asarray, params))
    return found


EXACT = transforms.lora_muon(SCALE, polar=polar)
SHARP = transforms.lora_muon(SCALE, polar=polar, eps=0)


@pytest.mark.parametrize("b", [B, 0 * B], ids=["started", "at zero, as LoRA"])
def test_steps_are_those_of_the_paper(b):
    gradients = rng.normal(size=(5, IN, OUT))
    found = train(EXACT, A, b, gradients)
    for now, expected in zip(found, literal(A, b, gradients, LR), strict=True):
        close(now["layer"]["a"], expected[0])
        close(now["layer"]["b"], expected[1])
    moved = train(transforms.muon(polar=polar), A, b, gradients)[-1]["layer"]
    assert np.max(np.abs(moved["b"] - found[-1]["layer"]["b"])) > 1e-2


def changes(a, b):
    """What one step does to both factors."""
    (after,) = train(SHARP, a, b, [G])
    return after["layer"]["a"] - a, after["layer"]["b"] - b


def test_the_product_moves_as_by_muon_in_the_spaces_of_its_factors():
    """And by at most lr in the spectral norm, to first order."""
    of_a, of_b = changes(A, B)
    first = of_a @ B + A @ of_b
    Q_B, Q_A = B.T @ inverse_root(B @ B.T, 0), A @ inverse_root(A.T @ A, 0)
    expected = orth(G @ Q_B) @ Q_B.T + Q_A @ orth(Q_A.T @ G)
    close(first, -LR / (2 * SCALE) * expected)
    assert SCALE * np.linalg.norm(first, 2) <= LR * (1 + 1e-9)


def test_the_product_moves_alike_for_all_factors_of_it():
    T = rng.normal(size=(RANK, RANK))
    other = A @ T, np.linalg.solve(T, B)
    (of_a, of_b), (a, b) = changes(A, B), changes(*other)
    close(a @ other[1] + other[0] @ b, of_a @ B + A @ of_b, rtol=1e-7)
    assert np.max(np.abs(a - of_a)) > 1e-2


def test_other_leaves_have_another_rule():
    bias = [now["bias"] for now in train(EXACT, A, B, [G, G])]
    adam = optax.scale_by_adam(0.9, 0.95, 1e-10)
    with jax.enable_x64(True):
        x = jnp.asarray(BIAS)
        state = adam.init(x)
        for now in bias:
            u, state = adam.update(jnp.asarray(BIAS), state)
            x = x - LR * u
            close(now, x)
    plain = transforms.lora_muon(SCALE, rest=optax.identity())
    close(train(plain, A, B, [G])[0]["bias"], (1 - LR) * BIAS)


def test_decay_shrinks_the_product():
    """By lr decay to first order: the rest is of second order in it."""
    decayed = optax.chain(EXACT, optax.add_decayed_weights(0.1 / 2))
    lr = 1e-3
    (with_it,), (without,) = (train(r, A, B, [G], lr) for r in (decayed, EXACT))
    product = lambda now: now["layer"]["a"] @ now["layer"]["b"]
    np.testing.assert_allclose(
        product(without) - product(with_it), lr * 0.1 * A @ B, rtol=0, atol=1e-6
    )


def test_zero_stays_zero_and_types_stay():
    rule = transforms.lora_muon()
    pair = {"a": jnp.zeros((4, 2), jnp.bfloat16), "b": jnp.zeros((2, 3))}
    state = rule.init({"layer": pair})
    u, after = rule.update({"layer": pair}, state, {"layer": pair})
    form = lambda t: jax.tree.map(lambda x: (x.shape, x.dtype), t)
    assert form(u["layer"]) == form(pair)
    assert form(after) == form(state)
    assert not any(np.any(np.asarray(x, np.float32)) for x in jax.tree.leaves(u))
    with pytest.raises(ValueError, match="needs the parameters"):
        rule.update({"layer": pair}, state)

"""Variants of Muon, Scion and SOAP against literal loops over the papers' matrices.

The transcriptions have a row for every output unit, as the papers; kernels of the
library are their transposes.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_muon as fm
from fedjax_muon import transforms
from fedjax_muon.linalg.newton_schulz import polar
from fedjax_muon.transforms import jordan, moonlight, spectral
from tests.oracles.cases import PARTIAL, X
from tests.oracles.variants import adamuon, nesterov, norm, normuon, orth
from tests.support.traces import path

SHAPES = {"tall": (3, 7), "wide": (6, 4), "square": (4, 4)}  # fan_in, fan_out
STEPS = 5


def gradients():
    rng = np.random.default_rng(5)  # its first signs are no singular matrices
    draw = lambda shape: {"kernel": rng.normal(size=shape), "bias": rng.normal(size=3)}
    return [{k: draw(shape) for k, shape in SHAPES.items()} for _ in range(STEPS)]


def updates(rule, given):
    """Kernels as the papers' matrices, and biases, of every step in float64."""
    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, given)
        state, update, found = rule.init(given[0]), rule.update, []
        for g in given:
            u, state = update(g, state, g)
            found.append(jax.tree.map(np.asarray, u))
    return found


def muon_plus(given, order):
    o, i = given[0].shape
    for n in nesterov(given, 0.95):
        O = orth(n)
        for side in order:
            for p in range(o if side == "out" else i):
                line = np.s_[p] if side == "out" else np.s_[:, p]
                O[line] = O[line] / np.sqrt(np.sum(O[line] ** 2) + 1e-7)
        yield math.sqrt(o / i) * O


def muon_eq(given, order):
    o, i = given[0].shape
    for g in np.cumsum([0.9**-t * g for t, g in enumerate(given)], 0):
        n = g.copy()  # of heavy ball; its scale matters through 1e-8 alone
        factor = np.ones((o, i))
        for p in range(o):
            for q in range(i):
                if "out" in order:
                    factor[p, q] /= np.sqrt(np.sum(n[p] ** 2) + 1e-8)
                if "in" in order:
                    factor[p, q] /= np.sqrt(np.sum(n[:, q] ** 2) + 1e-8)
        yield 0.2 * math.sqrt(max(o, i)) * orth(n * factor)


def muon_bp(given, period=2):
    """Blocks of up to 3, of the shorter side: the divisor, and whether of inputs."""
    o, i = given[0].shape
    count, axis = {(7, 3): (3, 1), (4, 6): (2, 0), (4, 4): (2, 1)}[o, i]
    m = np.zeros((o, i))
    for t, g in enumerate(given):
        m = 0.95 * m + g
        if t % period == 0:
            yield math.sqrt(max(1, o / i)) * orth(m)
        else:
            parts = [orth(part) for part in np.split(m, count, axis)]
            yield math.sqrt(max(1, o / i)) * np.concatenate(parts, axis)


def muon_squared(given, beta=0.95, beta2=0.9):
    (o, i), v = given[0].shape, np.zeros_like(given[0])
    for n, g in zip(nesterov(given, beta), given, strict=True):
        v = beta2 * v + (1 - beta2) * g**2
        yield math.sqrt(max(1, o / i)) * orth(n / (np.sqrt(v) + 1e-10))


def mars_m(given, beta=0.95, gamma=0.025):
    (o, i), m, last = given[0].shape, np.zeros_like(given[0]), given[0]
    for g in given:
        c = g + gamma * beta / (1 - beta) * (g - last)
        c = c / max(1, norm(c))
        m, last = beta * m + (1 - beta) * c, g
        yield 0.2 * math.sqrt(max(o, i)) * orth(m)


def scion(direction):
    def steps(given, beta=0.9, radius=3.0):
        d = np.zeros_like(given[0])
        for g in given:
            d = beta * d + (1 - beta) * g
            yield radius * direction(d)

    return steps


def col_norm(d):
    o, i = d.shape
    lines = [d[:, q] / (norm(d[:, q]) / np.sqrt(o) + 1e-8) / i for q in range(i)]
    return np.stack(lines, 1)


def row_norm(d):
    o, i = d.shape
    return np.stack([d[p] / (norm(d[p]) * np.sqrt(i) + 1e-8) for p in range(o)])


def soap(given, at_once=False, b1=0.95, b2=0.9, every=2, longest=5):
    """Of long sides the averages are singular, and their bases not unique."""
    o, i = given[0].shape
    L, R, QL, QR = np.zeros((o, o)), np.zeros((i, i)), np.eye(o), np.eye(i)
    m, v = np.zeros((o, i)), np.zeros((o, i))  # m in the original coordinates
    for t, g in enumerate(given, int(at_once)):
        if t:
            turned = QL.T @ g @ QR
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * turned**2
            u = QL @ (QL.T @ m @ QR / (np.sqrt(v) + 1e-8)) @ QR.T
            yield u * np.sqrt(1 - b2**t) / (1 - b1**t)
        else:
            yield np.zeros((o, i))
        L, R = b2 * L + (1 - b2) * g @ g.T, b2 * R + (1 - b2) * g.T @ g
        if o <= longest and t % every == 0:
            rows = np.argsort(-np.diag(QL.T @ L @ QL), kind="stable")
            v = v[rows] if t else v
            QL = np.linalg.qr(L @ QL[:, rows])[0] if t else first_basis(L)
        if i <= longest and t % every == 0:
            columns = np.argsort(-np.diag(QR.T @ R @ QR), kind="stable")
            v = v[:, columns] if t else v
            QR = np.linalg.qr(R @ QR[:, columns])[0] if t else first_basis(R)


def first_basis(gram):
    return np.linalg.eigh(gram)[1][:, ::-1]


def muon_with(*middle, scale, decay=0.95, before=()):
    shaped = transforms.scale_by_shape(scale)
    trace = optax.trace(decay, nesterov=True)
    return optax.chain(trace, *before, transforms.orthogonalize(polar), *middle, shaped)


def heavy(*before):
    """Without Nesterov, and with a momentum of 0.9."""
    orthogonal = transforms.orthogonalize(polar)
    scale = transforms.scale_by_shape(moonlight)
    return optax.chain(optax.trace(0.9), *before, orthogonal, scale)


def plus(*order):
    rule = muon_with(transforms.normalize_axes(*order), scale=spectral)
    return rule, lambda given: muon_plus(given, order)


def equal(*order):
    return heavy(transforms.equilibrate(*order)), lambda g: muon_eq(g, order)


def in_norm(direction, literal):
    return transforms.scale_by_scion(0.9, direction, radius=3.0), scion(literal)


by_spectral = transforms.spectral_direction(polar)
spectral_of = lambda d: math.sqrt(d.shape[0] / d.shape[1]) * orth(d)
CASES = {
    "NorMuon": (transforms.scale_by_normuon(polar=polar), normuon),
    "Muon+, row": plus("out"),
    "Muon+, col": plus("in"),
    "Muon+, row_col": plus("out", "in"),
    "Muon+, col_row": plus("in", "out"),
    "MuonEq, R": equal("out"),
    "MuonEq, C": equal("in"),
    "MuonEq, RC": equal("out", "in"),
    "MuonBP": (
        optax.chain(
            optax.trace(0.95),
            transforms.orthogonalize_blocks(2, 3, polar=polar),
            transforms.scale_by_shape(jordan),
        ),
        muon_bp,
    ),
    "AdaMuon": (transforms.scale_by_adamuon(polar=polar), adamuon),
    "Muon^2": (transforms.scale_by_muon2(b2=0.9, polar=polar), muon_squared),
    "MARS-M": (
        optax.chain(
            transforms.scale_by_mars(),
            optax.trace(0.95),
            transforms.orthogonalize(polar),
            transforms.scale_by_shape(moonlight),
        ),
        mars_m,
    ),
    "Scion, Spectral": in_norm(by_spectral, spectral_of),
    "Scion, ColNorm": in_norm(transforms.input_direction(), col_norm),
    "Scion, RowNorm": in_norm(transforms.output_direction(), row_norm),
    "Scion, Sign": in_norm(
        transforms.sign_direction(), lambda d: np.sign(d) / d.shape[1]
    ),
    "SOAP": (transforms.scale_by_soap(b2=0.9, every=2, longest=5), soap),
    "SOAP, a first step": (
        transforms.scale_by_soap(b2=0.9, every=2, longest=5, first_step=True),
        partial(soap, at_once=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_paper(name):
    rule, literal = CASES[name]
    given = gradients()
    found = updates(rule, given)
    for shape in SHAPES:
        steps = literal([g[shape]["kernel"].T for g in given])
        for u, expected in zip(found, steps, strict=True):
            kernel = u[shape]["kernel"].T
            np.testing.assert_allclose(kernel, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_zero_stays_zero_and_types_stay(name):
    rule, _ = CASES[name]
    zeros = {"kernel": jnp.zeros((3, 5), jnp.bfloat16), "bias": jnp.zeros(3)}
    state = rule.init(zeros)
    for _ in range(3):
        kinds = jax.tree.map(lambda x: (x.shape, x.dtype), state)
        found, state = rule.update(zeros, state, zeros)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == kinds
        for name, leaf in found.items():
            assert leaf.dtype == zeros[name].dtype
            assert not np.any(np.asarray(leaf, np.float32))


def test_leaves_that_are_no_matrices_pass_their_momentum():
    given = gradients()
    biases = [g["tall"]["bias"] for g in given]
    m = np.zeros(3)
    for g, u in zip(biases, updates(CASES["NorMuon"][0], given), strict=True):
        m = g + 0.95 * m
        np.testing.assert_allclose(u["tall"]["bias"], g + 0.95 * m)


def test_soap_of_vectors_is_adam_that_begins_one_call_late():
    given = [g["tall"]["bias"] for g in gradients()]
    found = updates(transforms.scale_by_soap(b1=0.9, b2=0.8), given)
    m, v = np.zeros(3), np.zeros(3)
    assert not np.any(found[0])
    for t, g in enumerate(given[1:], 1):
        m, v = 0.9 * m + 0.1 * g, 0.8 * v + 0.2 * g**2
        expected = m / (np.sqrt(v) + 1e-8) * np.sqrt(1 - 0.8**t) / (1 - 0.9**t)
        np.testing.assert_allclose(found[t], expected, rtol=1e-9)


def test_soap_that_steps_at_once_is_adam_until_it_turns():
    """It starts on the axes: of all leaves, until the first power iteration."""
    given = gradients()
    rule = transforms.scale_by_soap(0.9, 0.8, every=STEPS, first_step=True)
    adam = optax.scale_by_adam(0.9, 0.8, eps=0)
    found, expected = updates(rule, given), updates(adam, given)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), found, expected)


def test_clipped_scion_is_scion_or_steepest_descent():
    given, average = gradients(), optax.ema(0.9, debias=False)
    clipped = lambda largest: optax.chain(
        average,
        transforms.clip_by_dual_norm(
            transforms.by_rank(by_spectral, transforms.rms_direction()), largest
        ),
    )
    small, large = updates(clipped(1e-3), given), updates(clipped(1e9), given)
    d = jax.tree.map(np.zeros_like, given[0])
    for step, g in enumerate(given):
        d = jax.tree.map(lambda d, g: 0.9 * d + 0.1 * g, d, g)
        v = {
            shape: {
                "kernel": spectral_of(leaves["kernel"].T).T,
                "bias": leaves["bias"] / np.sqrt(np.mean(leaves["bias"] ** 2)),
            }
            for shape, leaves in d.items()
        }
        dual = sum(
            np.sum(a * b)
            for a, b in zip(jax.tree.leaves(d), jax.tree.leaves(v), strict=True)
        )
        for found, length in ((small, 1e-3), (large, dual)):
            for a, b in zip(
                jax.tree.leaves(found[step]), jax.tree.leaves(v), strict=True
            ):
                np.testing.assert_allclose(a, length * b, rtol=1e-6, atol=1e-9)


def test_constrained_scion_stays_in_its_ball():
    """Of the radius, in the spectral norm scaled by sqrt(fan_in / fan_out)."""
    rule = transforms.scale_by_scion(0.9, by_spectral, radius=2.0)
    rule = optax.chain(rule, optax.add_decayed_weights(1.0))
    with jax.enable_x64(True):
        x, rng = {"w": jnp.zeros((3, 7))}, np.random.default_rng(0)
        state = rule.init(x)
        for _ in range(30):
            u, state = rule.update(
                {"w": jnp.asarray(rng.normal(size=(3, 7)))}, state, x
            )
            x = {"w": x["w"] - 0.3 * u["w"]}
            size = np.linalg.norm(x["w"], 2) * math.sqrt(3 / 7)
            assert size <= 2.0 + 1e-9
    assert size > 0.5


SPECTRAL = transforms.by_rank(
    optax.chain(by_spectral, optax.scale(2.0)), transforms.rms_direction()
)


def clipped(largest):
    clip = transforms.clip_by_dual_norm(SPECTRAL, largest, constrained=True)
    return optax.chain(optax.ema(0.9, debias=False), clip)


def points(rule, start, given, lr):
    """The parameters after every step, and how long the steps were."""
    with jax.enable_x64(True):
        x, given = jax.tree.map(jnp.asarray, (start, given))
        state, found = rule.init(x), []
        for g in given:
            u, state = rule.update(g, state, x)
            x = jax.tree.map(lambda x, u: x - lr * u, x, u)
            found.append(jax.tree.map(np.asarray, x))
    return found


@pytest.mark.parametrize("largest", [1e-3, 1.38, 1e9])
def test_clipped_scion_with_constraints_is_that_of_the_paper(largest):
    """One length for all layers: the bound at 1e-3, the gap at 1e9, each at 1.38."""
    given, radius, lr = gradients(), {"kernel": 2.0, "bias": 1.0}, 0.25
    x = jax.tree.map(lambda g: 0.1 * g, given[-1])
    found = points(clipped(largest), x, given, lr)
    d, lengths = jax.tree.map(np.zeros_like, x), []
    for step, g in enumerate(given):
        d = jax.tree.map(lambda d, g: 0.9 * d + 0.1 * g, d, g)
        v, gap = {}, 0.0
        for shape, leaves in d.items():
            weight, bias = leaves["kernel"].T, leaves["bias"]
            lmo = {
                "kernel": -spectral_of(weight).T,
                "bias": -bias / (np.sqrt(np.mean(bias**2)) + 1e-8),
            }
            v[shape] = {k: x[shape][k] - radius[k] * lmo[k] for k in lmo}
            gap += sum(np.sum(leaves[k] * v[shape][k]) for k in lmo)
        lengths.append(min(largest, gap / 4))
        x = jax.tree.map(lambda x, v: x - lr * lengths[-1] * v, x, v)
        for a, b in zip(*map(jax.tree.leaves, (found[step], x)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    at_bound = [length == largest for length in lengths]
    assert (any(at_bound), all(at_bound)) == (largest < 2, largest < 1)


def test_clipped_scion_with_constraints_needs_parameters():
    zeros = {"w": jnp.zeros((3, 5))}
    rule = clipped(1.0)
    u, state = rule.update(zeros, rule.init(zeros), zeros)
    assert not np.any(u["w"])
    with pytest.raises(ValueError, match="needs the parameters"):
        rule.update(zeros, state)


def test_means_of_clients_stay_in_the_ball_of_clipped_scion():
    rule = transforms.clip_by_dual_norm(SPECTRAL, 2.0, constrained=True)
    start = jax.tree.map(np.zeros_like, X)
    for x in path(fm.fedavg(lr=0.5, rule=rule), start, PARTIAL):
        size = np.linalg.norm(x["w"], 2) * math.sqrt(4 / 3)
        assert size <= 2.0 + 1e-9
    assert size > 0.5


def test_one_block_or_every_step_is_orthogonalize():
    given = gradients()
    plain = updates(transforms.orthogonalize(), given)
    for rule in (
        transforms.orthogonalize_blocks(1, 4),
        transforms.orthogonalize_blocks(3, 1),
    ):
        for found, expected in zip(
            *map(jax.tree.leaves, (updates(rule, given), plain)), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_clients_that_are_vectorized_compute_one_branch():
    """The count of steps is the same for all, so `cond` does not become `select`."""
    rule = transforms.orthogonalize_blocks()
    grads = {"kernel": jnp.ones((3, 8, 4))}
    both = "f32[3,8,4] = select_n"
    new = lambda g: rule.update(g, rule.init(g))[0]
    assert both not in str(jax.make_jaxpr(jax.vmap(new))(grads))
    other = lambda g, n: rule.update(g, rule.init(g)._replace(count=n))[0]
    counts = jnp.arange(3)
    assert both in str(jax.make_jaxpr(jax.vmap(other))(grads, counts))


def test_vectorized_clients_take_eigenvectors_in_their_first_call_alone():
    rule = transforms.scale_by_soap(first_step=True)
    grads = {"kernel": jnp.ones((3, 8, 4))}
    new = lambda g: rule.update(g, rule.init(g))[0]
    assert " cond[" in str(jax.make_jaxpr(jax.vmap(new))(grads))
    other = lambda g, n: rule.update(g, rule.init(g)._replace(calls=n))[0]
    assert " cond[" not in str(jax.make_jaxpr(jax.vmap(other))(grads, jnp.arange(3)))

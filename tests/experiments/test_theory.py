"""Verdicts on the measured theorems, on known cases and on broken algorithms."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.theory import (
    consensus,
    heavy_tails,
    newton_schulz,
    quadratics,
    speedup,
    stall,
)
from experiments.theory.frame import CAVEAT, FAILS, HOLDS, UNDECIDED
from fedjax_muon.algorithms import fedmuon, fedmuon_correct, local_muon_persistent
from fedjax_muon.core import map_exchanges
from fedjax_muon.linalg import newton_schulz as kernel

pytestmark = pytest.mark.slow

SMALL_STALL = stall.Size(20, (0.1, 1.0), (0.1,), 4, 200, (0.03,), (1,))


def verdicts(findings):
    return [f.verdict for f in findings]


def losses(clients, x):
    """Of all clients in float64, by the definition."""
    pairs = zip(*(np.asarray(v, np.float64) for v in clients), strict=True)
    return np.array([np.sum((x - b) * (a @ (x - b))) / 2 for a, b in pairs])


def test_gradients_curvatures_and_optima_are_the_stated_ones():
    clients = quadratics.random(jax.random.key(0), 3, (4, 3), 0.1, 1.0)
    x = np.linspace(-1, 1, 12).reshape(4, 3)
    steps = 1e-5 * np.eye(12).reshape(12, 4, 3)
    mean = lambda x: losses(clients, x).mean()
    found = [(mean(x + e) - mean(x - e)) / 2e-5 for e in steps]
    expected = quadratics.full_gradient(clients, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(np.reshape(found, (4, 3)), expected, atol=1e-5)
    eigenvalues = np.linalg.eigvalsh(np.asarray(clients.curvature, np.float64))
    np.testing.assert_allclose(eigenvalues[:, [0, -1]], [[0.1, 1]] * 3, rtol=1e-5)
    best = jnp.asarray(quadratics.optimum(clients), jnp.float32)
    assert float(jnp.abs(quadratics.full_gradient(clients, best)).max()) < 1e-5


def test_the_counterexample_has_the_numbers_of_theorem_1():
    case = stall.scalar_case()
    np.testing.assert_array_equal(case.x, [[-stall.A / 4]])
    best = quadratics.optimum(case.clients)
    np.testing.assert_allclose(best, [[-stall.A / 2]])
    assert quadratics.dissimilarity(case.clients, best) ** 2 == stall.A**2 / 4
    path = stall.paths(local_muon_persistent, case, SMALL_STALL)
    np.testing.assert_array_equal(path, np.full_like(path, -stall.A / 4))
    gradient = quadratics.full_gradient(case.clients, case.x)
    assert float(gradient[0, 0]) ** 2 == stall.A**2 / 16
    holding = stall.stall_finding("Local Muon", "here", case, path, 0.0)
    assert holding.verdict == HOLDS
    assert holding.measured.endswith("|grad f|^2 = 1, zeta_*^2 = 4, ratio 0.250")
    path = stall.paths(fedmuon_correct, case, SMALL_STALL)  # which moves
    assert stall.stall_finding("FedMuon", "here", case, path, 0.0).verdict == FAILS


def test_local_muon_stalls_on_matrices_and_fedmuon_does_not():
    case = stall.matrix_case()
    path = stall.paths(local_muon_persistent, case, SMALL_STALL._replace(rounds=5))
    assert stall.stall_finding("Local Muon", "here", case, path, 1e-3).verdict == HOLDS
    clients = stall.heterogeneous(SMALL_STALL)
    stuck, moving = (
        stall.floors(algorithm, clients, 1, SMALL_STALL)
        for algorithm in (local_muon_persistent, fedmuon_correct)
    )
    judge = functools.partial(stall.heterogeneous_findings, 1, SMALL_STALL)
    assert verdicts(judge(stuck, moving)) == [HOLDS, HOLDS]
    assert verdicts(judge(moving, stuck)) == [FAILS, FAILS]


def test_only_a_convergent_algorithm_passes_theorem_3():
    """Learning rates below 0 ascend; with 0 all means are the first trace norm."""
    rates = (0.5, 2.0, -0.5, -2.0, 0.0)
    size = newton_schulz.Size((10, 20, 40), rates, (1.0,), (0, 2), 3, 2)
    clients = quadratics.random(jax.random.key(2), 3, newton_schulz.SHAPE, 0.1, 1.0)
    norms = newton_schulz.mean_norms(fedmuon_correct, kernel.polar, clients, size)
    judge = lambda best: newton_schulz.convergence("here", best, size).verdict
    assert judge(norms[:, :2].min((0, 1))) == HOLDS
    assert judge(norms[:, 2:4].min((0, 1))) == UNDECIDED
    a, b = (np.asarray(v, np.float64) for v in clients)
    expected = np.linalg.svd((a @ b).mean(0), compute_uv=False).sum()
    np.testing.assert_allclose(norms[0, 4], [expected] * 3, rtol=1e-5)


def test_the_lemmas_hold_as_far_as_first_momenta_are_averaged():
    size = consensus.Size(3, 2, 3, 2, (0.1, 10.0), (0.05,), (0.0, 1.0))
    found = consensus.study(size)
    assert verdicts(found) == [HOLDS, FAILS, HOLDS]
    early, later = map(float, re.findall(r"([0-9.]+) for", found[1].measured))
    assert early > 1 > later


def test_the_parameters_of_corollary_5_6_and_where_a_grid_ends():
    assert speedup.corollary(16, 256) == pytest.approx((2 / 64, 1 / 4, 1))
    assert speedup.corollary(1, 4096) == pytest.approx((1 / 512, 1 / 64, 8))
    # the end of a grid is seen, except where the range ends too
    size = speedup.FULL._replace(lrs=(0.1, 0.2, 0.3), betas=(0.1, 0.5, 1.0))
    cells = np.array([[1, 1], [1, 2], [0, 1], [2, 1], [1, 0]])
    assert speedup.at_edges(cells, size) == 3
    assert speedup.at_edges(cells, size._replace(betas=(0.1, 0.5, 0.9))) == 4


def test_a_slope_must_be_as_steep_as_predicted_and_surely_falling():
    for slope, expected in (
        ((-0.25, -0.27, -0.23), HOLDS),
        ((-0.5, -0.6, -0.4), HOLDS),  # steeper than an upper bound agrees with it
        ((-0.2, -0.3, 0.1), UNDECIDED),
        ((-0.1, -0.12, -0.08), UNDECIDED),
    ):
        assert speedup.slope_verdict(speedup.Slope(*slope), -0.25) == expected, slope


def test_slopes_are_fitted_with_their_confidence():
    counts = (1, 2, 4, 8, 16)
    clean = np.array(counts) ** -0.25
    line = speedup.fit(np.stack([clean, clean]), counts)
    assert tuple(line) == pytest.approx((-0.25, -0.25, -0.25), abs=1e-6)
    rng, inside = np.random.default_rng(0), 0
    for _ in range(200):
        noisy = clean * np.exp(0.1 * rng.standard_normal((3, 5)))
        fitted = speedup.fit(noisy, counts)
        inside += fitted.low <= -0.25 <= fitted.high
    assert 180 <= inside <= 199  # 95% of 200, plus or minus 3 standard deviations


def test_clients_that_share_their_noise_bring_no_speed_up():
    """One key for all clients: the mean of N noises is no smaller than each."""

    def one(algorithm, count, lr=0.02, beta=1.0):
        clients = speedup.problem(1)  # and no heterogeneity
        clients = jax.tree.map(lambda a: jnp.repeat(a, count, 0), clients)
        run = functools.partial(
            speedup.mean_norm, algorithm, clients, 2.0, iterations=64, tau=1
        )
        keys = jax.random.split(jax.random.key(0), 3)
        return quadratics.over_grid(lambda key: run(key, lr, beta), keys)

    def shared(**hyper):
        fixed = jax.random.key(1)

        def one_key(number, exchange):
            def client(objective, *rest):
                grad = lambda x, batch, key: objective.grad(x, batch, fixed)
                return exchange.client(objective._replace(grad=grad), *rest)

            return exchange._replace(client=client)

        return map_exchanges(one_key, fedmuon(**hyper))

    alone, together = one(shared, 1), one(shared, 4)
    np.testing.assert_allclose(alone, together, rtol=1e-3)
    line = speedup.fit(np.stack([alone, together], -1), (1, 4))
    assert speedup.slope_verdict(line, -0.25) == UNDECIDED


SOME = heavy_tails.Size((2.0, 1.5, 1.2), 8, 1, 2, (0.1, 0.2))


def results(**medians):
    """Results with these norms, [tail] each, the same for two seeds."""
    every = dict.fromkeys(heavy_tails.METHODS, (0.1, 0.1, 0.1))
    every |= {getattr(heavy_tails, name): norms for name, norms in medians.items()}
    return {name: np.array([norms, norms]).T for name, norms in every.items()}


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ({}, [HOLDS, FAILS, HOLDS, HOLDS, FAILS]),
        ({"PLAIN": (0.1, 0.3, 0.4)}, [HOLDS, HOLDS, HOLDS, HOLDS, FAILS]),
        ({"PLAIN": (0.1, 0.1, 0.4)}, [HOLDS, CAVEAT, HOLDS, HOLDS, FAILS]),
        ({"CLIPPED": (0.1, 0.05, 0.1)}, [HOLDS, FAILS, CAVEAT, HOLDS, FAILS]),
        ({"MUON": (0.1, 0.3, 0.6)}, [FAILS, FAILS, FAILS, FAILS, FAILS]),
        ({"IDENTITY": (0.1, 0.3, 0.4)}, [HOLDS, FAILS, HOLDS, HOLDS, HOLDS]),
        # light tails decide nothing
        ({"PLAIN": (9.0, 0.1, 0.1)}, [HOLDS, FAILS, HOLDS, HOLDS, FAILS]),
    ],
)
def test_verdicts_on_heavy_tails(norms, expected):
    assert verdicts(heavy_tails.findings(results(**norms), SOME)) == expected

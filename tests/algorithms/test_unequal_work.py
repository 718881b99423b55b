"""Clients that take different numbers of local steps, against their oracles."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_muon as fm
from fedjax_muon import engine
from fedjax_muon.engine import plans
from fedjax_muon.linalg import newton_schulz as kernel
from tests.oracles import fedavg as avg
from tests.oracles.cases import PARTIAL, SIZES, X
from tests.oracles.fedmuon import fedmuon_align
from tests.oracles.proximal import fednova, fedprox
from tests.oracles.scaffold import scaffold
from tests.support import traces
from tests.support.cases import slow_but

SLOW = pytest.mark.slow
N, K = PARTIAL.num_clients, 4
RNG = np.random.default_rng(11)
COUNTS = [[int(k) for k in RNG.integers(1, K + 1, 3)] for _ in PARTIAL.rounds]
CUT = PARTIAL._replace(
    rounds=[
        (ids, [client[:k] for client, k in zip(data, counts, strict=True)])
        for (ids, data), counts in zip(PARTIAL.rounds, COUNTS, strict=True)
    ]
)
CASES = {
    "fedavg": (fm.fedavg(0.2), lambda: avg.fedavg(X, CUT, 0.2)),
    "fedprox": (fm.fedprox(0.2, mu=0.5), lambda: fedprox(X, CUT, 0.2, 0.5)),
    "scaffold": (fm.scaffold(0.2), lambda: scaffold(X, CUT, 0.2)),
    "fednova": (fm.fednova(0.2), lambda: fednova(X, CUT, 0.2)),
    "fednova, momentum and pull": (
        fm.fednova(0.1, momentum=0.6, mu=0.7, server_lr=0.9),
        lambda: fednova(X, CUT, 0.1, 0.6, 0.7, 0.9),
    ),
    "fednova, server momentum": (
        fm.fednova(0.1, server_rule=optax.trace(0.5)),
        lambda: fednova(X, CUT, 0.1, server_momentum=0.5),
    ),
}


def path(algorithm, plan, weights=None):
    """The parameters after each round, in float64, from padded batches."""
    with traces.precision(jnp.float64):
        as64 = lambda t: jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), t)
        w = np.ones(N) if weights is None else np.array(weights, float)
        state = engine.init(algorithm, as64(X), N)
        parts = {"draw": lambda entry, key: entry[0]}
        parts["steps_of"] = lambda entry, key: entry[1]
        run = engine.make_round(algorithm, traces.TOY, N, plan, **parts)
        step, found = jax.jit(run), []
        for (ids, data), counts in zip(PARTIAL.rounds, COUNTS, strict=True):
            entries = as64(traces.stack(data)), jnp.asarray(counts)
            cohort, key = jnp.array(ids, jnp.int32), jax.random.key(0)
            state, received = step(state, cohort, entries, as64(w[ids]), key)
            assert received.all()
            found.append(jax.tree.map(np.asarray, state.server.params))
        return found


QUICK = [("fednova", plans.mapped), ("scaffold", plans.chunked(2))]
OTHERS = [(name, plans.mapped) for name in CASES if name != "fednova"]


@pytest.mark.parametrize(("name", "plan"), slow_but(QUICK, QUICK + OTHERS))
def test_each_client_ends_after_its_own_steps(name, plan):
    algorithm, oracle = CASES[name]
    want = oracle()
    assert traces.farthest(path(algorithm, plan), want) < 1e-10
    assert traces.farthest(want[-1:], [X]) > 0.05


@SLOW
def test_fednova_takes_the_weights_of_the_mean():
    want = fednova(X, CUT, 0.2, 0.3, weights=SIZES)
    got = path(fm.fednova(0.2, momentum=0.3), plans.vmapped, SIZES)
    assert traces.farthest(got, want) < 1e-10
    assert traces.farthest(got, fednova(X, CUT, 0.2, 0.3)) > 1e-3


@SLOW
def test_muon_takes_unequal_steps_and_the_server_their_mean():
    algorithm = fm.fedmuon_align(0.03, align=0.0, polar=kernel.polar)
    want = fedmuon_align(X, CUT, 0.03, align=0.0)
    assert traces.farthest(path(algorithm, plans.mapped), want) < 1e-10
    # FedCM: x - x_i = sum of K_i directions; the momentum is their mean of all steps
    weights = np.array(SIZES, float)
    got = path(fm.fedavg_m(0.1), plans.mapped, weights)
    x, momentum = X, {name: np.zeros_like(leaf) for name, leaf in X.items()}
    for ids, data in CUT.rounds:
        p = weights[ids] / weights[ids].sum()
        change = {name: np.zeros_like(leaf) for name, leaf in X.items()}
        for share, batches in zip(p, data, strict=True):
            local = dict(x)
            for batch in batches:
                g = CUT.grad(local, batch)
                for name in local:
                    d = 0.1 * g[name] + 0.9 * momentum[name]
                    local[name] = local[name] - 0.1 * d
            for name in change:
                change[name] += share * (local[name] - x[name])
        steps = np.dot(p, [len(batches) for batches in data])
        momentum = {name: -d / (steps * 0.1) for name, d in change.items()}
        x = {name: x[name] + d for name, d in change.items()}
    assert traces.farthest(got[-1:], [x]) < 1e-10

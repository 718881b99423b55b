"""Options of methods with which two coincide, and bounds that a paper proves.

That the methods coincide with their published options, and stall where they must, is
tested of the oracles.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracles.cases import ONE_STEP, ONE_STEP_PARTIAL, PARTIAL, X
from traces import farthest, path

from fedjax_muon import engine
from fedjax_muon.algorithms import (
    diloco,
    fedavg,
    fedmuon,
    fedmuon_align,
    fedmuon_correct,
    fedprox,
    local_muon_persistent,
    scaffold,
)
from fedjax_muon.core import Objective
from fedjax_muon.engine import plans
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.transforms import muon, orthogonalize

pytestmark = pytest.mark.slow

NOTHING = optax.identity()
BALL = optax.trace(0.9)
MUON = muon(0.98)
DECAYED = optax.chain(MUON, optax.add_decayed_weights(0.1))
cosine = lambda r: 0.05 * 0.5 * (1 + jnp.cos(jnp.pi * r / 6))

# trace; the one method; the other
SAME: dict[str, tuple[Any, ...]] = {
    "one step without LMO and past: bias correction is SCAFFOLD at the rate S/N": (
        ONE_STEP_PARTIAL,
        fedmuon_correct(lr=0.2, momentum=0.0, rule=NOTHING),
        scaffold(lr=0.2, server_lr=3 / 5),
    ),
    "alignment and momentum aggregation off: Local Muon": (
        PARTIAL,
        fedmuon_align(lr=cosine, align=0, decay=0.1, rule=MUON, averaged_state=()),
        fedavg(lr=cosine, rule=DECAYED),
    ),
    "alignment off: Local Muon with averaged momentum": (
        PARTIAL,
        fedmuon_align(lr=cosine, align=0.0, decay=0.0, rule=MUON),
        fedavg(lr=cosine, rule=MUON, averaged_state=("trace",)),
    ),
    "persistent LocalMuon without LMO and past: FedAvg at the server rate S/N": (
        PARTIAL,
        local_muon_persistent(lr=0.1, momentum=0.0, rule=NOTHING),
        fedavg(lr=0.1, server_lr=3 / 5),
    ),
    "FedProx without its term: FedAvg": (
        PARTIAL,
        fedprox(mu=0.0, rule=BALL),
        fedavg(rule=BALL),
    ),
    "DiLoCo whose clients have no state: FedAvg with that server": (
        PARTIAL,
        diloco(lr=0.1, rule=NOTHING, server_rule=BALL),
        fedavg(lr=0.1, server_lr=0.7, server_rule=BALL),
    ),
    "one step, averaged momentum: the server's heavy ball": (
        ONE_STEP,
        fedavg(rule=BALL, averaged_state=("trace",)),
        fedavg(server_rule=BALL),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_methods_that_coincide(name):
    trace, one, other = SAME[name]
    a = path(one, X, trace)
    assert farthest(a, path(other, X, trace)) <= 1e-12
    assert farthest(a[-1:], [X]) >= 1e-2


# ------------------------------------------------- consensus (Zhang and Gao, section 6)

LR, FRESH, TAU = 0.02, 0.05, 4
SHAPE = (3, 5)


def consensus(synced):
    """Mean distances to the mean of X and of M after every local step, in 3 rounds.

    f_k = |X - B_k|^2 / 2: the gradients are exact (sigma = 0), L = 1. Round after
    round with all weight on one client shows what that client alone has.
    """
    targets = np.random.default_rng(0).normal(size=(4, 1, *SHAPE))
    data = jnp.asarray(targets)
    rule = orthogonalize(kernel.polar)
    objective = Objective(lambda p, batch, key: p - batch)
    algorithm = fedmuon(lr=LR, momentum=1 - FRESH, rule=rule, synced=synced)
    all_clients, key = jnp.arange(4), jax.random.key(0)
    round = engine.make_round(algorithm, objective, 4, plans.vmapped)
    alone = jax.jit(jax.vmap(round, in_axes=(None, None, None, 0, None)))
    state = engine.init(algorithm, jnp.zeros(SHAPE), 4)
    start = engine.make_prologue(algorithm, objective, 4, plans.vmapped)
    state, _ = jax.jit(start)(state, all_clients, data, jnp.ones(4), key)
    spread = lambda a: np.mean(np.linalg.norm(a - a.mean(0), axis=(1, 2)))
    x, m = [], []
    for _ in range(3):
        for steps in (1, 2, TAU):
            given = all_clients, data.repeat(steps, 1)
            each, _ = alone(state, *given, jnp.eye(4), key)
            x.append(spread(np.asarray(each.server.params)))
            m.append(spread(np.asarray(each.server.momentum)))
        mean_of = lambda a: a.mean(0)
        state = state._replace(
            index=state.index + 1, server=jax.tree.map(mean_of, each.server)
        )
    away = targets - targets.mean(0)
    return np.array(x), np.array(m), np.sqrt(np.mean(np.sum(away**2, (1, 2, 3))))


def test_consensus_errors_stay_below_the_lemmas():
    for synced in (True, False):
        x, m, delta = consensus(synced)
        root = np.sqrt(min(SHAPE))
        assert np.all(x <= 2 * LR * TAU * root)  # Lemma 6.2
        assert np.max(x) > 0.2 * LR * TAU * root
        bound = 4 * FRESH * LR * TAU**2 * root + FRESH * TAU * delta  # Lemma 6.1
        assert np.all(m[3:] <= bound)
        assert np.max(m[3:]) > 0.2 * bound
        # before the first communication only if the first momenta were averaged
        assert np.all(m[:3] <= bound) == synced

"""The candidates of the board follow loops in NumPy, with some clients per round."""

import numpy as np

from experiments.board import candidates
from tests.algorithms.test_oracles import newton_schulz
from tests.oracles.cases import PARTIAL, X
from tests.oracles.fedmuon import fedmuon
from tests.oracles.problem import add, direct, first_gradient, mean, sub, times
from tests.support.traces import farthest, path

LR, ROUNDS = 0.2, 50
SINGLE = 1e-6  # the length of a step is kept in float32


def test_the_own_rate_follows_from_the_first_losses_and_gradients():
    f = np.mean([PARTIAL.loss(X, b) for batches in PARTIAL.first for b in batches])
    g = mean([first_gradient(PARTIAL, X, i) for i in range(PARTIAL.num_clients)])
    nuclear = np.linalg.svd(g["w"], compute_uv=False).sum()
    steps = ROUNDS * len(PARTIAL.rounds[0][1][0])
    rate = LR * np.sqrt(2 * f / (steps * nuclear))
    want = fedmuon(X, PARTIAL, rate, synced=True, direction=newton_schulz)
    got = path(candidates.own_rate(LR, ROUNDS), X, PARTIAL)
    assert farthest(got, want) < SINGLE < 1e-2 < farthest(want[-1:], [X])


def test_the_mean_change_has_the_mean_length_of_the_changes():
    lr, norm, x = 0.05, np.linalg.norm, X
    m = mean([first_gradient(PARTIAL, x, i) for i in range(PARTIAL.num_clients)])
    want = []
    for _, data in PARTIAL.rounds:
        changes, last = [], []
        for batches in data:
            y, own = x, m
            for batch in batches:
                y = sub(y, times(lr, direct(own, newton_schulz)))
                own = add(times(0.9, own), times(0.1, PARTIAL.grad(y, batch)))
            changes.append(sub(y, x))
            last.append(own)
        short, m = mean(changes), mean(last)
        lengths = {k: np.mean([norm(c[k]) for c in changes]) for k in x}
        x = {k: x[k] + short[k] * lengths[k] / norm(short[k]) for k in x}
        want.append(x)
    got = path(candidates.full_length(lr), X, PARTIAL)
    assert farthest(got, want) < 1e-10 < 1e-2 < farthest(want[-1:], [X])

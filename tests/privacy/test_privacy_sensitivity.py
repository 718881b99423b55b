"""How far one record can move a private run: formulas against enumeration."""

import itertools
import math

import numpy as np
import pytest

from fedjax_muon.privacy.clipping import Difference, Each, Split
from fedjax_muon.privacy.releases import transcript_norm
from fedjax_muon.privacy.sampling import Cyclic, FullBatch

BOUNDED = [Each(1.0), Difference(0.3), Split(1.0, 0.1), Split(1.0, 0.001)]
BETAS = (0.01, 0.1, 0.3, 0.5)


def workload(steps, beta):
    """A[t, k] = c^(t - k) for t >= k, written out."""
    t, k = np.indices((steps, steps))
    return np.tril((1 - beta) ** np.maximum(t - k, 0).astype(float))


def gain(steps, beta, separation):
    """The largest norm of a transcript for changes of 1 so many steps apart."""
    return transcript_norm((np.arange(steps) % separation == 0) * 1.0, 1 - beta)


def patterns(steps, separation):
    for bits in itertools.product((0.0, 1.0), repeat=steps):
        at = np.flatnonzero(bits)
        if at.size and (np.diff(at) >= separation).all():
            yield np.array(bits)


# One record in a STORM run. Its gradients at x_t and x_{t-1}, vectors in the plane, are
# chosen freely: the data, the other agents and the noise can make them so.


def shorten(vector, limit):
    return vector * min(1.0, limit / max(np.linalg.norm(vector), 1e-300))


def fresh(clip, beta, now, before):
    own = shorten(now, clip.clip_norm)
    if isinstance(clip, Each):
        return own - (1 - beta) * shorten(before, clip.clip_norm)
    if isinstance(clip, Difference):
        return shorten(now - (1 - beta) * before, clip.clip_norm)
    return beta * own + (1 - beta) * shorten(now - before, clip.change_clip_norm)


def transcript_of(clip, beta, takes_part, sizes, gradients):
    """What the record adds to g_0, g_1, ...: (steps, 2). gradients: (steps, 2, 2)."""
    total, transcript = np.zeros(2), []
    pairs = zip(takes_part, sizes, gradients, strict=True)
    for t, (takes, size, (now, before)) in enumerate(pairs):
        total = (1 - beta) * total if t else total
        if takes and t == 0:
            total = total + shorten(now, clip.clip_norm) / size
        elif takes:
            total = total + fresh(clip, beta, now, before) / size
        transcript.append(total)
    return np.array(transcript)


def flip(steps):
    """The worst record of isolated steps: its gradient turns round in one step."""
    return np.tile(np.array([[100.0, 0.0], [-100.0, 0.0]]), (steps, 1, 1))


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("separation", [1, 2, 3, 5])
def test_separated_gain_is_the_largest_over_all_patterns(beta, separation):
    for steps in (1, 4, 10):
        matrix = workload(steps, beta)
        largest = max(np.linalg.norm(matrix @ s) for s in patterns(steps, separation))
        assert gain(steps, beta, separation) == pytest.approx(largest, 1e-12)


@pytest.mark.parametrize("clip", BOUNDED, ids=repr)
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("first", [None, 2, 9])
def test_changes_of_a_cycle_bound_all_its_patterns(clip, beta, first):
    # 9 records, batches of 3: with a separate first batch anyone may also be in that.
    steps, cycle = 9, Cyclic(9, 3, first)
    assert cycle.separation == 3
    bound = transcript_norm(cycle.changes(clip, beta, steps), 1 - beta)
    matrix = workload(steps, beta)
    weight = np.full(steps, clip.sensitivity(beta, 3))
    weight[0] = clip.sensitivity(1.0, first or 3)
    largest = 0.0
    for offset in range(3):
        taken = np.zeros(steps)
        taken[(first is not None) + offset :: 3] = 1
        taken[0] = 1.0 if first is not None else taken[0]
        largest = max(largest, np.linalg.norm(matrix @ (weight * taken)))
    assert largest <= bound * (1 + 1e-12)
    slack = 1.0 if first or weight[0] >= weight[1] else weight[1] / weight[0]
    assert bound <= slack * largest * (1 + 1e-12)


def test_without_memory_nothing_is_repeated():
    assert gain(50, 1.0, 10) == pytest.approx(math.sqrt(5))
    for clip in (Each(2.0), Difference(2.0), Split(2.0, 9.0)):
        assert clip.sensitivity(1.0, 4) == 0.5


@pytest.mark.parametrize(
    ("steps", "beta", "single", "separated", "sensitivity"),
    [
        (100, 0.1, 2.294157, 2.294157, 0.217945),
        (100, 0.01, 6.596864, 6.596864, 0.656388),
        (1000, 0.1, 2.294157, 4.585358, 0.435609),
        (1000, 0.01, 7.088812, 13.414273, 1.334720),
        (1000, 0.5, 1.154701, 2.309401, 0.173205),
    ],
)
def test_reference_gains(steps, beta, single, separated, sensitivity):
    # made with jax_privacy.matrix_factorization.toeplitz.minsep_sensitivity_squared
    cycle = Cyclic(6512, 20)
    assert cycle.separation == 325
    assert gain(steps, beta, steps) == pytest.approx(single, abs=6e-7)
    assert gain(steps, beta, 325) == pytest.approx(separated, abs=6e-7)
    changes = cycle.changes(Each(1.0), beta, steps)
    assert transcript_norm(changes, 1 - beta) == pytest.approx(sensitivity, abs=6e-7)
    assert np.count_nonzero(changes) == (1 if steps == 100 else 4)


@pytest.mark.parametrize(
    ("clip", "steps", "beta", "bound"),
    [
        (Each(1.0), 100, 0.1, 0.217945),
        (Each(1.0), 100, 0.01, 0.656388),
        (Difference(0.3), 100, 0.1, 0.034412),
        (Split(1.0, 0.3), 100, 0.1, 0.042442),
    ],
    ids=repr,
)
def test_an_adversary_reaches_the_bound_of_one_participation(clip, steps, beta, bound):
    takes = np.zeros(steps)
    takes[1] = 1
    moved = np.linalg.norm(
        transcript_of(clip, beta, takes, np.full(steps, 20), flip(steps))
    )
    exact = clip.sensitivity(beta, 20) * gain(steps - 1, beta, steps)
    assert moved == pytest.approx(exact, 1e-9)
    # the tables count the step after the first as the first
    full = clip.sensitivity(beta, 20) * gain(steps, beta, steps)
    assert full == pytest.approx(bound, abs=6e-7)
    assert moved <= full


@pytest.mark.parametrize("clip", BOUNDED, ids=repr)
@pytest.mark.parametrize("beta", [0.05, 0.5])
def test_an_adversary_never_exceeds_the_bounds(clip, beta):
    random, steps, n, b = np.random.default_rng(3), 12, 12, 3
    scales = 10.0 ** random.uniform(-3, 3, size=(300, steps, 2, 1))
    games = scales * random.normal(size=(300, steps, 2, 2))
    aligned = np.tile(games[:, :1], (1, steps, 1, 1))  # the same pair in every step
    every = np.ones(steps)
    cases = [
        (Cyclic(n, b), lambda: np.arange(steps) % 4 == random.integers(4), b),
        (FullBatch(n), lambda: every, n),
    ]
    for sampling, draw, size in cases:
        bound = transcript_norm(sampling.changes(clip, beta, steps), 1 - beta)
        for game in [flip(steps), *games, *aligned]:
            # in a full batch, x_{t-1} of one step is x_t of the one before
            now, before = game[:, 0], np.roll(game[:, 0], 1, axis=0)
            linked = np.stack([now, before], axis=1)
            free = isinstance(sampling, Cyclic)
            used = game if free else linked
            moved = transcript_of(clip, beta, draw(), np.full(steps, size), used)
            assert np.linalg.norm(moved) <= bound * (1 + 1e-9)


def test_full_batches_telescope():
    changes = FullBatch(50).changes(Each(2.0), 0.1, 30)
    assert transcript_norm(changes, 0.9) == pytest.approx(2 * math.sqrt(30) / 50, 1e-12)
    moved = transcript_of(
        Each(2.0), 0.1, np.ones(30), np.full(30, 50), np.full((30, 2, 2), [9.0, 0.0])
    )
    assert np.linalg.norm(moved) == pytest.approx(2 * math.sqrt(30) / 50, 1e-12)

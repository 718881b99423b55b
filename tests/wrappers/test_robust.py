"""Robust aggregation and attacks against literal loops, and as parts of rounds."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedjax_muon as fm
from fedjax_muon import aggregators, attacks
from fedjax_muon.core import Messages

ROWS = np.arange(1.0, 10).reshape(3, 3)  # of ByzFL's documentation
KEY = jax.random.key(3)


def stacked(values, there=None, ids=None):
    values = jnp.asarray(values)
    weight = jnp.ones(len(values)) if there is None else jnp.asarray(there, float)
    ids = np.arange(len(values)) if ids is None else ids
    values = jnp.where(weight[:, None] > 0, values, 0)
    return Messages(values, weight, jnp.asarray(ids, jnp.int32), KEY)


def mean_of(messages):
    return np.asarray(messages.weight @ messages.values / messages.weight.sum())


def after(aggregator, values, there=None):
    with jax.enable_x64(True):
        return mean_of(jax.jit(aggregator)(stacked(values, there)))


# -------------------------------------------------------------- numbers of ByzFL's docs

PUBLISHED = {
    "median": (aggregators.median(), [4, 5, 6]),
    "trimmed mean": (aggregators.trimmed_mean(1), [4, 5, 6]),
    "geometric median": (
        aggregators.geometric_median(),
        [3.78788764, 4.78788764, 5.78788764],
    ),
    "centered clipping": (aggregators.centered_clipping(100.0), [4, 5, 6]),
    # of f = 1, whose scores have n - f - 1 distances: as many as ours of f = 0
    "krum": (aggregators.krum(0), [1, 2, 3]),
    "multi-krum": (aggregators.krum(0, chosen=2), [2.5, 3.5, 4.5]),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers(name):
    aggregator, expected = PUBLISHED[name]
    np.testing.assert_allclose(after(aggregator, ROWS), expected, rtol=1e-8)


def test_published_numbers_of_mixing_and_shortening():
    with jax.enable_x64(True):
        mixed = aggregators.nearest_neighbor_mixing(1)(stacked(ROWS)).values
        shorter = aggregators.shorten_longest(1)(stacked(ROWS)).values
    np.testing.assert_allclose(
        mixed, [[2.5, 3.5, 4.5], [2.5, 3.5, 4.5], [5.5, 6.5, 7.5]]
    )
    np.testing.assert_allclose(shorter[:2], ROWS[:2])
    np.testing.assert_allclose(
        shorter[2], [4.41004009, 5.04004582, 5.67005155], rtol=1e-8
    )


# --------------------------------------------------------------- literal transcriptions


def norm(x):
    return math.sqrt(sum(float(v) ** 2 for v in x))


def nearest(z, i, count):
    """Others by distance, then by number; and i itself first."""
    others = sorted((norm(z[i] - z[j]), j) for j in range(len(z)) if j != i)
    return [i, *(j for _, j in others)][:count]


def literal_median(z):
    return [float(np.median(column)) for column in z.T]


def literal_trimmed(f):
    return lambda z: [np.mean(sorted(column)[f : len(z) - f]) for column in z.T]


def literal_geometric(z, nu=0.5, rounds=6):
    point = np.zeros(z.shape[1])
    for _ in range(rounds):
        weights = [1 / max(norm(row - point), nu) for row in z]
        point = sum(w * row for w, row in zip(weights, z, strict=True)) / sum(weights)
    return point


def literal_krum(f, chosen):
    def krum(z):
        n = len(z)
        scores = []
        for i in range(n):
            distances = sorted(norm(z[i] - z[j]) ** 2 for j in range(n) if j != i)
            scores.append((sum(distances[: max(n - f - 2, 1)]), i))
        best = [i for _, i in sorted(scores)][: n - f if chosen is None else chosen]
        return np.mean(z[best], 0)

    return krum


def literal_clipping(tau, rounds):
    def clipping(z):
        center = np.zeros(z.shape[1])
        for _ in range(rounds):
            moves = [(row - center) * min(1, tau / norm(row - center)) for row in z]
            center = center + np.mean(moves, 0)
        return center

    return clipping


def literal_mixing(f, then):
    return lambda z: then(
        np.stack([z[nearest(z, i, len(z) - f)].mean(0) for i in range(len(z))])
    )


def literal_shortening(f, then):
    def shortening(z):
        n = len(z)
        longest = math.floor(2 * f / n * (n - f) + 1e-9)
        order = sorted(range(n), key=lambda i: norm(z[i]))
        largest = norm(z[order[n - longest - 1]])
        return then(np.stack([row * min(1, largest / norm(row)) for row in z]))

    return shortening


CASES = {
    "median": (aggregators.median(), literal_median),
    "trimmed mean": (aggregators.trimmed_mean(2), literal_trimmed(2)),
    "geometric median": (aggregators.geometric_median(0.5, 6), literal_geometric),
    "krum": (aggregators.krum(2), literal_krum(2, 1)),
    "krum of three": (aggregators.krum(1, chosen=3), literal_krum(1, 3)),
    "multi-krum": (aggregators.krum(2, chosen=None), literal_krum(2, None)),
    "clipping": (aggregators.centered_clipping(1.5, 3), literal_clipping(1.5, 3)),
    "mixing": (
        aggregators.chain(
            aggregators.nearest_neighbor_mixing(2), aggregators.trimmed_mean(1)
        ),
        literal_mixing(2, literal_trimmed(1)),
    ),
    "shortening": (
        aggregators.chain(aggregators.shorten_longest(2), aggregators.median()),
        literal_shortening(2, literal_median),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rules_are_those_of_loops(name):
    aggregator, literal = CASES[name]
    rng = np.random.default_rng(0)
    for there in ((1,) * 9, (1, 0, 1, 1, 1, 1, 0, 1, 1, 1), (0,) * 2 + (1,) * 8):
        z = rng.normal(size=(len(there), 5)) * rng.lognormal(size=(len(there), 1))
        kept = z[np.array(there, bool)]
        found = after(aggregator, z, there)
        np.testing.assert_allclose(found, literal(kept), rtol=1e-9, atol=1e-12)


def test_a_share_is_of_the_messages_that_arrived():
    z = np.random.default_rng(1).normal(size=(10, 4))
    there = np.array([1, 1, 0, 1, 1, 1, 0, 0, 1, 1])  # seven: 0.3 of them are two
    found = after(aggregators.trimmed_mean(0.3), z, there)
    np.testing.assert_allclose(found, literal_trimmed(2)(z[there > 0]), rtol=1e-9)
    messages, arrived = stacked(np.zeros((40, 1))), np.tri(40)  # 1, 2, ...
    for share in (0.1, 0.2, 0.25, 0.3, 0.4):
        few, _ = jax.vmap(
            lambda weight, share=share: aggregators._number(
                "", share, messages._replace(weight=weight), 1
            )
        )(arrived)
        expected = [math.floor(round(share * 100) * n / 100) for n in range(1, 41)]
        np.testing.assert_array_equal(few, expected)


BUCKETS = aggregators.bucketing(3)


def test_buckets_are_means_of_distinct_messages():
    z = np.eye(8)
    there = [1, 1, 1, 0, 1, 1, 1, 1]
    with jax.enable_x64(True):
        found = BUCKETS(stacked(z, there))
        again = BUCKETS(stacked(z, there)._replace(key=jax.random.key(4)))
    assert found.values.shape == (3, 8)
    np.testing.assert_array_equal(found.weight, [1, 1, 1])
    counts = np.count_nonzero(np.asarray(found.values), 1)
    np.testing.assert_array_equal(np.sort(counts), [1, 3, 3])
    np.testing.assert_allclose(np.asarray(found.values).sum(1), 1)
    np.testing.assert_array_equal(np.sum(np.asarray(found.values) > 0, 0), there)
    assert not np.array_equal(found.values, again.values)
    one_by_one = aggregators.chain(aggregators.bucketing(1), aggregators.median())
    rows = np.random.default_rng(0).normal(size=(7, 3))
    np.testing.assert_allclose(after(one_by_one, rows), literal_median(rows))


def test_without_bad_messages_rules_are_the_mean():
    z = np.random.default_rng(2).normal(size=(7, 4))
    for aggregator in (
        aggregators.trimmed_mean(0),
        aggregators.nearest_neighbor_mixing(0),
        aggregators.centered_clipping(1e9),
        aggregators.shorten_longest(0),
        aggregators.krum(0, chosen=6),
        BUCKETS,
    ):
        found = after(aggregator, z[:6])
        np.testing.assert_allclose(found, z[:6].mean(0), rtol=1e-9)


EVERY = {name: case[0] for name, case in CASES.items()}


@pytest.mark.parametrize("name", EVERY)
def test_order_does_not_matter_and_no_message_goes_far(name):
    z = np.random.default_rng(3).normal(size=(9, 4))
    found = after(EVERY[name], z)
    np.testing.assert_allclose(after(EVERY[name], z[::-1]), found, rtol=1e-8)
    same = np.tile([1.0, -0.5, 0.25, 0.0], (9, 1))
    if name != "clipping":  # whose center needs several rounds
        np.testing.assert_allclose(after(EVERY[name], same), same[0], atol=1e-9)
    z[4] = 1e9
    assert np.all(np.abs(after(EVERY[name], z)) < 30)
    nothing = jax.jit(EVERY[name])(stacked(z, np.zeros(9)))
    assert nothing.weight.sum() == 0
    assert np.isfinite(nothing.values).all()


LARGEST = float(np.finfo(np.float32).max)
MIXED = aggregators.nearest_neighbor_mixing(2)
# attacked, without a literal transcription
CHAINS = {
    "mixing, krum": (MIXED, aggregators.krum(2)),
    "shortening": (aggregators.shorten_longest(2),),
    "shortening, mixing, median": (
        aggregators.shorten_longest(2),
        MIXED,
        aggregators.median(),
    ),
    "buckets, median": (aggregators.bucketing(2), aggregators.median()),
    "buckets, krum": (aggregators.bucketing(2), aggregators.krum(1)),
}


@pytest.mark.parametrize("name", [*CASES, *CHAINS])
def test_messages_of_any_size_by_a_fifth_of_the_clients(name):
    """In float32: results are near honest messages, and those of loops in float64."""
    rng = np.random.default_rng(9)
    honest = rng.normal(size=(10, 6)).astype(np.float32)
    directions = np.stack([np.ones((2, 6)), -np.ones((2, 6)), rng.normal(size=(2, 6))])
    signs = np.stack([*directions, directions[0] * [[1], [-1]]])
    signs = np.clip(signs, -1, 1)
    cases = []
    for size, sign in itertools.product((1e6, 1e18, 1e30, 3e38, LARGEST), signs):
        z = honest.copy()
        z[[0, 6]] = size * sign
        cases.append(z)
    if name in CHAINS:
        aggregator, literal = aggregators.chain(*CHAINS[name]), None
    elif name == "mixing":
        aggregator = aggregators.chain(MIXED, aggregators.median())
        literal = literal_mixing(2, literal_median)
    else:
        aggregator, literal = CASES[name]
    one = lambda z: (lambda m: m.weight @ m.values / m.weight.sum())(
        aggregator(stacked(z))
    )
    found = np.asarray(jax.jit(jax.vmap(one))(np.stack(cases)))
    good = np.delete(honest, [0, 6], 0)
    assert np.abs(found).max() <= np.abs(good).max()
    if literal is not None:
        expected = [literal(z.astype(float)) for z in cases]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1e-15, 1e19, 1e30, 1e37])
def test_honest_messages_of_any_size(size):
    """Rules of scaled messages are scaled, beside an attacker of almost the largest."""
    z = np.random.default_rng(10).normal(size=(9, 4)).astype(np.float32)
    for name, (aggregator, literal) in CASES.items():
        if name == "clipping":  # whose largest norm is not scaled
            aggregator = aggregators.centered_clipping(1.5 * size, 3)
        if name == "geometric median":  # as the smallest distance
            aggregator = aggregators.geometric_median(0.5 * size, 6)
        rows = np.float32(size) * z
        rows[0] = 3e38
        found = mean_of(jax.jit(aggregator)(stacked(rows))) / size
        expected = literal(rows.astype(float) / size)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=name)


THREE = aggregators.nearest_neighbor_mixing(3)
# three may be wrong, and how many messages that needs
COUNTS = {
    "trimmed mean": (7, aggregators.trimmed_mean(3)),
    "krum": (8, aggregators.krum(3)),
    "multi-krum": (8, aggregators.krum(3, chosen=None)),
    "mixing, median": (7, THREE, aggregators.median()),
    "mixing, krum": (8, THREE, aggregators.krum(3)),
    "shortening": (7, aggregators.shorten_longest(3)),
    "shortening, median": (7, aggregators.shorten_longest(3), aggregators.median()),
}


@pytest.mark.parametrize("name", COUNTS)
def test_attackers_do_not_win_however_few_messages_arrive(name):
    """Three of ten clients send the same, and from 0 to 10 messages arrive."""
    needed, *rules = COUNTS[name]
    honest = np.random.default_rng(11).normal(size=(10, 6))
    cases = itertools.product(
        np.tri(11)[:, 1:], (8.0, 1e6, 3e38)
    )  # none, one, two, ...
    there, sizes = map(np.array, zip(*cases, strict=True))
    z = np.repeat(honest[None], len(sizes), 0)
    z[:, :3] = sizes[:, None, None]
    rule = aggregators.chain(*rules)
    after = jax.jit(jax.vmap(lambda *given: rule(stacked(*given))))(
        np.float32(z), there
    )
    weight = np.asarray(after.weight).sum(1)
    np.testing.assert_array_equal(weight > 0, there.sum(1) >= needed)
    total = np.einsum("ci,cij->cj", after.weight, after.values)
    found = total / np.maximum(weight, 1)[:, None]
    assert np.abs(found).max() <= np.abs(honest).max()


@pytest.mark.parametrize("rule", [aggregators.krum, aggregators.trimmed_mean])
def test_a_share_needs_as_many_messages_as_its_count(rule):
    """Of 3 and 5 messages 1 and 2 may be wrong, which Krum takes one more for."""
    if rule is aggregators.krum:
        with pytest.raises(ValueError, match="krum with 2 bad messages needs at least"):
            rule(0.4)(stacked(np.zeros((5, 1))))
    run = jax.jit(rule(0.4))
    arrived = [float(run(stacked(np.zeros((6, 1)), w)).weight.sum()) for w in np.tri(6)]
    enough = [1, 1, 0, 1, 0, 1] if rule is aggregators.krum else [1] * 6
    np.testing.assert_array_equal(arrived, enough)


# ---------------------------------------------------------------------- what is refused


def federated(algorithm, **changes):
    digits = fm.data.load("digits")
    parts = fm.partition.iid(digits.y_train, 6, key=jax.random.key(0))
    task = fm.tasks.classification(fm.models.MLP(10, (4,)), digits)
    sizes = {"cohort": 4, "local_steps": 2, "batch_size": 8} | changes
    return fm.federate(algorithm, task, digits, parts, **sizes)


@pytest.mark.parametrize(
    "rule",
    [
        aggregators.trimmed_mean,
        aggregators.krum,
        aggregators.nearest_neighbor_mixing,
        aggregators.shorten_longest,
    ],
)
def test_a_share_that_rounds_to_nobody_warns_before_the_first_round(rule):
    with pytest.warns(UserWarning, match=r"\(0.2\) of 4 messages .* rounds down to no"):
        federated(fm.robust(fm.fedavg(lr=0.1), rule(0.2)))
    federated(fm.robust(fm.fedavg(lr=0.1), rule(0.25)))


# ------------------------------------------------------------------- attacks, literally

BAD = (1, 4, 5)


def literal_attacks(z, bad):
    """What every attack makes of messages by id."""
    honest = np.delete(z, bad, 0)
    mean, f, n = honest.mean(0), len(bad), len(z)
    s = n // 2 + 1 - f
    ppf = stats.norm.ppf((n - f - s) / (n - f))
    deviation = honest.std(0, ddof=1)
    return {
        "sign": (attacks.sign_flip(), -z[list(bad)]),
        "inner": (attacks.inner_product(1.5), -1.5 * mean),
        "alie": (attacks.alie(), mean - ppf * deviation),
        "alie, 2": (attacks.alie(2.0), mean - 2 * deviation),
        "mimic": (attacks.mimic(), z[0]),
    }


def test_attackers_send_what_loops_say():
    z = np.random.default_rng(4).normal(size=(11, 5))
    for name, (attack, expected) in literal_attacks(z, BAD).items():
        algorithm = fm.attack(fm.fedavg(lr=0.1), attack, BAD)
        (change,) = algorithm.exchanges[0].attacks
        order = np.random.default_rng(5).permutation(11)
        with jax.enable_x64(True):
            sent = np.asarray(jax.jit(change)(stacked(z[order], ids=order)).values)
        found = np.empty_like(z)
        found[order] = sent
        rest = [i for i in range(11) if i not in BAD]
        np.testing.assert_array_equal(found[rest], z[rest])
        whole = np.broadcast_to(expected, (3, 5))
        np.testing.assert_allclose(found[list(BAD)], whole, rtol=1e-9, err_msg=name)


def test_the_published_number_of_deviations():
    """n = 25, f = 5: (25 - 5 - 8) / 20 = 0.6."""
    z = np.random.default_rng(0).normal(size=(25, 3))
    _, expected = literal_attacks(z, range(20, 25))["alie"]
    honest = z[:20]
    np.testing.assert_allclose(
        expected, honest.mean(0) - 0.2533 * honest.std(0, ddof=1), atol=1e-4
    )


def test_noise_differs_by_attacker_and_round():
    algorithm = fm.attack(fm.fedavg(lr=0.1), attacks.gaussian(2.0), BAD)
    (change,) = algorithm.exchanges[0].attacks
    messages = stacked(np.zeros((6, 2000)))
    one, two = (
        np.asarray(change(messages._replace(key=jax.random.key(k))).values)[[1, 4]]
        for k in (0, 1)
    )
    assert one.std() == pytest.approx(2.0, rel=0.05)
    assert (
        abs(np.corrcoef(np.concatenate([one, two]))[np.triu_indices(4, 1)]).max() < 0.1
    )


def test_attackers_alone_train():
    algorithm = fm.attack(fm.fedavg(lr=0.1), attacks.inner_product(), range(4))
    (change,) = algorithm.exchanges[0].attacks
    z = np.ones((4, 2), np.float32)
    np.testing.assert_array_equal(change(stacked(z)).values, z)


def test_labels_are_flipped_for_these_clients_alone():
    digits = fm.data.load("digits")
    parts = fm.partition.iid(digits.y_train, 6, key=jax.random.key(0))
    flipped = attacks.flip_labels(digits, parts, [1, 5])
    before, now = np.asarray(digits.y_train), np.asarray(flipped.y_train)
    for client, own in enumerate(parts):
        expected = 9 - before[own] if client in (1, 5) else before[own]
        np.testing.assert_array_equal(now[own], expected)
    assert now.dtype == before.dtype

"""Splits of examples over clients, and their shares of positives."""

import io

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split

from fedjax_muon.data import imbalance, partition

KEY = jax.random.key(0)
LABELS = np.random.default_rng(7).integers(0, 10, 4000)
NUM_CLIENTS = 8
SPLITS = {
    "iid": (),
    "dirichlet": (0.5,),
    "dirichlet_per_client": (0.5,),
    "labels_per_client": (10,),
    "quantity": (2.0,),
    "shards": (10,),
}


def parted(name, labels, num_clients, key):
    split = getattr(partition, name)
    return split(labels, num_clients, *SPLITS[name], key=key)


def keys(number):
    return [jax.random.key(seed) for seed in range(number)]


def counts_by_key(labels, split, number):
    """Examples by key, client and class."""
    counts = lambda key: partition.label_counts(labels, split(key), labels.max() + 1)
    return np.stack([counts(key) for key in keys(number)])


ONE_OWNER = ["iid", "dirichlet", "labels_per_client", "quantity", "shards"]


@pytest.mark.parametrize("name", ONE_OWNER)
@pytest.mark.parametrize("num_clients", [1, 7, 40])
def test_every_example_has_one_owner(name, num_clients):
    parts = parted(name, LABELS, num_clients, jax.random.key(3))
    assert len(parts) == num_clients
    assert min(len(part) for part in parts) >= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(4000))


@pytest.mark.parametrize("name", SPLITS)
def test_a_key_determines_the_partition(name):
    split = lambda key: parted(name, LABELS, NUM_CLIENTS, key)
    first, again, other = map(split, (*[jax.random.key(5)] * 2, jax.random.key(6)))
    assert all(part.dtype == np.int32 for part in first)
    np.testing.assert_equal(first, again)
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    # the numbers that stand for classes do not matter
    numbers = (13 * LABELS - 40).astype(np.int8)
    renamed = parted(name, numbers, NUM_CLIENTS, jax.random.key(5))
    np.testing.assert_equal(first, renamed)


@pytest.mark.parametrize("name", SPLITS)
def test_both_words_of_a_key_count(name):
    # Folded keys differ from their parent in both words, hand-made ones in one.
    made = [
        jax.random.wrap_key_data(jnp.array(words, jnp.uint32))
        for words in ((0, 1), (1, 0), (1, 1))
    ]
    first = [parted(name, LABELS, NUM_CLIENTS, key)[0] for key in made]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert not np.array_equal(first[i], first[j])


@pytest.mark.parametrize("name", SPLITS)
def test_a_client_holds_its_examples_in_random_order(name):
    # With sorted labels, an order by class would also be an order by index. A random
    # permutation of m numbers has (m - 1) / 2 ascents with variance (m + 1) / 12
    # (Eulerian numbers).
    (part,) = parted(name, np.sort(LABELS), 1, KEY)
    ascents = np.count_nonzero(np.diff(part) > 0)
    assert abs(ascents - (len(part) - 1) / 2) < 5 * np.sqrt((len(part) + 1) / 12)
    assert not np.array_equal(part, np.roll(part, 1))


def test_sizes_differ_by_at_most_one():
    sizes = lambda parts: {len(part) for part in parts}
    assert sizes(partition.iid(LABELS, 7, key=KEY)) == {571, 572}  # 4000 = 7 * 571 + 3
    assert sizes(partition.shards(np.zeros(103, int), 10, 1, key=KEY)) == {10, 11}
    parts = partition.dirichlet_per_client(LABELS, 7, 0.1, key=KEY)
    assert [len(part) for part in parts] == [571] * 7  # 4000 // 7
    parts = partition.dirichlet_per_client(LABELS, 7, 0.1, key=KEY, size=33)
    assert [len(part) for part in parts] == [33] * 7


def test_iid_counts_are_hypergeometric():
    size = len(LABELS) // NUM_CLIENTS
    law = stats.hypergeom(len(LABELS), np.count_nonzero(LABELS == 4), size)
    draws = [
        np.count_nonzero(LABELS[partition.iid(LABELS, NUM_CLIENTS, key=key)[2]] == 4)
        for key in keys(300)
    ]
    assert abs(np.mean(draws) - law.mean()) < 5 * law.std() / np.sqrt(300)
    # The variance of a sample variance is about 2 var^2 / n (nearly normal draws).
    assert abs(np.var(draws) / law.var() - 1) < 5 * np.sqrt(2 / 300)


@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_dirichlet_shares_have_the_moments_of_the_law(alpha):
    clients, per_class, num_keys = 4, 1000, 300
    labels = np.repeat(np.arange(10), per_class)
    # With ten classes of 1000, no client is ever empty, so min_size=1 rejects nothing.
    split = lambda key: partition.dirichlet(labels, clients, alpha, key=key, min_size=1)
    shares = np.swapaxes(counts_by_key(labels, split, num_keys), 1, 2)
    shares = shares.reshape(-1, clients)  # of classes of all keys, independent rows
    shares = shares / per_class
    law = stats.dirichlet(np.full(clients, alpha))
    samples = len(shares)
    cut = 1 / per_class  # the cuts move a share by less than one example
    spread = 5 * np.sqrt(law.var() / samples)
    assert np.all(abs(shares.mean(axis=0) - law.mean()) < spread + cut)
    # sum_j p_j^2 tells alpha; with sum_j p_j = 1 the cuts move it by at most
    # sum_j (2 p_j cut + cut^2).
    squares = (shares**2).sum(axis=1)
    expected = (law.var() + law.mean() ** 2).sum()
    spread = 5 * squares.std() / np.sqrt(samples)
    assert abs(squares.mean() - expected) < spread + 2 * cut + clients * cut**2
    # Shares of two clients are products in [0, 1/4]; their mean is known exactly.
    product = shares[:, 0] * shares[:, 3]
    expected = law.cov()[0, 3] + law.mean()[0] * law.mean()[3]
    spread = 5 * product.std() / np.sqrt(samples)
    assert abs(product.mean() - expected) < spread + 2 * cut


def test_dirichlet_classes_are_split_independently():
    labels = np.repeat(np.arange(2), 1000)
    split = lambda key: partition.dirichlet(labels, 3, 1.0, key=key, min_size=1)
    pairs = counts_by_key(labels, split, 400)[:, 0]
    # Correlation of n independent pairs has standard deviation 1 / sqrt(n). A split
    # that drew one p for all classes would give 1.
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 5 / np.sqrt(400)


def test_dirichlet_limits():
    labels = np.repeat(np.arange(5), 60)
    even = partition.dirichlet(labels, 3, 1e12, key=KEY)
    # Equal shares of 20, moved by at most one example at either cut.
    assert np.all(abs(partition.label_counts(labels, even, 5) - 20) <= 1)
    alone = partition.dirichlet(labels, 3, 1e-9, key=KEY)
    assert set(partition.label_counts(labels, alone, 5).ravel()) == {0, 60}


def test_dirichlet_repeats_until_the_default_minimum_is_met():
    labels = load_digits().target
    labels = train_test_split(labels, test_size=0.2, stratify=labels, random_state=0)[0]
    assert len(labels) == 1437
    # 32 clients: one draw in several hundred fits, so the first rarely does.
    parts = partition.dirichlet(labels, 32, 0.1, key=KEY)
    assert min(len(part) for part in parts) >= 10
    longer = partition.dirichlet(labels, 32, 0.1, key=KEY, max_tries=1_000_000)
    np.testing.assert_equal(parts, longer)
    with pytest.raises(ValueError, match=r"none of 1 Dirichlet.* raise alpha"):
        partition.dirichlet(labels, 32, 0.1, key=KEY, max_tries=1)


@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_dirichlet_per_client_has_the_moments_of_the_law(alpha):
    size, num_keys = 250, 300
    labels = np.repeat(np.arange(5), [100, 200, 300, 400, 1000])
    split = lambda key: partition.dirichlet_per_client(
        labels, 8, alpha, key=key, size=size
    )
    shares = counts_by_key(labels, split, num_keys)
    shares = shares.reshape(-1, 5)  # of clients of all keys, independent rows
    shares = shares / size
    law = stats.dirichlet(np.full(5, alpha))
    # Every class has the same law, however large it is; the multinomial draw of the
    # counts adds E[p (1 - p)] / size to the variance of p.
    mean, var = law.mean()[0], law.var()[0]
    total = var + (mean - var - mean**2) / size
    assert np.all(abs(shares.mean(axis=0) - mean) < 5 * np.sqrt(total / len(shares)))
    squares = (shares**2).sum(axis=1)
    spread = 5 * squares.std() / np.sqrt(len(shares))
    assert abs(squares.mean() - 5 * (total + mean**2)) < spread


def test_dirichlet_per_client_uses_a_class_up_before_it_repeats():
    labels = np.repeat(np.arange(4), [5, 50, 500, 5000])
    parts = partition.dirichlet_per_client(
        labels, 6, 0.5, key=jax.random.key(2), size=700
    )
    times = np.bincount(np.concatenate(parts), minlength=len(labels))
    for k in range(4):
        assert np.ptp(times[labels == k]) <= 1
    assert times[labels == 0].min() > 1  # so the pool did start anew


def test_shards_are_runs_of_the_sorted_labels():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    parts = partition.shards(labels, 10, 2, key=jax.random.key(4))
    counts = partition.label_counts(labels, parts, 10)
    # 20 shards of 50 divide classes of 100 exactly: two runs each, of one class each.
    assert set(counts.ravel()) <= {0, 50, 100}
    np.testing.assert_array_equal(counts.sum(axis=1), 100)
    assert set((counts > 0).sum(axis=1)) <= {1, 2}
    # And shards are dealt evenly: 20 shards, any of them equally likely to be with
    # client 0, so its examples' mean label is that of two draws without replacement.
    means = [
        labels[partition.shards(labels, 10, 2, key=key)[0]].mean() for key in keys(300)
    ]
    shard_labels = np.repeat(np.arange(10), 2)
    deviation = np.sqrt(shard_labels.var() / 2 * (20 - 2) / (20 - 1))
    assert abs(np.mean(means) - 4.5) < 5 * deviation / np.sqrt(300)


@pytest.mark.parametrize(("clients", "count"), [(10, 2), (23, 3), (7, 10)])
def test_clients_have_their_number_of_labels(clients, count):
    parts = partition.labels_per_client(LABELS, clients, count, key=KEY)
    found = partition.label_counts(LABELS, parts, 10)
    np.testing.assert_array_equal((found > 0).sum(1), count)
    np.testing.assert_array_equal(found.sum(0), np.bincount(LABELS))
    for client, row in enumerate(found):
        assert row[client % 10] > 0
    for column in found.T:  # a class is divided evenly among those that have it
        assert np.ptp(column[column > 0]) <= 1


def test_further_labels_are_drawn_at_random():
    split = lambda key: partition.labels_per_client(LABELS, 10, 2, key=key)
    has = (counts_by_key(LABELS, split, 200) > 0).mean(0)
    np.testing.assert_array_equal(np.diag(has), 1)
    rest = has[~np.eye(10, dtype=bool)]
    assert np.abs(rest - 1 / 9).max() < 5 * np.sqrt(8 / 81 / 200)


def test_quantities_follow_the_law():
    """Of p ~ Dir(a) over N, the variance of a share is (N - 1) / N^2 / (N a + 1)."""
    sizes = lambda key: [len(p) for p in partition.quantity(LABELS, 4, 2.0, key=key)]
    shares = np.array([sizes(key) for key in keys(400)]) / 4000
    variance = 3 / 16 / 9
    assert np.abs(shares.mean(0) - 1 / 4).max() < 5 * np.sqrt(variance / 400)
    assert np.abs(shares.var(0) / variance - 1).max() < 0.5
    parts = partition.quantity(LABELS, 4, 0.1, key=KEY, min_size=200)
    assert min(map(len, parts)) >= 200


def test_noise_grows_from_client_to_client():
    x = np.ones((4000, 6), np.float32)
    parts = partition.iid(LABELS, 5, key=KEY)[:4]
    noisy = partition.add_noise(x, parts, 0.3, key=KEY)
    stds = [noisy[part].std() for part in parts]
    np.testing.assert_allclose(stds, [0, 0.1, 0.2, 0.3], atol=0.01)
    assert abs(noisy.mean() - 1) < 0.01
    assert noisy.dtype == np.float32
    assert (x == 1).all()
    left = np.setdiff1d(np.arange(4000), np.concatenate(parts))
    assert (noisy[left] == 1).all()
    np.testing.assert_array_equal(noisy, partition.add_noise(x, parts, 0.3, key=KEY))
    (alone,) = {*partition.add_noise(x, parts[:1], 0.3, key=KEY).ravel()}
    assert alone == 1


def test_balanced_clients_stop_at_their_average_size():
    """By NIID-Bench's loop over classes, on the same draws."""
    p = np.random.default_rng(0).dirichlet(np.full(5, 0.3), (3, 4))
    counts = np.array([40, 7, 25, 28])
    found = partition._balanced_sizes(p, counts)
    for try_, sizes in zip(p, found, strict=True):
        held = np.zeros(5)
        for k, count in enumerate(counts):
            share = np.array([q * (h < 20) for q, h in zip(try_[k], held, strict=True)])
            ends = (np.cumsum(share / share.sum()) * count).astype(int)[:-1]
            pieces = np.split(np.arange(count), ends)
            assert [len(piece) for piece in pieces] == sizes[k].tolist()
            held += [len(piece) for piece in pieces]
    split = partition.dirichlet
    sizes = lambda key, **how: list(map(len, split(LABELS, 8, 0.5, key=key, **how)))
    spread = lambda **how: np.mean([np.std(sizes(key, **how)) for key in keys(30)])
    assert spread(balanced=True) < 0.8 * spread()


def test_label_counts_equal_a_confusion_matrix():
    parts = partition.dirichlet(LABELS, NUM_CLIENTS, 0.3, key=jax.random.key(9))
    owner = np.empty(len(LABELS), int)
    for client, part in enumerate(parts):
        owner[part] = client
    everyone = confusion_matrix(owner, LABELS, labels=range(10))[:NUM_CLIENTS]
    np.testing.assert_array_equal(partition.label_counts(LABELS, parts, 10), everyone)
    parts = np.array([], int), np.array([1, 2, 2])  # a client of none, absent classes
    counts = partition.label_counts([0, 2, 2], parts, 4)
    np.testing.assert_array_equal(counts, [[0, 0, 0, 0], [0, 0, 3, 0]])


def test_the_areas_of_discs_are_the_numbers_of_examples():
    parts, labels = [np.array([0, 1, 2, 3]), np.array([4, 5])], [0, 0, 0, 2, 2, 2]
    figure = Figure()
    given = figure.subplots()
    axis = partition.plot(parts, labels, ["a", "b", "c"], axis=given)
    assert axis is given
    (discs,) = axis.collections
    assert discs.get_offsets().tolist() == [[0, 0], [0, 2], [1, 2]]
    np.testing.assert_allclose(
        discs.get_sizes() / discs.get_sizes()[0], [1, 1 / 3, 2 / 3]
    )
    assert [text.get_text() for text in axis.get_yticklabels()] == ["a", "b", "c"]
    odd = partition.plot(
        parts, labels, ["$5_$10", "$1-$2", "c"], axis=Figure().subplots()
    )
    odd.figure.savefig(io.BytesIO())  # no dollar begins a formula
    axis = partition.plot(parts, labels)
    assert plt.gcf() is axis.figure
    assert [text.get_text() for text in axis.get_yticklabels()] == ["0", "1", "2"]
    plt.close(axis.figure)


NO_KEYS = (0, jax.random.key_data(KEY), np.zeros(2, np.uint32), jax.random.split(KEY))


@pytest.mark.parametrize("name", SPLITS)
def test_labels_numbers_of_clients_and_keys_are_checked(name):
    with pytest.raises(ValueError, match="dtype bool"):
        parted(name, [True, False], 1, KEY)
    with pytest.raises(ValueError, match="num_clients must be at least 1, got 0"):
        parted(name, LABELS, 0, KEY)
    for key in NO_KEYS:
        with pytest.raises(TypeError, match=r"one typed key such as jax\.random\.key"):
            parted(name, LABELS, NUM_CLIENTS, key)


# ------------------------------------------------------- shares of positives

PAPER = [0.05, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25]


def labels_of(negatives, positives, seed=0):
    labels = np.repeat([0, 1], [negatives, positives])
    return np.random.default_rng(seed).permutation(labels)


def test_all_negatives_and_some_positives_stay():
    for negatives, positives, ratio, kept in (
        (900, 900, 0.1, 100),  # 100 of 1000
        (428, 444, 0.1, 48),  # 428 / 9 = 47.6
        (70, 30, 0.3, 30),  # all
        (5, 9, 0.0, 0),
        (7, 9, 0.5, 7),
        (0, 9, 1.0, 9),
    ):
        labels = labels_of(negatives, positives)
        ids = imbalance.drop_positives(labels, ratio, key=KEY)
        assert ids.dtype == np.int32
        assert len(set(ids.tolist())) == len(ids)
        assert set(np.flatnonzero(labels == 0)) <= set(ids.tolist())
        assert np.sum(labels[ids]) == kept


def test_positives_are_drawn_at_random_and_shuffled():
    labels = labels_of(90, 40)
    share = np.zeros(len(labels))
    place = []
    for seed in range(400):
        ids = imbalance.drop_positives(labels, 0.1, key=jax.random.key(seed))
        share[ids] += 1 / 400
        place.extend(np.flatnonzero(labels[ids]))
    # 10 of 40; five standard deviations of a share of 400 draws, and of a mean place
    assert np.all(abs(share[labels == 1] - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 400))
    assert abs(np.mean(place) - 49.5) < 5 * np.sqrt(100**2 / 12 / len(place))


def test_the_key_decides():
    labels = labels_of(90, 90)
    for draw in (
        lambda key: imbalance.drop_positives(labels, 0.1, key=key),
        lambda key: np.concatenate(imbalance.with_ratios(labels, [0.1, 0.3], key=key)),
    ):
        np.testing.assert_array_equal(draw(KEY), draw(KEY))
        assert not np.array_equal(draw(KEY), draw(jax.random.key(1)))
        with pytest.raises(TypeError, match="typed key"):
            draw(0)


def needed(size, ratios):
    """Positives and negatives that the clients need, in plain Python."""
    positives = [int(ratio * size + 0.5) for ratio in ratios]
    return sum(positives), sum(size - p for p in positives)


@pytest.mark.parametrize("ratios", [PAPER, [0.5], [0.0, 1.0, 0.3], np.array([0.9] * 3)])
@pytest.mark.parametrize(("negatives", "positives"), [(4000, 5000), (900, 170)])
def test_clients_have_their_ratios_and_no_more_would_do(ratios, negatives, positives):
    labels = labels_of(negatives, positives)
    parts = imbalance.with_ratios(labels, ratios, key=KEY)
    (size,) = {len(part) for part in parts}
    everything = np.concatenate(parts)
    assert everything.dtype == np.int32
    assert len(set(everything.tolist())) == len(everything)
    assert len(parts) == len(ratios)
    for part, ratio in zip(parts, ratios, strict=True):
        assert abs(np.sum(labels[part]) - ratio * size) <= 0.5
    larger = needed(size + 1, ratios)
    assert larger[0] > positives or larger[1] > negatives


def test_clients_are_drawn_at_random_and_shuffled():
    labels = labels_of(300, 100)
    owned = np.zeros(len(labels))
    place = []
    for seed in range(300):
        part = imbalance.with_ratios(labels, [0.1, 0.2], key=jax.random.key(seed))[0]
        owned[part] += 1 / 300
        place.extend(np.flatnonzero(labels[part]) / (len(part) - 1))
    for k in (0, 1):
        share = owned[labels == k]
        deviation = np.sqrt(share.mean() * (1 - share.mean()) / 300)
        assert np.all(abs(share - share.mean()) < 5 * deviation)
    assert abs(np.mean(place) - 0.5) < 5 * np.sqrt(1 / 12 / len(place))

"""Kept positives and the clients' ratios: counted, maximal, refused."""

import jax
import numpy as np
import pytest

from fedjax_muon.data import imbalance

KEY = jax.random.key(0)
PAPER = [0.05, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25]


def labels_of(negatives, positives, seed=0):
    labels = np.repeat([0, 1], [negatives, positives])
    return np.random.default_rng(seed).permutation(labels)


@pytest.mark.parametrize(
    ("negatives", "positives", "ratio", "kept"),
    [
        (900, 900, 0.1, 100),  # 100 of 1000
        (428, 444, 0.1, 48),  # 428 / 9 = 47.6
        (70, 30, 0.3, 30),  # all
        (5, 9, 0.0, 0),
        (7, 9, 0.5, 7),
        (0, 9, 1.0, 9),
    ],
)
def test_all_negatives_and_some_positives_stay(negatives, positives, ratio, kept):
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


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_ratios_outside_of_0_to_1(ratio):
    labels = labels_of(9, 9)
    with pytest.raises(ValueError, match=r"ratio must be in \[0, 1\], got"):
        imbalance.drop_positives(labels, ratio, key=KEY)
    with pytest.raises(ValueError, match=r"ratios\[1\] must be in \[0, 1\], got"):
        imbalance.with_ratios(labels, [0.5, ratio], key=KEY)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 2], r"labels must be 0 \(negative\) or 1 \(positive\), got 2 too"),
        ([0, 1, -1], "got -1 too"),
        ([0.0, 1.0], "one non-empty axis of integers"),
        ([], "one non-empty axis of integers"),
    ],
)
def test_labels_of_other_kinds(labels, message):
    with pytest.raises(ValueError, match=message):
        imbalance.drop_positives(labels, 0.5, key=KEY)
    with pytest.raises(ValueError, match=message):
        imbalance.with_ratios(labels, [0.5], key=KEY)


@pytest.mark.parametrize(
    ("negatives", "positives", "ratio", "message"),
    [
        (90, 9, 0.1, r"needs 10 positives, which must be in 1\.\.9; choose a lower"),
        (4, 9, 0.1, r"with 4 negatives needs 0 positives.*choose a higher ratio"),
        (0, 9, 0.1, "with 0 negatives needs 0 positives"),
        (2, 9, 1.0, "ratio 1 leaves no room for the 2 negatives"),
    ],
)
def test_impossible_ratios(negatives, positives, ratio, message):
    with pytest.raises(ValueError, match=message):
        imbalance.drop_positives(labels_of(negatives, positives), ratio, key=KEY)


@pytest.mark.parametrize(
    ("negatives", "positives", "ratios", "message"),
    [
        (99, 0, PAPER, r"client 0 of 8 with a ratio of 0\.05 would get 0 positives"),
        (0, 99, [0.9, 0.5], r"client 0 .* 0 negatives, out of 99 and 0 for all"),
        (40, 40, PAPER, r"client 0 .* get 0 positives and \d negatives, out of 40"),
        (5, 1, [0.0, 1.0, 1.0], "client 2 of 3 with a ratio of 1.0 would get 1 posit"),
        (1, 5, [1.0, 0.0, 0.0], "client 2 of 3 with a ratio of 0.0 .* 1 negatives"),
        (2, 1, [0.0] * 5, "client 2 of 5"),
        (9, 9, [], "ratios must hold one number for every client, got none"),
    ],
)
def test_clients_without_enough(negatives, positives, ratios, message):
    with pytest.raises(ValueError, match=message):
        imbalance.with_ratios(labels_of(negatives, positives), ratios, key=KEY)

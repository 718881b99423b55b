"""Examples that are held out for validation."""

import numpy as np
import pytest

from fedjax_muon import data
from fedjax_muon.runs.config import Config
from fedjax_muon.runs.pretrained import dataset_of

SIZES = np.array([400, 37, 11, 252])  # of the classes
NUMBER = SIZES.sum()
LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(4), SIZES))
LABELLED = data.Dataset(
    x_train=np.arange(NUMBER, dtype=np.float32)[:, None],
    y_train=LABELS.astype(np.int32),
    x_test=np.zeros((3, 1), np.float32),
    y_test=np.arange(3, dtype=np.int32),
    classes=tuple("abcd"),
)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.9])
def test_held_out_examples_are_some_of_all_classes_and_nowhere_else(share):
    rest, (x, y) = data.hold_out(LABELLED, share)
    together = np.concatenate([rest.x_train, x])[:, 0]
    assert sorted(together) == list(range(NUMBER))  # every example once
    labels = np.concatenate([rest.y_train, y])
    np.testing.assert_array_equal(labels, LABELS[together.astype(int)])
    assert abs(len(y) - share * NUMBER) < 1
    assert np.all(abs(np.bincount(y) - share * SIZES) < 1)
    assert x.dtype == rest.x_train.dtype == np.float32
    assert y.dtype == rest.y_train.dtype == np.int32
    for name in ("x_test", "y_test", "classes"):
        assert getattr(rest, name) is getattr(LABELLED, name)


def test_the_same_examples_are_held_out_every_time():
    (rest, (x, _)), (again, (others, _)) = (
        data.hold_out(LABELLED, 0.2) for _ in range(2)
    )
    np.testing.assert_array_equal(x, others)
    np.testing.assert_array_equal(rest.x_train, again.x_train)
    assert not np.array_equal(x[:, 0], np.sort(x[:, 0]))  # not the first, or in order


@pytest.mark.parametrize(
    ("share", "message"),
    [(share, r"must be in \(0, 1\), got") for share in (0, 1, -0.1, 1.5, np.nan)]
    + [(share, "leaves one side without a class") for share in (0.001, 0.998, 0.9999)],
)
def test_shares_that_leave_nothing_to_one_side_are_refused(share, message):
    with pytest.raises(ValueError, match=message):
        data.hold_out(LABELLED, share)


def test_a_share_of_the_training_examples_is_of_all_classes_and_always_the_same():
    whole, part = (dataset_of(Config(train_share=share)) for share in (1.0, 0.25))
    again = dataset_of(Config(train_share=0.25))
    np.testing.assert_array_equal(part.x_train, again.x_train)
    counts, few = np.bincount(whole.y_train), np.bincount(part.y_train)
    assert np.abs(few - counts / 4).max() <= 1
    rows = {row.tobytes() for row in whole.x_train}
    assert all(row.tobytes() in rows for row in part.x_train)
    assert len({row.tobytes() for row in part.x_train}) == len(part.x_train)
    np.testing.assert_array_equal(part.x_test, whole.x_test)

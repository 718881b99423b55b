"""Forty random labelled images, and what they must be once standardized."""

import numpy as np
from sklearn.preprocessing import StandardScaler

RNG = np.random.default_rng(11)
IMAGES = RNG.integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)
LABELS = RNG.permutation(np.arange(40) % 10).astype(np.uint8)
TRAIN, TEST = slice(0, 30), slice(30, 40)


def assert_standardized(got, x_train, x_test):
    """Against scikit-learn's scaler in float64.

    x - mean and the division round once each in float32, and so do mean and std: four
    errors of half a unit in the last place of at most 255 / std.
    """
    channels = x_train.shape[-1]
    scaler = StandardScaler().fit(x_train.reshape(-1, channels).astype(np.float64))
    bound = 2 * np.finfo(np.float32).eps * 255 / scaler.scale_.min()
    for part, x in ((got.x_train, x_train), (got.x_test, x_test)):
        expected = scaler.transform(x.reshape(-1, channels).astype(np.float64))
        assert (part.dtype, part.shape) == (np.float32, x.shape)
        found = part.reshape(-1, channels)
        np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


def write_npz(path, **changes):
    """The images as a .npz file; `changes` replace arrays, or leave them out (None)."""
    arrays = {"x_train": IMAGES[TRAIN], "y_train": LABELS[TRAIN]}
    arrays |= {"x_test": IMAGES[TEST], "y_test": LABELS[TEST]} | changes
    np.savez(path, **{key: x for key, x in arrays.items() if x is not None})

"""Histograms of oriented gradients (HOG) of images, features that learn nothing."""

import functools
from pathlib import Path

import numpy as np

from fedjax_muon import data
from fedjax_muon.data import Dataset


@functools.cache
def features(name: str, data_dir: Path | None, validate: bool) -> Dataset:
    """Returns HOG features of norm 1, with a validation set for the test set if so."""
    from skimage.feature import hog  # an extra

    dataset = data.load(name, data_dir)
    cell = max(2, dataset.x_train.shape[1] // 7)
    of = functools.partial(hog, pixels_per_cell=(cell, cell), cells_per_block=(1, 1))

    def rows(images: np.ndarray) -> np.ndarray:
        flat = images.astype(np.float32).reshape(*images.shape[:3])
        found = np.stack([of(image) for image in flat])
        norms = np.linalg.norm(found, axis=1, keepdims=True)
        return (found / np.maximum(norms, 1e-6)).astype(np.float32)

    dataset = dataset._replace(
        x_train=rows(dataset.x_train), x_test=rows(dataset.x_test)
    )
    if not validate:
        return dataset
    train, (x, y) = data.hold_out(dataset, 0.1)
    return train._replace(x_test=x, y_test=y)

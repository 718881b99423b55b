"""Datasets that scikit-learn has, so that they need no files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_muon.data.dataset import Dataset, stratified


def digits(paths: Sequence[Path] = ()) -> Dataset:
    """Reads scikit-learn's 1797 handwritten digits, images 8 x 8 x 1 in 0..1.

    They are the test set of the UCI "Optical recognition of handwritten digits". The
    split is fixed and stratified: 1437 training and 360 test examples.
    """
    # Imported here, since importing scikit-learn takes a second.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = (bunch.images / 16).astype(np.float32)[..., None]
    return _split(images, bunch.target, tuple(map(str, bunch.target_names)))


def breast_cancer(paths: Sequence[Path] = ()) -> Dataset:
    """Reads scikit-learn's breast cancer data: 569 tumors with 30 measurements each.

    They are the UCI "Breast Cancer Wisconsin (Diagnostic)". Label 1 is malignant (212)
    and 0 benign (357), the reverse of scikit-learn's labels. The split is fixed and
    stratified: 455 training and 114 test examples.
    """
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    malignant, benign = map(str, bunch.target_names)
    x = bunch.data.astype(np.float32)
    return _split(x, 1 - bunch.target, (benign, malignant))


def _split(x: np.ndarray, y: np.ndarray, classes: tuple[str, ...]) -> Dataset:
    train, test = stratified(y, 0.2, "test")
    return Dataset(x[train], y[train], x[test], y[test], classes)

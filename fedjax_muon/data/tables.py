"""Datasets of numbers: those of scikit-learn and of LIBSVM."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_muon.data.dataset import Dataset, Examples, stratified
from fedjax_muon.data.source import unpacked
from fedjax_muon.files import reading


def digits(paths: Sequence[Path]) -> Dataset:
    """Reads scikit-learn's 1797 handwritten digits, images 8 x 8 x 1 in 0..1.

    They are the test set of the UCI "Optical recognition of handwritten digits". The
    split is fixed and stratified: 1437 training and 360 test examples.
    """
    rows = _rows(paths)
    images = (rows[:, :-1] / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    return _split(images, rows[:, -1].astype(int), tuple("0123456789"))


def breast_cancer(paths: Sequence[Path]) -> Dataset:
    """Reads scikit-learn's breast cancer data: 569 tumors with 30 measurements each.

    They are the UCI "Breast Cancer Wisconsin (Diagnostic)". Label 1 is malignant (212)
    and 0 benign (357), the reverse of scikit-learn's labels. The split is fixed and
    stratified: 455 training and 114 test examples.
    """
    rows = _rows(paths, skiprows=1)
    x = rows[:, :-1].astype(np.float32)
    return _split(x, 1 - rows[:, -1].astype(int), ("benign", "malignant"))


def _rows(paths: Sequence[Path], skiprows: int = 0) -> np.ndarray:
    """The rows of scikit-learn's only file, whose last number is the label.

    They are read without scikit-learn, whose import takes more than a second.
    """
    (path,) = paths
    file = io.BytesIO(unpacked(path))
    return np.loadtxt(file, delimiter=",", skiprows=skiprows)


def _split(x: np.ndarray, y: np.ndarray, classes: tuple[str, ...]) -> Dataset:
    train, test = stratified(y, 0.2, "test")
    return Dataset(x[train], y[train], x[test], y[test], classes)


LIBSVM_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"


def read_libsvm(
    paths: Sequence[Path], *, features: int, classes: tuple[str, str]
) -> Dataset:
    """Reads a training and a test file, in float32."""
    train, test = (_read_file(path, features) for path in paths)
    return Dataset(*train, *test, classes)


def _read_file(path: Path, features: int) -> Examples:
    from sklearn.datasets import load_svmlight_file

    content = io.BytesIO(unpacked(path))
    wanted = f"LIBSVM's format with {features} features, and labels -1 and 1"
    with reading(path, wanted, f"download it again from {LIBSVM_URL}"):
        x, y = load_svmlight_file(
            content, n_features=features, dtype=np.float32, zero_based=False
        )
        if not np.isfinite(x.data).all() or not np.isin(y, (-1, 1)).all():
            raise ValueError("a number that is not finite, or another label")
    return x.toarray(), (y > 0).astype(np.int32)

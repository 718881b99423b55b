"""Data sets that come with an installed package and need no files."""

import numpy as np

from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.source import Layout, Source


def digits() -> Dataset:
    """scikit-learn's 1797 handwritten digits, 8 x 8 x 1, values in 0..1.

    Test set of the UCI "Optical recognition of handwritten digits". The split is fixed:
    1437 to train on, 360 to test on, stratified.
    """
    # Imported here: scikit-learn takes a second, and other sets do not need it.
    from sklearn.datasets import load_digits

    source = load_digits()
    images = (source.images / 16).astype(np.float32)[..., None]
    names = tuple(str(name) for name in source.target_names)
    return _split(images, source.target, names)


def breast_cancer() -> Dataset:
    """scikit-learn's 569 tumours, each a vector of 30 measurements: 1 is malignant.

    The UCI "Breast Cancer Wisconsin (Diagnostic)", 212 malignant and 357 benign ones;
    the labels of scikit-learn are the other way round. The split is fixed: 455 to train
    on, 114 to test on, stratified.
    """
    from sklearn.datasets import load_breast_cancer

    source = load_breast_cancer()
    benign, malignant = 1, 0  # there
    names = (str(source.target_names[k]) for k in (benign, malignant))
    return _split(source.data.astype(np.float32), 1 - source.target, tuple(names))


def _split(x: np.ndarray, y: np.ndarray, classes: tuple[str, ...]) -> Dataset:
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(
        np.arange(len(y)), test_size=0.2, stratify=y, random_state=0
    )
    return Dataset(
        x_train=x[train],
        y_train=y[train],
        x_test=x[test],
        y_test=y[test],
        classes=classes,
    )


SETS = {
    "digits": Source(
        example="8 x 8 x 1",
        examples=(1437, 360),
        classes=10,
        licence="CC BY 4.0 (UCI)",
        layouts=(Layout((), ("",), lambda paths: digits()),),
    ),
    "breast_cancer": Source(
        example="30 numbers",
        examples=(455, 114),
        classes=2,
        licence="CC BY 4.0 (UCI)",
        layouts=(Layout((), ("",), lambda paths: breast_cancer()),),
    ),
}

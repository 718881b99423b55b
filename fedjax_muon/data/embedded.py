"""Data sets that come with an installed package and need no files."""

import numpy as np

from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.source import Layout, Source


def digits() -> Dataset:
    """Reads scikit-learn's 1797 handwritten digits.

    They are the test set of the UCI "Optical recognition of handwritten digits".

    Returns:
      The data set of images 8 x 8 x 1 with values in 0..1, in a fixed stratified split:
      1437 training and 360 test examples.
    """
    # Imported here, since importing scikit-learn takes a second.
    from sklearn.datasets import load_digits

    source = load_digits()
    images = (source.images / 16).astype(np.float32)[..., None]
    names = tuple(str(name) for name in source.target_names)
    return _split(images, source.target, names)


def breast_cancer() -> Dataset:
    """Reads scikit-learn's breast cancer data: 569 tumors with 30 measurements each.

    They are the UCI "Breast Cancer Wisconsin (Diagnostic)". Label 1 is malignant (212)
    and 0 benign (357), the reverse of scikit-learn's labels.

    Returns:
      The data set in a fixed stratified split: 455 training and 114 test examples.
    """
    from sklearn.datasets import load_breast_cancer

    source = load_breast_cancer()
    benign, malignant = 1, 0  # in scikit-learn
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
        license="CC BY 4.0 (UCI)",
        layouts=(Layout((), ("",), lambda paths: digits()),),
    ),
    "breast_cancer": Source(
        example="30 numbers",
        examples=(455, 114),
        classes=2,
        license="CC BY 4.0 (UCI)",
        layouts=(Layout((), ("",), lambda paths: breast_cancer()),),
    ),
}

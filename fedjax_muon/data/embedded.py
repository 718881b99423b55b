"""Data sets that come with an installed package and need no files."""

import numpy as np

from fedjax_muon.data.dataset import Dataset


def digits() -> Dataset:
    """scikit-learn's 1797 handwritten digits, 8 x 8 x 1, values in 0..1.

    Test set of the UCI "Optical recognition of handwritten digits". The split is fixed:
    1437 to train on, 360 to test on, stratified.
    """
    # Imported here: scikit-learn takes a second, and other sets do not need it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    source = load_digits()
    train, test = train_test_split(
        np.arange(len(source.target)),
        test_size=0.2,
        stratify=source.target,
        random_state=0,
    )
    images = (source.images / 16).astype(np.float32)[..., None]
    return Dataset(
        x_train=images[train],
        y_train=source.target[train],
        x_test=images[test],
        y_test=source.target[test],
        classes=tuple(str(name) for name in source.target_names),
    )

"""A classification data set in memory, checked and standardised."""

from typing import NamedTuple

import numpy as np


class Dataset(NamedTuple):
    """Examples lead; images are NHWC, texts int32 token ids [n, length], 0 for padding
    unless an encoder has another.

    What `load` returns is float32 or token ids, with int32 labels.
    """

    x_train: np.ndarray  # [n, ..., channels] or [n, length]
    y_train: np.ndarray  # [n], in 0..len(classes)-1
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]
    tokens: int = 0  # token ids of texts are below; what a model has to embed


def check(dataset: Dataset) -> Dataset:
    """The same data with int32 labels, or an error that names what is wrong with it.

    Inputs may be float32, uint8 pixels that are not yet standardised, or int32 token
    ids; labels any integers.

    Raises:
      ValueError: if a split is empty; inputs are not [n, ..., channels] of float32 or
        uint8 or [n, length] of int32, alike in both splits, finite, and as token ids
        not negative; or labels are not one integer in 0..len(classes)-1 for each input.
    """
    x_train, x_test = np.asarray(dataset.x_train), np.asarray(dataset.x_test)
    if (x_train.shape[1:], x_train.dtype) != (x_test.shape[1:], x_test.dtype):
        raise ValueError(
            "x_train and x_test must hold examples of one shape and dtype, got "
            f"{x_train.dtype}{list(x_train.shape)} and "
            f"{x_test.dtype}{list(x_test.shape)}"
        )
    num_classes = len(dataset.classes)
    x_train = _checked_inputs("x_train", x_train)
    x_test = _checked_inputs("x_test", x_test)
    is_text = x_train.dtype == np.int32
    found = 1 + int(max(x_train.max(), x_test.max())) if is_text else 0
    return Dataset(
        x_train=x_train,
        y_train=_checked_labels("y_train", dataset.y_train, len(x_train), num_classes),
        x_test=x_test,
        y_test=_checked_labels("y_test", dataset.y_test, len(x_test), num_classes),
        classes=tuple(dataset.classes),
        tokens=max(dataset.tokens, found),
    )


def _checked_inputs(name: str, x: np.ndarray) -> np.ndarray:
    tokens = x.dtype == np.int32 and x.ndim == 2
    plain = x.dtype in (np.uint8, np.float32) and x.ndim >= 2
    if not x.size or not (tokens or plain):
        raise ValueError(
            f"{name} must be non-empty float32 or uint8 [n, ..., channels], got "
            f"{x.dtype}{list(x.shape)}; or int32 token ids [n, length]"
        )
    if tokens and x.min() < 0:
        raise ValueError(f"{name}: token ids must not be negative, got {x.min()}")
    if x.dtype == np.float32 and not np.isfinite(x).all():
        axes = tuple(range(1, x.ndim))
        bad = np.flatnonzero(~np.isfinite(x).all(axis=axes))
        raise ValueError(
            f"{name} has NaN or infinity in {len(bad)} of {len(x)} examples, first in "
            f"example {bad[0]}"
        )
    return x


def _checked_labels(name: str, labels, num_examples: int, num_classes: int):
    y = np.asarray(labels)
    if y.ndim != 1 or y.dtype.kind not in "iu" or len(y) != num_examples:
        raise ValueError(
            f"{name} must be {num_examples} integers on one axis, one per example, got "
            f"{y.dtype}{list(y.shape)}"
        )
    if y.min() < 0 or y.max() >= num_classes:
        raise ValueError(
            f"{name} must be in 0..{num_classes - 1} (the {num_classes} classes), got "
            f"{y.min()}..{y.max()}"
        )
    return y.astype(np.int32)


def standardise(dataset: Dataset) -> Dataset:
    """(x - mean) / std per channel, float32, with mean and std of the training set.

    The last axis holds the channels. `dataset` is one that `check` returned. Token ids
    stay as they are.

    Raises:
      ValueError: if a channel is constant in the training set.
    """
    if dataset.x_train.dtype == np.int32:
        return dataset
    axes = tuple(range(dataset.x_train.ndim - 1))
    mean = dataset.x_train.mean(axes, dtype=np.float64).astype(np.float32)
    x_train = dataset.x_train - mean
    # Squares are summed in float64 and without an array of squares: float32 sums over
    # the 5e7 pixels of a CIFAR channel would lose digits.
    rows = x_train.reshape(-1, x_train.shape[-1])
    square = np.einsum("nc,nc->c", rows, rows, dtype=np.float64)
    std = np.sqrt(square / len(rows)).astype(np.float32)
    if not std.all():
        raise ValueError(
            f"channel {int(np.argmin(std))} is constant in x_train and cannot be "
            "standardised; leave it out"
        )
    x_train /= std
    x_test = dataset.x_test - mean
    x_test /= std
    return dataset._replace(x_train=x_train, x_test=x_test)


def hold_out(
    dataset: Dataset, share: float
) -> tuple[Dataset, tuple[np.ndarray, np.ndarray]]:
    """The data set without some training examples, and these, for validation.

    The same examples every time, from all classes in proportion.

    Raises:
      ValueError: if `share` is not in (0, 1), or leaves either side without examples
        of some class.
    """
    if not 0 < share < 1:
        raise ValueError(f"the validation share must be in (0, 1), got {share}")
    x, y = dataset.x_train, dataset.y_train
    least = int(np.bincount(y)[np.unique(y)].min())
    if min(share, 1 - share) * least < 1:
        raise ValueError(
            f"a validation share of {share} leaves one side without a class that has "
            f"{least} of {len(y)} training examples"
        )
    # Imported here: scikit-learn takes a second.
    from sklearn.model_selection import train_test_split

    split = train_test_split(x, y, test_size=share, stratify=y, random_state=0)
    x, x_validation, y, y_validation = split
    return dataset._replace(x_train=x, y_train=y), (x_validation, y_validation)

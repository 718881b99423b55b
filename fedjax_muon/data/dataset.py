"""A classification dataset, checked and standardized."""

import dataclasses
import hashlib
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike

Examples = tuple[np.ndarray, np.ndarray]  # inputs and labels
TRAIN, TEST = "train", "test"


CHUNK = 2**18  # numbers that are converted at a time
TOKEN_TYPES = (np.int32, np.uint16)  # of token ids
EXACT = (np.uint8, np.float32)  # types whose numbers are standardized in float32
FEW_DIGITS = 1e-3  # of a standard deviation, which neighbors differ by


class Standardization(NamedTuple):
    """The mean and the standard deviation of the channels of a training set.

    A model that was trained on standardized inputs takes new ones in the same form.
    """

    mean: np.ndarray  # float32 or float64 [channels], in which differences are taken
    std: np.ndarray  # [channels], positive

    def apply(self, x: ArrayLike) -> np.ndarray:
        """(x - mean) / std in float32, of numbers [..., channels]."""
        x = np.asarray(x)
        if x.dtype.kind not in "iufb" or x.shape[-1:] != self.mean.shape:
            raise ValueError(
                f"x must be numbers [..., {len(self.mean)}], got "
                f"{x.dtype}{list(x.shape)}"
            )
        return self.of_rows(x.reshape(-1, x.shape[-1])).reshape(x.shape)

    def of_rows(self, x: np.ndarray, ids: np.ndarray | None = None) -> np.ndarray:
        """Standardizes the examples [n, ..., channels] of these numbers, or all."""
        count = len(x) if ids is None else len(ids)
        standardized = np.empty((count, *x.shape[1:]), np.float32)
        for part, chunk in _chunks(x, ids):
            difference = chunk.astype(self.mean.dtype) - self.mean
            difference /= self.std
            standardized[part] = difference
        return standardized


def _chunks(
    x: np.ndarray, ids: np.ndarray | None = None
) -> Iterator[tuple[slice, np.ndarray]]:
    """Examples in parts, so that no copy of all is made."""
    count = len(x) if ids is None else len(ids)
    size = max(1, CHUNK // max(1, math.prod(x.shape[1:])))
    for first in range(0, count, size):
        part = slice(first, min(first + size, count))
        yield part, x[part] if ids is None else x[ids[part]]


def standardization_of(
    x: np.ndarray, ids: np.ndarray | None = None, names: Sequence[str] = ()
) -> Standardization:
    """The standardization of examples [n, ..., channels] of these numbers, or of all.

    Warns if neighboring numbers of the type differ by much of a standard deviation.

    Args:
      names: What channels are called in errors; by default, their numbers.
    """
    kind: Any = np.float32 if x.dtype.type in EXACT else np.float64
    channels, count = x.shape[-1], 0
    total, square = np.zeros(channels), np.zeros(channels)
    for _, chunk in _chunks(x, ids):
        rows = chunk.reshape(-1, channels)
        count += len(rows)
        total += rows.sum(0, dtype=np.float64)
    mean = (total / count).astype(kind)
    for _, chunk in _chunks(x, ids):
        # Squares are summed in float64 and without an array of squares: float32 sums
        # over the 5e7 pixels of a CIFAR channel would lose digits.
        rows = chunk.reshape(-1, channels).astype(kind) - mean
        square += np.einsum("nc,nc->c", rows, rows, dtype=np.float64)
    std = np.sqrt(square / count).astype(kind)
    called = [*names] or [f"channel {i}" for i in range(channels)]
    # the mean of one number is rounded in float64
    constant = np.flatnonzero(std <= 2.0**-50 * abs(mean) * (kind is np.float64))
    if len(constant):
        remedy = "leave it out" if len(constant) == 1 else "leave them out"
        if abs(mean[constant]).max() * np.finfo(kind).eps >= 1:
            remedy += ", or subtract the smallest first if they differ in late digits"
        raise ValueError(
            f"{_listed([called[i] for i in constant])} "
            f"{'is' if len(constant) == 1 else 'are'} constant in the training "
            f"examples and cannot be standardized; {remedy}"
        )
    coarse = np.flatnonzero(np.spacing(abs(mean) + std) > FEW_DIGITS * std)
    if len(coarse):
        remedy = "give float64, or subtract" if kind is np.float32 else "subtract"
        warnings.warn(
            f"{_listed([called[i] for i in coarse])}: numbers around "
            f"{mean[coarse[0]]:g} lose digits in {np.dtype(kind)} that tell examples "
            f"apart; {remedy} the smallest number first",
            stacklevel=3,
        )
    return Standardization(mean, std)


@dataclasses.dataclass(frozen=True, eq=False)
class OnDisk:
    """Examples [n, ...] in a file, of which only those that are asked for are read."""

    stored: np.memmap
    scales: Standardization | None = None  # of what is read; None of token ids
    ids: np.ndarray | None = None  # int32 [n], of those in the file, if not all

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.stored.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        return self.stored.dtype if self.scales is None else np.dtype(np.float32)

    def __len__(self) -> int:
        return len(self.stored if self.ids is None else self.ids)

    def __getitem__(self, at: slice | np.ndarray) -> np.ndarray:
        """Reads the examples of a slice, or of ids [m], and standardizes them."""
        at = np.arange(*at.indices(len(self))) if isinstance(at, slice) else at
        ids = at if self.ids is None else self.ids[at]
        if self.scales is None:
            return np.asarray(self.stored[ids])
        x = self.scales.of_rows(self.stored, ids)
        fine = np.isfinite(x).all(tuple(range(1, x.ndim)))
        if not fine.all():
            raise ValueError(
                f"example {ids[np.argmin(fine)]} of {self.stored.filename} has NaN or "
                "infinity; correct it, or leave it out"
            )
        return x

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError(
            "these examples stay on disk, but this needs them all in memory, as agents "
            "do; if they fit, read them with data.from_npz"
        )

    def at(self, ids: np.ndarray) -> "OnDisk":
        """The examples of some ids, which are not read."""
        return dataclasses.replace(self, ids=ids if self.ids is None else self.ids[ids])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{', '.join(names[:8])}{more}"


class Dataset(NamedTuple):
    """Training and test examples of a classification problem.

    The first dimension counts the examples. Images are NHWC. Texts are int32 token ids
    [n, length], with 0 as padding unless an encoder uses another id. The inputs that
    `load` returns are float32 or token ids, with int32 labels.

    Example:
      >>> x, y = np.ones((6, 2), np.float32), np.array([0, 1, 0, 1, 0, 1])
      >>> fm.data.Dataset(x, y, x[:2], y[:2], classes=("no", "yes")).classes
      ('no', 'yes')
    """

    x_train: np.ndarray  # [n, ..., channels] or [n, length]
    y_train: np.ndarray  # [n], in 0..len(classes)-1; without classes, float targets
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]
    tokens: int = 0  # for texts, the size of the vocabulary: all token ids are below
    # For data with natural clients, the number of the client that has each training
    # example, [n].
    owners: np.ndarray | None = None
    test_owners: np.ndarray | None = None  # likewise of each test example
    owner_names: tuple[str, ...] = ()  # by their numbers, where owners have names
    # How the inputs were standardized; None if they were not.
    standardization: Standardization | None = None
    # Of windows of tokens: what encodes and decodes them, a `tokenizers.Tokenizer`. A
    # token that is read, and not predicted, is ~id, a negative number.
    tokenizer: Any = None
    # Of tables: a `columns.Columns`, by which new rows become inputs.
    columns: Any = None
    # Of texts as words: the words with the ids 2, 3, ..., by which new texts do.
    words: tuple[str, ...] = ()
    # Whether the test examples are some of those that were given for training.
    held_out: bool = False
    name: str = "your data"  # in titles; readers give that of the file

    def __repr__(self) -> str:
        return f"Dataset({summary(self)})"


MOST_CLASSES, FIRST_CLASSES = 10, 5  # that are named, and of more than these


def summary(
    dataset: Dataset, sizes: Sequence[int] = (), *, members: str = "client"
) -> str:
    """What a dataset has, in a line that shows whether a file was read as intended.

    Args:
      sizes: Numbers of training examples of the clients; by default, the number of
        owners is given, if there are any.
      members: What clients are called, in the singular.

    Example:
      >>> summary(digits, [700, 737])[:59]
      '1797 examples (1437 to train, 360 to test), 8 x 8 x 1, 10 cl'
    """
    train, test = (len(np.atleast_1d(y)) for y in (dataset.y_train, dataset.y_test))
    shape, classes = np.shape(dataset.x_train)[1:], [*map(str, dataset.classes)]
    inputs = _number(shape[0], "feature") if len(shape) == 1 else None
    if getattr(dataset.x_train, "dtype", None) in TOKEN_TYPES and len(shape) == 1:
        inputs = f"{_number(shape[0], 'token')} each"
    names = classes if len(classes) <= MOST_CLASSES else classes[:FIRST_CLASSES]
    more = ", ..." if len(names) < len(classes) else ""
    kind = ("class", "classes") if dataset.tokenizer is None else ("document",)
    labels = f"{_number(len(classes), *kind)}: {', '.join(names)}{more}"
    if not classes:
        y = np.asarray(dataset.y_train)
        labels = f"targets from {y.min():g} to {y.max():g}"
    words = (
        f"{_number(train + test, 'example')} ({train} to train, {test} to test), "
        f"{inputs or ' x '.join(map(str, shape))}, {labels}"
    )
    if len(sizes):
        least, most = min(sizes), max(sizes)
        each = f"{least} each" if least == most else f"{least} to {most}"
        return f"{words}; {_number(len(sizes), members)} with {each}"
    if dataset.owners is not None:
        words += f"; {_number(len(np.unique(dataset.owners)), 'owner')}"
    return words


def digest(dataset: Dataset) -> str:
    """The SHA-256 of all arrays and classes, which tells other data apart.

    For inputs that stay on disk, it covers 10,000 examples at equal distances.
    """
    total = hashlib.sha256(repr(dataset.classes).encode())
    for name, array in dataset._asdict().items():
        if isinstance(array, OnDisk):
            few = min(len(array), 10_000)
            array = array[np.linspace(0, len(array) - 1, few, dtype=int)]
        if hasattr(array, "dtype"):  # on the host or on a device
            total.update(f"{name} {array.dtype} {array.shape};".encode())
            total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _number(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def of_clients(
    train: Iterable[Examples],
    test: Iterable[Examples],
    classes: tuple[str, ...],
    tokens: int = 0,
    *,
    same: bool = False,
) -> Dataset:
    """Joins the examples of clients, who are the owners of the training examples.

    Args:
      same: Whether `test` is of the same clients in the same order.
    """
    (x_train, y_train, owners), (x_test, y_test, tested) = map(_joined, (train, test))
    test_owners = tested if same else None
    return Dataset(
        x_train, y_train, x_test, y_test, classes, tokens, owners, test_owners
    )


def _joined(parts: Iterable[Examples]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    parts = list(parts)
    if not parts:
        raise ValueError("no client")
    owners = np.repeat(np.arange(len(parts)), [len(y) for _, y in parts])
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return x, y, owners.astype(np.int32)


def check(dataset: Dataset) -> Dataset:
    """Validates a dataset and converts its labels to int32.

    Args:
      dataset: Inputs in float32, in uint8 (pixels that are not yet standardized), or
        int32 token ids; labels in any integer type.
    """
    x_train, x_test = as_inputs(dataset.x_train), as_inputs(dataset.x_test)
    if (x_train.shape[1:], x_train.dtype) != (x_test.shape[1:], x_test.dtype):
        raise ValueError(
            "x_train and x_test must hold examples of one shape and dtype, got "
            f"{x_train.dtype}{list(x_train.shape)} and "
            f"{x_test.dtype}{list(x_test.shape)}"
        )
    prompts = dataset.tokenizer is not None  # whose tokens are ~id, below 0
    _check_inputs("x_train", x_train, prompts=prompts)
    _check_inputs("x_test", x_test, prompts=prompts)
    is_text = x_train.dtype in TOKEN_TYPES and not isinstance(x_train, OnDisk)
    tokens = 1 + int(max(x_train.max(), x_test.max())) if is_text else 0
    classes = len(dataset.classes)
    checked: Any = _checked_targets
    if classes:
        checked = partial(_checked_labels, num_classes=classes)
    return dataset._replace(
        x_train=x_train,
        y_train=checked("y_train", dataset.y_train, len(x_train)),
        x_test=x_test,
        y_test=checked("y_test", dataset.y_test, len(x_test)),
        classes=tuple(dataset.classes),
        tokens=max(dataset.tokens, tokens),
        owners=_checked_owners("owners", dataset.owners, len(x_train)),
        test_owners=_checked_owners("test_owners", dataset.test_owners, len(x_test)),
    )


def as_inputs(x: Any) -> Any:
    """Inputs as an array of NumPy, or as they are if they stay on disk."""
    return x if isinstance(x, OnDisk) else np.asarray(x)


def _checked_owners(
    name: str, owners: ArrayLike | None, num_examples: int
) -> np.ndarray | None:
    if owners is None:
        return None
    owners = np.asarray(owners)
    whole = owners.dtype.kind in "iu"
    if owners.shape != (num_examples,) or not whole or owners.min() < 0:
        kind = "test" if name == "test_owners" else "training"
        raise ValueError(
            f"{name} must be {num_examples} integers of 0 or more, one per {kind} "
            f"example, got {owners.dtype}{list(owners.shape)}"
        )
    return owners.astype(np.int32)


def check_axes(name: str, shape: Sequence[int], dtype: Any = np.float32) -> None:
    """Raises `ValueError` for images [n, ...] without their channels on the last axis.

    Other examples with two axes, such as series, have channels on the last one too;
    only pixels and squares are taken for images.
    """
    sides = tuple(shape[1:])
    pixels = np.dtype(dtype) in (np.uint8, np.bool_)
    if len(sides) == 2 and min(sides) > 4 and (pixels or sides[0] == sides[1]):
        raise ValueError(
            f"{name} has the shape {list(shape)}: images need an axis of channels, "
            f"{name}[..., None]; if its last axis has channels, {name}[:, :, None]"
        )
    if len(sides) == 3 and sides[0] <= 4 < min(sides[1:]) >= max(sides[1:]) / 4:
        raise ValueError(
            f"{name} has the shape {list(shape)}, of images with channels first; "
            f"channels come last: {name}.transpose(0, 2, 3, 1)"
        )


def not_finite(x: np.ndarray) -> str:
    """Says which examples have NaN, infinity or larger numbers than float32."""
    if x.dtype.kind != "f":
        return ""
    largest = np.finfo(np.float32).max
    fine = [
        (abs(chunk) <= largest).reshape(len(chunk), -1).all(1)
        for _, chunk in _chunks(x)
    ]
    bad = np.flatnonzero(~np.concatenate(fine))
    if not len(bad):
        return ""
    first = f"first in example {bad[0]}"
    return f"has NaN or infinity in {len(bad)} of {len(x)} examples, {first}"


def _check_inputs(name: str, x: np.ndarray | OnDisk, *, prompts: bool) -> None:
    if isinstance(x, OnDisk):  # its reader has checked it
        return
    tokens = x.dtype in TOKEN_TYPES and x.ndim == 2
    plain = x.dtype in (np.uint8, np.float32) and x.ndim >= 2
    if not x.size or not (tokens or plain):
        raise ValueError(
            f"{name} must be non-empty float32 or uint8 [n, ..., channels], got "
            f"{x.dtype}{list(x.shape)}; or int32 token ids [n, length]"
        )
    check_axes(name, x.shape, x.dtype)
    if tokens and x.min() < 0 and not prompts:
        raise ValueError(f"{name}: token ids must not be negative, got {x.min()}")
    if problem := not_finite(x):
        raise ValueError(f"{name} {problem}")


def _checked_labels(
    name: str, labels: ArrayLike, num_examples: int, num_classes: int
) -> np.ndarray:
    y = np.asarray(labels)
    if y.ndim != 1 or y.dtype.kind not in "iu" or len(y) != num_examples:
        raise ValueError(
            f"{name} must be {num_examples} integers on one axis, one per example, got "
            f"{y.dtype}{list(y.shape)}"
        )
    wrong = (y < 0) | (y >= num_classes)
    if wrong.any():
        raise ValueError(
            f"{name} must be in 0..{num_classes - 1} (the {num_classes} classes), got "
            f"{y.min()}..{y.max()}, first in example {int(np.argmax(wrong))}"
        )
    return y.astype(np.int32)


def _checked_targets(name: str, targets: ArrayLike, num_examples: int) -> np.ndarray:
    y = np.asarray(targets)
    if y.ndim != 1 or y.dtype.kind not in "iuf" or len(y) != num_examples:
        raise ValueError(
            f"{name} must be {num_examples} numbers on one axis, one per example, as "
            f"there are no classes, got {y.dtype}{list(y.shape)}"
        )
    if problem := not_finite(y.astype(float)):
        raise ValueError(f"{name} {problem}")
    return y.astype(np.float32)


def strata(dataset: Dataset) -> np.ndarray:
    """What parts of the training examples have the same shares of: the labels."""
    if dataset.classes:
        return np.asarray(dataset.y_train)
    return np.zeros(len(dataset.y_train), int)


def standardize(dataset: Dataset) -> Dataset:
    """Standardizes each channel with the mean and the std of the training set.

    Args:
      dataset: A dataset that `check` has returned, with the channels on the last axis.

    Returns:
      The dataset with float32 inputs (x - mean) / std, and with the mean and the std
      as `standardization`. Token ids do not change.
    """
    if dataset.x_train.dtype in TOKEN_TYPES or isinstance(dataset.x_train, OnDisk):
        return dataset
    scales = standardization_of(dataset.x_train)
    x_train, x_test = map(scales.of_rows, (dataset.x_train, dataset.x_test))
    if dataset.standardization is not None:  # both as one
        first, (mean, std) = dataset.standardization, scales
        scales = Standardization(first.mean + first.std * mean, first.std * std)
    return dataset._replace(x_train=x_train, x_test=x_test, standardization=scales)


def check_standardization(
    saved: Standardization | None, loaded: Standardization | None
) -> None:
    """Checks that a saved model and a dataset have the same standardization."""
    difference = ""
    if saved is None or loaded is None:
        model, other = ("not " if x is None else "" for x in (saved, loaded))
        if model != other:
            difference = (
                f"the model was {model}trained on standardized inputs, and the "
                f"dataset is {other}standardized"
            )
    elif len(saved.mean) != len(loaded.mean):
        difference = (
            f"the model was trained on {len(saved.mean)} channels, and the dataset has "
            f"{len(loaded.mean)}"
        )
    else:
        room = 1e-6 * float(saved.std.max())
        for name, ours, theirs in zip(saved._fields, saved, loaded, strict=True):
            wrong = np.flatnonzero(~np.isclose(ours, theirs, 1e-5, room))
            if len(wrong) and not difference:
                i = wrong[0]
                difference = (
                    f"the {name} of channel {i} is {ours[i]:g} in the model and "
                    f"{theirs[i]:g} in the dataset"
                )
    if difference:
        raise ValueError(
            f"the dataset was normalized differently: {difference}; apply the "
            "standardization that was saved with the model"
        )


def hold_out(
    dataset: Dataset, share: float
) -> tuple[Dataset, tuple[np.ndarray, np.ndarray]]:
    """Splits a validation set off the training examples.

    The split is stratified, and the same in every call.
    """
    kept, held = stratified(strata(dataset), share, classes=dataset.classes)
    rest = subset(dataset, kept)
    return rest, (dataset.x_train[held], dataset.y_train[held])


def subset(dataset: Dataset, ids: np.ndarray) -> Dataset:
    """The dataset with only the training examples of these indices."""
    owners = None if dataset.owners is None else dataset.owners[ids]
    x: Any = dataset.x_train
    kept: Any = x.at(ids) if isinstance(x, OnDisk) else x[ids]
    return dataset._replace(x_train=kept, y_train=dataset.y_train[ids], owners=owners)


class RareClassError(ValueError):
    """A class has too few examples to be divided."""


def stratified(
    labels: np.ndarray,
    share: float,
    name: str = "validation",
    *,
    classes: Sequence[str] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """Divides examples into two parts with the same shares of all classes.

    The parts are those of scikit-learn's `train_test_split`, whose import takes a
    second and 110 MB.

    Args:
      classes: Names of the labels in errors; by default, their numbers.
    """
    if not 0 < share < 1:
        raise ValueError(f"the {name} share must be in (0, 1), got {share}")
    present, counts = np.unique(labels, return_counts=True)
    least = int(np.argmin(counts))
    if min(share, 1 - share) * counts[least] < 1:
        rare = int(present[least])
        if len(present) == 1 and not len(classes):
            raise ValueError(
                f"a {name} share of {share} leaves one side of {len(labels)} examples "
                "empty; choose another share, or give more examples"
            )
        words = (
            f"a {name} share of {share} leaves one side without the class "
            f"{str(classes[rare]) if len(classes) else rare!r}, which has "
            f"{counts[least]} of {len(labels)} examples; "
        )
        if len(present) > max(10, len(labels) / 2):
            raise RareClassError(
                f"{words}there are {len(present)} different labels; numbers that are "
                "not classes are targets: from_csv(..., target=...)"
            )
        remedy = "merge it into another class, leave it out, or choose another share"
        if name == TEST:
            remedy += ", or say which examples are for testing (split or test)"
        raise RareClassError(words + remedy)
    held = math.ceil(share * len(labels))
    rng = np.random.RandomState(0)
    of_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    first = _shares(counts, len(labels) - held, rng)
    second = _shares(counts - first, held, rng)
    orders = [one[rng.permutation(len(one))] for one in of_class]
    parts = zip(orders, first, second, strict=True)
    pairs = [(order[:n], order[n : n + m]) for order, n, m in parts]
    kept, rest = map(np.concatenate, zip(*pairs, strict=True))
    return rng.permutation(kept), rng.permutation(rest)


def _shares(counts: np.ndarray, number: int, rng: np.random.RandomState) -> np.ndarray:
    """How many of each class are among `number` examples, as near to proportional as
    whole numbers can be."""
    exact = counts / counts.sum() * number
    shares = np.floor(exact)
    for remainder in np.unique(exact - shares)[::-1]:
        missing = int(number - shares.sum())
        (places,) = np.nonzero(exact - np.floor(exact) == remainder)
        if missing:
            chosen = min(len(places), missing)
            shares[rng.choice(places, chosen, replace=False)] += 1
    return shares.astype(int)

"""Data sets in the HDF5 files of TensorFlow Federated.

A file has a group `examples` with a group for every client, which has an array for
every field. Requires the extra `tff`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.core.reading import reading
from fedjax_muon.data import characters
from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.leaf import DIGITS_AND_LETTERS, Examples
from fedjax_muon.data.source import File, Layout
from fedjax_muon.versions import install_command

URL = "https://storage.googleapis.com/tff-datasets-public"
STRIDE = 5  # distance of the predicted characters of Shakespeare
# Of Stack Overflow, the first clients and their first sentences are read.
CLIENTS, SENTENCES = 100, 100
WORDS, WORDS_BEFORE = 10_000, 20  # vocabulary, and context of a predicted word
UNKNOWN = 1  # token id of other words

Clients = Iterator[tuple[str, Mapping[str, Any]]]  # names, and arrays by field


def layout(
    name: str, folder: str, read: Callable[[Path, Path], Dataset], archive: str
) -> Layout:
    """Describes a data set of TensorFlow Federated.

    Args:
      name: Start of the names of its files.
      folder: Folder that the files may be in, within the data directory.
      read: Function from the paths of the training and test files to the data set.
      archive: Name of the archive to download.
    """
    return Layout(
        files=(File(f"{name}_train.h5"), File(f"{name}_test.h5")),
        folders=("", folder),
        read=lambda paths: read(*paths),
        how=f"unpack {URL}/{archive}",
    )


def read_emnist(train: Path, test: Path) -> Dataset:
    """Reads `fed_emnist`: digits and letters by 3,400 writers.

    Args:
      train: Path of the training file, with `pixels` and `label`.
      test: Path of the test file.

    Returns:
      The data set, whose owners are the writers.
    """

    def images(clients: Clients) -> Iterator[Examples]:
        for _, fields in clients:
            pixels = np.asarray(fields["pixels"], np.float32)
            labels = np.asarray(fields["label"]).reshape(-1)
            if pixels.shape != (len(labels), 28, 28):
                raise ValueError(f"pixels of the shape {list(pixels.shape)}")
            yield pixels[..., None], labels.astype(np.int32)

    parts = [_joined(path, images) for path in (train, test)]
    return _dataset(parts, DIGITS_AND_LETTERS, 0)


def read_shakespeare(train: Path, test: Path) -> Dataset:
    """Reads `shakespeare`: the next characters of 715 roles.

    Every fifth character of a role's text is predicted from the 80 before it.

    Args:
      train: Path of the training file, with `snippets`.
      test: Path of the test file.

    Returns:
      The data set, whose owners are the roles.
    """

    def texts(clients: Clients) -> Iterator[Examples]:
        for _, fields in clients:
            text = "\n".join(_strings(fields["snippets"]))
            yield characters.windows(text, stride=STRIDE)

    parts = [_joined(path, texts) for path in (train, test)]
    return _dataset(parts, characters.NAMES, characters.TOKENS)


def read_stackoverflow(train: Path, test: Path) -> Dataset:
    """Reads `stackoverflow`: the next words of its first users.

    Every word of a sentence but the first is predicted from at most 20 words before it.
    Classes are the most frequent words of the training sentences; other words are one
    token, and are not predicted.

    Args:
      train: Path of the training file, with `tokens`.
      test: Path of the test file, which has other users.

    Returns:
      The data set, whose owners are the users.
    """
    counts: Counter[str] = Counter()
    for _, fields in _clients(train, CLIENTS):
        counts.update(word for s in _sentences(fields) for word in s)
    ordered = sorted(counts, key=lambda word: (-counts[word], word))[:WORDS]
    ids = {word: UNKNOWN + 1 + i for i, word in enumerate(ordered)}

    def next_words(clients: Clients) -> Iterator[Examples]:
        for _, fields in islice(clients, CLIENTS):
            rows: list[list[int]] = []
            labels: list[int] = []
            for sentence in _sentences(fields):
                own = [ids.get(word, UNKNOWN) for word in sentence]
                for end in range(1, len(own)):
                    if own[end] != UNKNOWN:
                        rows.append(own[max(end - WORDS_BEFORE, 0) : end])
                        labels.append(own[end] - UNKNOWN - 1)
            x = np.zeros((len(rows), WORDS_BEFORE), np.int32)
            for padded, row in zip(x, rows, strict=True):
                padded[: len(row)] = row
            yield x, np.array(labels, np.int32)

    parts = [_joined(path, next_words) for path in (train, test)]
    return _dataset(parts, tuple(ordered), UNKNOWN + 1 + len(ordered))


def _sentences(fields: Mapping[str, Any]) -> list[list[str]]:
    return [text.split() for text in _strings(fields["tokens"][:SENTENCES])]


def _strings(values: Any) -> list[str]:
    return [v.decode() if isinstance(v, bytes) else str(v) for v in values]


def _dataset(parts: list[Any], classes: tuple[str, ...], tokens: int) -> Dataset:
    (x_train, y_train, owners), (x_test, y_test, _) = parts
    return Dataset(
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=classes,
        tokens=tokens,
        owners=owners,
    )


def _joined(
    path: Path, convert: Callable[[Clients], Iterator[Examples]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with _reading(path):
        return characters.joined(convert(_clients(path)))


def _reading(path: Path) -> Any:
    return reading(path, "an HDF5 file of TensorFlow Federated", errors=(OSError,))


def _clients(path: Path, most: int | None = None) -> Clients:
    try:
        import h5py
    except ImportError as error:
        raise ValueError(
            f"{path}: HDF5 files need h5py: {install_command('h5py')}"
        ) from error
    with _reading(path), h5py.File(path, "r") as file:
        yield from islice(file["examples"].items(), most)

"""Datasets in the HDF5 files of TensorFlow Federated.

A file has a group `examples` with a group for every client, which has an array for
every field. The readers take a training and a test file. Requires the extra `tff`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedjax_muon.core.reading import reading
from fedjax_muon.data import characters
from fedjax_muon.data.dataset import Dataset, Examples, of_clients
from fedjax_muon.data.text import padded
from fedjax_muon.versions import optional

URL = "https://storage.googleapis.com/tff-datasets-public"
STRIDE = 5  # distance of the predicted characters of Shakespeare
# Of Stack Overflow, the first clients and their first sentences are read.
CLIENTS, SENTENCES = 100, 100
WORDS, WORDS_BEFORE = 10_000, 20  # vocabulary, and context of a predicted word
UNKNOWN = 1  # token id of other words

Fields = Mapping[str, Any]  # arrays of a client
Read = Callable[[Sequence[Path]], Dataset]
T = TypeVar("T")


def read_emnist(paths: Sequence[Path]) -> Dataset:
    """Reads `fed_emnist`, digits and letters of 3,400 writers, the owners."""

    def images(fields: Fields) -> Examples:
        pixels = np.asarray(fields["pixels"], np.float32)
        labels = np.asarray(fields["label"]).reshape(-1)
        if pixels.shape != (len(labels), 28, 28):
            raise ValueError(f"pixels of the shape {list(pixels.shape)}")
        return pixels[..., None], labels.astype(np.int32)

    train, test = (_converted(path, images) for path in paths)
    return of_clients(train, test, characters.DIGITS_AND_LETTERS)


def read_shakespeare(paths: Sequence[Path]) -> Dataset:
    """Reads `shakespeare`: the next characters of 715 roles, the owners.

    Every fifth character of a role's text is predicted from the 80 before it.
    """

    def texts(fields: Fields) -> Examples:
        text = "\n".join(_strings(fields["snippets"]))
        return characters.windows(text, stride=STRIDE)

    train, test = (_converted(path, texts) for path in paths)
    return of_clients(train, test, characters.NAMES, characters.TOKENS)


def read_stackoverflow(paths: Sequence[Path]) -> Dataset:
    """Reads `stackoverflow`: the next words of its first users, the owners.

    Every word of a sentence but the first is predicted from at most 20 words before it.
    Classes are the most frequent words of the training sentences; other words are one
    token, and are not predicted. The test file has other users.
    """
    counts: Counter[str] = Counter()
    for sentences in _converted(paths[0], _sentences, CLIENTS):
        counts.update(word for sentence in sentences for word in sentence)
    ordered = sorted(counts, key=lambda word: (-counts[word], word))[:WORDS]
    ids = {word: UNKNOWN + 1 + i for i, word in enumerate(ordered)}

    def next_words(fields: Fields) -> Examples:
        rows: list[list[int]] = []
        labels: list[int] = []
        for sentence in _sentences(fields):
            tokens = [ids.get(word, UNKNOWN) for word in sentence]
            for end in range(1, len(tokens)):
                if tokens[end] != UNKNOWN:
                    rows.append(tokens[max(end - WORDS_BEFORE, 0) : end])
                    labels.append(tokens[end] - UNKNOWN - 1)
        return padded(rows, WORDS_BEFORE), np.array(labels, np.int32)

    train, test = (_converted(path, next_words, CLIENTS) for path in paths)
    return of_clients(train, test, tuple(ordered), UNKNOWN + 1 + len(ordered))


def _sentences(fields: Fields) -> list[list[str]]:
    return [text.split() for text in _strings(fields["tokens"][:SENTENCES])]


def _strings(values: Any) -> list[str]:
    return [v.decode() if isinstance(v, bytes) else str(v) for v in values]


def _converted(
    path: Path, convert: Callable[[Fields], T], most: int | None = None
) -> Iterator[T]:
    """What a function makes of the arrays of every client, or of the first ones."""
    h5py = optional("h5py", f"the HDF5 file {path}")
    with (
        reading(path, "an HDF5 file of TensorFlow Federated", errors=(OSError,)),
        h5py.File(path, "r") as file,
    ):
        for fields in islice(file["examples"].values(), most):
            yield convert(fields)

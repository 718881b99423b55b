"""Sentences as token ids, and the sets of sentences in tab-separated files.

* SST-2 and CoLA as in GLUE (arXiv:1804.07461). The labels of GLUE's test sets are not
  public, so its dev.tsv serves as the test set, as in most papers.
* The 1000 restaurant reviews of the UCI "Sentiment Labelled Sentences" (Kotzias et al.
  2015), which are not the "Yelp polarity" reviews.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedjax_muon.data.dataset import Dataset

PADDING, UNKNOWN = 0, 1  # token ids; words follow
VOCABULARY_SIZE = 2**15
LONGEST = 256  # tokens

# Words in lower case with what follows their apostrophes, so that "don't" and the
# "n't" of tokenised sets keep their negation; scikit-learn's default loses both, and
# all words of one letter.
WORD = r"(?u)\b\w+(?:'\w+)*"


class Vocabulary(NamedTuple):
    """Token ids of words: 2 for the most frequent, 3 for the next and so on."""

    ids: Mapping[str, int]


def build_vocabulary(sentences: Sequence[str], size: int) -> Vocabulary:
    """The most frequent words of the sentences, `size` ids with padding and unknown.

    Give it training sentences alone. Words equally frequent come in the order of their
    letters.

    Raises:
      ValueError: if `size` is below 3, or if there is no word in the sentences.
    """
    if size < 3:
        raise ValueError(
            "a vocabulary has padding, the unknown token and one word at least: size "
            f"must be 3 or more, got {size}"
        )
    words = _words()
    counts = Counter(word for sentence in sentences for word in words(sentence))
    if not counts:
        raise ValueError(
            f"no word in {len(sentences)} training sentences; is it the right column?"
        )
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return Vocabulary(
        {word: UNKNOWN + 1 + i for i, word in enumerate(ordered[: size - 2])}
    )


def encode(vocabulary: Vocabulary, sentences: Sequence[str], length: int) -> np.ndarray:
    """Token ids, int32 [len(sentences), length], padded behind or cut off there.

    A word that the vocabulary lacks becomes UNKNOWN. So does a text without any word:
    every example has at least one token that is no padding.

    Raises:
      ValueError: if `length` is below 1.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    words = _words()
    encoded = np.full((len(sentences), length), PADDING, np.int32)
    for row, sentence in zip(encoded, sentences, strict=True):
        ids = [vocabulary.ids.get(word, UNKNOWN) for word in words(sentence)[:length]]
        row[: max(len(ids), 1)] = ids or UNKNOWN
    return encoded


class Sentences(NamedTuple):
    """Texts and their labels."""

    texts: Sequence[str]
    labels: Sequence[int]


def tokenised(train: Sentences, test: Sentences, classes: tuple[str, ...]) -> Dataset:
    """The data set of token ids, vocabulary and length from the training texts alone.

    It keeps the VOCABULARY_SIZE - 2 most frequent words and as many tokens as the
    longest training text has, LONGEST at most.
    """
    vocabulary = build_vocabulary(train.texts, VOCABULARY_SIZE)
    words = _words()
    length = min(max(len(words(text)) for text in train.texts), LONGEST)
    return Dataset(
        x_train=encode(vocabulary, train.texts, length),
        y_train=np.array(train.labels),
        x_test=encode(vocabulary, test.texts, length),
        y_test=np.array(test.labels),
        classes=classes,
    )


def _words() -> Callable[[str], list[str]]:
    # Imported here: scikit-learn takes a second, and other sets do not need it.
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(token_pattern=WORD).build_analyzer()


Quoting = Literal[0, 3]  # csv.QUOTE_MINIMAL or csv.QUOTE_NONE


class Table(NamedTuple):
    """How the lines of a file are to be read."""

    columns: int
    sentence: int  # the place of its column
    label: int
    header: tuple[str, ...] = ()
    quoting: Quoting = csv.QUOTE_NONE


class TextSet(NamedTuple):
    """A set in files, and where to get them."""

    folders: tuple[str, ...]
    files: tuple[str, ...]  # of training and test; one file is split
    table: Table
    classes: tuple[str, str]
    url: str


GLUE = "https://gluebenchmark.com/tasks"
SETS = {
    "sst2": TextSet(
        folders=("glue/SST-2", "SST-2"),
        files=("train.tsv", "dev.tsv"),
        table=Table(2, sentence=0, label=1, header=("sentence", "label")),
        classes=("negative", "positive"),
        url=GLUE,
    ),
    "cola": TextSet(
        folders=("glue/CoLA", "CoLA"),
        files=("train.tsv", "dev.tsv"),
        table=Table(4, sentence=3, label=1),
        classes=("unacceptable", "acceptable"),
        url=GLUE,
    ),
    "yelp_labelled": TextSet(
        folders=("yelp_labelled_uci", "sentiment labelled sentences"),
        files=("yelp_labelled.txt",),
        # there are copies with quotes around sentences that have commas
        table=Table(2, sentence=0, label=1, quoting=csv.QUOTE_MINIMAL),
        classes=("negative", "positive"),
        url="https://archive.ics.uci.edu/dataset/331",
    ),
}


def read_text_set(name: str, directory: Path) -> Dataset:
    """The set `name` of SETS as token ids, see `tokenised`.

    Of yelp_labelled, which is one file, a fifth is for testing, stratified and the same
    every time.

    Raises:
      FileNotFoundError: if a file is missing.
      ValueError: if a line has another number of columns or a label other than 0 and 1,
        or a file has no sentences or is not UTF-8.
    """
    row = SETS[name]
    parts = [_read_table(path, row.table) for path in _locate(name, directory)]
    train, test = parts if len(parts) == 2 else _split(parts[0])
    return tokenised(train, test, row.classes)


def _locate(name: str, directory: Path) -> list[Path]:
    row = SETS[name]
    folders = [directory / folder for folder in row.folders]
    for folder in folders:
        paths = [folder / file for file in row.files]
        if all(path.is_file() for path in paths):
            return paths
    raise FileNotFoundError(
        f"{name}: neither {folders[0]} nor {folders[1]} has {' and '.join(row.files)}; "
        f"download from {row.url}"
    )


def _read_table(path: Path, table: Table) -> Sentences:
    lines = _lines(path, table.quoting)
    if table.header and tuple(next(lines, (0, ()))[1]) != table.header:
        raise ValueError(
            f"{path}: expected the columns {', '.join(table.header)} in line 1; "
            "replace it by the original file"
        )
    texts, labels = [], []
    for number, columns in lines:
        if len(columns) != table.columns:
            raise ValueError(
                f"{path}, line {number}: expected {table.columns} columns between "
                f"tabs, found {len(columns)}; replace it by the original file"
            )
        label = columns[table.label]
        if label not in ("0", "1"):
            raise ValueError(
                f"{path}, line {number}: expected the label 0 or 1, found {label!r}; "
                "replace it by the original file"
            )
        texts.append(columns[table.sentence])
        labels.append(int(label))
    if not texts:
        raise ValueError(f"{path}: expected sentences, found none; fetch it again")
    return Sentences(texts, labels)


def _lines(path: Path, quoting: Quoting) -> Iterator[tuple[int, list[str]]]:
    """Numbers and columns of the lines, one by one: a quote must not join lines."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                reader = csv.reader([line], delimiter="\t", quoting=quoting)
                yield number, next(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{path}: expected text in UTF-8 between tabs, found a damaged file "
            f"({error}); fetch it again"
        ) from error


def _split(whole: Sentences) -> tuple[Sentences, Sentences]:
    from sklearn.model_selection import train_test_split

    x_train, x_test, y_train, y_test = train_test_split(
        whole.texts,
        whole.labels,
        test_size=0.2,
        stratify=whole.labels,
        random_state=0,
    )
    return Sentences(x_train, y_train), Sentences(x_test, y_test)

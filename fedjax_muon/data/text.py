"""Token ids of sentences, and sentences in tab-separated files.

* The classification tasks of GLUE (arXiv:1804.07461), on sentences or pairs. The labels
  of GLUE's test sets are not public, so dev.tsv is the test set, as in most papers; for
  MNLI it is the matched one, with the genres of the training set.
* The 1000 restaurant reviews of the UCI "Sentiment Labelled Sentences" (Kotzias et al.
  2015), which are not the "Yelp polarity" reviews.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedjax_muon.data.dataset import Dataset, stratified
from fedjax_muon.files import reading

PADDING, UNKNOWN = 0, 1  # token ids; those of words follow
VOCABULARY_SIZE = 2**15
MAX_LENGTH = 256  # tokens

# Words include what follows an apostrophe, so that "don't" and the "n't" of tokenized
# texts keep their negation. scikit-learn's default drops both, and words of one letter.
WORD = r"(?u)\b\w+(?:'\w+)*"


def build_vocabulary(sentences: Sequence[str], size: int) -> dict[str, int]:
    """Token ids of the most frequent words: 2 for the first, 3 for the next and so on.

    Equally frequent words are in alphabetical order.

    Example:
      >>> build_vocabulary(["good food", "bad food"], size=5)["food"]
      2
    """
    words = _words()
    counts = Counter(word for sentence in sentences for word in words(sentence))
    if not counts:
        raise ValueError(
            f"none of the {len(sentences)} training sentences has a word; is it the "
            "right column?"
        )
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: UNKNOWN + 1 + i for i, word in enumerate(ordered[: size - 2])}


def encode(
    vocabulary: Mapping[str, int], sentences: Sequence[str], length: int
) -> np.ndarray:
    """Converts sentences to token ids int32 [n, length], padded or cut off at the end.

    Words that are not in the vocabulary become UNKNOWN. So does a text without words:
    every example has at least one token besides padding.

    Example:
      >>> encode({"food": 2}, ["Good food"], length=3).tolist()
      [[1, 2, 0]]
    """
    words = _words()
    rows = (
        [vocabulary.get(word, UNKNOWN) for word in words(sentence)[:length]]
        for sentence in sentences
    )
    return padded((row or [UNKNOWN] for row in rows), length)


def padded(
    rows: Iterable[Sequence[int] | np.ndarray], length: int, padding: int = PADDING
) -> np.ndarray:
    """Token ids int32 [n, length] of rows that may be shorter."""
    rows = list(rows)
    ids = np.full((len(rows), length), padding, np.int32)
    for line, row in zip(ids, rows, strict=True):
        line[: len(row)] = row
    return ids


Text = str | tuple[str, str]  # a sentence, or a pair of sentences


class Encoder(NamedTuple):
    """An encoder of texts for a model with its own vocabulary."""

    encode: Callable[[Sequence[Text]], np.ndarray]
    # texts -> token ids int32 [n, length], padded at the end
    padding: int  # token id of padding
    tokens: int  # size of the vocabulary: all token ids are below


class Sentences(NamedTuple):
    """Texts and their labels."""

    texts: Sequence[Text]
    labels: Sequence[int]


def tokenized(
    train: Sentences,
    test: Sentences,
    classes: tuple[str, ...],
    encoder: Encoder | None = None,
) -> Dataset:
    """Makes a dataset of token ids, int32 [n, length].

    Without an encoder, tokens are the VOCABULARY_SIZE - 2 most frequent words of the
    training texts, texts are as long as the longest training text, at most MAX_LENGTH,
    and the sentences of a pair are joined.
    """
    y_train, y_test = np.array(train.labels), np.array(test.labels)
    if encoder is not None:
        ids = encoder.encode([*train.texts, *test.texts])
        x_train, x_test = np.split(ids, [len(y_train)])
        return Dataset(x_train, y_train, x_test, y_test, classes, encoder.tokens)
    join = lambda text: text if isinstance(text, str) else " ".join(text)
    texts, others = ([join(text) for text in part.texts] for part in (train, test))
    vocabulary = build_vocabulary(texts, VOCABULARY_SIZE)
    words = _words()
    length = min(max(len(words(text)) for text in texts), MAX_LENGTH)
    x_train, x_test = (encode(vocabulary, part, length) for part in (texts, others))
    made = Dataset(x_train, y_train, x_test, y_test, classes)
    return made._replace(words=tuple(vocabulary))


def _words() -> Callable[[str], list[str]]:
    # Imported here, since importing scikit-learn takes a second.
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(token_pattern=WORD).build_analyzer()


LINE_LIMIT = 2**20  # letters

Quoting = Literal[0, 3]  # csv.QUOTE_MINIMAL or csv.QUOTE_NONE


class Table(NamedTuple):
    """The columns of a file, and how to read its lines."""

    texts: tuple[str, ...]  # names of the columns with the sentence, or with both
    label: str  # name of the column with the label
    classes: tuple[str, ...]
    labels: tuple[str, ...] = ("0", "1")  # values of the label column, class by class
    columns: tuple[str, ...] = ()  # all names, if they are not in the first line
    quoting: Quoting = csv.QUOTE_NONE
    broken: int = 0  # largest number of broken lines, which the original file has


def read_sentences(
    paths: Sequence[Path], table: Table, encoder: Encoder | None = None
) -> Dataset:
    """Reads sentences as token ids, int32 [n, length].

    Args:
      paths: A training and a test file, or one file, of which a fixed stratified fifth
        is the test set.
    """
    parts = [_read_table(path, table) for path in paths]
    if len(parts) == 1:
        (whole,) = parts
        with reading(paths[0], "enough sentences of each class to split them"):
            numbers = stratified(np.array(whole.labels), 0.2, "test")
        parts = [
            Sentences([whole.texts[i] for i in ids], [whole.labels[i] for i in ids])
            for ids in numbers
        ]
    train, test = parts
    return tokenized(train, test, table.classes, encoder)


def _read_table(path: Path, table: Table) -> Sentences:
    lines = _lines(path, table.quoting)
    names = table.columns or tuple(next(lines, (0, ()))[1])
    needed = (*table.texts, table.label)
    if not set(needed) <= set(names):
        raise ValueError(
            f"{path}: expected the columns {', '.join(needed)} in line 1; replace it "
            "with the original file"
        )
    *places, last = (names.index(name) for name in needed)
    texts: list[Text] = []
    labels, broken = [], 0
    for number, columns in lines:
        if len(columns) != len(names):
            broken += 1
            if broken <= table.broken:
                continue
            raise ValueError(
                f"{path}, line {number}: expected {len(names)} tab-separated columns, "
                f"found {len(columns)}; replace it with the original file"
            )
        label = columns[last]
        if label not in table.labels:
            raise ValueError(
                f"{path}, line {number}, column {last + 1}: expected the label "
                f"{' or '.join(table.labels)}, found {label[:60]!r}; replace it with "
                "the original file"
            )
        first, *second = (columns[place] for place in places)
        texts.append((first, second[0]) if second else first)
        labels.append(table.labels.index(label))
    if not texts:
        raise ValueError(f"{path}: expected sentences, found none; download it again")
    return Sentences(texts, labels)


def _lines(path: Path, quoting: Quoting) -> Iterator[tuple[int, list[str]]]:
    """Numbers and columns of the lines, parsed one by one, so no quote joins lines."""
    damage = "a damaged file"
    with (
        reading(path, "text in UTF-8 between tabs", found=damage, errors=(csv.Error,)),
        path.open(encoding="utf-8-sig") as file,
    ):
        # A bounded number of letters, since a damaged file can be a single line.
        for number, line in enumerate(iter(lambda: file.readline(LINE_LIMIT), ""), 1):
            if len(line) == LINE_LIMIT or "\0" in line:
                raise ValueError(f"line {number} is not text")
            reader = csv.reader([line], delimiter="\t", quoting=quoting)
            yield number, next(reader)

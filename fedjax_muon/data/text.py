"""Sentences as token ids, and the sets of sentences in tab-separated files.

* The sets of GLUE (arXiv:1804.07461) that have classes, of sentences or of pairs. The
  labels of GLUE's test sets are not public, so its dev.tsv serves as the test set, as
  in most papers; of MNLI the matched one, from the training set's genres.
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


Text = str | tuple[str, str]  # a sentence or a pair of them


class Encoder(NamedTuple):
    """How texts become token ids for a model that has a vocabulary of its own, such as
    `byte_pairs.roberta_encoder`."""

    encode: Callable[[Sequence[Text]], np.ndarray]  # int32 [n, length], padded behind
    padding: int
    tokens: int  # ids are below


class Sentences(NamedTuple):
    """Texts and their labels."""

    texts: Sequence[Text]
    labels: Sequence[int]


def tokenised(
    train: Sentences,
    test: Sentences,
    classes: tuple[str, ...],
    encoder: Encoder | None = None,
) -> Dataset:
    """The data set of token ids, by the encoder or else word by word.

    Words and length come from the training texts alone: the VOCABULARY_SIZE - 2 most
    frequent words, and as many tokens as the longest training text has, LONGEST at
    most. A pair is its two sentences, one after the other.
    """
    if encoder is None:
        return _of_words(train, test, classes)
    ids = encoder.encode([*train.texts, *test.texts])
    count = len(train.texts)
    return Dataset(
        x_train=ids[:count],
        y_train=np.array(train.labels),
        x_test=ids[count:],
        y_test=np.array(test.labels),
        classes=classes,
        tokens=encoder.tokens,
    )


def _of_words(train, test, classes):
    join = lambda text: text if isinstance(text, str) else " ".join(text)
    texts, others = ([join(text) for text in part.texts] for part in (train, test))
    vocabulary = build_vocabulary(texts, VOCABULARY_SIZE)
    words = _words()
    length = min(max(len(words(text)) for text in texts), LONGEST)
    return Dataset(
        x_train=encode(vocabulary, texts, length),
        y_train=np.array(train.labels),
        x_test=encode(vocabulary, others, length),
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

    texts: tuple[str, ...]  # names of the columns with the sentence, or with both
    label: str
    labels: tuple[str, ...] = ("0", "1")  # class by class, as they stand in the column
    columns: tuple[str, ...] = ()  # all names, of a file whose first line lacks them
    quoting: Quoting = csv.QUOTE_NONE
    broken: int = 0  # lines with other columns, at most, that the original has


class TextSet(NamedTuple):
    """A set in files, and where to get them."""

    folders: tuple[str, ...]
    files: tuple[str, ...]  # of training and test; one file is split
    table: Table
    classes: tuple[str, ...]
    url: str


def _glue(folder: str, table: Table, classes: tuple[str, ...], test="dev.tsv"):
    return TextSet(
        folders=(f"glue/{folder}", folder),
        files=("train.tsv", test),
        table=table,
        classes=classes,
        url="https://gluebenchmark.com/tasks",
    )


ENTAILMENT = ("entailment", "not_entailment")
MNLI = ("entailment", "neutral", "contradiction")
SETS = {
    "sst2": _glue("SST-2", Table(("sentence",), "label"), ("negative", "positive")),
    "cola": _glue(
        "CoLA",
        Table(("sentence",), "label", columns=("source", "label", "mark", "sentence")),
        ("unacceptable", "acceptable"),
    ),
    "mrpc": _glue(
        "MRPC",
        Table(("#1 String", "#2 String"), "Quality"),
        ("not_equivalent", "equivalent"),
    ),
    # questions with line breaks, which everyone leaves out
    "qqp": _glue(
        "QQP",
        Table(("question1", "question2"), "is_duplicate", broken=100),
        ("not_duplicate", "duplicate"),
    ),
    "qnli": _glue(
        "QNLI", Table(("question", "sentence"), "label", ENTAILMENT), ENTAILMENT
    ),
    "rte": _glue(
        "RTE", Table(("sentence1", "sentence2"), "label", ENTAILMENT), ENTAILMENT
    ),
    "mnli": _glue(
        "MNLI",
        Table(("sentence1", "sentence2"), "gold_label", MNLI),
        MNLI,
        test="dev_matched.tsv",
    ),
    "yelp_labelled": TextSet(
        folders=("yelp_labelled_uci", "sentiment labelled sentences"),
        files=("yelp_labelled.txt",),
        # there are copies with quotes around sentences that have commas
        table=Table(
            ("sentence",),
            "label",
            columns=("sentence", "label"),
            quoting=csv.QUOTE_MINIMAL,
        ),
        classes=("negative", "positive"),
        url="https://archive.ics.uci.edu/dataset/331",
    ),
}


def read_text_set(
    name: str, directory: Path, encoder: Encoder | None = None
) -> Dataset:
    """The set `name` of SETS as token ids, see `tokenised`.

    Of yelp_labelled, which is one file, a fifth is for testing, stratified and the same
    every time. Of qqp, a few questions of the original file have line breaks in them;
    these lines are left out, as by RoBERTa's authors.

    Raises:
      FileNotFoundError: if a file is missing.
      ValueError: if a file lacks a column, a line has another number of columns or a
        label that is none, or a file has no sentences or is not UTF-8.
    """
    row = SETS[name]
    parts = [_read_table(path, row.table) for path in _locate(name, directory)]
    train, test = parts if len(parts) == 2 else _split(parts[0])
    return tokenised(train, test, row.classes, encoder)


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
    names = table.columns or tuple(next(lines, (0, ()))[1])
    needed = (*table.texts, table.label)
    if not set(needed) <= set(names):
        raise ValueError(
            f"{path}: expected the columns {', '.join(needed)} in line 1; replace it "
            "by the original file"
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
                f"{path}, line {number}: expected {len(names)} columns between tabs, "
                f"found {len(columns)}; replace it by the original file"
            )
        label = columns[last]
        if label not in table.labels:
            raise ValueError(
                f"{path}, line {number}, column {last + 1}: expected the label "
                f"{' or '.join(table.labels)}, found {label!r}; replace it by the "
                "original file"
            )
        found = [columns[place] for place in places]
        texts.append(found[0] if len(found) == 1 else (found[0], found[1]))
        labels.append(table.labels.index(label))
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

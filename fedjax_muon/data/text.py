"""Token ids of sentences, and sets of sentences in tab-separated files.

* The classification tasks of GLUE (arXiv:1804.07461), on sentences or pairs. The labels
  of GLUE's test sets are not public, so dev.tsv is the test set, as in most papers; for
  MNLI it is the matched one, with the genres of the training set.
* The 1000 restaurant reviews of the UCI "Sentiment Labelled Sentences" (Kotzias et al.
  2015), which are not the "Yelp polarity" reviews.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedjax_muon.core.reading import reading
from fedjax_muon.data.dataset import Dataset

PADDING, UNKNOWN = 0, 1  # token ids; those of words follow
VOCABULARY_SIZE = 2**15
MAX_LENGTH = 256  # tokens

# Words include what follows an apostrophe, so that "don't" and the "n't" of tokenized
# sets keep their negation. scikit-learn's default drops both, and words of one letter.
WORD = r"(?u)\b\w+(?:'\w+)*"


class Vocabulary(NamedTuple):
    """Token ids of words: 2 for the most frequent, 3 for the next and so on."""

    ids: Mapping[str, int]


def build_vocabulary(sentences: Sequence[str], size: int) -> Vocabulary:
    """Collects the most frequent words of sentences.

    Equally frequent words are in alphabetical order.

    Args:
      sentences: Training sentences.
      size: Number of token ids, including padding and the unknown token.

    Returns:
      The token ids of the words.

    Example:
      >>> vocabulary = build_vocabulary(["good food", "bad food"], size=5)
      >>> vocabulary.ids["food"]
      2
    """
    if size < 3:
        raise ValueError(
            "a vocabulary has padding, the unknown token and at least one word: size "
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
    """Converts sentences to token ids, padded or cut off at the end.

    Words that are not in the vocabulary become UNKNOWN. So does a text without words:
    every example has at least one token besides padding.

    Args:
      vocabulary: Token ids of words.
      length: Number of tokens of every sentence.

    Returns:
      Token ids, int32 [len(sentences), length].

    Example:
      >>> encode(Vocabulary({"food": 2}), ["Good food"], length=3).tolist()
      [[1, 2, 0]]
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    words = _words()
    encoded = np.full((len(sentences), length), PADDING, np.int32)
    for row, sentence in zip(encoded, sentences, strict=True):
        ids = [vocabulary.ids.get(word, UNKNOWN) for word in words(sentence)[:length]]
        row[: max(len(ids), 1)] = ids or UNKNOWN
    return encoded


Text = str | tuple[str, str]  # a sentence, or a pair of sentences


class Encoder(NamedTuple):
    """An encoder of texts for a model with its own vocabulary.

    An example is that of `byte_pairs.roberta_encoder`.
    """

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
    """Makes a data set of token ids.

    Without an encoder, tokens are the VOCABULARY_SIZE - 2 most frequent words of the
    training texts, texts are as long as the longest training text, at most MAX_LENGTH,
    and the sentences of a pair are joined.

    Args:
      train: Training texts and labels.
      test: Test texts and labels.
      encoder: Encoder of the texts; tokens are words by default.

    Returns:
      The data set, with inputs int32 [n, length].
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


def _of_words(train: Sentences, test: Sentences, classes: tuple[str, ...]) -> Dataset:
    join = lambda text: text if isinstance(text, str) else " ".join(text)
    texts, others = ([join(text) for text in part.texts] for part in (train, test))
    vocabulary = build_vocabulary(texts, VOCABULARY_SIZE)
    words = _words()
    length = min(max(len(words(text)) for text in texts), MAX_LENGTH)
    return Dataset(
        x_train=encode(vocabulary, texts, length),
        y_train=np.array(train.labels),
        x_test=encode(vocabulary, others, length),
        y_test=np.array(test.labels),
        classes=classes,
    )


def _words() -> Callable[[str], list[str]]:
    # Imported here, since importing scikit-learn takes a second.
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(token_pattern=WORD).build_analyzer()


LINE_LIMIT = 2**20  # letters
FOUND = "a damaged file"

Quoting = Literal[0, 3]  # csv.QUOTE_MINIMAL or csv.QUOTE_NONE


class Table(NamedTuple):
    """The columns of a file, and how to read its lines."""

    texts: tuple[str, ...]  # names of the columns with the sentence, or with both
    label: str  # name of the column with the label
    labels: tuple[str, ...] = ("0", "1")  # values of the label column, class by class
    columns: tuple[str, ...] = ()  # all names, if they are not in the first line
    quoting: Quoting = csv.QUOTE_NONE
    broken: int = 0  # largest number of broken lines, which the original file has


class TextSet(NamedTuple):
    """A set of sentences in files, and where to get them."""

    folders: tuple[str, ...]
    files: tuple[str, ...]  # training and test file; a single file is split
    table: Table
    classes: tuple[str, ...]
    url: str


def _glue(
    folder: str, table: Table, classes: tuple[str, ...], test: str = "dev.tsv"
) -> TextSet:
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
    # Some questions contain line breaks; these lines are skipped, as is usual.
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
        # Some copies have quotes around sentences with commas.
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
    name: str, paths: Sequence[Path], encoder: Encoder | None = None
) -> Dataset:
    """Reads a set of sentences as token ids.

    yelp_labelled is one file; a fixed stratified fifth of it is the test set. In qqp, a
    few questions contain line breaks; these lines are skipped, as by RoBERTa's authors.

    Args:
      paths: Paths of its files, in the order of SETS.
      encoder: Encoder of the texts; tokens are words by default, see `tokenized`.

    Returns:
      The data set, with inputs int32 [n, length].
    """
    row = SETS[name]
    parts = [_read_table(path, row.table) for path in paths]
    with reading(paths[0], "enough sentences of each class to split them"):
        train, test = parts if len(parts) == 2 else _split(parts[0])
    return tokenized(train, test, row.classes, encoder)


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
                f"{path}, line {number}: expected {len(names)} columns between tabs, "
                f"found {len(columns)}; replace it with the original file"
            )
        label = columns[last]
        if label not in table.labels:
            raise ValueError(
                f"{path}, line {number}, column {last + 1}: expected the label "
                f"{' or '.join(table.labels)}, found {label[:60]!r}; replace it with "
                "the original file"
            )
        found = [columns[place] for place in places]
        texts.append(found[0] if len(found) == 1 else (found[0], found[1]))
        labels.append(table.labels.index(label))
    if not texts:
        raise ValueError(f"{path}: expected sentences, found none; download it again")
    return Sentences(texts, labels)


def _lines(path: Path, quoting: Quoting) -> Iterator[tuple[int, list[str]]]:
    """Numbers and columns of the lines, parsed one by one, so no quote joins lines."""
    with (
        reading(path, "text in UTF-8 between tabs", found=FOUND, errors=(csv.Error,)),
        path.open(encoding="utf-8-sig") as file,
    ):
        # A bounded number of letters, since a damaged file can be a single line.
        for number, line in enumerate(iter(lambda: file.readline(LINE_LIMIT), ""), 1):
            if len(line) == LINE_LIMIT or "\0" in line:
                raise ValueError(f"line {number} is no text")
            reader = csv.reader([line], delimiter="\t", quoting=quoting)
            yield number, next(reader)


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

"""Files of text: sentences and pairs, ids against plain Python; LIBSVM's tables."""

import bz2
import lzma
import re

import numpy as np
import pytest

from fedjax_muon import data
from fedjax_muon.data import text
from fedjax_muon.data.catalog import SENTENCES
from tests.support.error_lines import one_line
from tests.support.published import PUBLISHED

pytestmark = pytest.mark.usefixtures("small_files")


TRAIN = [
    "It's a GOOD film , isn't it ?",
    "a bad film",
    "does n't bore , a film",
    "...",
    "Überall good; x2 \u00e9t\u00e9",
]


def words_of(sentence):
    """Letter by letter: word characters, and apostrophes between two of them."""
    line = f" {sentence.lower()} "
    inside = lambda c: c.isalnum() or c == "_"
    kept = ""
    for before, c, after in zip(line, line[1:], line[2:], strict=False):
        between = c == "'" and inside(before) and inside(after)
        kept += c if inside(c) or between else " "
    return kept.split()


def test_vocabulary_has_the_most_frequent_words_first():
    words = [word for sentence in TRAIN for word in words_of(sentence)]
    assert {"it's", "isn't", "n't", "a", "x2", "\u00fcberall"} <= set(words)
    expected = sorted(set(words), key=lambda word: (-words.count(word), word))
    every = text.build_vocabulary(TRAIN, 100)
    assert every == {word: i + 2 for i, word in enumerate(expected)}
    few = text.build_vocabulary(TRAIN, 5)
    assert few == {word: i + 2 for i, word in enumerate(expected[:3])}


def test_ids_are_padded_and_cut():
    vocabulary = text.build_vocabulary(TRAIN, 6)
    sentences = [*TRAIN, "a new good word of a film", "", " ", "?!", "unheard"]
    for length in (1, 3, 7, 12):
        encoded = text.encode(vocabulary, sentences, length)
        assert encoded.dtype == np.int32
        assert encoded.shape == (len(sentences), length)
        for row, sentence in zip(encoded, sentences, strict=True):
            ids = [vocabulary.get(word, 1) for word in words_of(sentence)] or [1]
            ids = ids[:length]
            assert row.tolist() == ids + [0] * (length - len(ids))
        assert text.encode(vocabulary, [], length).shape == (0, length)


def test_vocabulary_and_length_come_from_the_training_texts():
    train = text.Sentences(["one two three", "two", "three two"], [0, 1, 1])
    test = text.Sentences(["four four four four five", "three"], [1, 0])
    tokens = text.tokenized(train, test, ("no", "yes"))
    two, three, one = 2, 3, 4
    expected = [[one, two, three], [two, 0, 0], [three, two, 0]]
    np.testing.assert_array_equal(tokens.x_train, expected)
    np.testing.assert_array_equal(tokens.x_test, [[1, 1, 1], [three, 0, 0]])
    np.testing.assert_array_equal(tokens.y_train, [0, 1, 1])
    assert data.check(tokens).tokens == 5
    assert tokens.classes == ("no", "yes")
    long = text.Sentences(["word " * (text.MAX_LENGTH + 1)], [1])
    cut = text.tokenized(long, long, ("no", "yes")).x_train
    np.testing.assert_array_equal(cut, np.full((1, text.MAX_LENGTH), two))


# ---------------------------------------------------------------------- files

# A quote that is never closed and one around a comma belong to the sentence in GLUE.
ROWS = [('"good , film', 1), ("bad film", 0), ('so "good , very" good', 1), ("", 0)]
TEST_ROWS = [("a good film", 1), ("bad", 0)]


def sst2_lines(rows):
    return ["sentence\tlabel", *(f"{sentence} \t{label}" for sentence, label in rows)]


def cola_lines(rows):
    return [f"gj04\t{label}\t{'' if label else '*'}\t{s}" for s, label in rows]


def write(path, lines, end="\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode())


def write_glue(name, folder, **options):
    lines = {"sst2": sst2_lines, "cola": cola_lines}[name]
    write(folder / "train.tsv", lines(ROWS), **options)
    write(folder / "dev.tsv", lines(TEST_ROWS), **options)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("below", ["glue", "."])
@pytest.mark.parametrize(("name", "folder"), [("sst2", "SST-2"), ("cola", "CoLA")])
def test_glue_round_trip(tmp_path, name, folder, below, end):
    write_glue(name, tmp_path / below / folder, end=end)
    loaded = data.load(name, tmp_path)
    ids = {"good": 2, "film": 3, "bad": 4, "so": 5, "very": 6}
    expected = [["good", "film"], ["bad", "film"], ["so", "good", "very", "good"], []]
    for row, words in zip(loaded.x_train, expected, strict=True):
        tokens = [ids[word] for word in words] or [text.UNKNOWN]
        assert row.tolist() == tokens + [0] * (4 - len(tokens))
    np.testing.assert_array_equal(loaded.x_test, [[1, 2, 3, 0], [4, 0, 0, 0]])
    assert loaded.y_train.tolist() == [1, 0, 1, 0]
    assert loaded.y_test.tolist() == [1, 0]
    assert loaded.y_train.dtype == np.int32
    assert loaded.classes[1] in ("positive", "acceptable")


YELP = [
    (f"sentence {word}, number {word}", i % 2) for i, word in enumerate("abcdefghij")
]


@pytest.mark.parametrize("end", ["\n", "\r"])
@pytest.mark.parametrize("quoted", [True, False])
@pytest.mark.parametrize("folder", PUBLISHED["yelp_labelled"].layouts[0].folders)
def test_yelp_labelled_round_trip(tmp_path, folder, quoted, end):
    quote = '"' if quoted else ""
    lines = [f"{quote}{s}{quote}\t{label}" for s, label in YELP]
    write(tmp_path / folder / "yelp_labelled.txt", lines, end)
    loaded, again = (data.load("yelp_labelled", tmp_path) for _ in range(2))
    np.testing.assert_array_equal(loaded.x_train, again.x_train)
    np.testing.assert_array_equal(loaded.y_test, again.y_test)
    assert loaded.x_train.shape == (8, 4)  # sentence, letter, number, letter
    assert loaded.y_train.sum() == 4  # stratified
    assert loaded.y_test.sum() == 1
    assert len({row[1] for row in loaded.x_train.tolist()}) == 8  # nobody twice
    assert np.all(loaded.x_test[:, 1] == text.UNKNOWN)  # nobody in both


@pytest.mark.parametrize("name", SENTENCES)
def test_missing_files(tmp_path, name):
    row = data.NAMES[name].layouts[0]
    words = (
        *(f.name for f in row.files),
        *(tmp_path / folder for folder in row.folders),
        row.url,
    )
    with one_line(f"^{name}: ", *words, error=FileNotFoundError):
        data.load(name, tmp_path)
    write_glue("sst2", tmp_path / "SST-2")  # both files are needed
    (tmp_path / "SST-2" / "dev.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"no train\.tsv, dev\.tsv in .*SST-2;"):
        data.load("sst2", tmp_path)


TWO = "expected the label entailment or not_entailment"
THREE = "expected the label entailment or neutral or contradiction"
WRONG = [
    ("sst2", 2, "good film", "expected 2 tab-separated columns, found 1"),
    ("sst2", 3, "good\t2", "expected the label 0 or 1, found '2'"),
    ("sst2", 1, "index\tsentence", "expected the columns sentence, label"),
    ("cola", 1, "gj04\t1\tgood", "expected 4 tab-separated columns, found 3"),
    ("cola", 2, "gj04\tx\t\tgood", "expected the label 0 or 1, found 'x'"),
    ("rte", 1, "index\tsentence1", "expected the columns sentence1, sentence2, lab"),
    ("qnli", 3, "0\ta\tb\t1", f"line 3, column 4: {TWO}, found '1'; replace it"),
    ("mnli", 4, "a\t" * 11 + "-", f"line 4, column 12: {THREE}, found '-'"),
]


@pytest.mark.parametrize(("name", "number", "line", "message"), WRONG)
def test_wrong_lines_are_named(tmp_path, name, number, line, message):
    if name in HEADERS:
        path = write_pairs(name, tmp_path)
    else:
        path = tmp_path / PUBLISHED[name].layouts[0].folders[0] / "train.tsv"
        write_glue(name, path.parent)
    lines = path.read_text().splitlines()
    lines[number - 1] = line
    write(path, lines)
    with one_line(re.escape(message), path, f"line {number}"):
        data.load(name, tmp_path)


# ---------------------------------------------------------- pairs of sentences

PARSES = [f"sentence{i}_{kind}" for kind in ("binary_parse", "parse") for i in (1, 2)]
MNLI = ["index", "promptID", "pairID", "genre", *PARSES, "sentence1", "sentence2"]
HEADERS = {
    "mrpc": ["\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
    "qqp": ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
    "qnli": ["index", "question", "sentence", "label"],
    "rte": ["index", "sentence1", "sentence2", "label"],
    "mnli": [*MNLI, "label1", "gold_label"],
}
# what five people said
MATCHED = [*MNLI, *(f"label{i}" for i in range(1, 6)), "gold_label"]
COLUMNS = {
    "mrpc": ("#1 String", "#2 String", "\ufeffQuality"),
    "qqp": ("question1", "question2", "is_duplicate"),
    "qnli": ("question", "sentence", "label"),
    "rte": ("sentence1", "sentence2", "label"),
    "mnli": ("sentence1", "sentence2", "gold_label"),
}
LABELS = {"mrpc": "01", "qqp": "01", "mnli": ["entailment", "neutral", "contradiction"]}
LABELS["qnli"] = LABELS["rte"] = ["entailment", "not_entailment"]
# a quote that is never closed is a part of the sentence
PAIRS = [('"good , film', "bad film", 1), ("bad film", "film", 0), ("so", "", 1)]
TEST_PAIRS = [("a good film", "bad", 0), ("so so", "new", 1)]
IDS = {"film": 2, "bad": 3, "good": 4, "so": 5}


def pair_lines(name, rows, header):
    found = ["\t".join(header)]
    for first, second, label in rows:
        values = dict.fromkeys(header, "neutral")
        own = first, second, LABELS[name][label]
        values |= dict(zip(COLUMNS[name], own, strict=True))
        found.append("\t".join(values.values()))
    return found


def write_pairs(name, directory):
    """Returns the path of the training file."""
    folder = directory / "glue" / name.upper()
    write(folder / "train.tsv", pair_lines(name, PAIRS, HEADERS[name]))
    if name == "mnli":
        write(folder / "dev_matched.tsv", pair_lines(name, TEST_PAIRS, MATCHED))
    else:
        write(folder / "dev.tsv", pair_lines(name, TEST_PAIRS, HEADERS[name]))
    return folder / "train.tsv"


@pytest.mark.parametrize("name", HEADERS)
def test_pairs_as_words(tmp_path, name):
    write_pairs(name, tmp_path)
    loaded = data.load(name, tmp_path)
    row = lambda words: [IDS.get(word, 1) for word in words.split()]
    pad = lambda ids: ids + [0] * (4 - len(ids))
    train = ["good film bad film", "bad film film", "so"]
    assert loaded.x_train.tolist() == [pad(row(words)) for words in train]
    test = ["a good film bad", "so so new"]
    assert loaded.x_test.tolist() == [pad(row(words)) for words in test]
    assert loaded.y_train.tolist() == [1, 0, 1]
    assert loaded.y_test.tolist() == [0, 1]
    assert len(loaded.classes) == len(LABELS[name])
    assert set(loaded.classes) == set(LABELS[name]) or name in ("mrpc", "qqp")


@pytest.mark.parametrize("name", HEADERS)
def test_encoders_are_given_pairs(tmp_path, name):
    write_pairs(name, tmp_path)
    seen = []

    def encode(texts):
        seen.extend(texts)
        return np.arange(3 * len(texts), dtype=np.int32).reshape(-1, 3)

    encoder = text.Encoder(encode, padding=1, tokens=99)
    loaded = data.load(name, tmp_path, encoder=encoder)
    assert seen == [(a, b) for a, b, _ in (*PAIRS, *TEST_PAIRS)]
    assert loaded.x_train.ravel().tolist() == list(range(9))
    assert loaded.x_test.ravel().tolist() == list(range(9, 15))
    assert loaded.tokens == 99
    assert loaded.y_train.tolist() == [1, 0, 1]
    assert loaded.y_test.tolist() == [0, 1]


def test_questions_across_lines_are_left_out(tmp_path):
    path = write_pairs("qqp", tmp_path)
    content = pair_lines("qqp", PAIRS, HEADERS["qqp"])
    cut = ["7\t8\t9\tWho wrote", "this?\tWho did?\t1"]
    allowed = 100  # as many as in the published files
    whole = data.load("qqp", tmp_path)
    write(path, content[:2] + cut * (allowed // 2) + content[2:])
    found = data.load("qqp", tmp_path)
    np.testing.assert_array_equal(found.x_train, whole.x_train)
    write(path, content[:2] + cut * (allowed // 2 + 1) + content[2:])
    message = rf"line {allowed + 3}: expected 6 tab-separated columns, found 4"
    with pytest.raises(ValueError, match=message):
        data.load("qqp", tmp_path)


# ------------------------------------------------------------- tables of LIBSVM

ROWS_A9A = "-1 1:1 123:1 \n+1 2:0.5\n-1 3:1 4:-2\n"
TEST_A9A = "+1 1:1\n-1 122:1\n"


def put(place, name="a9a", train=ROWS_A9A):
    place.mkdir(parents=True, exist_ok=True)
    files = PUBLISHED[name].layouts[0].files
    for file, content in zip(files, (train, TEST_A9A), strict=True):
        (place / file.name).write_text(content)


@pytest.mark.parametrize("folder", ["libsvm", "a9a", "."])
def test_lines_become_rows(tmp_path, folder):
    put(tmp_path / folder)
    found = data.load("a9a", tmp_path)
    expected = np.zeros((3, 123), np.float32)
    expected[0, [0, 122]], expected[1, 1], expected[2, [2, 3]] = 1, 0.5, (1, -2)
    np.testing.assert_array_equal(found.x_train, expected)  # and not standardized
    np.testing.assert_array_equal(found.y_train, [0, 1, 0])
    np.testing.assert_array_equal(found.x_test.nonzero(), [[0, 1], [0, 121]])
    np.testing.assert_array_equal(found.y_test, [1, 0])
    assert found.x_train.dtype == np.float32
    assert len(found.classes) == 2
    (tmp_path / folder / "a9a.bz2").write_bytes(bz2.compress(ROWS_A9A.encode()))
    (tmp_path / folder / "a9a.t.xz").write_bytes(lzma.compress(TEST_A9A.encode()))
    for file in ("a9a", "a9a.t"):
        (tmp_path / folder / file).unlink()
    packed = data.load("a9a", tmp_path)
    np.testing.assert_array_equal(found.x_train, packed.x_train)
    np.testing.assert_array_equal(found.x_test, packed.x_test)


def test_other_tables_are_refused(tmp_path, monkeypatch):
    for train, message in (
        ("-1 124:1\n", "with 123 features"),
        ("-1 1:one\n", "expected LIBSVM's format.*could not convert string"),
        ("2 1:1\n-1 1:1\n", "labels -1 and 1.*another label"),
    ):
        put(tmp_path, train=train)
        with pytest.raises(ValueError, match=message):
            data.load("a9a", tmp_path)
    put(tmp_path)
    monkeypatch.setitem(data.NAMES, "a9a", PUBLISHED["a9a"])
    with pytest.raises(ValueError, match="expected 32561 lines as published, found 3"):
        data.load("a9a", tmp_path)

"""GLUE's pairs of sentences, in files as they are published, and damaged."""

import re

import numpy as np
import pytest
from published import allow_small

from fedjax_muon import data
from fedjax_muon.data import text


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    allow_small(monkeypatch, *text.SETS)


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
FOLDERS = {"mrpc": "MRPC", "qqp": "QQP", "qnli": "QNLI", "rte": "RTE", "mnli": "MNLI"}
LABELS = {
    "mrpc": "01",
    "qqp": "01",
    "qnli": ["entailment", "not_entailment"],
    "rte": ["entailment", "not_entailment"],
    "mnli": ["entailment", "neutral", "contradiction"],
}
# a quote that is never closed is a part of the sentence
TRAIN = [('"good , film', "bad film", 1), ("bad film", "film", 0), ("so", "", 1)]
TEST = [("a good film", "bad", 0), ("so so", "new", 1)]
IDS = {"film": 2, "bad": 3, "good": 4, "so": 5}


def lines(name, rows, header):
    found = ["\t".join(header)]
    for first, second, label in rows:
        values = dict.fromkeys(header, "neutral")
        own = first, second, LABELS[name][label]
        values |= dict(zip(COLUMNS[name], own, strict=True))
        found.append("\t".join(values.values()))
    return found


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in content))


def write_set(name, directory):
    """Returns the path of the training file."""
    folder = directory / "glue" / FOLDERS[name]
    write(folder / "train.tsv", lines(name, TRAIN, HEADERS[name]))
    if name == "mnli":
        write(folder / "dev_matched.tsv", lines(name, TEST, MATCHED))
    else:
        write(folder / "dev.tsv", lines(name, TEST, HEADERS[name]))
    return folder / "train.tsv"


@pytest.mark.parametrize("name", HEADERS)
def test_pairs_as_words(tmp_path, name):
    write_set(name, tmp_path)
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
    write_set(name, tmp_path)
    seen = []

    def encode(texts):
        seen.extend(texts)
        return np.arange(3 * len(texts), dtype=np.int32).reshape(-1, 3)

    encoder = text.Encoder(encode, padding=1, tokens=99)
    loaded = data.load(name, tmp_path, encoder=encoder)
    assert seen == [(a, b) for a, b, _ in (*TRAIN, *TEST)]
    assert loaded.x_train.ravel().tolist() == list(range(9))
    assert loaded.x_test.ravel().tolist() == list(range(9, 15))
    assert loaded.tokens == 99
    assert loaded.y_train.tolist() == [1, 0, 1]
    assert loaded.y_test.tolist() == [0, 1]


def test_encoders_are_given_sentences(tmp_path):
    content = ["sentence\tlabel", "a film \t1", "bad \t0"]
    for file in ("train.tsv", "dev.tsv"):
        write(tmp_path / "SST-2" / file, content)
    encode = lambda texts: np.int32([[len(text)] for text in texts])
    encoder = text.Encoder(encode, padding=1, tokens=9)
    loaded = data.load("sst2", tmp_path, encoder=encoder)
    assert loaded.x_train.tolist() == loaded.x_test.tolist() == [[7], [4]]


@pytest.mark.parametrize(
    ("name", "number", "line", "message"),
    [
        (
            "mrpc",
            1,
            "Quality\t#1 String",
            "expected the columns #1 String, #2 String, Q",
        ),
        ("rte", 1, "index\tsentence1", "expected the columns sentence1, sentence2, la"),
        ("rte", 2, "0\ta\tb", "line 2: expected 4 columns between tabs, found 3"),
        (
            "qnli",
            3,
            "0\ta\tb\t1",
            "line 3, column 4: expected the label entailment or not_entailment, found "
            "'1'; replace it",
        ),
        (
            "mnli",
            4,
            "\t".join([*"abcdefghijk", "-"]),
            "line 4, column 12: expected the label entailment or neutral or "
            "contradiction, found '-'",
        ),
    ],
)
def test_wrong_lines_are_named(tmp_path, name, number, line, message):
    path = write_set(name, tmp_path)
    content = path.read_text().splitlines()
    content[number - 1] = line
    write(path, content)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        data.load(name, tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_questions_across_lines_are_left_out(tmp_path):
    path = write_set("qqp", tmp_path)
    content = lines("qqp", TRAIN, HEADERS["qqp"])
    cut = ["7\t8\t9\tWho wrote", "this?\tWho did?\t1"]
    allowed = text.SETS["qqp"].table.broken
    whole = data.load("qqp", tmp_path)
    write(path, content[:2] + cut * (allowed // 2) + content[2:])
    found = data.load("qqp", tmp_path)
    np.testing.assert_array_equal(found.x_train, whole.x_train)
    write(path, content[:2] + cut * (allowed // 2 + 1) + content[2:])
    message = rf"line {allowed + 3}: expected 6 columns between tabs, found 4"
    with pytest.raises(ValueError, match=message):
        data.load("qqp", tmp_path)

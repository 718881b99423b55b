"""RoBERTa's token ids against the algorithm in plain Python, and what is refused."""

import itertools
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from packages import needs

from experiments.papers.pretrained.byte_pairs import roberta_encoder
from experiments.papers.pretrained.roberta import RoBERTa
from fedjax_muon import data

pytestmark = pytest.mark.slow
checkpoints = needs("tiny_checkpoints")

TEXTS = [
    "the thing's on the hand, and we'll rename it",
    "In Ghana:  3 stones   and 45.2 onions ... ",
    "été über naïve — “red” _and_\tthere\n",
    "<s> the </s>",
    "",
    " ",
]


def by_hand(text, ids, merges):
    """Words as GPT-2 cuts them, with the space before; bytes as letters; of all pairs
    the merge that was learned first, everywhere, until none is left."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    letters = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}
    words = re.findall(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+",
        text,
    )
    found = []
    for word in words:
        pieces = [letters[b] for b in word.encode()]
        while pairs := set(itertools.pairwise(pieces)) & set(merges):
            first = min(pairs, key=merges.index)
            joined = []
            while pieces:
                size = 2 if tuple(pieces[:2]) == first else 1
                joined.append("".join(pieces[:size]))
                pieces = pieces[size:]
            pieces = joined
        found += [ids[piece] for piece in pieces]
    return found


@pytest.fixture
def files(tmp_path):
    checkpoints.write_vocabulary(tmp_path)
    return tmp_path / "vocab.json", tmp_path / "merges.txt"


def learned(files):
    vocabulary, merges = files
    lines = merges.read_text().splitlines()[1:]
    ids = json.loads(vocabulary.read_text())
    return ids, [tuple(line.split(" ")) for line in lines]


def test_sentences_and_pairs(files, monkeypatch):
    encoder = roberta_encoder(*files)
    ids, merges = learned(files)
    assert (encoder.padding, encoder.tokens) == (1, len(ids))
    pieces = [by_hand(text, ids, merges) for text in TEXTS]
    assert ids["ing"] in pieces[0]
    assert ids["Ġthe"] in pieces[0]
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    both = zip(pieces, pieces[::-1], strict=True)
    expected = [[0, *one, 2] for one in pieces]
    expected += [[0, *one, 2, 2, *other, 2] for one, other in both]
    found = encoder.encode([*TEXTS, *pairs])
    longest = max(map(len, expected))
    assert found.dtype == np.int32
    assert found.shape == (len(expected), longest)
    for row, own in zip(found.tolist(), expected, strict=True):
        assert row == own + [1] * (longest - len(own))
    assert encoder.encode([]).shape == (0, 0)
    monkeypatch.setattr("experiments.papers.pretrained.byte_pairs.BATCH_SIZE", 2)
    np.testing.assert_array_equal(encoder.encode([*TEXTS, *pairs]), found)


@pytest.mark.parametrize("length", [5, 12, 13])
def test_long_texts_are_cut_between_their_marks(files, length):
    encoder = roberta_encoder(*files, length=length)
    ids, merges = learned(files)
    pieces = by_hand(TEXTS[0], ids, merges)
    others = by_hand("red", ids, merges)
    pairs = [(TEXTS[0], TEXTS[0]), (TEXTS[0], "red"), ("red", TEXTS[0])]
    alone, both, left, right = encoder.encode([TEXTS[0], *pairs]).tolist()
    assert alone == [0, *pieces[: length - 2], 2]
    room = length - 4
    sizes = {(a, room - a) for a in (room // 2, (room + 1) // 2)}
    assert both in [[0, *pieces[:a], 2, 2, *pieces[:b], 2] for a, b in sizes]
    if length > 5:  # the shorter one stays whole
        cut = pieces[: room - len(others)]
        assert left == [0, *cut, 2, 2, *others, 2]
        assert right == [0, *others, 2, 2, *cut, 2]


def test_refusals(files):
    wrong = "expected a vocabulary and the merges of"
    for which, content in (
        (0, "{"),  # no JSON
        (0, '["the"]'),  # no ids
        (1, "a b c\n"),
        (1, "q z\n"),  # not in the vocabulary
    ):
        whole = files[which].read_text()
        files[which].write_text(content)
        with pytest.raises(ValueError, match=wrong):
            roberta_encoder(*files)
        files[which].write_text(whole)
    with pytest.raises(ValueError, match="length must be at least 5 tokens, got 4"):
        roberta_encoder(*files, length=4)
    for name in ("digits", "tfds:imdb_reviews"):
        with pytest.raises(ValueError, match=f"{name} does not take an encoder"):
            data.load(name, encoder=roberta_encoder(*files))
    ids = json.loads(files[0].read_text())
    del ids["<pad>"], ids["<unk>"]
    files[0].write_text(json.dumps(ids))
    with pytest.raises(ValueError, match="has no <pad> and no <unk>; use RoBERTa's"):
        roberta_encoder(*files)
    for path in files[::-1]:
        path.unlink()
        said = rf"{path.name} does not exist; download .*huggingface\.co/"
        with pytest.raises(FileNotFoundError, match=said):
            roberta_encoder(*files)


def test_words_of_no_merge_in_vocabularies(tmp_path):
    """RoBERTa's own file has some."""
    checkpoints.write_vocabulary(tmp_path)
    path = tmp_path / "vocab.json"
    ids = json.loads(path.read_text())
    ids |= {"<mask>": len(ids), "madeupword0000": len(ids) + 1, "<|endoftext|>": 272}
    path.write_text(json.dumps(ids))
    assert roberta_encoder(path, tmp_path / "merges.txt").tokens == 273


REAL = Path(os.environ.get("FEDJAX_MUON_DATA", ".")) / "tokenizers"
TOKENS = [REAL / f"roberta-base.{file}" for file in ("vocab.json", "merges.txt")]


@pytest.mark.skipif(
    not all(path.is_file() for path in TOKENS),
    reason="FEDJAX_MUON_DATA names no directory with tokenizers/roberta-base",
)
def test_real_tokens_of_roberta():
    encoder = roberta_encoder(*TOKENS)
    assert (encoder.padding, encoder.tokens) == (1, RoBERTa().vocabulary_size)
    # as transformers' documentation of RobertaTokenizer has them
    found = encoder.encode(["Hello world", " Hello world"])
    assert found.tolist() == [[0, 31414, 232, 2], [0, 20920, 232, 2]]

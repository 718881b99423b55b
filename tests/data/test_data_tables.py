"""Tables of sentences and of numbers that were cut off, or have wrong lines."""

import numpy as np
import pytest
from damaged_files import refused
from published import allow_small

from fedjax_muon import data
from fedjax_muon.data import libsvm, text
from tests.robustness import hostile
from tests.robustness.tiny_files import KINDS

pytestmark = pytest.mark.slow
MEGABYTE = 2**20


@pytest.mark.parametrize("name", text.SETS)
def test_published_numbers_of_sentences(name):
    """As in the tests on the published files."""
    files = data.NAMES[name].layouts[0].files
    assert sum(file.rows for file in files) == sum(data.NAMES[name].examples)
    assert data.status(name).verified is False


@pytest.mark.parametrize("kind", ["sst2", "cola", "mrpc", "qqp", "rte"])
@pytest.mark.parametrize("file", ["train.tsv", "dev.tsv"])
def test_tables_that_were_cut_between_lines(place, kind, file):
    KINDS[kind].write(place)
    (path,) = place.rglob(file)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-2]))
    count = {"train.tsv": 12, "dev.tsv": 5}[file]
    refused(
        kind,
        place,
        f"{file}: expected {count} examples as published, found "
        f"{count - 2}; it was cut off, or is another file: delete it and download",
    )


def test_encoders_get_whole_tables(place, monkeypatch):
    KINDS["sst2"].write(place)
    encoder = text.Encoder(lambda texts: np.ones((len(texts), 2), np.int32), 0, 3)
    with pytest.raises(ValueError, match=r"train.tsv: expected 67349 examples as publ"):
        data.load("sst2", place, encoder=encoder)
    allow_small(monkeypatch, "sst2")
    assert data.load("sst2", place, encoder=encoder).x_train.shape == (12, 2)


def test_status_of_tables_is_not_verified(place):
    """Rows are counted by `load` alone."""
    KINDS["sst2"].write(place)
    assert data.status("sst2", place) == ("present", place / "SST-2", "", False)


def test_a_single_endless_line(place, monkeypatch):
    allow_small(monkeypatch, "sst2")
    KINDS["sst2"].write(place)
    path = place / "SST-2" / "dev.tsv"
    path.write_bytes(path.read_bytes() + b"a" * 4 * MEGABYTE)
    with pytest.raises(
        ValueError, match=r"dev.tsv: expected text .*\(line 7 is no text"
    ):
        data.load("sst2", place)


def test_too_few_sentences_to_split(place, monkeypatch):
    allow_small(monkeypatch, "yelp_labelled")
    KINDS["yelp_labelled"].write(place)
    (path,) = place.rglob("*.txt")
    path.write_text("good\t1\nbad\t0\nfine\t1\n")
    with pytest.raises(
        ValueError, match=r"yelp_labelled.txt: expected enough sentences"
    ):
        data.load("yelp_labelled", place)


WRONG = [
    line for line in hostile.LIBSVM if not line.startswith(("+1 2:1", "+1 1:1 1:1"))
]


@pytest.mark.parametrize("line", WRONG)
def test_wrong_lines_of_libsvm_are_named(place, line, monkeypatch):
    allow_small(monkeypatch, "a9a")
    KINDS["libsvm"].write(place)
    path = place / "a9a"
    path.write_text(f"-1 1:1 2:1\n{line}\n+1 3:1\n")
    number = "" if line.startswith("1e400") else ", line 2"
    with pytest.raises(
        ValueError, match=f"a9a{number}: .*; download it again"
    ) as caught:
        data.load("a9a", place)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("line", ["+1 2:1 1:1", "+1 1:1 1:1"])
def test_indices_of_libsvm_ascend(place, line, monkeypatch):
    allow_small(monkeypatch, "a9a")
    KINDS["libsvm"].write(place)
    (place / "a9a").write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"a9a: expected .* sorted and unique"):
        data.load("a9a", place)


def test_numbers_of_libsvm(place, monkeypatch):
    """All that the format allows; an index of 1 is the first column."""
    allow_small(monkeypatch, "a9a")
    KINDS["libsvm"].write(place)
    (place / "a9a").write_text("-1.000000\t1:-.5 \r\n+1.0 2:1e-3 123:+7.\n1\n")
    found = data.load("a9a", place)
    assert found.y_train.tolist() == [0, 1, 1]
    expected = np.float32([-0.5, 1e-3, 7])
    np.testing.assert_array_equal(found.x_train[found.x_train != 0], expected)
    assert [tuple(i) for i in np.argwhere(found.x_train)] == [(0, 0), (1, 1), (1, 122)]
    assert libsvm.SETS["a9a"].layouts[0].files[0].rows == 32_561

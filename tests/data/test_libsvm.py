"""LIBSVM's files, small ones in its format."""

import bz2
import lzma

import numpy as np
import pytest

from fedjax_muon import data
from fedjax_muon.data.libsvm import SETS

TRAIN = "-1 1:1 123:1 \n+1 2:0.5\n-1 3:1 4:-2\n"
TEST = "+1 1:1\n-1 122:1\n"


pytestmark = pytest.mark.usefixtures("small_files")


def put(place, name="a9a", train=TRAIN, test=TEST):
    place.mkdir(parents=True, exist_ok=True)
    for file, text in zip(SETS[name].layouts[0].files, (train, test), strict=True):
        (place / file.name).write_text(text)


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


def test_packed_files(tmp_path):
    put(tmp_path)
    plain = data.load("a9a", tmp_path)
    (tmp_path / "a9a.bz2").write_bytes(bz2.compress(TRAIN.encode()))
    (tmp_path / "a9a.t.xz").write_bytes(lzma.compress(TEST.encode()))
    (tmp_path / "a9a").unlink()
    (tmp_path / "a9a.t").unlink()
    packed = data.load("a9a", tmp_path)
    np.testing.assert_array_equal(plain.x_train, packed.x_train)
    np.testing.assert_array_equal(plain.x_test, packed.x_test)


def test_fewer_lines_than_published_are_refused(tmp_path, monkeypatch):
    put(tmp_path)
    monkeypatch.setitem(data.NAMES, "a9a", SETS["a9a"])
    with pytest.raises(ValueError, match="expected 32561 lines as published, found 3"):
        data.load("a9a", tmp_path)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("-1 124:1\n", "with 123 features"),
        ("-1 1:one\n", "not in LIBSVM's format"),
        ("2 1:1\n-1 1:1\n", r"expected labels -1 and 1, found \[-1.  2.\]"),
    ],
)
def test_other_files_are_refused(tmp_path, train, message):
    put(tmp_path, train=train)
    with pytest.raises(ValueError, match=message):
        data.load("a9a", tmp_path)


def test_missing_files_are_named(tmp_path):
    put(tmp_path / "libsvm", name="a8a")
    with pytest.raises(FileNotFoundError, match=r"has ijcnn1.trn and ijcnn1.tst"):
        data.load("ijcnn1", tmp_path)
    (tmp_path / "libsvm" / "a8a.t").unlink()
    with pytest.raises(FileNotFoundError, match=r"libsvm lacks a8a.t\)"):
        data.load("a8a", tmp_path)

"""Files that are missing, cut off or others than published, and the status of sets."""

import bz2
import gzip
import hashlib
import lzma

import numpy as np
import pytest
from tiny_images import write_npz

from fedjax_muon import data
from fedjax_muon.data import Dataset
from fedjax_muon.data.source import File, Layout, Source, located, verify

CONTENT = b"one\ntwo\nthree"
MD5 = hashlib.md5(CONTENT).hexdigest()
PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
KIND = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}


def source(*files, folders=("inner", ""), **rest):
    read = lambda paths: Dataset(*[np.zeros((2, 1), np.float32)] * 4, ("a", "b"))
    layout = Layout(files, folders, read, url="https://x.org", packed=tuple(PACKED))
    return Source("1 number", None, 2, "none", (layout,), **rest)


KNOWN = File("a", size=13, lines=3, md5=MD5, namesakes=(("1" * 32, "other"),))


def put(path, content=CONTENT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", ["", *PACKED])
def test_whole_files_are_what_was_published(tmp_path, suffix):
    content = PACKED[suffix](CONTENT) if suffix else CONTENT
    put(tmp_path / f"a{suffix}", content)
    found = located("toy", source(KNOWN), tmp_path)
    assert found.paths == [tmp_path / f"a{suffix}"]
    verify(found)


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("known", [File("a", lines=3), File("a", md5=MD5)])
def test_packed_files_that_were_cut_off(tmp_path, suffix, known):
    put(tmp_path / f"a{suffix}", PACKED[suffix](CONTENT)[:-6])
    message = f"a complete {KIND[suffix]} file, found.* cut off after .* bytes .*delete"
    with pytest.raises(ValueError, match=message) as caught:
        verify(located("toy", source(known), tmp_path))
    assert str(tmp_path / f"a{suffix}") in str(caught.value)


@pytest.mark.parametrize(
    ("known", "content", "message"),
    [
        (File("a", size=13), CONTENT[:-1], "expected 13 bytes as published, found 12"),
        (File("a", lines=3), CONTENT[:8], "expected 3 lines as published, found 2"),
        (File("a", lines=3), CONTENT[:9] + b"\n\n", "expected 3 lines .* found 4"),
        (File("a", lines=3), b"", "expected 3 lines as published, found 0"),
        (KNOWN, CONTENT[:-1] + b"E", f"expected the MD5 {MD5} as published, found"),
    ],
)
def test_other_files_are_refused_with_the_remedy(tmp_path, known, content, message):
    put(tmp_path / "a", content)
    with pytest.raises(ValueError, match=message) as caught:
        verify(located("toy", source(known), tmp_path))
    assert str(tmp_path / "a") in str(caught.value)
    assert "delete it and download from https://x.org" in str(caught.value)


def test_a_file_of_another_set_is_called_so(tmp_path):
    put(tmp_path / "a")
    known = KNOWN._replace(md5="0" * 32, namesakes=((MD5, "other"),))
    with pytest.raises(ValueError, match="this is other's file of that name; give the"):
        verify(located("toy", source(known), tmp_path))


def test_files_come_from_the_first_folder_that_has_all(tmp_path):
    both = source(File("a"), File("b"), prepared="toy")
    with pytest.raises(FileNotFoundError) as caught:
        located("toy", both, tmp_path)
    inner = tmp_path / "inner"
    assert str(caught.value) == (
        f"toy: neither {inner} nor {tmp_path} has a and b (or with .gz, .bz2, .xz); "
        "download from https://x.org; or run fedjax_muon.data.prepare('toy', "
        f"'{tmp_path}') once and load 'tfds:toy'"
    )
    put(inner / "a.gz")
    put(tmp_path / "b")
    with pytest.raises(FileNotFoundError) as caught:
        located("toy", both, tmp_path)
    lacks = f"({inner} lacks b) ({tmp_path} lacks a); or run"
    assert lacks in str(caught.value)
    put(tmp_path / "a")
    assert located("toy", both, tmp_path).paths == [tmp_path / "a", tmp_path / "b"]
    put(inner / "b")
    found = located("toy", both, tmp_path)
    assert found.paths == [inner / "a.gz", inner / "b"]
    assert found.folder == inner
    put(inner / "a")
    assert located("toy", both, tmp_path).paths[0] == inner / "a"


def test_messages_for_one_folder_and_for_three(tmp_path):
    for folders, message in (
        (("one",), f"toy: {tmp_path}/one has not a and b (or with"),
        (
            ("one", "two", ""),
            f"toy: none of {tmp_path}/one, {tmp_path}/two, {tmp_path} ",
        ),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            located("toy", source(File("a"), File("b"), folders=folders), tmp_path)
        assert message in str(caught.value)


def test_status(tmp_path, monkeypatch):
    assert data.status("digits") == ("present", None, "", False)
    assert data.status("cifar10").state == "missing"
    assert "FEDJAX_MUON_DATA" in data.status("cifar10").problem
    missing = data.status("cifar10", tmp_path)
    assert missing.state == "missing"
    assert "numpy.savez" in missing.problem
    path = tmp_path / "cifar10.npz"
    write_npz(path)
    assert data.status("cifar10", tmp_path) == ("present", path, "", False)
    path.write_bytes(path.read_bytes()[:-9])
    damaged = data.status("cifar10", tmp_path)
    assert damaged[:2] == ("damaged", path)
    assert "truncated" in damaged.problem
    with pytest.raises(
        ValueError, match="unknown data set 'cifar11'; choose one of ci"
    ):
        data.status("cifar11", tmp_path)
    monkeypatch.setitem(data.NAMES, "toy", source(KNOWN, File("b")))
    put(tmp_path / "inner" / "a")
    put(tmp_path / "inner" / "b")
    assert data.status("toy", tmp_path) == ("present", tmp_path / "inner", "", True)
    put(tmp_path / "inner" / "a", CONTENT[:-1])
    damaged = data.status("toy", tmp_path)
    assert damaged[:2] == ("damaged", tmp_path / "inner")
    assert "expected 13 bytes" in damaged.problem

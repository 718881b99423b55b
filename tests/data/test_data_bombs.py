"""Archives and packed files that were made to harm, or name labels that are none."""

import bz2
import gzip
import lzma
import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from damaged_files import refused
from tiny_images import write_npz

from fedjax_muon import data
from fedjax_muon.data.source import unpacked
from tests.robustness import hostile
from tests.robustness.tiny_files import IDX, KINDS, LIBSVM

pytestmark = pytest.mark.slow
MEGABYTE = 2**20


# ------------------------------------------------------------------- archives


def rewritten(path: Path, **members: bytes) -> None:
    """An archive with other members, given without .npy."""
    write_npz(path)
    with zipfile.ZipFile(path) as archive:
        old = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (
            old | {f"{key}.npy": content for key, content in members.items()}
        ).items():
            archive.writestr(name, content)


@pytest.mark.parametrize(
    "member", hostile.MEMBERS, ids=[str(i) for i in range(len(hostile.MEMBERS))]
)
def test_hostile_members_of_archives(tmp_path, member):
    path = tmp_path / "cifar10.npz"
    rewritten(path, x_train=member)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"cifar10.npz: expected") as caught:
        data.load("cifar10", tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MEGABYTE
    assert "\n" not in str(caught.value)


def test_names_without_letters_are_not_counted(tmp_path):
    """A header of 2^40 empty strings takes no bytes and endless time."""
    path = tmp_path / "cifar10.npz"
    rewritten(path, classes=hostile.MEMBERS[5])
    with pytest.raises(ValueError, match=r"classes has the type <U0"):
        data.load("cifar10", tmp_path)


def test_archives_that_expand_are_refused_unread(tmp_path):
    path = tmp_path / "cifar10.npz"
    rewritten(path, x_train=hostile.npy("|u1", (80, MEGABYTE, 1, 1)) + bytes(80 << 20))
    assert path.stat().st_size < MEGABYTE
    tracemalloc.start()
    with pytest.raises(
        ValueError, match=r"x_train expands from \d+ to 838861\d\d byte"
    ):
        data.load("cifar10", tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 8 * MEGABYTE
    tracemalloc.stop()


@pytest.mark.parametrize(("offset", "bit"), [(10, 1), (8, 1)])
def test_unknown_compression_and_encryption(tmp_path, offset, bit):
    path = tmp_path / "cifar10.npz"
    write_npz(path)
    content = bytearray(path.read_bytes())
    for start, shift in ((b"PK\x01\x02", 0), (b"PK\x03\x04", 2)):
        content[content.find(start) + offset - shift] ^= bit
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"cifar10.npz: expected .* damaged or pickled"
    ):
        data.load("cifar10", tmp_path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_is_there_twice(tmp_path):
    path = tmp_path / "cifar10.npz"
    write_npz(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y_test.npy", archive.read("y_test.npy"))
    with pytest.raises(ValueError, match=r"2 arrays y_test\); write it again"):
        data.load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            np.arange(10) / 2,
            r"expected y_test as integers on one axis, found float64\[",
        ),
        (np.arange(10) + 1, r"got 1..10, first in example 9; correct or replace"),
        (np.arange(9), r"y_test must be 10 integers"),
    ],
)
def test_labels_of_archives(tmp_path, labels, message):
    write_npz(tmp_path / "cifar10.npz", y_test=labels)
    with pytest.raises(ValueError, match=message) as caught:
        data.load("cifar10", tmp_path)
    assert str(tmp_path / "cifar10.npz") in str(caught.value)


# --------------------------------------------------------------- packed files


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip), (".bz2", bz2), (".xz", lzma)]
)
def test_unpacking_stops_at_the_limit(tmp_path, suffix, pack):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(pack.compress(bytes(64 * MEGABYTE)))
    tracemalloc.start()
    with pytest.raises(
        ValueError, match=r"a.* expected at most 13 unpacked bytes, found"
    ):
        unpacked(path, 13)
    assert tracemalloc.get_traced_memory()[1] < 16 * MEGABYTE
    tracemalloc.stop()


def test_plain_files_are_not_read_beyond_the_limit(tmp_path):
    path = tmp_path / "a"
    path.touch()
    os.truncate(path, 2**33)  # takes no space
    with pytest.raises(
        ValueError, match=r"at most 268435456 bytes, found 8589934592; it"
    ):
        unpacked(path)


@pytest.mark.parametrize("kind", ["idx, published", "libsvm, bzip2"])
def test_published_sizes_bound_what_is_unpacked(place, kind):
    KINDS[kind].write(place)
    path = sorted(place.iterdir())[-1]
    pack = gzip if path.suffix == ".gz" else bz2
    path.write_bytes(pack.compress(b"\n" * 10 * MEGABYTE))
    refused(kind, place, rf"{path.name}: expected at most \d{{2,5}} unpacked bytes")
    assert max(file.lines for file in LIBSVM.values()) == 12
    assert max(file.size for file in IDX.values()) == 136


@pytest.mark.parametrize(("kind", "position"), [("idx", 9), ("cifar10", 0)])
def test_labels_out_of_range_name_file_and_example(place, kind, position):
    KINDS[kind].write(place)
    path = place / {"idx": "train-labels-idx1-ubyte", "cifar10": "test_batch.bin"}[kind]
    content = bytearray(path.read_bytes())
    content[position] = 10
    path.write_bytes(content)
    example = position - 8 if kind == "idx" else 0
    refused(
        kind,
        place,
        f"{path.name}: expected labels in 0..9, found 10 in example "
        f"{example}; the file",
    )


def test_coarse_labels_out_of_range(place):
    KINDS["cifar100"].write(place)
    path = place / "train.bin"
    content = bytearray(path.read_bytes())
    content[3074] = 20
    path.write_bytes(content)
    refused("cifar100", place, "expected labels in 0..19, found 20 in example 1")

"""Damaged and hostile files of every kind: one error, which says what to do."""

import bz2
import contextlib
import gzip
import json
import lzma
import os
import random
import shutil
import struct
import tracemalloc
import zipfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from error_lines import one_line
from PIL import Image
from published import PUBLISHED, allow_small
from tiny_images import write_npz

from fedjax_muon import data
from fedjax_muon.core.reading import reading
from fedjax_muon.data import catalog, text
from fedjax_muon.data.byte_pairs import roberta_encoder
from fedjax_muon.data.source import unpacked
from tests.robustness import hostile
from tests.robustness.data_files import cases
from tests.robustness.tiny_files import IDX, KINDS, LIBSVM

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_data_directory")]

MEGABYTE = 2**20


def refused(kind, place, message):
    """Reading ends in one line that names the folder."""
    with one_line(message, place):
        KINDS[kind].read(place)


def test_random_damage(tmp_path):
    """The harness goes on without end."""
    found = islice(cases(random.Random(20), tmp_path), 150)
    assert [case for case in found if case[2]] == []


# ---------------------------------------------------------- errors of parsers

ERRORS = (
    KeyError("x_train"),
    IndexError("out of range"),
    OverflowError("too large"),
    MemoryError(),
    RecursionError("too deep"),
    NotImplementedError("that compression method"),
    struct.error("unpack requires"),
    zipfile.BadZipFile("no zip"),
    EOFError("the end"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    OSError("image file is truncated"),
    AttributeError("'list' object has no attribute 'get'"),
    ValueError("several\nlines"),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_of_parsers_become_one_line(error):
    message = r"^a/b: expected a list, .* \(.+\); write it again$"
    with one_line(message), reading(Path("a/b"), "a list", "write it again"):
        raise error


def test_other_errors_stay():
    for error in (
        PermissionError(13, "Permission denied", "a/b"),
        ValueError("a/b, line 3: expected a number"),
        KeyboardInterrupt(),
    ):
        with pytest.raises(type(error)) as caught, reading(Path("a/b"), "a list"):
            raise error
        assert caught.value is error


def test_long_messages_are_cut():
    with pytest.raises(ValueError, match=r"x\.\.\.\); download") as caught:  # noqa: SIM117
        with reading(Path("a/b"), "a list"):
            raise KeyError("x" * 10_000)
    assert len(str(caught.value)) < 500


# --------------------------------------------------------------------- images
def test_images_of_another_format(place):
    """Pillow starts a program to read EPS."""
    KINDS["tiny_imagenet"].write(place)
    for kind in ("PNG", "GIF", "TIFF", "EPS"):
        Image.new("RGB", (8, 8)).save(place / "val/images/val_1.JPEG", kind)
        message = "val_1.JPEG: expected a JPEG image, found a damaged"
        refused("tiny_imagenet", place, message)


def test_images_that_declare_another_size_are_not_decoded(place):
    KINDS["tiny_imagenet"].write(place)
    path = place / "train/n01/images/n01_0.JPEG"
    content = bytearray(path.read_bytes())
    start = content.find(b"\xff\xc0") + 5
    message = r"n01_0.JPEG: expected .* (5000 x 5000|exceeds)"
    for sides in ((65_500, 65_500), (10_000, 9_000), (5_000, 5_000)):
        content[start : start + 4] = struct.pack(">2H", *sides)
        path.write_bytes(content)
        refused("tiny_imagenet", place, message)


def test_classes_are_not_paths(place):
    KINDS["tiny_imagenet"].write(place)
    for wnid in ("../..", "/etc", "n0\0", "n1/n2", "n" + "1" * 99):
        (place / "wnids.txt").write_text(f"n01\n{wnid}\n")
        message = "wnids.txt, line 2: expected a WordNet id such as n"
        refused("tiny_imagenet", place, message)


# --------------------------------------------------------------------- tokens
def test_token_ids_are_consecutive_and_merges_whole(place):
    KINDS["tokens"].write(place)
    path, merges = place / "vocab.json", place / "merges.txt"
    whole = path.read_text()
    for number in (2**31, 5, 999):
        path.write_text(json.dumps(json.loads(whole) | {"ing": number}))
        refused("tokens", place, "vocab.json: expected the ids 0 to 269, each once")
    path.write_text(whole)
    merges.write_text("\n".join(merges.read_text().split("\n")[:-3]) + "\n")
    message = r"merges.txt: expected the merges .* for 2, such as 'ing';"
    refused("tokens", place, message)


def test_words_of_no_merge_in_vocabularies(place):
    """RoBERTa's own file has some."""
    KINDS["tokens"].write(place)
    path = place / "vocab.json"
    ids = json.loads(path.read_text())
    ids |= {"<mask>": len(ids), "madeupword0000": len(ids) + 1, "<|endoftext|>": 272}
    path.write_text(json.dumps(ids))
    assert roberta_encoder(path, place / "merges.txt").tokens == 273


# ------------------------------------------------------- tensorflow-datasets
@pytest.fixture(scope="module")
def prepared_once(tmp_path_factory):
    place = tmp_path_factory.mktemp("prepared")
    KINDS["prepared images"].write(place)
    return place


@pytest.fixture
def prepared(prepared_once, place):
    shutil.copytree(prepared_once, place, dirs_exist_ok=True)
    return place / "harmed_images/1.0.0"


def test_shards_have_all_examples(place, prepared):
    path = prepared / "dataset_info.json"
    info = json.loads(path.read_text())
    message = r"000.-of-00001 has 6 examples, by dataset_info.json it had "
    for length in ("2", "7", "9223372036854775807"):
        info["splits"][0]["shardLengths"] = [length]
        path.write_text(json.dumps(info))
        refused("prepared images", place, rf"{message}{length}\)")


@pytest.mark.parametrize(
    "features",
    [
        {"python_class_name": "spy.Image"},
        {"type": "spy.Image", "content": {}},
        {"type": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
         "proto_cls": "tensorflow_datasets.FeaturesDict",
         "content": '{"features": {"a": {"python\\u0043lassName": "spy.Image"}}}'},
    ],
)  # fmt: skip
def test_no_spelling_of_a_class_has_it_imported(place, prepared, features, monkeypatch):
    (place / "spy.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(place)
    (prepared / "features.json").write_text(json.dumps(features))
    refused("prepared images", place, r"class spy\.Image is not tensorflow-datasets'")


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
def test_other_json_of_prepared_sets(place, prepared, name):
    for content in ("[" * 200_000, "null", "[]", "3"):
        (prepared / name).write_text(content)
        message = "expected a dataset prepared by tensorflow-datasets"
        refused("prepared images", place, message)
        assert data.status("tfds:harmed_images", place).state == "damaged"


def test_names_of_labels(place, prepared):
    path = prepared / "label.labels.txt"
    path.write_text("kind 0\n")
    message = r"first in example \d; correct or replace .*1.0.0"
    refused("prepared images", place, message)
    os.truncate(path, 2**30)
    message = "label.labels.txt: expected at most 16777216 byte"
    refused("prepared images", place, message)


# --------------------------------------------------------------------- status
def test_status_of_what_may_not_be_read(place, monkeypatch):
    write_npz(place / "cifar10.npz")

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", denied)
    found = data.status("cifar10", place)
    assert (found.state, found.place) == ("damaged", place)
    assert "Permission denied" in found.problem


# ------------------------------------------------- archives made to do harm
@contextlib.contextmanager
def memory(limit):
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < limit


@pytest.fixture
def archive(place):
    write_npz(place / "cifar10.npz")
    return place / "cifar10.npz"


def rewrite(path: Path, **members: bytes) -> None:
    """An archive with other members, given without .npy."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content |= {f"{key}.npy": member for key, member in members.items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in content.items():
            archive.writestr(name, member)


@pytest.mark.parametrize("member", hostile.MEMBERS, ids=range(len(hostile.MEMBERS)))
def test_hostile_members_of_archives(archive, member):
    rewrite(archive, x_train=member)
    with memory(8 * MEGABYTE), one_line("cifar10.npz: expected"):
        data.load("cifar10", archive.parent)


def test_names_without_letters_are_not_counted(archive):
    """A header of 2^40 empty strings takes no bytes and endless time."""
    rewrite(archive, classes=hostile.MEMBERS[5])
    with one_line("classes has the type <U0"):
        data.load("cifar10", archive.parent)


def test_archives_that_expand_are_refused_unread(archive):
    rewrite(archive, x_train=hostile.npy("|u1", (80, MEGABYTE, 1, 1)) + bytes(80 << 20))
    assert archive.stat().st_size < MEGABYTE
    message = r"x_train expands from \d+ to 838861\d\d byte"
    with memory(8 * MEGABYTE), one_line(message):
        data.load("cifar10", archive.parent)


def test_unknown_compression_and_encryption(archive):
    whole = archive.read_bytes()
    for offset in (10, 8):
        content = bytearray(whole)
        for start, shift in ((b"PK\x01\x02", 0), (b"PK\x03\x04", 2)):
            content[content.find(start) + offset - shift] ^= 1
        archive.write_bytes(content)
        with one_line(r"cifar10.npz: expected .* damaged or pickled"):
            data.load("cifar10", archive.parent)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_is_there_twice(archive):
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("y_test.npy", file.read("y_test.npy"))
    with one_line(r"2 arrays y_test\); write it again"):
        data.load("cifar10", archive.parent)


def test_labels_of_archives(archive):
    for labels, message in (
        (np.arange(10) / 2, r"y_test must be 10 integers on one axis.*float64\["),
        (np.arange(10) + 1, r"got 1..10, first in example 9; correct or replace"),
        (np.arange(9), "y_test must be 10 integers"),
    ):
        write_npz(archive, y_test=labels)
        with one_line(message, archive):
            data.load("cifar10", archive.parent)


# --------------------------------------------------------------- packed files
def test_unpacking_and_reading_stop_at_the_limit(tmp_path):
    message = "a.* expected at most 13 unpacked bytes, found"
    for suffix, pack in ((".gz", gzip), (".bz2", bz2), (".xz", lzma)):
        path = tmp_path / f"a{suffix}"
        path.write_bytes(pack.compress(bytes(64 * MEGABYTE)))
        with memory(16 * MEGABYTE), one_line(message):
            unpacked(path, 13)
    path = tmp_path / "a"  # a plain file
    path.touch()
    os.truncate(path, 2**33)  # takes no space
    with one_line("at most 268435456 bytes, found 8589934592; it"):
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


@pytest.mark.parametrize(
    ("kind", "file", "position", "message"),
    [
        ("idx", "train-labels-idx1-ubyte", 9, "y_train .* first in example 1; corr"),
        ("cifar10", "test_batch.bin", 0, "y_test .* first in example 0; correct"),
    ],
)
def test_labels_out_of_range(place, kind, file, position, message):
    KINDS[kind].write(place)
    content = bytearray((place / file).read_bytes())
    content[position] = 10
    (place / file).write_bytes(content)
    refused(kind, place, message)


# ------------------------------------------------------ tables that were cut off
@pytest.mark.parametrize("name", catalog.SENTENCES)
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
    message = f"{file}: expected {count} examples as published, found {count - 2}; "
    remedy = "it was cut off, or is another file: delete it and download"
    refused(kind, place, message + remedy)


def test_encoders_get_whole_tables(place, monkeypatch):
    KINDS["sst2"].write(place)
    # the status does not count rows, and so verifies nothing
    assert data.status("sst2", place) == ("present", place / "SST-2", "", False)
    encoder = text.Encoder(lambda texts: np.ones((len(texts), 2), np.int32), 0, 3)
    with pytest.raises(ValueError, match=r"train.tsv: expected 67349 examples as publ"):
        data.load("sst2", place, encoder=encoder)
    allow_small(monkeypatch, "sst2")
    assert data.load("sst2", place, encoder=encoder).x_train.shape == (12, 2)


def test_an_endless_line_and_too_few_sentences_to_split(place, small_files):
    for name in ("sst2", "yelp_labelled"):
        KINDS[name].write(place)
    path = place / "SST-2" / "dev.tsv"
    path.write_bytes(path.read_bytes() + b"a" * 4 * MEGABYTE)
    with one_line(r"dev.tsv: expected text .*\(line 7 is no text"):
        data.load("sst2", place)
    (path,) = place.rglob("yelp_labelled.txt")
    path.write_text("good\t1\nbad\t0\nfine\t1\n")
    with one_line("yelp_labelled.txt: expected enough sentences"):
        data.load("yelp_labelled", place)


@pytest.mark.parametrize("line", hostile.LIBSVM)
def test_wrong_lines_of_libsvm_are_named(place, line, small_files):
    KINDS["libsvm"].write(place)
    path = place / "a9a"
    path.write_text(f"-1 1:1 2:1\n{line}\n+1 3:1\n")
    with one_line("a9a, line 2: .*; download it again", path):
        data.load("a9a", place)


def test_numbers_of_libsvm(place, small_files):
    """All that the format allows; an index of 1 is the first column."""
    KINDS["libsvm"].write(place)
    (place / "a9a").write_text("-1.000000\t1:-.5 \r\n+1.0 2:1e-3 123:+7.\n1\n")
    found = data.load("a9a", place)
    assert found.y_train.tolist() == [0, 1, 1]
    expected = np.float32([-0.5, 1e-3, 7])
    np.testing.assert_array_equal(found.x_train[found.x_train != 0], expected)
    assert [tuple(i) for i in np.argwhere(found.x_train)] == [(0, 0), (1, 1), (1, 122)]
    assert PUBLISHED["a9a"].layouts[0].files[0].rows == 32_561

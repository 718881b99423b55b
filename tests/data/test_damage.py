"""Damaged and hostile files of every kind: one error that names the file, and what to do."""

import bz2
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
from damaged_files import refused
from PIL import Image
from published import allow_small
from tiny_images import write_npz

from fedjax_muon import data
from fedjax_muon.core.reading import reading
from fedjax_muon.data import libsvm, text
from fedjax_muon.data.byte_pairs import roberta_encoder
from fedjax_muon.data.source import unpacked
from tests.robustness import hostile
from tests.robustness.data_files import cases
from tests.robustness.tiny_files import IDX, KINDS, LIBSVM

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_data_directory")]


# -------------------- Damaged files of every kind: one error that names the file, and what to do


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
    with (
        pytest.raises(
            ValueError, match=r"^a/b: expected a list, .* \(.+\); "
        ) as caught,
        reading(Path("a/b"), "a list", "write it again"),
    ):
        raise error
    assert str(caught.value).endswith("; write it again")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(13, "Permission denied", "a/b"),
        ValueError("a/b, line 3: expected a number"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_stay(error):
    with pytest.raises(type(error)) as caught, reading(Path("a/b"), "a list"):
        raise error
    assert caught.value is error


def test_long_messages_are_cut():
    with pytest.raises(ValueError, match=r"x\.\.\.\); download") as caught:  # noqa: SIM117
        with reading(Path("a/b"), "a list"):
            raise KeyError("x" * 10_000)
    assert len(str(caught.value)) < 500


# --------------------------------------------------------------------- images


@pytest.mark.parametrize("kind", ["PNG", "GIF", "TIFF", "EPS"])
def test_images_of_another_format(place, kind):
    """Pillow starts a program to read EPS."""
    KINDS["tiny_imagenet"].write(place)
    path = place / "val/images/val_1.JPEG"
    Image.new("RGB", (8, 8)).save(path, kind)
    refused(
        "tiny_imagenet", place, "val_1.JPEG: expected a JPEG image, found a damaged"
    )


@pytest.mark.parametrize("sides", [(65_500, 65_500), (10_000, 9_000), (5_000, 5_000)])
def test_images_that_declare_another_size_are_not_decoded(place, sides):
    KINDS["tiny_imagenet"].write(place)
    path = place / "train/n01/images/n01_0.JPEG"
    content = bytearray(path.read_bytes())
    start = content.find(b"\xff\xc0") + 5
    content[start : start + 4] = struct.pack(">2H", *sides)
    path.write_bytes(content)
    refused("tiny_imagenet", place, r"n01_0.JPEG: expected a.* (5000 x 5000|exceeds)")


@pytest.mark.parametrize("wnid", ["../..", "/etc", "n0\0", "n1/n2", "n" + "1" * 99])
def test_classes_are_not_paths(place, wnid):
    KINDS["tiny_imagenet"].write(place)
    (place / "wnids.txt").write_text(f"n01\n{wnid}\n")
    refused(
        "tiny_imagenet", place, "wnids.txt, line 2: expected a WordNet id such as n"
    )


# --------------------------------------------------------------------- tokens


@pytest.mark.parametrize("number", [2**31, 5, 999])
def test_token_ids_are_consecutive(place, number):
    KINDS["tokens"].write(place)
    ids = json.loads((place / "vocab.json").read_text())
    ids["ing"] = number
    (place / "vocab.json").write_text(json.dumps(ids))
    refused("tokens", place, "vocab.json: expected the ids 0 to 269, each once")


def test_merges_that_were_cut_off(place):
    KINDS["tokens"].write(place)
    path = place / "merges.txt"
    path.write_text("\n".join(path.read_text().split("\n")[:-3]) + "\n")
    refused(
        "tokens", place, r"merges.txt: expected the merges .* for 2, such as 'ing';"
    )


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
    return shutil.copytree(prepared_once, place, dirs_exist_ok=True) / (
        "harmed_images/1.0.0"
    )


def edited(path: Path, change) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content) or content))


@pytest.mark.parametrize("lengths", [["2"], ["7"], ["9223372036854775807"]])
def test_shards_have_all_examples(place, prepared, lengths):
    change = lambda info: info["splits"][0].update(shardLengths=lengths)
    edited(prepared / "dataset_info.json", change)
    message = (
        rf"000.-of-00001 has 6 examples, by dataset_info.json it had {lengths[0]}\)"
    )
    refused("prepared images", place, message)


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
@pytest.mark.parametrize("content", ["[" * 200_000, "null", "[]", "3"])
def test_other_json_of_prepared_sets(place, prepared, name, content):
    (prepared / name).write_text(content)
    refused("prepared images", place, "expected a set prepared by tensorflow-datasets")
    assert data.status("tfds:harmed_images", place).state == "damaged"


def test_fewer_names_than_labels(place, prepared):
    (prepared / "label.labels.txt").write_text("kind 0\n")
    refused(
        "prepared images", place, r"first in example \d; correct or replace .*1.0.0"
    )


def test_names_of_a_gigabyte(place, prepared):
    os.truncate(prepared / "label.labels.txt", 2**30)
    refused(
        "prepared images", place, "label.labels.txt: expected at most 16777216 byte"
    )


# --------------------------------------------------------------------- status


def test_status_of_what_may_not_be_read(place, monkeypatch):
    write_npz(place / "cifar10.npz")

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", denied)
    found = data.status("cifar10", place)
    assert (found.state, found.place) == ("damaged", place)
    assert "Permission denied" in found.problem


# -------------------- Archives and packed files that were made to harm, or name labels that are none

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


# -------------------- Tables of sentences and of numbers that were cut off, or have wrong lines


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

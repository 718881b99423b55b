"""Damaged files of every kind: one error that names the file, and what to do."""

import json
import os
import random
import shutil
import struct
import zipfile
from itertools import islice
from pathlib import Path

import pytest
from damaged_files import refused
from PIL import Image
from tiny_images import write_npz

from fedjax_muon import data
from fedjax_muon.core.reading import reading
from fedjax_muon.data.byte_pairs import roberta_encoder
from tests.robustness.data_files import cases
from tests.robustness.tiny_files import KINDS

pytestmark = pytest.mark.slow


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

"""Damaged and hostile files of every kind: one error, which says what to do."""

import bz2
import contextlib
import gzip
import itertools
import json
import lzma
import os
import random
import shutil
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedjax_muon import data
from fedjax_muon.data import catalog, text
from fedjax_muon.data.source import unpacked
from fedjax_muon.files import reading
from tests.robustness import hostile
from tests.robustness.data_files import attempt, cases
from tests.robustness.tiny_files import KINDS
from tests.support.error_lines import one_line
from tests.support.published import PUBLISHED, allow_small

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_data_directory")]

MEGABYTE = 2**20


def refused(kind, place, message):
    """Reading ends in one line that names the folder."""
    with one_line(message, place):
        KINDS[kind].read(place)


def test_random_damage(tmp_path):
    """The harness goes on without end."""
    found = itertools.islice(cases(random.Random(20), tmp_path), 150)
    assert [case for case in found if case[2]] == []


@pytest.mark.parametrize("ends", hostile.HARMS, ids=" ".join)
def test_harm_made_for_a_format(ends, tmp_path):
    """Each of it three times, on the first file that takes it."""
    start, end = ends
    of_format = {name: kind for name, kind in KINDS.items() if name.startswith(start)}
    for name, kind in of_format.items():
        (tmp_path / "whole" / name).mkdir(parents=True)
        kind.write(tmp_path / "whole" / name)
        paths = sorted((tmp_path / "whole" / name).rglob(f"*{end}"))
        if files := [path for path in paths if path.is_file()]:
            break
    whole = kind.read(tmp_path / "whole" / name)
    for number, harm in itertools.product(range(3), hostile.HARMS[ends]):
        folder = shutil.copytree(tmp_path / "whole" / name, tmp_path / "harmed")
        place = folder / files[0].relative_to(tmp_path / "whole" / name)
        harm.act(random.Random(number), place)
        assert attempt(kind, whole, folder) == "", (harm.name, number)
        shutil.rmtree(folder)


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
    refused(
        "prepared images", place, r"class spy\.Image is not from tensorflow-datasets"
    )


# ------------------------------------------------- archives made to do harm
@contextlib.contextmanager
def memory(limit):
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < limit


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
    with one_line("at most 268435456 bytes, found 8589934592; the"):
        unpacked(path)


# ------------------------------------------------------ tables that were cut off
@pytest.mark.parametrize("name", catalog.SENTENCES)
def test_published_numbers_of_sentences(name):
    """As in the tests on the published files."""
    files = data.NAMES[name].layouts[0].files
    assert sum(file.rows for file in files) == sum(data.NAMES[name].examples)


@pytest.mark.parametrize("kind", ["sst2", "cola", "mrpc", "qqp", "rte"])
@pytest.mark.parametrize("file", ["train.tsv", "dev.tsv"])
def test_tables_that_were_cut_between_lines(place, kind, file):
    KINDS[kind].write(place)
    (path,) = place.rglob(file)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-2]))
    count = {"train.tsv": 12, "dev.tsv": 5}[file]
    message = f"{file}: expected {count} examples as published, found {count - 2}; "
    remedy = "the file is truncated or the wrong one: delete it and download"
    refused(kind, place, message + remedy)


def test_encoders_get_whole_tables(place, monkeypatch):
    KINDS["sst2"].write(place)
    encoder = text.Encoder(lambda texts: np.ones((len(texts), 2), np.int32), 0, 3)
    with pytest.raises(ValueError, match=r"train.tsv: expected 67349 examples as publ"):
        data.load("sst2", place, encoder=encoder)
    allow_small(monkeypatch, "sst2")
    assert data.load("sst2", place, encoder=encoder).x_train.shape == (12, 2)


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

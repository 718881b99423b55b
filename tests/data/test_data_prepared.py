"""Sets of tensorflow-datasets: prepared, read back, in other layouts, damaged."""

import importlib.util
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image
from tiny_images import IMAGES, LABELS, TEST, TRAIN, assert_standardized

from fedjax_muon import data
from fedjax_muon.data import prepared


class TinyImages(tfds.core.GeneratorBasedBuilder):
    """A set like the official ones, which can be prepared without TensorFlow."""

    VERSION = tfds.core.Version("1.0.0")
    SHAPE: tuple[int | None, ...] = (6, 5, 3)

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=self.SHAPE),
            "label": tfds.features.ClassLabel(names=[f"kind {k}" for k in range(10)]),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        del dl_manager
        return {
            "train": self._generate_examples(TRAIN),
            "test": self._generate_examples(TEST),
        }

    def _generate_examples(self, part):
        for i in range(40)[part]:
            file = io.BytesIO()
            Image.fromarray(self.image(i)).save(file, "PNG")
            file.seek(0)
            yield i, {"image": file, "label": int(LABELS[i])}

    def image(self, i):
        return IMAGES[i]


class UnequalImages(TinyImages):
    """Photographs of several sizes."""

    SHAPE = (None, None, 3)

    def image(self, i):
        return IMAGES[i, : 6 - i % 2]


class GreyImages(TinyImages):
    """Without an axis of colours in the files."""

    SHAPE = (6, 5, 1)

    def image(self, i):
        return IMAGES[i, ..., 0]


def prepare(name, directory):
    """`data.prepare`, told that TensorFlow is there: the sets below do not need it."""
    find_spec = importlib.util.find_spec
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            importlib.util,
            "find_spec",
            lambda name, *rest: (
                True if name == "tensorflow" else find_spec(name, *rest)
            ),
        )
        return data.prepare(name, directory)


@pytest.fixture(scope="module")
def prepared_once(tmp_path_factory):
    directory = tmp_path_factory.mktemp("prepared")
    for name in ("tiny_images", "unequal_images", "tfds:grey_images"):
        prepare(name, directory)
    return directory


@pytest.fixture
def prepared_copy(prepared_once, tmp_path):
    folder = Path("tiny_images") / "1.0.0"
    shutil.copytree(prepared_once / folder, tmp_path / folder)
    return tmp_path / folder


@pytest.mark.parametrize(("name", "channels"), [("tiny_images", 3), ("grey_images", 1)])
def test_prepared_sets_round_trip(prepared_once, name, channels):
    raw = prepared.read_prepared(name, prepared_once)
    for x, y, part in (
        (raw.x_train, raw.y_train, TRAIN),
        (raw.x_test, raw.y_test, TEST),
    ):
        assert x.dtype == np.uint8
        # tensorflow-datasets shuffles, but keeps images and labels together.
        read = sorted((a.tobytes(), b) for a, b in zip(x, y, strict=True))
        written = zip(IMAGES[part, ..., :channels], LABELS[part], strict=True)
        assert read == sorted((a.tobytes(), b) for a, b in written)
    loaded = data.load(f"tfds:{name}", prepared_once)
    assert_standardized(loaded, raw.x_train, raw.x_test)
    np.testing.assert_array_equal(loaded.y_train, raw.y_train)
    assert loaded.classes == tuple(f"kind {k}" for k in range(10))


def test_prepare_returns_the_folder_and_does_nothing_twice(prepared_once):
    folder = prepared_once / "tiny_images" / "1.0.0"
    stamp = (folder / "dataset_info.json").stat().st_mtime_ns
    assert prepare("tfds:tiny_images", prepared_once) == folder
    assert (folder / "dataset_info.json").stat().st_mtime_ns == stamp
    formats = {path.name.split(".")[-1].split("-")[0] for path in folder.iterdir()}
    assert "array_record" in formats


def test_prepare_needs_tensorflow(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "tensorflow-cpu>=2\.19", or'):
        data.prepare("mnist", tmp_path)
    with pytest.raises(ValueError, match="mnist is stored in files: give data_dir"):
        data.prepare("mnist")


def test_prepare_of_an_unknown_set(tmp_path):
    with pytest.raises(
        ValueError, match=r"has no set 'no_such_set'.*catalog"
    ) as caught:
        prepare("no_such_set", tmp_path)
    assert "\n" not in str(caught.value)


def test_prepared_versions_are_chosen_by_name(prepared_copy):
    directory = prepared_copy.parent.parent
    shutil.copytree(prepared_copy, prepared_copy.parent / "incomplete.AB12_3.0.0")
    expected = data.load("tfds:tiny_images", directory)  # one of them is complete
    shutil.copytree(prepared_copy, prepared_copy.parent / "2.0.0")
    with pytest.raises(ValueError, match="several") as caught:
        data.load("tfds:tiny_images", directory)
    assert "tfds:tiny_images/1.0.0, tfds:tiny_images/2.0.0" in str(caught.value)
    chosen = data.load("tfds:tiny_images/1.0.0", directory)
    np.testing.assert_array_equal(chosen.x_test, expected.x_test)


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 255
    path.write_bytes(content)


def rename_label(features):
    features = features["featuresDict"]["features"]
    features["target"] = features.pop("label")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            "dataset_info.json",
            lambda info: info.update(fileFormat="tfrecord"),
            "expected array_record files, found tfrecord",
        ),
        (
            "dataset_info.json",
            lambda info: info["splits"][1].update(name="validation"),
            r"splits train and test, found train \(30\), validation \(10\);",
        ),
        (
            "dataset_info.json",
            lambda info: info["splits"].clear(),
            "splits train and test, found no splits",
        ),
        (
            "dataset_info.json",
            lambda info: info["splits"][1].update(shardLengths=["0"]),
            r"splits train and test, found train \(30\), test \(0\);",
        ),
        ("features.json", rename_label, "expected features image and label.*target"),
    ],
)
def test_prepared_sets_with_another_layout(prepared_copy, file, change, message):
    edit_json(prepared_copy / file, change)
    with pytest.raises(ValueError, match=message) as caught:
        data.load("tfds:tiny_images", prepared_copy.parent.parent)
    assert str(prepared_copy) in str(caught.value)


def test_prepared_images_of_several_shapes(prepared_once):
    with pytest.raises(
        ValueError, match=r"one shape, found 2, such as \[5, 5, 3\] and"
    ):
        data.load("tfds:unequal_images", prepared_once)


DAMAGED = ["no records", "cut records", "flipped byte"]
DAMAGED += ["no features", "cut features", "cut info"]


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("*test.array_record*", lambda path: path.unlink()),
        ("*test.array_record*", lambda path: os.truncate(path, 50)),
        ("*test.array_record*", lambda path: flip(path, 150)),
        ("features.json", lambda path: path.unlink()),
        ("features.json", lambda path: path.write_text("{")),
        ("dataset_info.json", lambda path: path.write_text("{")),
    ],
    ids=DAMAGED,
)
def test_damaged_prepared_sets(prepared_copy, pattern, damage):
    (path,) = prepared_copy.glob(pattern)
    damage(path)
    with pytest.raises(ValueError, match=r"found a damaged one.*delete the fold") as e:
        data.load("tfds:tiny_images", prepared_copy.parent.parent)
    assert str(prepared_copy) in str(e.value)
    assert "\n" not in str(e.value)


def test_a_prepared_set_cannot_have_a_module_imported(prepared_copy, monkeypatch):
    path, spy = prepared_copy / "features.json", prepared_copy / "spy.py"
    spy.write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(prepared_copy)
    features = json.loads(path.read_text())
    inner = features["featuresDict"]["features"]["image"]
    inner["pythonClassName"] = "spy.Image"
    path.write_text(json.dumps(features))
    with pytest.raises(ValueError, match=r"class spy\.Image is not"):
        data.load("tfds:tiny_images", prepared_copy.parent.parent)


@pytest.mark.parametrize(
    ("pattern", "damage", "reason"),
    [
        ("*test.array_record*", lambda path: path.unlink(), "0 of 1 files of split te"),
        ("features.json", lambda path: path.unlink(), "No such file"),
        ("features.json", lambda path: path.write_text("{"), "Expecting property"),
        ("dataset_info.json", lambda path: path.write_text("{}"), "'splits'"),
    ],
)
def test_the_status_of_prepared_sets(prepared_copy, pattern, damage, reason):
    directory = prepared_copy.parent.parent
    name = "tfds:tiny_images"
    assert data.status(name, directory) == ("present", prepared_copy, "", False)
    (path,) = prepared_copy.glob(pattern)
    damage(path)
    found = data.status(name, directory)
    assert found.state == "damaged"
    assert found.place == prepared_copy
    assert reason in found.problem
    assert str(prepared_copy) in found.problem
    shutil.copytree(prepared_copy, prepared_copy.parent / "2.0.0")
    found = data.status(name, directory)
    assert found.state == "ambiguous"
    assert "tfds:tiny_images/2.0.0" in found.problem
    assert data.status(name, directory / "elsewhere").state == "missing"

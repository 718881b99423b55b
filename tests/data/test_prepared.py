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
from fedjax_muon.data import prepared, text

pytestmark = pytest.mark.usefixtures("no_data_directory")


# -------------------- Sets of tensorflow-datasets: prepared, read back, in other layouts, damaged


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
    ids=[
        "no records",
        "cut records",
        "flipped byte",
        "no features",
        "cut features",
        "cut info",
    ],
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


# -------------------- Sets of texts as tensorflow-datasets has them, written small and read back

REVIEWS = [(f"dish {word} \u00e9t\u00e9", i % 2) for i, word in enumerate("abcdefgh")]
TWEETS = [
    ("", 4),
    ("i loove it", 4),
    ("meh", 2),
    ("i hate it", 0),
    ("it", 0),
    ("so", 2),
]


class TinyTexts(tfds.core.GeneratorBasedBuilder):
    """With the features of yelp_polarity_reviews, prepared without TensorFlow."""

    VERSION = tfds.core.Version("1.0.0")
    LABEL = "label"
    FEATURES = {  # noqa: RUF012 - a builder's class attribute, only read
        "text": tfds.features.Text(),
        "label": tfds.features.ClassLabel(names=["1", "2"]),
    }
    ROWS = REVIEWS

    def _info(self):
        features = tfds.features.FeaturesDict(self.FEATURES)
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        del dl_manager
        half = len(self.ROWS) // 2
        return {
            "train": self._generate_examples(self.ROWS[:half]),
            "test": self._generate_examples(self.ROWS[half:]),
        }

    def _generate_examples(self, rows):
        for i, (sentence, label) in enumerate(rows):
            yield i, {"text": sentence, self.LABEL: label} | self.rest()

    def rest(self):
        return {}


class TinyTweets(TinyTexts):
    """With the features of sentiment140, whose polarities are 0, 2 and 4."""

    LABEL = "polarity"
    FEATURES = {  # noqa: RUF012 - a builder's class attribute, only read
        "polarity": np.int32,
        "date": tfds.features.Text(),
        "user": tfds.features.Text(),
        "query": tfds.features.Text(),
        "text": tfds.features.Text(),
    }
    ROWS = TWEETS

    def rest(self):
        return {"date": "Mon May 11", "user": "someone", "query": "NO_QUERY"}


class OtherTweets(TinyTweets):
    """With a polarity that Sentiment140 does not have."""

    ROWS = [*TWEETS, ("hm", 3), ("oh", 0)]  # noqa: RUF012 - a builder's class attribute, only read


class TinyGlue(TinyTexts):
    """With the features and splits of glue/sst2, whose test labels are hidden."""

    FEATURES = {  # noqa: RUF012 - a builder's class attribute, only read
        "sentence": tfds.features.Text(),
        "label": tfds.features.ClassLabel(names=["negative", "positive"]),
    }

    def _split_generators(self, dl_manager):
        hidden = [(sentence, -1) for sentence, _ in REVIEWS[:2]]
        known = super()._split_generators(dl_manager)
        test = self._generate_examples(hidden)
        return {"train": known["train"], "validation": known["test"], "test": test}

    def _generate_examples(self, rows):
        for i, (sentence, label) in enumerate(rows):
            yield i, {"sentence": sentence, "label": label}


class NumberedTexts(TinyTexts):
    """Texts whose labels have no names."""

    FEATURES = {  # noqa: RUF012 - a builder's class attribute, only read
        "text": tfds.features.Text(),
        "label": np.int32,
    }


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("prepared")
    for kind in (TinyTexts, TinyTweets, OtherTweets, TinyGlue, NumberedTexts):
        kind(data_dir=directory, file_format="array_record").download_and_prepare()
    return directory


def pairs(x, y):
    """Rows with their labels, in an order of their own: the files are shuffled."""
    return sorted((row.tolist(), int(label)) for row, label in zip(x, y, strict=True))


def expected(rows, vocabulary, length):
    texts, labels = zip(*rows, strict=True)
    return pairs(text.encode(vocabulary, texts, length), labels)


def test_prepared_reviews(directory):
    loaded = data.load("tfds:tiny_texts", directory)
    train, test = REVIEWS[:4], REVIEWS[4:]
    vocabulary = text.build_vocabulary([sentence for sentence, _ in train], 99)
    assert pairs(loaded.x_train, loaded.y_train) == expected(train, vocabulary, 3)
    assert pairs(loaded.x_test, loaded.y_test) == expected(test, vocabulary, 3)
    assert loaded.x_train.dtype == loaded.x_test.dtype == np.int32
    assert loaded.classes == ("1", "2")
    assert vocabulary.ids["\u00e9t\u00e9"] < 4  # read as UTF-8


def test_prepared_tweets_are_positive_or_negative(directory):
    loaded = data.load("tfds:tiny_tweets", directory)
    train = [("", 1), ("i loove it", 1)]
    test = [("i hate it", 0), ("it", 0)]
    vocabulary = text.build_vocabulary([sentence for sentence, _ in train], 99)
    assert pairs(loaded.x_train, loaded.y_train) == expected(train, vocabulary, 3)
    assert pairs(loaded.x_test, loaded.y_test) == expected(test, vocabulary, 3)
    assert loaded.classes == ("negative", "positive")


def test_glue_is_tested_on_what_has_labels(directory):
    loaded = data.load("tfds:tiny_glue", directory)
    vocabulary = text.build_vocabulary([sentence for sentence, _ in REVIEWS[:4]], 99)
    for x, y, rows in (
        (loaded.x_train, loaded.y_train, REVIEWS[:4]),
        (loaded.x_test, loaded.y_test, REVIEWS[4:]),
    ):
        assert pairs(x, y) == expected(rows, vocabulary, 3)
    assert loaded.classes == ("negative", "positive")


def test_other_polarities(directory):
    with pytest.raises(ValueError, match="expected polarities 0, 2 and 4, found 3"):
        data.load("tfds:other_tweets", directory)


def test_labels_without_names(directory):
    with pytest.raises(ValueError, match="or text and label or polarity, found "):
        data.load("tfds:numbered_texts", directory)


def test_texts_that_are_not_utf_8(directory, monkeypatch):
    latin = lambda feature, value: value.encode("latin-1")
    monkeypatch.setattr(tfds.features.Text, "encode_example", latin)
    folder = directory / "latin"
    TinyTexts(data_dir=folder, file_format="array_record").download_and_prepare()
    with pytest.raises(ValueError, match=r"found a damaged one .*utf-8"):
        prepared.read_prepared("tiny_texts", folder)

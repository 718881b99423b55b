"""Sets of tensorflow-datasets: prepared, read back, in other layouts, damaged."""

import importlib.util
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from fedjax_muon import data
from fedjax_muon.data import loading, text
from tests.support.error_lines import one_line
from tests.support.tiny_images import IMAGES, LABELS, TEST, TRAIN, assert_standardized

pytestmark = pytest.mark.usefixtures("no_data_directory")


# --------------------------------------------------------------------- images
class TinyImages(tfds.core.GeneratorBasedBuilder):
    """A set like the official ones, which can be prepared without TensorFlow."""

    VERSION = tfds.core.Version("1.0.0")
    SHAPE: tuple[int | None, ...] = (6, 5, 3)

    def _info(self):
        label = tfds.features.ClassLabel(names=[f"kind {k}" for k in range(10)])
        image = tfds.features.Image(shape=self.SHAPE)
        features = tfds.features.FeaturesDict({"image": image, "label": label})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        del dl_manager
        parts = {"train": TRAIN, "test": TEST}
        return {name: self._generate_examples(part) for name, part in parts.items()}

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
    find = importlib.util.find_spec
    found = lambda name, *rest: name == "tensorflow" or find(name, *rest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", found)
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
    raw, _ = loading.read(f"tfds:{name}", prepared_once)
    train, test = (raw.x_train, raw.y_train, TRAIN), (raw.x_test, raw.y_test, TEST)
    for x, y, part in (train, test):
        assert x.dtype == np.uint8
        # tensorflow-datasets shuffles, but keeps images and labels together.
        read = sorted((a.tobytes(), b) for a, b in zip(x, y, strict=True))
        written = zip(IMAGES[part, ..., :channels], LABELS[part], strict=True)
        assert read == sorted((a.tobytes(), b) for a, b in written)
    loaded = data.load(f"tfds:{name}", prepared_once)
    assert_standardized(loaded, raw.x_train, raw.x_test)
    np.testing.assert_array_equal(loaded.y_train, raw.y_train)
    assert loaded.classes == tuple(f"kind {k}" for k in range(10))
    with one_line(r"one shape, found 2, such as \[5, 5, 3\] and"):
        data.load("tfds:unequal_images", prepared_once)


def test_prepare_returns_the_folder_and_does_nothing_twice(prepared_once):
    folder = prepared_once / "tiny_images" / "1.0.0"
    stamp = (folder / "dataset_info.json").stat().st_mtime_ns
    assert prepare("tfds:tiny_images", prepared_once) == folder
    assert (folder / "dataset_info.json").stat().st_mtime_ns == stamp
    formats = {path.name.split(".")[-1].split("-")[0] for path in folder.iterdir()}
    assert "array_record" in formats
    with one_line("has no 'no_such_set'.*catalog"):
        prepare("no_such_set", prepared_once)


def test_prepare_needs_tensorflow(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "tensorflow-cpu>=2\.19"'):
        data.prepare("mnist", tmp_path)
    with pytest.raises(ValueError, match="mnist is stored in files: give data_dir"):
        data.prepare("mnist")


def test_prepared_versions_are_chosen_by_name(prepared_copy):
    directory = prepared_copy.parent.parent
    shutil.copytree(prepared_copy, prepared_copy.parent / "incomplete.AB12_3.0.0")
    expected = data.load("tfds:tiny_images", directory)  # one of them is complete
    shutil.copytree(prepared_copy, prepared_copy.parent / "2.0.0")
    with one_line("several", "tfds:tiny_images/1.0.0, tfds:tiny_images/2.0.0"):
        data.load("tfds:tiny_images", directory)
    chosen = data.load("tfds:tiny_images/1.0.0", directory)
    np.testing.assert_array_equal(chosen.x_test, expected.x_test)


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def of_a_spy(features):
    inner = features["featuresDict"]["features"]["image"]
    inner["pythonClassName"] = "spy.Image"


def rename_label(features):
    features = features["featuresDict"]["features"]
    features["target"] = features.pop("label")


def second(**changes):
    return lambda info: info["splits"][1].update(**changes)


of_tfrecord = lambda info: info.update(fileFormat="tfrecord")


INFO = "dataset_info.json"
FOUND = "splits train and test, found"
OTHER = [
    (INFO, of_tfrecord, "expected array_record files, found tfrecord"),
    (INFO, second(name="validation"), rf"{FOUND} train \(30\), validation \(10\);"),
    (INFO, lambda info: info["splits"].clear(), f"{FOUND} no splits"),
    (INFO, second(shardLengths=["0"]), rf"{FOUND} train \(30\), test \(0\);"),
    ("features.json", rename_label, "expected features image and label.*target"),
    ("features.json", of_a_spy, r"class spy\.Image is not"),  # nor is it imported
]


@pytest.mark.parametrize(("file", "change", "message"), OTHER)
def test_prepared_sets_with_another_layout(prepared_copy, file, change, message):
    edit_json(prepared_copy / file, change)
    with one_line(message, prepared_copy):
        data.load("tfds:tiny_images", prepared_copy.parent.parent)


# ---------------------------------------------------------------------- texts

REVIEWS = [(f"dish {word} \u00e9t\u00e9", i % 2) for i, word in enumerate("abcdefgh")]
TWEETS = [("", 4), ("i loove it", 4), ("eh", 2), ("i hate it", 0), ("it", 0), ("so", 2)]


class TinyTexts(tfds.core.GeneratorBasedBuilder):
    """With the features of yelp_polarity_reviews, prepared without TensorFlow."""

    VERSION = tfds.core.Version("1.0.0")
    TEXT, LABEL = "text", "label"
    FEATURES = {  # noqa: RUF012 - a builder's class attribute, only read
        "text": tfds.features.Text(),
        "label": tfds.features.ClassLabel(names=["1", "2"]),
    }
    ROWS = REVIEWS
    REST = {}  # noqa: RUF012

    def _info(self):
        features = tfds.features.FeaturesDict(self.FEATURES)
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        del dl_manager
        half = len(self.ROWS) // 2
        parts = {"train": self.ROWS[:half], "test": self.ROWS[half:]}
        return {name: self._generate_examples(rows) for name, rows in parts.items()}

    def _generate_examples(self, rows):
        for i, (sentence, label) in enumerate(rows):
            yield i, {self.TEXT: sentence, self.LABEL: label} | self.REST


class TinyTweets(TinyTexts):
    """With the features of sentiment140, whose polarities are 0, 2 and 4."""

    LABEL = "polarity"
    REST = {"date": "Mon May 11", "user": "someone", "query": "NO_QUERY"}  # noqa: RUF012
    FEATURES = {  # noqa: RUF012
        "polarity": np.int32,
        **{name: tfds.features.Text() for name in ("date", "user", "query", "text")},
    }
    ROWS = TWEETS


class OtherTweets(TinyTweets):
    """With a polarity that Sentiment140 does not have."""

    ROWS = [*TWEETS, ("hm", 3), ("oh", 0)]  # noqa: RUF012


class TinyGlue(TinyTexts):
    """With the features and splits of glue/sst2, whose test labels are hidden."""

    TEXT = "sentence"
    FEATURES = {  # noqa: RUF012
        "sentence": tfds.features.Text(),
        "label": tfds.features.ClassLabel(names=["negative", "positive"]),
    }

    def _split_generators(self, dl_manager):
        hidden = [(sentence, -1) for sentence, _ in REVIEWS[:2]]
        known = super()._split_generators(dl_manager)
        test = self._generate_examples(hidden)
        return {"train": known["train"], "validation": known["test"], "test": test}


class NumberedTexts(TinyTexts):
    """Texts whose labels have no names."""

    FEATURES = {"text": tfds.features.Text(), "label": np.int32}  # noqa: RUF012


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("prepared")
    for kind in (TinyTexts, TinyTweets, OtherTweets, TinyGlue, NumberedTexts):
        kind(data_dir=directory, file_format="array_record").download_and_prepare()
    return directory


def pairs(x, y):
    """Rows with their labels, in an order of their own: the files are shuffled."""
    return sorted((row.tolist(), int(label)) for row, label in zip(x, y, strict=True))


NAMES = ("negative", "positive")
SETS = {
    "tiny_texts": (REVIEWS[:4], REVIEWS[4:], ("1", "2")),
    # tweets that are neither positive nor negative are left out
    "tiny_tweets": ([("", 1), ("i loove it", 1)], [("i hate it", 0), ("it", 0)], NAMES),
    # tested on what has labels
    "tiny_glue": (REVIEWS[:4], REVIEWS[4:], NAMES),
}


@pytest.mark.parametrize("name", SETS)
def test_prepared_texts(directory, name):
    train, test, classes = SETS[name]
    loaded = data.load(f"tfds:{name}", directory)
    vocabulary = text.build_vocabulary([sentence for sentence, _ in train], 99)
    for x, y, rows in (
        (loaded.x_train, loaded.y_train, train),
        (loaded.x_test, loaded.y_test, test),
    ):
        texts, labels = zip(*rows, strict=True)
        assert pairs(x, y) == pairs(text.encode(vocabulary, texts, 3), labels)
        assert x.dtype == np.int32
    assert loaded.classes == classes
    if train == REVIEWS[:4]:
        assert vocabulary["\u00e9t\u00e9"] < 4  # read as UTF-8


def test_other_labels(directory):
    with pytest.raises(ValueError, match="expected polarities 0, 2 and 4, found 3"):
        data.load("tfds:other_tweets", directory)
    with pytest.raises(ValueError, match="or text and label or polarity, found "):
        data.load("tfds:numbered_texts", directory)

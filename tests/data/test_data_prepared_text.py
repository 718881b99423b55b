"""Sets of texts as tensorflow-datasets has them, written small and read back."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

from fedjax_muon import data
from fedjax_muon.data import prepared, text

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

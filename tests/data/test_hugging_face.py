"""Directories that the library `datasets` of Hugging Face wrote."""

import io
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

from fedjax_muon import data
from tests.support.error_lines import one_line
from tests.support.packages import needs

datasets = needs("datasets")
pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
AGES = RNG.normal(40, 10, 20)
SCANS = RNG.normal(size=(20, 2))
LABELS = [0, 1] * 10
CLINICS = [f"clinic{i % 3}" for i in range(20)]
PIXELS = RNG.integers(0, 255, size=(12, 5, 4, 3), dtype=np.uint8)
RISK = datasets.ClassLabel(names=["low", "high"])
datasets.disable_progress_bars()


def saved(place, columns, label=None):
    """Writes a table, or a table for each split."""
    splits = columns if "train" in columns else {"": columns}
    made = {}
    for name, one in splits.items():
        table = datasets.Dataset.from_dict(one)
        made[name] = table.cast_column("label", label) if label else table
    whole = datasets.DatasetDict(made) if "train" in made else made[""]
    whole.save_to_disk(str(place / "saved"))
    return place / "saved"


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def table(**changes):
    columns = {"age": AGES.tolist(), "scan": SCANS.tolist(), "clinic": CLINICS}
    return columns | {"label": LABELS} | changes


def images(**changes):
    columns = {"image": [png(p) for p in PIXELS], "label": LABELS[:12]} | changes
    kinds = {"image": datasets.Image(), "label": datasets.Value("int64")}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def test_columns_of_numbers_and_lists(tmp_path):
    ours = data.from_hf(saved(tmp_path, table(), RISK), owner="clinic")
    x = np.concatenate([AGES[:, None], SCANS], axis=1).astype(np.float32)
    owners = [f"clinic{i % 3}" for i in range(20)]
    expected = data.from_arrays(x, LABELS, owners=owners, classes=("low", "high"))
    np.testing.assert_equal(ours, expected._replace(name="saved"))


def test_splits_and_labels_of_a_dict(tmp_path):
    names = np.array(["low", "high"])[LABELS].tolist()
    train = table(label=names)
    test = {name: column[:6] for name, column in train.items()}
    place = saved(tmp_path, {"train": train, "test": test, "unsupervised": test})
    ours = data.from_hf(place, exclude=["scan", "clinic"])
    x = AGES.astype(np.float32)[:, None]
    expected = data.from_arrays(x, names, test=(x[:6], names[:6]))
    np.testing.assert_equal(ours, expected._replace(name="saved"))
    assert ours.classes == ("high", "low")


@pytest.mark.parametrize(
    ("names", "count", "unread"),
    [
        (("train", "validation"), 6, ""),
        (("training", "dev"), 6, ""),
        (("Train", "Test", "validation"), 6, "validation"),
        (("train", "validation_matched"), 4, "validation_matched"),
        (("train", "holdout", "extra"), 4, "extra, holdout"),
    ],
)
def test_splits_that_are_not_read_are_named(names, count, unread, tmp_path):
    rest = {name: column[:6] for name, column in table().items()}
    splits = dict.fromkeys(names, rest) | {names[0]: table()}
    made = {name: datasets.Dataset.from_dict(one) for name, one in splits.items()}
    datasets.DatasetDict(made).save_to_disk(tmp_path / "saved")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ours = data.from_hf(tmp_path / "saved", exclude=["clinic"])
    told = [f"the splits {unread} are not read" in str(each.message) for each in seen]
    assert told == [True] * bool(unread)
    assert (len(ours.y_train), len(ours.y_test)) == (20 - 4 * (count == 4), count)


def test_classes_of_two_splits_are_the_same(tmp_path):
    turned = datasets.ClassLabel(names=["high", "low"])
    both = {"train": RISK, "test": turned}
    made = {
        name: datasets.Dataset.from_dict(table()).cast_column("label", kind)
        for name, kind in both.items()
    }
    datasets.DatasetDict(made).save_to_disk(tmp_path / "saved")
    with pytest.raises(
        ValueError, match=r"train has the classes \['low', .* cast colu"
    ):
        data.from_hf(tmp_path / "saved", exclude=["clinic"])


def test_images_are_decoded(tmp_path):
    images().save_to_disk(tmp_path / "saved")
    ours = data.from_hf(tmp_path / "saved")
    expected = data.from_arrays(PIXELS, LABELS[:12])
    np.testing.assert_equal(ours, expected._replace(name="saved"))
    assert data.from_hf(tmp_path / "saved", size=(2, 3)).x_train.shape[1:] == (2, 3, 3)


def test_texts_are_words_of_the_training_texts(tmp_path):
    texts = ["good food", "bad bad food", "good", "bad"] * 5
    place = saved(tmp_path, {"text": texts, "label": LABELS, "by": CLINICS})
    ours = data.from_hf(place, owner="by")
    assert ours.x_train.dtype == np.int32
    assert ours.tokens == 5  # padding, the unknown word, and three
    # every text has the token of its own judgement, and no other
    good = {tuple(row) for row in ours.x_train[ours.y_train == 0]}
    bad = {tuple(row) for row in ours.x_train[ours.y_train == 1]}
    assert len(good) == len(bad) == 2
    assert not good & bad
    assert set(ours.owners) == {0, 1, 2}


clinics = lambda seventh: {"clinic": ["a"] * 7 + [seventh] + ["b"] * 12}
EMPTY = "row 7 of train: column 'clinic' is empty; fill it in"


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, {"label": "risk"}, "train: there is no column 'risk' for label; its c"),
        ({}, {"exclude": ["x"]}, "train: there is no column 'x' for exclude"),
        ({"label": [1] * 20}, {}, "all labels are '1'; classification needs two"),
        ({"label": [0.5] * 20}, {}, "column 'label' has the type Value"),
        (clinics(None), {"owner": "clinic"}, EMPTY),
        ({"label": [0, -1] * 10}, {}, "row 1 of train: the label -1 stands for a hid"),
        ({"age": [1.0, None] * 10}, {}, "row 1 of train: column 'age' is empty or not"),
        ({"scan": [[1.0]] * 19 + [[2.0, 3.0]]}, {}, r"row 19 of train: .* shape \[2\]"),
        ({"scan": [{"a": 1}] * 20}, {}, "column 'scan' has the type .* exclude it"),
        ({"age": ["old"] * 20}, {}, "such as 'age', cannot be combined with other fea"),
        ({}, {"exclude": ["age", "scan", "clinic"]}, "no column is left for features"),
    ],
)
def test_rows_and_columns_that_do_not_fit_are_named(changes, options, said, tmp_path):
    options.setdefault("exclude", [] if "owner" in options else ["clinic"])
    place = saved(tmp_path, table(**changes))
    with one_line(f"^{place}.*{said}"):
        data.from_hf(place, **options)


def test_unreadable_images_are_named(tmp_path):
    entries = [png(p) for p in PIXELS]
    cut = entries[4]["bytes"][:40]
    # a format that Pillow reads, but none that is read here
    other = b"P6 4 5 255\n" + PIXELS[0].tobytes()
    for name, entry, said in (
        ("cut", {"bytes": cut, "path": None}, "expected .* image, fo"),
        ("other", {"bytes": other, "path": None}, "expected .* image, fo"),
        ("small", png(PIXELS[0, :3]), "expected 5 x 4 pixels"),
    ):
        entries[4] = entry
        images(image=entries).save_to_disk(tmp_path / name)
        with pytest.raises(ValueError, match=f"{name}, row 4 of train: {said}"):
            data.from_hf(tmp_path / name)


def test_directories_that_datasets_did_not_write(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        data.from_hf(tmp_path / "none")
    with pytest.raises(ValueError, match="what save_to_disk of datasets wrote"):
        data.from_hf(tmp_path)
    place = saved(tmp_path, table())
    (arrow,) = place.glob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[:200])
    with pytest.raises(ValueError, match="what save_to_disk of datasets wrote"):
        data.from_hf(place)
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r'needs datasets, .* run: pip install "data'):
        data.from_hf(tmp_path)

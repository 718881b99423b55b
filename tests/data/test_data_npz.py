"""Image sets in NumPy's format and in CIFAR's: read back, incomplete and damaged."""

import numpy as np
import pytest
from published import allow_small
from tiny_images import IMAGES, LABELS, TEST, TRAIN, assert_standardized, write_npz

from fedjax_muon import data
from fedjax_muon.data import cifar


@pytest.mark.parametrize("name", ["cifar10", "cifar10_subset", "cifar100"])
def test_npz_round_trip(tmp_path, name):
    classes = np.array([f"class {k}" for k in range(10)])
    write_npz(tmp_path / f"{name}.npz", classes=classes)
    loaded = data.load(name, tmp_path)
    assert_standardized(loaded, IMAGES[TRAIN], IMAGES[TEST])
    np.testing.assert_array_equal(loaded.y_train, LABELS[TRAIN])
    np.testing.assert_array_equal(loaded.y_test, LABELS[TEST])
    assert loaded.classes == tuple(classes)
    assert all(type(each) is str for each in loaded.classes)


@pytest.mark.parametrize(("name", "number"), [("cifar10", 10), ("cifar100", 100)])
def test_npz_without_class_names(tmp_path, name, number):
    write_npz(tmp_path / f"{name}.npz")
    classes = data.load(name, tmp_path).classes
    assert classes == tuple(str(k) for k in range(number))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": None, "x_test": None}, "found no y_train, x_test"),
        ({"x_test": IMAGES[TEST] / 255}, r"expected x_test as uint8.*float64\[10, 6"),
        ({"x_train": IMAGES[TRAIN].reshape(30, -1)}, r"x_train as.*uint8\[30, 90\]"),
        ({"classes": np.arange(10)}, r"expected classes as strings.*int64\[10\]"),
        ({"classes": np.array([["a"]])}, r"expected classes as strings.*\[1, 1\]"),
        ({"y_train": LABELS[TRAIN].astype(object)}, "damaged or pickled one"),
    ],
)
def test_npz_with_other_arrays(tmp_path, changes, message):
    path = tmp_path / "cifar10.npz"
    write_npz(path, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        data.load("cifar10", tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[: len(b) // 2], "another or a truncated file"),
        (lambda b: b"", "another or a truncated file"),
        (lambda b: b[:900] + bytes([b[900] ^ 1]) + b[901:], "damaged or pickled"),
    ],
    ids=["half", "empty", "flipped bit"],
)
def test_damaged_npz_files(tmp_path, damage, message):
    path = tmp_path / "cifar10.npz"
    write_npz(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message) as caught:
        data.load("cifar10", tmp_path)
    assert str(path) in str(caught.value)


RNG = np.random.default_rng(3)
COLORS = RNG.integers(0, 256, (16, 32, 32, 3), dtype=np.uint8)
FOLDERS = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}
CLASS_FILES = {"cifar10": "batches.meta.txt", "cifar100": "fine_label_names.txt"}
# Which images are in which file, in the order of the training set.
FILES = {
    "cifar10": {
        **{f"data_batch_{i}.bin": range(2 * i - 2, 2 * i) for i in range(1, 6)},
        "test_batch.bin": range(10, 16),
    },
    "cifar100": {"train.bin": range(10), "test.bin": range(10, 16)},
}


def labels(name):
    """Up to the largest label."""
    return (np.arange(16) * 7 + 1) % 10 + (90 if name == "cifar100" else 0)


def record(name, i):
    """As the page of the sets describes it, image by image."""
    coarse = [19 - i] if name == "cifar100" else []
    first = bytes([*coarse, labels(name)[i]])
    return first + b"".join(COLORS[i, :, :, c].tobytes() for c in range(3))


def write(name, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for file, images in FILES[name].items():
        (folder / file).write_bytes(b"".join(record(name, i) for i in images))
    count = {"cifar10": 10, "cifar100": 100}[name]
    lines = [f"class_{k}" for k in range(count)]
    (folder / CLASS_FILES[name]).write_text("\n".join([*lines, "", ""]))


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    allow_small(monkeypatch, *FOLDERS)


@pytest.mark.parametrize("name", FOLDERS)
def test_binary_files_round_trip(tmp_path, name):
    write(name, tmp_path / FOLDERS[name])
    loaded = data.load(name, tmp_path)
    assert_standardized(loaded, COLORS[:10], COLORS[10:])
    np.testing.assert_array_equal(loaded.y_train, labels(name)[:10])
    np.testing.assert_array_equal(loaded.y_test, labels(name)[10:])
    assert loaded.classes[-1] == f"class_{len(loaded.classes) - 1}"
    assert len(loaded.classes) == data.NAMES[name].classes
    inside = data.load(name, tmp_path / FOLDERS[name])
    np.testing.assert_array_equal(inside.x_test, loaded.x_test)


def test_the_archive_has_precedence(tmp_path):
    write("cifar10", tmp_path)
    write_npz(tmp_path / "cifar10.npz")
    assert data.load("cifar10", tmp_path).x_train.shape == (30, 6, 5, 3)


@pytest.mark.parametrize(("name", "size"), [("cifar10", 30730000), ("cifar100", None)])
def test_published_sizes(tmp_path, monkeypatch, name, size):
    files = cifar.SETS[name].layouts[1].files
    if size is not None:  # "exactly 30730000 bytes", as the page says
        assert {file.size for file in files[:-1]} == {size}
    monkeypatch.setitem(data.NAMES, name, cifar.SETS[name])
    write(name, tmp_path)
    with pytest.raises(ValueError, match=rf"expected {files[0].size} bytes as publish"):
        data.load(name, tmp_path)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("data_batch_3.bin", lambda b: b[:-1], "of 3073 bytes, found 6145 bytes; it w"),
        ("test_batch.bin", lambda b: b"", "of 3073 bytes, found 0 bytes"),
        ("batches.meta.txt", lambda b: b[:40], "names of 10 classes, found 5"),
    ],
)
def test_damaged_binary_files(tmp_path, file, change, message):
    write("cifar10", tmp_path)
    path = tmp_path / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=message) as caught:
        data.load("cifar10", tmp_path)
    assert str(path) in str(caught.value)

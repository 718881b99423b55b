"""Image sets in NumPy's own format: read back, incomplete and damaged."""

import numpy as np
import pytest
from tiny_images import IMAGES, LABELS, TEST, TRAIN, assert_standardized, write_npz

from fedjax_muon import data


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

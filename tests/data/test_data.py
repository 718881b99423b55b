"""Data sets: the embedded one, and every format written, read back and damaged."""

import gzip
import hashlib
import struct

import numpy as np
import pytest
from published import allow_small, with_files
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import StandardScaler
from tiny_images import IMAGES, LABELS, TEST, TRAIN, assert_standardized, write_npz

from fedjax_muon import data
from fedjax_muon.data import embedded, idx, names


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    allow_small(monkeypatch, "mnist", "fashion_mnist")


# ------------------------------------------------------------------ digits


def test_digits_are_scikit_learns():
    raw, source = embedded.digits(), load_digits()
    owners = {
        image.tobytes(): label
        for image, label in zip(source.images, source.target, strict=True)
    }
    assert len(owners) == len(source.target) == 1797  # no image occurs twice
    images = np.concatenate([raw.x_train, raw.x_test])
    labels = np.concatenate([raw.y_train, raw.y_test])
    read = {
        (16 * image.astype(np.float64)[..., 0]).tobytes(): label
        for image, label in zip(images, labels, strict=True)
    }
    assert read == owners


def test_digits_split_is_fixed_and_stratified():
    first, again = data.load("digits"), data.load("digits")
    assert (len(first.x_train), len(first.x_test)) == (1437, 360)
    np.testing.assert_array_equal(first.y_train, again.y_train)
    np.testing.assert_array_equal(first.x_test, again.x_test)
    everyone = np.bincount(load_digits().target)
    assert np.all(abs(np.bincount(first.y_test) - 0.2 * everyone) < 1)
    assert first.classes == tuple("0123456789")


def test_digits_are_standardized():
    raw = embedded.digits()
    loaded = data.load("digits")
    assert_standardized(loaded, raw.x_train, raw.x_test)
    np.testing.assert_array_equal(loaded.y_train, raw.y_train)
    assert loaded.y_train.dtype == loaded.y_test.dtype == np.int32


# ----------------------------------------------------------- breast cancer


def test_breast_cancer_is_scikit_learns_with_1_for_malignant():
    raw, source = embedded.breast_cancer(), load_breast_cancer()
    malignant = list(source.target_names).index("malignant")
    rows = {
        row.astype(np.float32).tobytes(): label == malignant
        for row, label in zip(source.data, source.target, strict=True)
    }
    assert len(rows) == len(source.target) == 569  # no tumour occurs twice
    x = np.concatenate([raw.x_train, raw.x_test])
    y = np.concatenate([raw.y_train, raw.y_test])
    assert {row.tobytes(): label == 1 for row, label in zip(x, y, strict=True)} == rows
    assert y.sum() == 212  # as published
    assert raw.classes == ("benign", "malignant")


def test_breast_cancer_is_split_and_standardized():
    loaded, again = data.load("breast_cancer"), data.load("breast_cancer")
    assert (loaded.x_train.shape, loaded.x_test.shape) == ((455, 30), (114, 30))
    np.testing.assert_array_equal(loaded.x_test, again.x_test)
    assert abs(loaded.y_test.sum() - 0.2 * 212) < 1
    raw = embedded.breast_cancer()
    scaler = StandardScaler().fit(raw.x_train.astype(np.float64))
    for got, x in ((loaded.x_train, raw.x_train), (loaded.x_test, raw.x_test)):
        assert got.dtype == np.float32
        expected = scaler.transform(x.astype(np.float64))
        # x, mean, their difference and the quotient: each rounds once, in float32
        error = 4 * np.finfo(np.float32).eps * (abs(x) + scaler.mean_) / scaler.scale_
        assert np.all(abs(got - expected) <= error)


# --------------------------------------------------- any data set at the edge


def sound():
    return data.Dataset(
        x_train=IMAGES[TRAIN],
        y_train=LABELS[TRAIN],
        x_test=IMAGES[TEST],
        y_test=LABELS[TEST],
        classes=tuple("abcdefghij"),
    )


def test_check_returns_the_same_data_with_int32_labels():
    checked = data.check(sound()._replace(y_test=LABELS[TEST].astype(np.int64)))
    np.testing.assert_array_equal(checked.x_train, IMAGES[TRAIN])
    np.testing.assert_array_equal(checked.y_test, LABELS[TEST])
    assert checked.y_train.dtype == checked.y_test.dtype == np.int32
    assert checked.classes == tuple("abcdefghij")


def sentences():
    x = np.arange(120, dtype=np.int32).reshape(40, 3)
    return sound()._replace(x_train=x[TRAIN], x_test=x[TEST])


def test_token_ids_stay_as_they_are():
    loaded = data.standardize(data.check(sentences()))
    for x, expected in (
        (loaded.x_train, sentences().x_train),
        (loaded.x_test, sentences().x_test),
    ):
        assert x.dtype == np.int32
        np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x - 1, "x_train: token ids must not be negative, got -1"),
        (lambda x: x[:, None], r"int32\[30, 1, 3\]; or int32 token ids \[n, length\]"),
        (lambda x: x[:, 0], r"int32\[30\]; or int32 token ids"),
        (lambda x: x[:, :0], r"non-empty.*int32\[30, 0\]"),
        (lambda x: x.astype(np.int64), r"int64\[30, 3\]; or int32 token ids"),
    ],
)
def test_check_refuses_other_token_ids(change, message):
    raw = sentences()
    x_train, x_test = change(raw.x_train), change(raw.x_test)
    with pytest.raises(ValueError, match=message):
        data.check(raw._replace(x_train=x_train, x_test=x_test))


def poisoned(value):
    x = IMAGES[TRAIN].astype(np.float32)
    x[4, 0, 0, 1] = x[9, 2, 2, 2] = value
    return {"x_train": x, "x_test": IMAGES[TEST].astype(np.float32)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": IMAGES[TEST, :4]}, r"one shape and dtype.*\[10, 4, 5, 3\]"),
        ({"x_test": IMAGES[TEST].astype(np.float32)}, "one shape and dtype.*float32"),
        (
            {"x_train": IMAGES[TRAIN] * 1.0, "x_test": IMAGES[TEST] * 1.0},
            "x_train must be non-empty float32 or uint8.*float64",
        ),
        (
            {"x_train": IMAGES[TRAIN, 0, 0, 0], "x_test": IMAGES[TEST, 0, 0, 0]},
            r"x_train must be .*\[n, \.\.\., channels\], got uint8\[30\]",
        ),
        ({"x_train": IMAGES[:0], "y_train": LABELS[:0]}, "x_train must be non-empty"),
        ({"x_test": IMAGES[:0], "y_test": LABELS[:0]}, "x_test must be non-empty"),
        (poisoned(np.nan), "x_train has NaN or infinity in 2 of 30.*example 4"),
        (poisoned(np.inf), "x_train has NaN or infinity in 2 of 30.*example 4"),
        ({"y_train": LABELS[:29]}, r"y_train must be 30 integers.*uint8\[29\]"),
        ({"y_test": LABELS[TEST] * 1.0}, r"y_test must be 10 integers.*float64\[10\]"),
        ({"y_test": LABELS[TEST, None]}, r"y_test must be 10 integers.*\[10, 1\]"),
        ({"classes": tuple("abcdefghi")}, r"must be in 0\.\.8 \(the 9 classes\)"),
        ({"y_test": LABELS[TEST] - np.int64(3)}, r"y_test must be in 0\.\.9.*got -"),
        ({"y_train": LABELS[TRAIN] + np.int64(2**32)}, "y_train must be in .*429496"),
    ],
)
def test_check_says_what_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        data.check(sound()._replace(**change))


def test_standardize_refuses_a_constant_channel():
    x = IMAGES.copy()
    x[TRAIN, ..., 1] = 7
    with pytest.raises(ValueError, match="channel 1 is constant in x_train"):
        data.standardize(sound()._replace(x_train=x[TRAIN]))


def test_standardize_leaves_its_input_alone():
    before = poisoned(3.0)
    kept = {name: x.copy() for name, x in before.items()}
    data.standardize(sound()._replace(**before))
    for name, x in before.items():
        np.testing.assert_array_equal(x, kept[name])


# ------------------------------------------------------------- names, folders


@pytest.mark.parametrize(
    ("typo", "nearest"),
    [("fashon_mnist", "fashion_mnist"), ("cifar-10", "cifar10"), ("digit", "digits")],
)
def test_unknown_names_list_the_nearest_first(typo, nearest):
    with pytest.raises(ValueError, match="unknown data set") as caught:
        data.load(typo)
    listed = str(caught.value).split("choose one of ")[1].split(", ")
    assert listed[0] == nearest
    assert set(data.NAMES) <= set(listed)


EMBEDDED = ("digits", "breast_cancer", "plays", "heart_disease")
FROM_FILES = [
    *(name for name in data.NAMES if name not in EMBEDDED),
    "tfds:tiny_images",
]


@pytest.mark.parametrize("name", FROM_FILES)
def test_sets_in_files_need_a_directory(name):
    with pytest.raises(
        ValueError, match=f"{name} is stored in files.*FEDJAX_MUON_DATA"
    ):
        data.load(name)


OFFERED = [name for name in FROM_FILES if names.source_of(name).prepared]


@pytest.mark.parametrize("name", OFFERED)
def test_missing_files_name_the_paths_and_the_remedy(name, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        data.load(name, tmp_path)
    message = str(caught.value)
    plain = name.removeprefix("tfds:")
    assert "\n" not in message
    assert str(tmp_path / plain) in message
    assert "fedjax_muon.data.prepare(" in message
    assert "'tfds:" in message or name.startswith("tfds:")


def test_the_environment_names_the_directory(tmp_path, monkeypatch):
    write_npz(tmp_path / "cifar10.npz")
    monkeypatch.setenv("FEDJAX_MUON_DATA", str(tmp_path))
    np.testing.assert_array_equal(data.load("cifar10").y_train, LABELS[TRAIN])
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        data.load("cifar10", tmp_path / "elsewhere")  # the argument has precedence


# ------------------------------------------------------------------------ IDX


def idx_bytes(array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def write_idx(folder, *, zipped):
    folder.mkdir(parents=True, exist_ok=True)
    arrays = (IMAGES[TRAIN, ..., 0], LABELS[TRAIN], IMAGES[TEST, ..., 0], LABELS[TEST])
    for name, array in zip(idx.FILES, arrays, strict=True):
        content = idx_bytes(np.ascontiguousarray(array))
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("below", ["fashion_mnist", ""])
def test_idx_files_round_trip(tmp_path, zipped, below):
    write_idx(tmp_path / below, zipped=zipped)
    loaded = data.load("fashion_mnist", str(tmp_path))
    assert_standardized(loaded, IMAGES[TRAIN, ..., :1], IMAGES[TEST, ..., :1])
    np.testing.assert_array_equal(loaded.y_train, LABELS[TRAIN])
    np.testing.assert_array_equal(loaded.y_test, LABELS[TEST])
    assert loaded.classes[9] == "Ankle boot"
    assert data.load("mnist", tmp_path / below).classes == tuple("0123456789")


def test_idx_files_come_from_one_folder(tmp_path):
    write_idx(tmp_path, zipped=False)
    (tmp_path / "mnist").mkdir()
    for file in list(idx.FILES)[:2]:
        (tmp_path / file).rename(tmp_path / "mnist" / file)
    with pytest.raises(FileNotFoundError, match=r"has train-images.* lacks train-im"):
        data.load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[:-1], r"expected 916 bytes for shape \[30, 6, 5\], found 915"),
        (lambda b: b + b"\0", r"expected 916 bytes for shape \[30, 6, 5\], found 917"),
        (lambda b: b[:10], "header of 16 bytes.*in 10 bytes"),
        (lambda b: b"", "found '' in 0 bytes"),
        (lambda b: b"\0\0\x0d\x03" + b[4:], r"first bytes 00000803.*found '00000d03'"),
        (lambda b: b"\0\0\x08\x01" + b[4:], r"uint8 with 3 axes.*found '00000801'"),
        (lambda b: b"\x89PNG" + b[4:], "found '89504e47'"),
    ],
)
def test_damaged_idx_files(tmp_path, damage, message):
    write_idx(tmp_path, zipped=False)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message) as caught:
        data.load("mnist", tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[: len(b) // 2],
        lambda b: b[:-4],
        lambda b: b"no gzip",
        lambda b: b[:30] + bytes([b[30] ^ 255]) + b[31:],
    ],
    ids=["half", "no checksum", "other format", "flipped byte"],
)
def test_damaged_gzip_files(tmp_path, damage):
    write_idx(tmp_path, zipped=True)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        ValueError, match=r"expected a complete gzip file.*download it"
    ) as e:
        data.load("mnist", tmp_path)
    assert str(path) in str(e.value)


def test_idx_files_of_another_set_are_refused(tmp_path, monkeypatch):
    write_idx(tmp_path, zipped=True)
    md5 = hashlib.md5(idx_bytes(LABELS[TRAIN])).hexdigest()
    for name, expected in (("fashion_mnist", md5), ("mnist", "another")):
        labels = lambda file, expected=expected: (
            file._replace(md5=expected, namesakes=((md5, "fashion_mnist"),))
            if file.name == "train-labels-idx1-ubyte"
            else file
        )
        monkeypatch.setitem(data.NAMES, name, with_files(data.NAMES[name], labels))
    data.load("fashion_mnist", tmp_path)
    with pytest.raises(ValueError, match="this is fashion_mnist's file of that name"):
        data.load("mnist", tmp_path)


def test_what_is_published_of_idx_files():
    # As the readers of other libraries have it, for the labels of both sets.
    found = {
        name: [file.md5 for file in data_files(idx.SETS[name])]
        for name in ("mnist", "fashion_mnist")
    }
    assert found["mnist"][1] == "a25bea736e30d166cdddb491f175f624"
    assert found["fashion_mnist"][1] == "9018921c3c673c538a1fc5bad174d6f9"
    for file, shape in zip(
        data_files(idx.SETS["mnist"]),
        [(60000, 28, 28), (60000,), (10000, 28, 28), (10000,)],
        strict=True,
    ):
        assert file.size == len(idx_bytes(np.broadcast_to(np.uint8(0), shape)))
        assert dict(file.namesakes)[file.md5] == "mnist"


def data_files(source):
    return source.layouts[0].files


def test_small_idx_files_are_not_the_published_ones(tmp_path, monkeypatch):
    write_idx(tmp_path, zipped=True)
    monkeypatch.setitem(data.NAMES, "mnist", idx.SETS["mnist"])
    with pytest.raises(ValueError, match="expected 47040016 bytes as published, found"):
        data.load("mnist", tmp_path)


def test_errors_of_the_content_name_the_set(tmp_path):
    write_idx(tmp_path, zipped=False)
    (tmp_path / list(idx.FILES)[3]).write_bytes(idx_bytes(LABELS[:9]))
    with pytest.raises(ValueError, match=r"mnist: y_test must be 10 integers"):
        data.load("mnist", tmp_path)

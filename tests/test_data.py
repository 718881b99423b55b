"""Data sets: every format written and read back, every damage, and the real files."""

import gzip
import hashlib
import importlib.util
import io
import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler

from fedjax_muon import data
from fedjax_muon.data import embedded, idx, names, npz, prepared

RNG = np.random.default_rng(11)
IMAGES = RNG.integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)
LABELS = RNG.permutation(np.arange(40) % 10).astype(np.uint8)
TRAIN, TEST = slice(0, 30), slice(30, 40)


@pytest.fixture(autouse=True)
def no_data_directory(monkeypatch):
    """Keeps the tests from the reader's own files, and counts where those are meant."""
    monkeypatch.delenv(names.DATA_DIR_VARIABLE, raising=False)


def assert_standardised(got, x_train, x_test):
    """Against scikit-learn's scaler in float64.

    x - mean and the division round once each in float32, and so do mean and std: four
    errors of half a unit in the last place of at most 255 / std.
    """
    channels = x_train.shape[-1]
    scaler = StandardScaler().fit(x_train.reshape(-1, channels).astype(np.float64))
    bound = 2 * np.finfo(np.float32).eps * 255 / scaler.scale_.min()
    for part, x in ((got.x_train, x_train), (got.x_test, x_test)):
        expected = scaler.transform(x.reshape(-1, channels).astype(np.float64))
        assert part.dtype == np.float32
        assert part.shape == x.shape
        np.testing.assert_allclose(
            part.reshape(-1, channels), expected, rtol=0, atol=bound
        )


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


def test_digits_are_standardised():
    raw = embedded.digits()
    loaded = data.load("digits")
    assert_standardised(loaded, raw.x_train, raw.x_test)
    np.testing.assert_array_equal(loaded.y_train, raw.y_train)
    assert loaded.y_train.dtype == loaded.y_test.dtype == np.int32


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


def test_standardise_refuses_a_constant_channel():
    x = IMAGES.copy()
    x[TRAIN, ..., 1] = 7
    with pytest.raises(ValueError, match="channel 1 is constant in x_train"):
        data.standardise(sound()._replace(x_train=x[TRAIN]))


def test_standardise_leaves_its_input_alone():
    before = poisoned(3.0)
    kept = {name: x.copy() for name, x in before.items()}
    data.standardise(sound()._replace(**before))
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


FROM_FILES = [*(name for name in data.NAMES if name != "digits"), "tfds:tiny_images"]


@pytest.mark.parametrize("name", FROM_FILES)
def test_sets_in_files_need_a_directory(name):
    with pytest.raises(
        ValueError, match=f"{name} is stored in files.*FEDJAX_MUON_DATA"
    ):
        data.load(name)


@pytest.mark.parametrize("name", FROM_FILES)
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
    assert_standardised(loaded, IMAGES[TRAIN, ..., :1], IMAGES[TEST, ..., :1])
    np.testing.assert_array_equal(loaded.y_train, LABELS[TRAIN])
    np.testing.assert_array_equal(loaded.y_test, LABELS[TEST])
    assert loaded.classes[9] == "Ankle boot"
    assert data.load("mnist", tmp_path / below).classes == tuple("0123456789")


def test_idx_files_come_from_one_folder(tmp_path):
    write_idx(tmp_path, zipped=False)
    (tmp_path / "mnist").mkdir()
    for file in idx.FILES[:2]:
        (tmp_path / file).rename(tmp_path / "mnist" / file)
    with pytest.raises(FileNotFoundError, match="has all of train-images"):
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
        ValueError, match=r"expected a complete gzip file.*fetch it"
    ) as e:
        data.load("mnist", tmp_path)
    assert str(path) in str(e.value)


def test_idx_files_of_another_set_are_refused(tmp_path, monkeypatch):
    write_idx(tmp_path, zipped=True)
    md5 = hashlib.md5(idx_bytes(LABELS[TRAIN])).hexdigest()
    fashion = idx.SETS["fashion_mnist"]._replace(train_labels_md5=md5)
    monkeypatch.setitem(idx.SETS, "fashion_mnist", fashion)
    data.load("fashion_mnist", tmp_path)
    with pytest.raises(ValueError, match="expected mnist, found the labels of fashion"):
        data.load("mnist", tmp_path)


def test_errors_of_the_content_name_the_set(tmp_path):
    write_idx(tmp_path, zipped=False)
    (tmp_path / idx.FILES[3]).write_bytes(idx_bytes(LABELS[:9]))
    with pytest.raises(ValueError, match=r"mnist: y_test must be 10 integers"):
        data.load("mnist", tmp_path)


# ------------------------------------------------------------------------ npz


def write_npz(path, **changes):
    arrays = {
        "x_train": IMAGES[TRAIN],
        "y_train": LABELS[TRAIN],
        "x_test": IMAGES[TEST],
        "y_test": LABELS[TEST],
    } | changes
    np.savez(path, **{key: x for key, x in arrays.items() if x is not None})


@pytest.mark.parametrize("name", ["cifar10", "cifar10_subset", "cifar100"])
def test_npz_round_trip(tmp_path, name):
    classes = np.array([f"class {k}" for k in range(10)])
    write_npz(tmp_path / f"{name}.npz", classes=classes)
    loaded = data.load(name, tmp_path)
    assert_standardised(loaded, IMAGES[TRAIN], IMAGES[TEST])
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
        (lambda b: b[: len(b) // 2], "another or a cut-off file"),
        (lambda b: b"", "another or a cut-off file"),
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


# -------------------------------------------------------- tensorflow-datasets


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
    assert_standardised(loaded, raw.x_train, raw.x_test)
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
    with pytest.raises(ValueError, match=r'pip install "fedjax-muon\[prepare\]"'):
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


# ----------------------------------------------------------------- real files


def real(*files):
    """Paths of files that are too large, or not free, to be part of the tests."""
    directory = os.environ.get("FEDJAX_MUON_DATA")
    if directory is None:
        return pytest.mark.skip(reason="FEDJAX_MUON_DATA names no directory of data")
    missing = [file for file in files if not (Path(directory) / file).is_file()]
    return pytest.mark.skipif(
        bool(missing), reason=f"no {', '.join(missing)} in {directory}"
    )


REAL = Path(os.environ.get("FEDJAX_MUON_DATA", "."))
# As published with the data set (zalandoresearch/fashion-mnist, README).
FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}


def assert_moments(x, mean, std, places):
    """Mean and deviation of the pixels over 255, from exact counts of each value."""
    half = 0.5 * 10.0**-places
    value = np.arange(256) / 255
    for channel in range(x.shape[-1]):
        share = np.bincount(x[..., channel].ravel(), minlength=256) / x[..., 0].size
        center = share @ value
        assert abs(center - mean[channel]) < half
        assert abs(np.sqrt(share @ (value - center) ** 2) - std[channel]) < half


@real(*(f"fashion_mnist/{file}" for file in FASHION_MD5))
def test_real_fashion_mnist():
    for file, md5 in FASHION_MD5.items():
        content = (REAL / "fashion_mnist" / file).read_bytes()
        assert hashlib.md5(content).hexdigest() == md5
    raw = idx.read_idx_set("fashion_mnist", REAL)
    assert_moments(raw.x_train, [0.2860], [0.3530], 4)  # published
    loaded = data.load("fashion_mnist", REAL)
    assert loaded.x_train.shape == (60000, 28, 28, 1)
    assert loaded.x_test.shape == (10000, 28, 28, 1)
    np.testing.assert_array_equal(np.bincount(loaded.y_train), [6000] * 10)
    np.testing.assert_array_equal(np.bincount(loaded.y_test), [1000] * 10)
    with pytest.raises(ValueError, match="found the labels of fashion_mnist"):
        data.load("mnist", REAL / "fashion_mnist")


@real(*(f"mnist/{file}.gz" for file in idx.FILES))
def test_real_mnist():
    raw = idx.read_idx_set("mnist", REAL)
    assert (len(raw.x_train), len(raw.x_test)) == (60000, 10000)
    assert_moments(raw.x_train, [0.1307], [0.3081], 4)  # published
    with pytest.raises(ValueError, match="found the labels of mnist"):
        data.load("fashion_mnist", REAL / "mnist")


@real("cifar100.npz")
def test_real_cifar100():
    raw = npz.read_npz("cifar100", REAL, num_classes=100, tfds_name="cifar100")
    # As used since weiaicunzai/pytorch-cifar100 (conf/global_settings.py), rounded.
    published = ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762])
    assert_moments(raw.x_train, *published, 4)
    loaded = data.load("cifar100", REAL)
    assert loaded.x_train.shape == (50000, 32, 32, 3)
    assert loaded.x_test.shape == (10000, 32, 32, 3)
    np.testing.assert_array_equal(np.bincount(loaded.y_train), [500] * 100)
    assert (loaded.classes[0], loaded.classes[99]) == ("apple", "worm")
    # Published means and deviations are off by up to 0.5e-4, deviations are above 0.25
    # and results below 3: (0.5e-4 + 3 * 0.5e-4) / 0.25.
    mean, std = np.array(published)
    np.testing.assert_allclose(
        loaded.x_test[:500],
        (raw.x_test[:500] / 255 - mean) / std,
        atol=4 * 0.5e-4 / 0.25,
    )


@real("cifar10_subset.npz")
def test_real_cifar10_subset():
    raw = npz.read_npz("cifar10_subset", REAL, num_classes=10, tfds_name="cifar10")
    assert (len(raw.x_train), len(raw.x_test)) == (10000, 2000)
    # A random fifth of CIFAR-10: its mean is the published one of the whole to the
    # sampling error of 10000 image means.
    means = raw.x_train.mean((1, 2)) / 255
    error = means.std(axis=0) / np.sqrt(len(means))
    assert np.all(abs(means.mean(axis=0) - [0.4914, 0.4822, 0.4465]) < 5 * error)
    assert data.load("cifar10_subset", REAL).classes[0] == "airplane"

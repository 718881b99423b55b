"""Sets of images in files: written small, read back, incomplete and damaged."""

import gzip
import shutil
import struct

import numpy as np
import pytest
from PIL import Image

from fedjax_muon import data
from fedjax_muon.data import images, loading
from tests.support.error_lines import one_line
from tests.support.published import PUBLISHED
from tests.support.tiny_images import (
    IMAGES,
    LABELS,
    TEST,
    TRAIN,
    assert_standardized,
    write_npz,
)

pytestmark = pytest.mark.usefixtures("small_files")


# ------------------------------------------------------------------------ IDX
def idx_bytes(array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def write_idx(folder, *, zipped):
    folder.mkdir(parents=True, exist_ok=True)
    arrays = (IMAGES[TRAIN, ..., 0], LABELS[TRAIN], IMAGES[TEST, ..., 0], LABELS[TEST])
    pack, suffix = (gzip.compress, ".gz") if zipped else (bytes, "")
    for name, array in zip(images.IDX_FILES, arrays, strict=True):
        content = idx_bytes(np.ascontiguousarray(array))
        (folder / f"{name}{suffix}").write_bytes(pack(content))


def damage(path, change):
    path.write_bytes(change(path.read_bytes()))


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


def test_damaged_idx_files(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte"
    for change, message in (
        (lambda b: b[:-1], r"expected 916 bytes for shape \[30, 6, 5\], found 915"),
        (lambda b: b + b"\0", r"expected 916 bytes for shape \[30, 6, 5\], found 917"),
        (lambda b: b[:10], "header of 16 bytes.*in 10 bytes"),
        (lambda b: b"", "found '' in 0 bytes"),
        (lambda b: b"\0\0\x0d\x03" + b[4:], r"first bytes 00000803.*found '00000d03'"),
        (lambda b: b"\0\0\x08\x01" + b[4:], r"uint8 with 3 axes.*found '00000801'"),
        (lambda b: b"\x89PNG" + b[4:], "found '89504e47'"),
    ):
        write_idx(tmp_path, zipped=False)
        damage(path, change)
        with one_line(message, path):
            data.load("mnist", tmp_path)
    write_idx(tmp_path, zipped=False)
    (tmp_path / list(images.IDX_FILES)[3]).write_bytes(idx_bytes(LABELS[:9]))
    with pytest.raises(ValueError, match=r"mnist: y_test must be 10 integers"):
        data.load("mnist", tmp_path)


def test_what_is_published_of_idx_files(tmp_path, monkeypatch):
    mnist = PUBLISHED["mnist"].layouts[0].files
    shapes = [(60000, 28, 28), (60000,), (10000, 28, 28), (10000,)]
    for file, shape in zip(mnist, shapes, strict=True):
        assert file.size == len(idx_bytes(np.broadcast_to(np.uint8(0), shape)))
    write_idx(tmp_path, zipped=True)
    monkeypatch.setitem(data.NAMES, "mnist", PUBLISHED["mnist"])
    with pytest.raises(ValueError, match="expected 47040016 bytes as published, found"):
        data.load("mnist", tmp_path)


# --------------------------------------------------------- NumPy's own format
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
    write_npz(tmp_path / f"{name}.npz")
    numbers = range(data.NAMES[name].classes)
    assert data.load(name, tmp_path).classes == tuple(map(str, numbers))


def test_npz_with_other_arrays(tmp_path):
    path = tmp_path / "cifar10.npz"
    for changes, message in (
        ({"y_train": None, "x_test": None}, "found no y_train, x_test"),
        ({"x_test": IMAGES[TEST] / 255}, r"expected x_test as uint8.*float64\[10, 6"),
        ({"x_train": IMAGES[TRAIN].reshape(30, -1)}, r"x_train as.*uint8\[30, 90\]"),
        ({"classes": np.arange(10)}, r"expected classes as strings.*int64\[10\]"),
        ({"classes": np.array([["a"]])}, r"expected classes as strings.*\[1, 1\]"),
        ({"y_train": LABELS[TRAIN].astype(object)}, "damaged or pickled one"),
    ):
        write_npz(path, **changes)
        with one_line(message, path):
            data.load("cifar10", tmp_path)


def test_damaged_npz_files(tmp_path):
    path = tmp_path / "cifar10.npz"
    for change, message in (
        (lambda b: b[: len(b) // 2], "another format or a truncated"),
        (lambda b: b"", "another format or a truncated"),
        (lambda b: b[:900] + bytes([b[900] ^ 1]) + b[901:], "damaged or pickled"),
    ):
        write_npz(path)
        damage(path, change)
        with one_line(message, path):
            data.load("cifar10", tmp_path)


# ----------------------------------------------- CIFAR's original binary files

PICTURES = np.random.default_rng(3).integers(0, 256, (16, 32, 32, 3), dtype=np.uint8)
BINARY = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}
NAMES = {"cifar10": "batches.meta.txt", "cifar100": "fine_label_names.txt"}
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
    return first + b"".join(PICTURES[i, :, :, c].tobytes() for c in range(3))


def write_binary(name, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for file, labels in FILES[name].items():
        (folder / file).write_bytes(b"".join(record(name, i) for i in labels))
    count = {"cifar10": 10, "cifar100": 100}[name]
    lines = [f"class_{k}" for k in range(count)]
    (folder / NAMES[name]).write_text("\n".join([*lines, "", ""]))


@pytest.mark.parametrize("name", BINARY)
def test_binary_files_round_trip(tmp_path, name):
    write_binary(name, tmp_path / BINARY[name])
    loaded = data.load(name, tmp_path)
    assert_standardized(loaded, PICTURES[:10], PICTURES[10:])
    np.testing.assert_array_equal(loaded.y_train, labels(name)[:10])
    np.testing.assert_array_equal(loaded.y_test, labels(name)[10:])
    assert loaded.classes[-1] == f"class_{len(loaded.classes) - 1}"
    assert len(loaded.classes) == data.NAMES[name].classes
    inside = data.load(name, tmp_path / BINARY[name])
    np.testing.assert_array_equal(inside.x_test, loaded.x_test)
    write_npz(tmp_path / f"{name}.npz")  # has precedence
    assert data.load(name, tmp_path).x_train.shape == (30, 6, 5, 3)


@pytest.mark.parametrize(("name", "size"), [("cifar10", 30730000), ("cifar100", None)])
def test_published_sizes(tmp_path, monkeypatch, name, size):
    files = PUBLISHED[name].layouts[1].files
    if size is not None:  # "exactly 30730000 bytes", as the page says
        assert {file.size for file in files[:-1]} == {size}
    monkeypatch.setitem(data.NAMES, name, PUBLISHED[name])
    write_binary(name, tmp_path)
    with pytest.raises(ValueError, match=rf"expected {files[0].size} bytes as publish"):
        data.load(name, tmp_path)


def test_damaged_binary_files(tmp_path):
    for file, change, message in (
        ("data_batch_3.bin", lambda b: b[:-1], "of 3073 bytes, found 6145 bytes; the"),
        ("test_batch.bin", lambda b: b"", "of 3073 bytes, found 0 bytes"),
        ("batches.meta.txt", lambda b: b[:40], "names of 10 classes, found 5"),
    ):
        write_binary("cifar10", tmp_path)
        damage(tmp_path / file, change)
        with one_line(message, tmp_path / file):
            data.load("cifar10", tmp_path)


# -------------------------------------------------------------- Tiny ImageNet

SIZES = {"CLASSES": 3, "TRAIN": 2, "VALIDATION": 4, "TINY_SIZE": (8, 8)}
WNIDS = ["n03", "n01", "n02"]  # labels are in this order, which is not the letters'
NAMED = ["n00\tentity", "n01\tgoldfish, Carassius", "n02\tmud\tturtle", "n03\tox"]
VALIDATION = ["n02", "n03", "n03", "n01"]
GREY = (1, 0)  # class and image


def colour(label, i):
    """That of all pixels of an image; validation images have the label 3."""
    return (60 * label + 20, 30 + 50 * i, 250 - 40 * label - 30 * i)


def save(path, colour, grey=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (8, 8), colour)
    (image.convert("L") if grey else image).save(path, "JPEG", quality=95)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "tiny-imagenet-200"
    for label, wnid in enumerate(WNIDS):
        for i in range(2):
            path = root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG"
            save(path, colour(label, i), grey=(label, i) == GREY)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("a box\n")
    for i in range(4):
        save(root / "val" / "images" / f"val_{i}.JPEG", colour(3, i))
    rows = [f"val_{i}.JPEG\t{wnid}\t0\t1\t7\t7" for i, wnid in enumerate(VALIDATION)]
    rows.reverse()  # their order is nobody's business
    (root / "val" / "val_annotations.txt").write_text("\n".join([*rows, ""]))
    (root / "wnids.txt").write_text("\n".join(WNIDS))
    (root / "words.txt").write_text("\n".join(NAMED))
    return root


@pytest.fixture
def root(written, tmp_path, monkeypatch):
    """A copy to be damaged; sets of that size count as whole."""
    for name, size in SIZES.items():
        monkeypatch.setattr(images, name, size)
    return shutil.copytree(written, tmp_path / written.name)


def test_images_labels_and_names(root):
    raw = loading.read("tiny_imagenet", root.parent)[0]
    assert raw.x_train.dtype == raw.x_test.dtype == np.uint8
    assert raw.x_train.shape == (6, 8, 8, 3)
    assert raw.y_train.tolist() == [0, 0, 1, 1, 2, 2]
    assert raw.classes == ("ox", "goldfish, Carassius", "mud\tturtle")
    for k, image in enumerate(raw.x_train):
        label, i = divmod(k, 2)
        expected = np.array(colour(label, i))
        if (label, i) == GREY:  # ITU-R 601, as Pillow converts
            expected = np.full(3, [0.299, 0.587, 0.114] @ expected)
            assert np.ptp(image, axis=-1).max() == 0
        # JPEG rounds luminance and colour differences
        assert abs(image - expected[None, None]).max() <= 3
    assert raw.y_test.tolist() == [WNIDS.index(wnid) for wnid in reversed(VALIDATION)]
    for k, image in enumerate(raw.x_test):
        assert abs(image - np.array(colour(3, 3 - k))[None, None]).max() <= 3
    loaded = data.load("tiny_imagenet", root)  # the folder itself
    assert loaded.x_train.dtype == np.float32
    np.testing.assert_array_equal(loaded.y_test, raw.y_test)


def test_a_small_set_is_not_the_published_one(written):
    message = "200 different classes, found 3 in 3 lines; unpack.*http://cs231n"
    with pytest.raises(ValueError, match=message):
        data.load("tiny_imagenet", written.parent)


def drop_line(path):
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))


def replace(old, new):
    return lambda path: path.write_text(path.read_text().replace(old, new))


def unlink(path):
    path.unlink()


PHOTOS, LISTED = "train/n01/images", "val/val_annotations.txt"
INCOMPLETE = [
    (f"{PHOTOS}/n01_1.JPEG", unlink, "n01/images: expected 2 images .*, found 1; unpa"),
    ("train", shutil.rmtree, "n03/images: .*found 0, and other numbers in 2 more cl"),
    ("wnids.txt", drop_line, "expected 3 different classes, found 2 in 2 lines"),
    ("wnids.txt", replace("n01", "n03"), "3 different classes, found 2 in 3 lines"),
    ("words.txt", replace("n02", "n04"), "found none for 1, first for n02; unpack"),
    (LISTED, drop_line, "txt: expected 4 lines, found 3; unpack"),
    ("val/images/val_2.JPEG", unlink, "val/images: expected 4 images .*, found 3"),
    (LISTED, replace("n01", "n09"), "line 1: .*found 'val_3.JPEG' and 'n09'"),
    (LISTED, replace("val_0", "val_2"), "line 4: .*found 'val_2.JPEG' and"),  # twice
    (LISTED, replace("3.JPEG\tn01\t", "3.JPEG;"), "line 1: .*found 'val_3.JPEG;0' and"),
]


@pytest.mark.parametrize(("file", "how", "message"), INCOMPLETE)
def test_what_is_incomplete_is_named(root, file, how, message):
    how(root / file)
    with pytest.raises(ValueError, match=message):
        data.load("tiny_imagenet", root.parent)


def test_damaged_images_and_missing_files(root):
    path = root / "train/n02/images/n02_1.JPEG"
    for content in (path.read_bytes()[:-300], b"no JPEG"):
        path.write_bytes(content)
        with one_line("n02_1.JPEG: expected a JPEG image, found a damaged file"):
            data.load("tiny_imagenet", root.parent)
    Image.new("RGB", (8, 7)).save(path, "JPEG")
    with one_line("expected 8 x 8 pixels, found 7 x 8"):
        data.load("tiny_imagenet", root.parent)
    (root / "words.txt").unlink()
    with pytest.raises(FileNotFoundError, match=rf"\({root} lacks words.txt\)"):
        data.load("tiny_imagenet", root.parent)

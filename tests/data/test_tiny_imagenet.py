"""Tiny ImageNet's folders, small ones in its format."""

import shutil

import numpy as np
import pytest
from PIL import Image

from fedjax_muon import data
from fedjax_muon.data import names, tiny_imagenet
from fedjax_muon.data.tiny_imagenet import Sizes

SIZES = Sizes(classes=3, train=2, validation=4, side=8)
WNIDS = ["n03", "n01", "n02"]  # labels are in this order, which is not the letters'
WORDS = {
    "n00": "entity",
    "n01": "goldfish, Carassius",
    "n02": "mud\tturtle",
    "n03": "ox",
}
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
    lines = [f"{wnid}\t{name}" for wnid, name in WORDS.items()]
    (root / "words.txt").write_text("\n".join(lines))
    return root


@pytest.fixture
def root(written, tmp_path, monkeypatch):
    """A copy to be damaged; sets of that size count as whole."""
    source = tiny_imagenet.source_of(SIZES)
    monkeypatch.setitem(data.NAMES, "tiny_imagenet", source)
    return shutil.copytree(written, tmp_path / written.name)


def test_images_labels_and_names(root):
    raw = names.read("tiny_imagenet", root.parent)
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
    assert data.status("tiny_imagenet", root.parent) == ("present", root, "", False)


def test_a_small_set_is_not_the_published_one(root, monkeypatch):
    monkeypatch.setitem(
        data.NAMES, "tiny_imagenet", tiny_imagenet.SETS["tiny_imagenet"]
    )
    message = (
        r"expected 200 different classes, found 3 in 3 lines; unpack.*http://cs231n"
    )
    with pytest.raises(ValueError, match=message):
        data.load("tiny_imagenet", root.parent)
    assert tiny_imagenet.PUBLISHED[1:] == (500, 10_000, 64)


def cut(path):
    path.write_bytes(path.read_bytes()[:-300])


def drop_line(path):
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))


def replace(old, new):
    return lambda path: path.write_text(path.read_text().replace(old, new))


IMAGES, LABELS = "train/n01/images", "val/val_annotations.txt"
LISTED = [
    (f"{IMAGES}/n01_1.JPEG", "unlink", "n01/images: expected 2 images .*, found 1; un"),
    (IMAGES, "rmtree", "n01/images: expected 2 images .*, found 0; unpack"),
    ("train", "rmtree", "n03/images: .*found 0, and other numbers in 2 more classes"),
    ("wnids.txt", drop_line, "expected 3 different classes, found 2 in 2 lines"),
    ("wnids.txt", replace("n01", "n03"), "3 different classes, found 2 in 3 lines"),
    ("words.txt", replace("n02", "n04"), "found none for 1, first for n02; unpack"),
    (LABELS, drop_line, "txt: expected 4 lines, found 3; unpack"),
    ("val/images/val_2.JPEG", "unlink", "val/images: expected 4 images .*, found 3"),
    (LABELS, replace("n01", "n09"), "line 1: .*found 'val_3.JPEG' and 'n09'"),
    (LABELS, replace("val_0", "val_9"), "line 4: .*found 'val_9.JPEG' and"),
    (LABELS, replace("val_0", "val_2"), "line 4: .*found 'val_2.JPEG' and"),  # twice
    (LABELS, replace("3.JPEG\t", "3.JPEG "), "line 1: .*found 'val_3.JPEG n01' and '0"),
    (LABELS, replace("3.JPEG\tn01\t", "3.JPEG;"), "line 1: .*found 'val_3.JPEG;0' and"),
]


def damage(path, how):
    {"unlink": type(path).unlink, "rmtree": shutil.rmtree}.get(how, how)(path)


@pytest.mark.parametrize(("file", "how", "message"), LISTED)
def test_what_is_incomplete_is_named(root, file, how, message):
    damage(root / file, how)
    with pytest.raises(ValueError, match=message):
        data.load("tiny_imagenet", root.parent)
    found = data.status("tiny_imagenet", root.parent)
    assert found.state == "damaged"
    assert str(root) in found.problem


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (cut, "n02_1.JPEG: expected a JPEG image, found a damaged file"),
        (lambda path: path.write_bytes(b"no JPEG"), "expected a JPEG image, found a d"),
        (
            lambda path: Image.new("RGB", (8, 7)).save(path, "JPEG"),
            "expected an image of 8 x 8 pixels, found 7 x 8",
        ),
    ],
)
def test_damaged_images(root, how, message):
    how(root / "train/n02/images/n02_1.JPEG")
    with pytest.raises(ValueError, match=message):
        data.load("tiny_imagenet", root.parent)


def test_files_that_are_missing(root):
    (root / "words.txt").unlink()
    with pytest.raises(FileNotFoundError, match=rf"\({root} lacks words.txt\)"):
        data.load("tiny_imagenet", root.parent)

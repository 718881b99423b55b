"""Folders of images, which Pillow wrote."""

import numpy as np
import pytest
from PIL import Image

from fedjax_muon import data

RNG = np.random.default_rng(0)
COLORS = RNG.integers(0, 255, size=(24, 6, 5, 3), dtype=np.uint8)
GRAYS = COLORS[..., 0]
CLASSES = ("cat", "dog")


def written(root, images, suffix=".png"):
    """Images of both classes in turns, each of one of three owners."""
    for i, image in enumerate(images):
        place = root / CLASSES[i % 2] / f"owner{i % 3}_{i:02}{suffix}"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place)
    return root


def order(count):
    """The numbers of images in the order of their paths."""
    return sorted(range(count), key=lambda i: (i % 2, i % 3, i))


def assert_same(ours, expected):
    for one, other in zip(ours, expected, strict=True):
        if one is not None:
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("images", [COLORS, GRAYS])
def test_images_are_their_arrays(images, tmp_path):
    owner = lambda image: image.stem.partition("_")[0]
    ours = data.from_folder(written(tmp_path, images), owner=owner)
    places = order(24)
    x = images.reshape(24, 6, 5, -1)[places]
    labels = [CLASSES[i % 2] for i in places]
    owners = [i % 3 for i in places]
    assert_same(ours, data.from_arrays(x, labels, owners=owners))
    assert ours.classes == CLASSES


def test_training_and_test_folders_are_kept(tmp_path):
    written(tmp_path / "train", COLORS[:18])
    written(tmp_path / "test", COLORS[18:])
    ours = data.from_folder(tmp_path)
    assert (len(ours.x_train), len(ours.x_test)) == (18, 6)
    train, test = order(18), [18 + i for i in order(6)]
    label = lambda places: [CLASSES[i % 2] for i in places]
    held = COLORS[test], label(test)
    assert_same(ours, data.from_arrays(COLORS[train], label(train), test=held))
    assert ours.owners is None


def test_images_of_several_sizes_are_resized(tmp_path):
    written(tmp_path, [*COLORS[:22], *RNG.integers(0, 255, (2, 9, 9), np.uint8)])
    with pytest.raises(
        ValueError, match=r"expected 6 x 5 pixels as in .* found 9 x 9; "
    ):
        data.from_folder(tmp_path)
    dataset = data.from_folder(tmp_path, size=(4, 8))
    assert dataset.x_train.shape[1:] == (4, 8, 3)


@pytest.mark.parametrize("suffix", [".JPG", ".bmp", ".tiff", ".webp"])
def test_other_formats(suffix, tmp_path):
    dataset = data.from_folder(written(tmp_path, COLORS, suffix))
    assert len(dataset.x_train) + len(dataset.x_test) == 24


def spoilt(root, name="cat/owner0_00.png"):
    return root / name


@pytest.mark.parametrize(
    "content",
    [b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0\n"],
)
def test_damaged_images_are_named(content, tmp_path):
    written(tmp_path, COLORS)
    spoilt(tmp_path).write_bytes(content)
    with pytest.raises(ValueError, match="expected a PNG image, found a damaged file"):
        data.from_folder(tmp_path)
    spoilt(tmp_path).write_bytes(
        spoilt(tmp_path, "cat/owner0_06.png").read_bytes()[:99]
    )
    with pytest.raises(ValueError, match=r"cat/owner0_00\.png: expected a PNG image"):
        data.from_folder(tmp_path)


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    written(tmp_path, COLORS)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(ValueError, match=r"owner.*: expected a PNG image"):
        data.from_folder(tmp_path)


def test_wrong_folders_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*none"):
        data.from_folder(tmp_path / "none")
    with pytest.raises(ValueError, match="found none; it must have CLASS/IMAGE, or"):
        data.from_folder(tmp_path)
    Image.fromarray(COLORS[0]).save(tmp_path / "a.png")  # in no class
    written(tmp_path, COLORS[::2][:1])
    with pytest.raises(ValueError, match="each a class, found cat; it must have"):
        data.from_folder(tmp_path)
    written(tmp_path, COLORS[:3])
    with pytest.raises(
        ValueError, match=r"a test share of 0.2 leaves one side without"
    ):
        data.from_folder(tmp_path)

"""Folders of images as users have them: layouts, files of systems, modes of images."""

import shutil
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fedjax_muon import data
from fedjax_muon.data.images import decoded
from tests.support.error_lines import one_line

RNG = np.random.default_rng(0)
GRAY = RNG.integers(0, 256, size=(40, 6, 5), dtype=np.uint8)


def painted(root, numbers=range(20), classes=("healthy", "ill")):
    for i in numbers:
        place = root / classes[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(GRAY[i]).save(place / f"{i:02}.png")
    return root


# ---------------------------------------------------------------- layouts
@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train", "val"),
        ("Train", "Test"),
        ("TRAINING", "validation"),
        ("training_set", "test_set"),
        ("train2017", "val2017"),
        ("train", "dev"),
        ("train", None),
    ],
)
def test_parts_of_any_usual_name(train, test, tmp_path):
    painted(tmp_path / train)
    if test is not None:
        painted(tmp_path / test, range(20, 26))
    dataset = data.from_folder(tmp_path)
    assert dataset.classes == ("healthy", "ill")
    sizes = (16, 4) if test is None else (20, 6)
    assert (len(dataset.x_train), len(dataset.x_test)) == sizes


def test_test_images_come_before_those_for_validation(tmp_path):
    for number, part in enumerate(("train", "val", "test")):
        painted(tmp_path / part, range(10 * number, 10 * number + 10 + number))
    with pytest.warns(UserWarning, match="11 files are not read, such as val/heal"):
        dataset = data.from_folder(tmp_path)
    assert (len(dataset.x_train), len(dataset.x_test)) == (10, 12)
    shutil.rmtree(tmp_path / "test")
    (tmp_path / "test").mkdir()
    Image.fromarray(GRAY[0]).save(tmp_path / "test/unlabelled.png")
    with pytest.warns(UserWarning, match="1 files are not read, such as test/unlab"):
        assert len(data.from_folder(tmp_path).x_test) == 11


def test_a_class_without_images_is_named(tmp_path):
    painted(tmp_path)
    (tmp_path / "names.txt").touch()
    (tmp_path / "unknown").mkdir()
    (tmp_path / "unknown" / "0.txt").touch()
    with pytest.warns(
        UserWarning, match=r"1 files are not read, such as unknown/0\.txt"
    ):
        assert data.from_folder(tmp_path).classes == ("healthy", "ill")


def test_a_class_may_be_called_train(tmp_path):
    dataset = data.from_folder(painted(tmp_path, classes=("bus", "train")))
    assert dataset.classes == ("bus", "train")


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (("b/scans",), "there is one folder, scans, with the folders healthy, ill; if"),
        (("b/test",), "b/test has the folders healthy, ill, so it is not a class; it"),
        (("b/train", "b/extra"), "b/train has the folders healthy, ill, so it is not"),
        (("b/x/train", "b/x/test", "b/y/train"), "b/x has the folders test, train, so"),
        (("b/train", "b/test/one"), "b/test has images in no class; it must have"),
    ],
)
def test_unclear_layouts_are_refused(folders, said, tmp_path):
    for folder in folders:
        painted(tmp_path / folder)
    if folders[-1] == "b/test/one":
        Image.fromarray(GRAY[0]).save(tmp_path / "b/test/a.png")
    with one_line(said, tmp_path / "b"):
        data.from_folder(tmp_path / "b")


HIDDEN = (".ipynb_checkpoints/0-checkpoint.png", "._00.png", "@eaDir/00.png")
HIDDEN += ("__MACOSX/healthy/00.png", ".git/a.png", "Thumbs.db", "desktop.ini")


@pytest.mark.parametrize("place", ["", "healthy", "part/healthy"])
def test_files_of_systems_and_programs_are_no_data(place, tmp_path):
    root = tmp_path / "part" if place.startswith("part") else tmp_path
    painted(root)
    (tmp_path / ".hidden").mkdir()  # only what lies below the folder is left out
    for name in HIDDEN:
        file = tmp_path / place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes((root / "healthy/00.png").read_bytes())
    dataset = data.from_folder(root)
    assert dataset.classes == ("healthy", "ill")
    assert len(dataset.x_train) + len(dataset.x_test) == 20
    shutil.copytree(root / "healthy", tmp_path / ".hidden/data/healthy")
    shutil.copytree(root / "ill", tmp_path / ".hidden/data/ill")
    assert len(data.from_folder(tmp_path / ".hidden/data").x_train) == 16


# ---------------------------------------------------------------- modes
def png(depth, kind, values):
    """A PNG of 16 bits per color, which Pillow does not write."""

    def chunk(name, content):
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    height, width, _ = values.shape
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    image = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + image + chunk(b"IEND", b"")


COLOR = RNG.integers(0, 256, size=(6, 5, 3), dtype=np.uint8)
DEEP = RNG.integers(0, 65536, size=(6, 5)).astype(np.uint16)
RGB, SOLID = Image.fromarray(COLOR), np.full((6, 5, 1), 255, np.uint8)
PALETTE = RGB.quantize(8)


def with_alpha(gray, alpha):
    return Image.fromarray(np.concatenate([gray, alpha], axis=2))


@pytest.mark.parametrize(
    ("image", "suffix", "expected"),
    [
        (Image.fromarray(GRAY[0] > 99), ".png", 255 * (GRAY[0] > 99)),
        (Image.fromarray(GRAY[0]), ".png", GRAY[0]),
        (RGB, ".webp", COLOR),
        (PALETTE, ".png", np.asarray(PALETTE.convert("RGB"))),
        (PALETTE, ".gif", np.asarray(PALETTE.convert("RGB"))),
        (RGB.convert("CMYK"), ".tif", COLOR),
        (with_alpha(COLOR, SOLID), ".png", COLOR),
        (with_alpha(GRAY[0, ..., None], SOLID), ".png", GRAY[0]),
        (Image.fromarray(DEEP), ".png", DEEP),
        (Image.fromarray(DEEP), ".tif", DEEP),
        (Image.fromarray(DEEP.astype(np.int32) - 9), ".tif", DEEP.astype(int) - 9),
        (Image.fromarray(DEEP / np.float32(7)), ".tif", DEEP / np.float32(7)),
    ],
)
def test_all_values_of_an_image_are_kept(image, suffix, expected, tmp_path):
    path = tmp_path / f"a{suffix}"
    image.save(path, **({"lossless": True} if suffix == ".webp" else {}))
    pixels = decoded([path], lambda i: path)[0]
    np.testing.assert_array_equal(pixels, np.reshape(expected, pixels.shape))
    assert pixels.dtype == (np.float32 if np.max(expected) > 255 else np.uint8)


SHADES = SOLID * np.uint8(0.5)
FRAMES = {"save_all": True, "append_images": [Image.fromarray(GRAY[1])]}
CLEAR = with_alpha(np.zeros_like(COLOR), SOLID * 0)
ONE = with_alpha(COLOR, np.where(np.arange(30).reshape(6, 5, 1) == 7, 0, SOLID))


@pytest.mark.parametrize(
    ("image", "name", "options", "said"),
    [
        (CLEAR, "a.png", {}, "it has transparent pixels .mode RGBA.; put it on a back"),
        (ONE, "a.webp", {"lossless": True}, "it has transparent pixels .mode RGBA."),
        (with_alpha(GRAY[0, ..., None], SHADES), "a.png", {}, "pixels .mode LA."),
        (PALETTE, "a.png", {"transparency": 0}, "it has transparent pixels .mode P."),
        (Image.new("LAB", (5, 6)), "a.tif", {}, "images of the mode LAB can't be read"),
        (Image.fromarray(GRAY[0]), "a.tif", FRAMES, "it has 2 pages or frames; save "),
        (Image.fromarray(GRAY[0]), "a.gif", FRAMES, "it has 2 pages or frames; save "),
        (png(16, 2, DEEP.reshape(2, 5, 3)), "a.png", {}, "mode RGB with 16 bits per c"),
        (png(16, 6, DEEP[:4].reshape(1, 5, 4)), "a.png", {}, "RGBA with 16 bits per "),
        (
            Image.fromarray(np.full((6, 5), 2**24 + 1, np.int32)),
            "a.tif",
            {},
            "the mode I can't be read with all their values; save it as 8-bit gray or",
        ),
    ],
)
def test_images_that_would_lose_values_are_refused(
    image, name, options, said, tmp_path
):
    path = tmp_path / name
    if isinstance(image, bytes):
        path.write_bytes(image)
    else:
        image.save(path, **options)
    with one_line(said, path):
        decoded([path], lambda i: path)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_images_are_upright(orientation, suffix, tmp_path):
    picture = np.zeros((16, 24), np.uint8)
    picture[:8, :16] = 200
    turn = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # what undoes the orientation
    stored = Image.fromarray(picture)
    if orientation > 1:
        stored = stored.transpose(Image.Transpose(turn[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a{suffix}"
    stored.save(path, exif=exif, **({"quality": 95} if suffix == ".jpg" else {}))
    (pixels,) = decoded([path], lambda i: path)
    assert pixels.shape == (16, 24, 1)
    np.testing.assert_allclose(pixels[..., 0].astype(float), picture, atol=12)


def test_depths_and_kinds_in_one_folder(tmp_path):
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for path, image in zip(paths, (GRAY[0], COLOR, DEEP), strict=True):
        Image.fromarray(image).save(path)
    mixed = decoded(paths[:2], paths.__getitem__)
    np.testing.assert_array_equal(mixed[0], np.repeat(GRAY[0, ..., None], 3, axis=2))
    said = (
        "expected 8 bits per color as in .*0.png, found more than 8 bits; convert all"
    )
    with one_line(said, paths[2]):
        decoded(paths, paths.__getitem__)
    flat = np.full((8, 8), 40_000, np.uint16)
    Image.fromarray(flat).save(paths[2])
    assert (decoded(paths[2:], lambda i: paths[2], (4, 4)) == 40_000).all()

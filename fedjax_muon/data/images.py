"""Datasets of images in their published files: MNIST, CIFAR, Tiny ImageNet.

`decoded` reads image files of one size, also those of users.
"""

import contextlib
import io
import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.data.dataset import Dataset, Examples
from fedjax_muon.data.source import LIMIT, unpacked
from fedjax_muon.files import check_size, read_text, reading, visible

FORMATS = {  # Pillow's names of formats, by suffix; of others, some start programs
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WEBP",
    ".gif": "GIF",
    ".jfif": "JPEG",
}
# Pillow's modes: of 8 bits per color, of more, and what they become
GRAY_MODES = ("1", "L", "LA", "La")
OPAQUE_MODES = ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr")
SHALLOW_MODES = (*OPAQUE_MODES, "LA", "La", "PA", "RGBA", "RGBa")
DEEP = "F"
DEEP_MODES = ("I;16", "I;16B", "I;16L", "I;16N", "I", DEEP)
WIDE = (
    ";16B",
    ";16L",
    ";16N",
    ";16",
)  # ends of the names of 16 bits per color in files
DTYPES, BITS = (np.uint8, np.float32), ("8 bits per color", "more than 8 bits")
Size = tuple[int, int]  # height, width


def decoded(
    names: Sequence[str | Path],
    read: Callable[[int], Path | bytes],
    size: Size | None = None,
    *,
    published: Size | None = None,
    remedy: str = "replace it",
) -> np.ndarray:
    """Decodes images of one size.

    Args:
      read: Function from the number of an image to its file, or the content of it.
      published: Height and width that all must have; by default, those of the first.

    Returns:
      Pixels, uint8 [n, height, width, channels] with one channel if all are gray, and
      else three; of gray images with more than 8 bits, float32. Images are turned
      upright as their EXIF data say.
    """
    # Imported here, since it takes a while and few datasets need it.
    from PIL import Image

    with _opened(names[0], read(0), remedy) as image:
        first = _values(image, names[0])
    sides = size or published or (first.height, first.width)
    like = "" if size or published else f" as in {names[0]}"
    deep = first.mode == DEEP
    pixels = np.empty((len(names), *sides, 3 - 2 * deep), DTYPES[deep])

    def fill(i: int) -> bool:
        with _opened(names[i], read(i), remedy) as image:
            plain = _values(image, names[i])
        if deep != (plain.mode == DEEP):
            raise ValueError(
                f"{names[i]}: expected {BITS[deep]} as in {names[0]}, found "
                f"{BITS[not deep]}; convert all images to the same"
            )
        if size is not None:
            plain = plain.resize(size[::-1], Image.Resampling.BILINEAR)
        elif (plain.height, plain.width) != sides:
            resize = "give a size, to which all images are resized"
            raise ValueError(
                f"{names[i]}: expected {sides[0]} x {sides[1]} pixels{like}, found "
                f"{plain.height} x {plain.width}; {resize if like else remedy}"
            )
        pixels[i] = np.asarray(plain).reshape(*sides, -1)
        return plain.mode == "L"

    with ThreadPoolExecutor() as threads:  # decoding releases the interpreter lock
        gray = list(threads.map(fill, range(len(names))))
    return pixels[..., :1].copy() if all(gray) else pixels


def _values(image: Any, name: str | Path) -> Any:
    """An upright image in the mode L, RGB or F that has all values of a file.

    Raises `ValueError` if no such image has them.
    """
    from PIL import Image, ImageOps

    kept = [
        t.args if isinstance(t.args, str) else t.args[0] for t in image.tile if t.args
    ]
    wide = image.format in ("PNG", "TIFF") and str(kept[0]).endswith(WIDE)
    mode, pages, source = image.mode, 1, image
    image = ImageOps.exif_transpose(image)
    if source.format != "MPO":  # photos of phones, with others than the first
        pages = getattr(source, "n_frames", 1)
    if pages > 1:
        raise ValueError(
            f"{name}: it has {pages} pages or frames; save each as an image of its own"
        )
    if mode in DEEP_MODES and "transparency" not in image.info:
        values = np.asarray(image)
        if np.array_equal(values.astype(np.float32), values, equal_nan=mode == DEEP):
            return Image.fromarray(values.astype(np.float32))
    elif mode in SHALLOW_MODES and not wide:
        plain = "L" if mode in GRAY_MODES else "RGB"
        if mode not in OPAQUE_MODES or "transparency" in image.info:
            image = image.convert("RGBA")
            if image.getchannel("A").getextrema()[0] < 255:
                raise ValueError(
                    f"{name}: it has transparent pixels (mode {mode}); put it on a "
                    "background, and save it without transparency"
                )
        return image.convert(plain)
    raise ValueError(
        f"{name}: images of the mode {mode}{' with 16 bits per color' * wide} can't be "
        "read with all their values; save it as 8-bit gray or RGB, or as 16-bit gray"
    )


@contextlib.contextmanager
def _opened(name: str | Path, content: Path | bytes, remedy: str) -> Iterator[Any]:
    """An image of Pillow, whose pixels are not decoded yet."""
    from PIL import Image

    bomb = Image.DecompressionBombError, Image.DecompressionBombWarning
    kinds = sorted({*FORMATS.values()})
    if isinstance(content, Path):
        kinds = [FORMATS[content.suffix.lower()]]
        # not its name, by which Pillow maps TIFFs to memory and fails to turn them
        content = content.read_bytes()
    wanted, damage = (
        f"a {' or '.join(kinds)} image",
        "a damaged file or an unknown kind",
    )
    with (
        reading(Path(name), wanted, remedy, found=damage, errors=bomb),
        Image.open(io.BytesIO(content), formats=kinds) as image,
    ):
        yield image


# -------------------------------------------------------- MNIST and Fashion-MNIST
# The format (LeCun, Cortes and Burges, the MNIST page): two zero bytes, a byte for the
# type of the values (8: uint8), a byte for the number of axes, each axis as a
# big-endian uint32, then the values.

IDX_FILES = {  # with their unpacked sizes in bytes
    "train-images-idx3-ubyte": 16 + 60_000 * 28 * 28,
    "train-labels-idx1-ubyte": 8 + 60_000,
    "t10k-images-idx3-ubyte": 16 + 10_000 * 28 * 28,
    "t10k-labels-idx1-ubyte": 8 + 10_000,
}
UINT8 = 8  # the format's code for this type


def read_idx(paths: Sequence[Path], classes: tuple[str, ...]) -> Dataset:
    """Reads four files in the order of IDX_FILES, with pixels in uint8."""
    x_train, y_train, x_test, y_test = (
        _read_idx_file(path, num_axes)
        for num_axes, path in zip((3, 1, 3, 1), paths, strict=True)
    )
    return Dataset(x_train[..., None], y_train, x_test[..., None], y_test, classes)


def _read_idx_file(path: Path, num_axes: int) -> np.ndarray:
    content, header = unpacked(path), 4 + 4 * num_axes
    magic = bytes([0, 0, UINT8, num_axes])
    if content[:4] != magic or len(content) < header:
        raise ValueError(
            f"{path}: expected an IDX file of uint8 with {num_axes} axes (first bytes "
            f"{magic.hex()}, header of {header} bytes), found {content[:4].hex()!r} in "
            f"{len(content)} bytes; replace it with the original file"
        )
    shape = struct.unpack(f">{num_axes}I", content[4:header])
    if len(content) != header + math.prod(shape):
        raise ValueError(
            f"{path}: expected {header + math.prod(shape)} bytes for shape "
            f"{list(shape)}, found {len(content)}; the file is damaged, download it "
            "again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


# ------------------------------------------------------------------------- CIFAR
# The format (Krizhevsky, the CIFAR page): one byte for the label (in CIFAR-100 two, for
# the coarse and the fine label), then 3072 bytes for the pixels of a 32 x 32 image: all
# red values row by row, then all green and all blue ones. For CIFAR-100 the fine labels
# are used. The Python version of these files is not read, since it is pickled and could
# execute code.

CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar.html"
CIFAR_SIDE = 32
CIFAR_BYTES = 3 * CIFAR_SIDE * CIFAR_SIDE


def read_cifar(paths: Sequence[Path], *, labels: int, num_classes: int) -> Dataset:
    """Reads the binary files of CIFAR, with pixels in uint8.

    Args:
      paths: One or more files of training examples, then one of test examples and one
        of class names.
      labels: Bytes before the pixels of an image; the last one is its label.
    """
    *train, test, names = paths
    parts = [_read_records(path, labels) for path in train]
    x_train, y_train = (np.concatenate(part) for part in zip(*parts, strict=True))
    classes = tuple(read_text(names).split())
    if len(classes) != num_classes:
        raise ValueError(
            f"{names}: expected the names of {num_classes} classes, found "
            f"{len(classes)}; download it again from {CIFAR_URL}"
        )
    return Dataset(x_train, y_train, *_read_records(test, labels), classes)


def _read_records(path: Path, labels: int) -> Examples:
    check_size(path, LIMIT)
    content, record = np.fromfile(path, np.uint8), labels + CIFAR_BYTES
    if not len(content) or len(content) % record:
        raise ValueError(
            f"{path}: expected records of {record} bytes, found {len(content)} bytes; "
            "the file is truncated or the wrong one: download it again from "
            f"{CIFAR_URL}"
        )
    rows = content.reshape(-1, record)
    planes = rows[:, labels:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), rows[:, labels - 1]


# ----------------------------------------------------------------- Tiny ImageNet
# The folders of tiny-imagenet-200.zip (Stanford CS231n):
#
#     wnids.txt                          WordNet ids of the classes
#     words.txt                          WordNet's names of these and many others
#     train/<wnid>/images/*.JPEG
#     val/images/*.JPEG
#     val/val_annotations.txt            file, wnid and a box, between tabs
#
# Labels are numbered in the order of wnids.txt. The labels of test/images were never
# published, so the validation images are the test set, as in most papers. Some images
# are gray; they become RGB with three equal channels.

TINY_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
TINY_FILES = ("wnids.txt", "words.txt", "val/val_annotations.txt")
WNID = re.compile(r"n[0-9]{1,12}")
# to detect truncated copies
CLASSES, TRAIN, VALIDATION = 200, 500, 10_000  # images of each class, and of all
TINY_SIZE = (64, 64)  # height and width of an image, in pixels
AGAIN = f"unpack tiny-imagenet-200.zip again, or download it from {TINY_URL}"


Images = tuple[list[Path], list[int]]  # files, and their labels


def read_tiny_imagenet(paths: Sequence[Path]) -> Dataset:
    """Reads images in uint8, from the text files in the order of TINY_FILES."""
    classes, *parts = list_images(paths)
    (x_train, y_train), (x_test, y_test) = (
        (
            decoded(files, files.__getitem__, published=TINY_SIZE, remedy=AGAIN),
            np.array(labels),
        )
        for files, labels in parts
    )
    return Dataset(x_train, y_train, x_test, y_test, classes)


def list_images(paths: Sequence[Path]) -> tuple[tuple[str, ...], Images, Images]:
    """Lists classes, and training and test images, without decoding these."""
    wnids_path, words_path, annotations_path = paths
    wnids = _filled_lines(wnids_path)
    for line, wnid in enumerate(wnids, start=1):
        # Each is the name of a folder.
        if not WNID.fullmatch(wnid):
            raise ValueError(
                f"{wnids_path}, line {line}: expected a WordNet id such as n01443537, "
                f"found {wnid[:60]!r}; {AGAIN}"
            )
    if len(set(wnids)) != CLASSES or len(wnids) != CLASSES:
        raise ValueError(
            f"{wnids_path}: expected {CLASSES} different classes, found "
            f"{len(set(wnids))} in {len(wnids)} lines; {AGAIN}"
        )
    train = _train_images(wnids_path.parent / "train", wnids)
    return _class_names(words_path, wnids), train, _annotated(annotations_path, wnids)


def _filled_lines(path: Path) -> list[str]:
    text = read_text(path, errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def _class_names(path: Path, wnids: list[str]) -> tuple[str, ...]:
    names = dict(line.split("\t", 1) for line in _filled_lines(path) if "\t" in line)
    unnamed = [wnid for wnid in wnids if wnid not in names]
    if unnamed:
        raise ValueError(
            f"{path}: expected a name for each of the {len(wnids)} classes, found none "
            f"for {len(unnamed)}, first for {unnamed[0]}; {AGAIN}"
        )
    return tuple(names[wnid] for wnid in wnids)


def _train_images(folder: Path, wnids: list[str]) -> Images:
    images = {wnid: _jpegs(folder / wnid / "images") for wnid in wnids}
    wrong = [wnid for wnid in wnids if len(images[wnid]) != TRAIN]
    if wrong:
        others = f", and other numbers in {len(wrong) - 1} more classes"
        raise ValueError(
            f"{folder / wrong[0] / 'images'}: expected {TRAIN} images (.JPEG), found "
            f"{len(images[wrong[0]])}{others if wrong[1:] else ''}; {AGAIN}"
        )
    labels = np.repeat(np.arange(len(wnids)), TRAIN)
    return [path for paths in images.values() for path in paths], labels.tolist()


def _annotated(path: Path, wnids: list[str]) -> Images:
    folder, rows = path.parent / "images", _filled_lines(path)
    present = {image.name: image for image in _jpegs(folder)}
    for what, number in (
        (f"{path}: expected {VALIDATION} lines", len(rows)),
        (f"{folder}: expected {VALIDATION} images (.JPEG)", len(present)),
    ):
        if number != VALIDATION:
            raise ValueError(f"{what}, found {number}; {AGAIN}")
    images, labels = [], []
    for line, row in enumerate(rows, start=1):
        name, wnid = (*row.split("\t"), "")[:2]
        image = present.pop(name, None)
        if image is None or wnid not in wnids:
            raise ValueError(
                f"{path}, line {line}: expected the name of an image in {folder}, each "
                f"once, and a class of wnids.txt, found {name[:60]!r} and "
                f"{wnid[:60]!r}; {AGAIN}"
            )
        images.append(image)
        labels.append(wnids.index(wnid))
    return images, labels


def _jpegs(folder: Path) -> list[Path]:
    """Images in the order of their names; an empty list if there is no such folder."""
    return visible(folder, "*.JPEG")

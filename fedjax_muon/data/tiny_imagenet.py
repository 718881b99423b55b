"""Tiny ImageNet (Stanford CS231n) from the folders of tiny-imagenet-200.zip.

    wnids.txt                          WordNet ids of the classes
    words.txt                          WordNet's names of these and many others
    train/<wnid>/images/*.JPEG
    val/images/*.JPEG
    val/val_annotations.txt            file, wnid and a box, between tabs

Labels are numbered in the order of wnids.txt. The labels of test/images were never
published, so the validation images are the test set, as in most papers. Some images are
gray; they become RGB with three equal channels.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_muon.core.reading import read_text
from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.images import decoded

URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
FILES = ("wnids.txt", "words.txt", "val/val_annotations.txt")
WNID = re.compile(r"n[0-9]{1,12}")
AGAIN = f"unpack tiny-imagenet-200.zip again, or download it from {URL}"


class Sizes(NamedTuple):
    """Numbers of classes and images, to detect truncated copies."""

    classes: int = 200
    train: int = 500  # images per class
    validation: int = 10_000  # images of all classes
    side: int = 64  # height and width of an image, in pixels


class Images(NamedTuple):
    """Image files and their labels."""

    paths: list[Path]
    labels: list[int]


class Listing(NamedTuple):
    """Classes and image files, known without opening an image."""

    classes: tuple[str, ...]
    train: Images
    validation: Images


def read_tiny_imagenet(paths: Sequence[Path], sizes: Sizes) -> Dataset:
    """Reads images in uint8, from the text files in the order of FILES."""
    listing = list_images(paths, sizes)

    def read(images: Images) -> tuple[np.ndarray, np.ndarray]:
        sides = sizes.side, sizes.side
        every, file = images.paths, images.paths.__getitem__
        pixels = decoded(every, file, published=sides, remedy=AGAIN)
        return pixels, np.array(images.labels)

    return Dataset(*read(listing.train), *read(listing.validation), listing.classes)


def list_images(paths: Sequence[Path], sizes: Sizes) -> Listing:
    """Lists the classes, and the images with their labels, without decoding them."""
    wnids_path, words_path, annotations_path = paths
    wnids = _lines(wnids_path)
    for line, wnid in enumerate(wnids, start=1):
        # Each is the name of a folder.
        if not WNID.fullmatch(wnid):
            raise ValueError(
                f"{wnids_path}, line {line}: expected a WordNet id such as n01443537, "
                f"found {wnid[:60]!r}; {AGAIN}"
            )
    if len(set(wnids)) != sizes.classes or len(wnids) != sizes.classes:
        raise ValueError(
            f"{wnids_path}: expected {sizes.classes} different classes, found "
            f"{len(set(wnids))} in {len(wnids)} lines; {AGAIN}"
        )
    classes = _names(words_path, wnids)
    train = _train_images(wnids_path.parent / "train", wnids, sizes.train)
    validation = _annotated(annotations_path, wnids, sizes.validation)
    return Listing(classes, train, validation)


def _lines(path: Path) -> list[str]:
    text = read_text(path, errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def _names(path: Path, wnids: list[str]) -> tuple[str, ...]:
    names = dict(line.split("\t", 1) for line in _lines(path) if "\t" in line)
    unnamed = [wnid for wnid in wnids if wnid not in names]
    if unnamed:
        raise ValueError(
            f"{path}: expected a name for each of the {len(wnids)} classes, found none "
            f"for {len(unnamed)}, first for {unnamed[0]}; {AGAIN}"
        )
    return tuple(names[wnid] for wnid in wnids)


def _train_images(folder: Path, wnids: list[str], number: int) -> Images:
    images = {wnid: _jpegs(folder / wnid / "images") for wnid in wnids}
    wrong = [wnid for wnid in wnids if len(images[wnid]) != number]
    if wrong:
        others = f", and other numbers in {len(wrong) - 1} more classes"
        raise ValueError(
            f"{folder / wrong[0] / 'images'}: expected {number} images (.JPEG), found "
            f"{len(images[wrong[0]])}{others if wrong[1:] else ''}; {AGAIN}"
        )
    pairs = [(path, k) for k, wnid in enumerate(wnids) for path in images[wnid]]
    return Images([path for path, _ in pairs], [label for _, label in pairs])


def _annotated(path: Path, wnids: list[str], number: int) -> Images:
    folder, rows = path.parent / "images", _lines(path)
    present = {image.name: image for image in _jpegs(folder)}
    for what, found in (
        (f"{path}: expected {number} lines", len(rows)),
        (f"{folder}: expected {number} images (.JPEG)", len(present)),
    ):
        if found != number:
            raise ValueError(f"{what}, found {found}; {AGAIN}")
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    images = Images([], [])
    for line, row in enumerate(rows, start=1):
        name, wnid = (*row.split("\t"), "")[:2]
        image = present.pop(name, None)
        if image is None or wnid not in label_of:
            raise ValueError(
                f"{path}, line {line}: expected the name of an image in {folder}, each "
                f"once, and a class of wnids.txt, found {name[:60]!r} and "
                f"{wnid[:60]!r}; {AGAIN}"
            )
        images.paths.append(image)
        images.labels.append(label_of[wnid])
    return images


def _jpegs(folder: Path) -> list[Path]:
    """Images in the order of their names; an empty list if there is no such folder."""
    return sorted(folder.glob("*.JPEG"))

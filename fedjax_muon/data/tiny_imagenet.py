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

import numpy as np

from fedjax_muon.core.reading import read_text
from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.images import decoded

URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
FILES = ("wnids.txt", "words.txt", "val/val_annotations.txt")
WNID = re.compile(r"n[0-9]{1,12}")
# to detect truncated copies
CLASSES, TRAIN, VALIDATION = 200, 500, 10_000  # images of each class, and of all
SIDE = 64  # height and width of an image, in pixels
AGAIN = f"unpack tiny-imagenet-200.zip again, or download it from {URL}"


Images = tuple[list[Path], list[int]]  # files, and their labels


def read_tiny_imagenet(paths: Sequence[Path]) -> Dataset:
    """Reads images in uint8, from the text files in the order of FILES."""
    classes, *parts = list_images(paths)
    (x_train, y_train), (x_test, y_test) = (
        (
            decoded(files, files.__getitem__, published=(SIDE, SIDE), remedy=AGAIN),
            np.array(labels),
        )
        for files, labels in parts
    )
    return Dataset(x_train, y_train, x_test, y_test, classes)


def list_images(paths: Sequence[Path]) -> tuple[tuple[str, ...], Images, Images]:
    """Lists classes, and training and test images, without decoding these."""
    wnids_path, words_path, annotations_path = paths
    wnids = _lines(wnids_path)
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
    return _names(words_path, wnids), train, _annotated(annotations_path, wnids)


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
    folder, rows = path.parent / "images", _lines(path)
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
    return sorted(folder.glob("*.JPEG"))

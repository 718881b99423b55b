"""Folders of images, with one folder for each class."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.images import FORMATS, Size, decoded
from fedjax_muon.data.own import from_arrays

PARTS = ("train", "test")


def from_folder(
    path: str | os.PathLike[str],
    *,
    size: Size | None = None,
    owner: Callable[[Path], str] | None = None,
    test_share: float = 0.2,
) -> Dataset:
    """Reads images whose folders are named by their classes.

    The folder has CLASS/IMAGE, or train/CLASS/IMAGE and test/CLASS/IMAGE. Images are
    converted to three colors, or to one if all of them are gray.

    Args:
      size: Height and width to which images are resized; by default, all must have the
        same.
      owner: Function from an image's path, relative to the folder of its class, to the
        name of its owner, such as `lambda image: image.stem.split("_")[0]`.
      test_share: Share of images for testing, if there is no folder test.

    Returns:
      The data set; `owners` is None without `owner`.

    Raises:
      FileNotFoundError: If there is no such folder.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}")
    has_parts = all((root / part).is_dir() for part in PARTS)
    places = [root / part for part in PARTS] if has_parts else [root]
    found = [_listed(place) for place in places]
    classes = sorted({image.relative_to(p).parts[0] for p, f in found for image in f})
    if len(classes) < 2:
        raise ValueError(
            f"{root}: expected two or more folders of images, each a class, found "
            f"{classes[0] if classes else 'none'}; it must have CLASS/IMAGE, or "
            "train/CLASS/IMAGE and test/CLASS/IMAGE, with images in "
            f"{', '.join(FORMATS)}"
        )
    every = [image for _, images in found for image in images]
    x = decoded(every, every.__getitem__, size)
    labels = [[i.relative_to(p).parts[0] for i in images] for p, images in found]
    number = len(labels[0])
    owners = None
    if owner is not None:
        place, images = found[0]
        owners = [owner(Path(*i.relative_to(place).parts[1:])) for i in images]
    test = (x[number:], np.array(labels[1])) if has_parts else None
    try:
        return from_arrays(
            x[:number],
            np.array(labels[0]),
            owners=owners,
            test=test,
            test_share=test_share,
            classes=classes,
        )
    except ValueError as error:
        raise ValueError(f"{root}: {error}") from error


def _listed(folder: Path) -> tuple[Path, list[Path]]:
    """A folder and the images in its folders, in the order of their names."""
    images = (image for image in folder.rglob("*") if image.suffix.lower() in FORMATS)
    return folder, sorted(i for i in images if i.parent != folder and i.is_file())


def by_pattern(pattern: str) -> Callable[[Path], str]:
    """Finds the owner of an image in its path.

    Args:
      pattern: Regular expression; the owner is its first group, or the whole match.

    Returns:
      A function for the argument `owner` of `from_folder`, which raises a `ValueError`
      for a path without a match.

    Example:
      >>> by_pattern(r"(.*)_")(Path("clinic3_17.png"))
      'clinic3'
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"owner {pattern!r} is no regular expression: {error}"
        ) from error

    def owner(image: Path) -> str:
        found = compiled.search(image.as_posix())
        name = found and found[min(1, compiled.groups)]
        if not name:
            raise ValueError(
                f"{image}: owner {pattern!r} finds nothing in this path; change the "
                "regular expression, or remove the image"
            )
        return name

    return owner

"""Images in folders named after their classes."""

import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.images import FORMATS, Size, decoded
from fedjax_muon.data.user_files import OF_TEST, OF_TRAIN, Place, from_arrays, name_of
from fedjax_muon.files import named, visible

LAYOUT = (
    "it must have CLASS/IMAGE, or train/CLASS/IMAGE and test/CLASS/IMAGE, with images "
    f"in {', '.join(FORMATS)}"
)
WITH_PARTS = {"", "set", "data", "images", "imgs", "seg", "split"}  # as in train_set
NO_DATA = {"", ".csv", ".html", ".json", ".md", ".pdf", ".txt", ".xml", ".yaml", ".yml"}


def from_folder(
    path: Place,
    *,
    size: Size | None = None,
    owner: str | Callable[[Path], str] | None = None,
    test_share: float = 0.2,
) -> Dataset:
    """Reads images from folders named after their classes.

    The folder has CLASS/IMAGE, or train/CLASS/IMAGE and test/CLASS/IMAGE, also with
    names such as Training and val. Images are converted to three colors, or to one if
    all of them are gray, and are turned upright as their EXIF data say. Those that
    would lose values, such as transparent ones, are refused. Hidden files are not read.

    Args:
      size: Height and width to which images are resized; by default, all must have the
        same.
      owner: Function from an image's path, relative to the folder of its class, to the
        name of its owner, such as `lambda image: image.stem.split("_")[0]`; or a
        regular expression, whose first group or whole match is the name.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}")
    places = _parts(root)
    images = [(place, image) for place in places for image in _images(place)]
    labels = [image.relative_to(place).parts[0] for place, image in images]
    classes = sorted({*labels})
    if len(classes) < 2:
        raise ValueError(f"{root}: {_without_classes(root, classes)}")
    every = [image for _, image in images]
    _warn_of_others(root, every)
    x, y = decoded(every, every.__getitem__, size), np.array(labels)
    count = sum(place == places[0] for place, _ in images)  # the others are for testing
    owners = None
    if owner is not None:
        owner = _by_pattern(owner) if isinstance(owner, str) else owner
        relative = [image.relative_to(place) for place, image in images[:count]]
        owners = [owner(Path(*each.parts[1:])) for each in relative]
    with named(root):
        made = from_arrays(
            x[:count],
            y[:count],
            owners=owners,
            test=(x[count:], y[count:]) if len(places) > 1 else None,
            test_share=test_share,
            classes=classes,
        )
    return made._replace(name=name_of(root))


def _part(name: str) -> str:
    """The word by which the name of a folder says train or test; empty if it does not.

    Example:
      >>> [_part(name) for name in ("Train_Set", "val2017", "train_station")]
      ['train', 'val', '']
    """
    words = {*re.split("[^a-z]+", name.lower())} - WITH_PARTS
    return words.pop() if len(words) == 1 and words <= {*OF_TRAIN, *OF_TEST} else ""


def _parts(root: Path) -> list[Path]:
    """The folders with the classes: of training and of test images, or one for both.

    Raises `ValueError` if the names of folders do not say which of them these are.
    """
    below: dict[str, set[str]] = {}  # the folders, with the names in them
    for image in _images(root):
        folder, name, *_ = image.relative_to(root).parts
        below.setdefault(folder, set()).add(
            "" if (root / folder / name) == image else name
        )
    words = {folder: _part(folder) for folder in sorted(below)}
    train, test = (
        sorted(
            (f for f in below if words[f] in known), key=lambda f: known.index(words[f])
        )
        for known in (OF_TRAIN, OF_TEST)
    )
    test = [folder for folder in test if "" not in below[folder]] or test
    if train and (test or len(below) == 1):
        for folder in (*train[:1], *test[:1]):
            if "" in below[folder]:
                raise ValueError(f"{root / folder} has images in no class; {LAYOUT}")
        return [root / folder for folder in (*train[:1], *test[:1])]
    for folder, names in below.items():
        inner = {_part(name) for name in names}
        divided = inner & {*OF_TRAIN} and inner & {*OF_TEST}
        if divided or (words[folder] and "" not in names):
            inside = ", ".join(sorted(names)[:5])
            raise ValueError(
                f"{root / folder} has the folders {inside}, so it is not a class; "
                f"{LAYOUT}"
            )
    return [root]


def _images(folder: Path) -> list[Path]:
    """The images in its folders, in the order of their names."""
    images = (i for i in visible(folder, "**/*") if i.suffix.lower() in FORMATS)
    return [image for image in images if image.parent != folder and image.is_file()]


def _without_classes(root: Path, classes: Sequence[str]) -> str:
    """Why a folder with fewer than two classes can't be read."""
    inner = {image.relative_to(root).parts[1] for image in _images(root)}
    if len(classes) == 1 and all((root / classes[0] / name).is_dir() for name in inner):
        return (
            f"there is one folder, {classes[0]}, with the folders "
            f"{', '.join(sorted(inner)[:5])}; if these are the classes, give "
            f"{root / classes[0]}"
        )
    return (
        "expected two or more folders of images, each a class, found "
        f"{classes[0] if classes else 'none'}; {LAYOUT}"
    )


def _warn_of_others(root: Path, images: Sequence[Path]) -> None:
    known = {*images}
    every = [f for f in visible(root, "**/*") if f.is_file() and f not in known]
    with_images = {folder for image in images for folder in image.parents}
    is_data = lambda file: file.suffix.lower() not in NO_DATA
    others = [f for f in every if is_data(f) or f.parent not in with_images]
    if others:
        warnings.warn(
            f"{root}: {len(others)} files are not read, such as "
            f"{others[0].relative_to(root)}; {LAYOUT}",
            stacklevel=3,
        )


def _by_pattern(pattern: str) -> Callable[[Path], str]:
    """The function of a regular expression; a path without a match is an error.

    Example:
      >>> _by_pattern(r"(.*)_")(Path("clinic3_17.png"))
      'clinic3'
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"owner {pattern!r} is not a regular expression: {error}"
        ) from error

    def owner(image: Path) -> str:
        match = compiled.search(image.as_posix())
        name = match and match[min(1, compiled.groups)]
        if not name:
            raise ValueError(
                f"{image}: owner {pattern!r} finds nothing in this path; change the "
                "regular expression, or remove the image"
            )
        return name

    return owner

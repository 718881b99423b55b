"""Folders of images, with one folder for each class."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from fedjax_muon.core.reading import reading
from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.own import from_arrays

FORMATS = {  # Pillow's names of formats, by suffix; of others, some start programs
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WEBP",
}
PARTS = ("train", "test")
Size = tuple[int, int]  # height, width


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
      path: Path of the folder.
      size: Height and width to which images are resized; by default, all must have the
        same.
      owner: Function from an image's path, relative to the folder of its class, to the
        name of its owner, such as `lambda image: image.stem.split("_")[0]`.
      test_share: Share of images for testing, if there is no folder test.

    Returns:
      The data set; `owners` is None without `owner`.

    Raises:
      FileNotFoundError: If there is no such folder.
      ValueError: If an image is damaged or has another size, or there is one class
        only.

    Example:
      >>> scans = from_folder("scans", size=(32, 32))  # doctest: +SKIP
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
    x = _decoded([image for _, images in found for image in images], size)
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


def _decoded(images: Sequence[Path], size: Size | None) -> np.ndarray:
    def read(image: Path) -> np.ndarray:
        return _pixels(image, size)

    with ThreadPoolExecutor() as threads:  # decoding releases the interpreter lock
        pixels = list(_alike(images, threads.map(read, images)))
    gray = all(p.shape[-1] == 1 for p in pixels)
    channels = 1 if gray else 3
    return np.stack([np.broadcast_to(p, (*p.shape[:2], channels)) for p in pixels])


def _alike(
    images: Sequence[Path], pixels: Iterator[np.ndarray]
) -> Iterator[np.ndarray]:
    shape = None
    for image, found in zip(images, pixels, strict=True):
        shape = shape or found.shape[:2]
        if found.shape[:2] != shape:
            raise ValueError(
                f"{image}: expected {shape[0]} x {shape[1]} pixels as in {images[0]}, "
                f"found {found.shape[0]} x {found.shape[1]}; give a size, to which "
                "all images are resized"
            )
        yield found


def _pixels(path: Path, size: Size | None) -> np.ndarray:
    """The pixels of an image, uint8 [height, width, 1 or 3]."""
    # Imported here, since it takes a while and few data sets need it.
    from PIL import Image

    bomb = Image.DecompressionBombError, Image.DecompressionBombWarning
    kind = FORMATS[path.suffix.lower()]
    with (
        reading(
            path, f"a {kind} image", "replace it", found="a damaged file", errors=bomb
        ),
        Image.open(path, formats=[kind]) as image,
    ):
        plain = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
        if size is not None:
            plain = plain.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        pixels = np.asarray(plain)
    return pixels.reshape(*pixels.shape[:2], -1)

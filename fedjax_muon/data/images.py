"""Decoding of image files of one size."""

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.core.reading import reading

FORMATS = {  # Pillow's names of formats, by suffix; of others, some start programs
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WEBP",
}
Size = tuple[int, int]  # height, width


def decoded(
    names: Sequence[str | Path],
    read: Callable[[int], Path | bytes],
    size: Size | None,
) -> np.ndarray:
    """Decodes images of one size.

    Args:
      names: What images are called in error messages.
      read: Function from the number of an image to its file, or the content of it.
      size: Height and width to which images are resized; by default, all must have the
        same.

    Returns:
      Pixels, uint8 [n, height, width, channels] with one channel if all are gray, and
      else three.
    """

    def one(i: int) -> np.ndarray:
        return _pixels(names[i], read(i), size)

    with ThreadPoolExecutor() as threads:  # decoding releases the interpreter lock
        pixels = list(_alike(names, threads.map(one, range(len(names)))))
    gray = all(p.shape[-1] == 1 for p in pixels)
    channels = 1 if gray else 3
    return np.stack([np.broadcast_to(p, (*p.shape[:2], channels)) for p in pixels])


def _alike(
    names: Sequence[str | Path], pixels: Iterator[np.ndarray]
) -> Iterator[np.ndarray]:
    shape = None
    for name, found in zip(names, pixels, strict=True):
        shape = shape or found.shape[:2]
        if found.shape[:2] != shape:
            raise ValueError(
                f"{name}: expected {shape[0]} x {shape[1]} pixels as in {names[0]}, "
                f"found {found.shape[0]} x {found.shape[1]}; give a size, to which "
                "all images are resized"
            )
        yield found


def _pixels(name: str | Path, content: Path | bytes, size: Size | None) -> np.ndarray:
    """The pixels of an image, uint8 [height, width, 1 or 3]."""
    # Imported here, since it takes a while and few data sets need it.
    from PIL import Image

    bomb = Image.DecompressionBombError, Image.DecompressionBombWarning
    if isinstance(content, Path):
        kinds = [FORMATS[content.suffix.lower()]]
        source: Any = content
    else:
        kinds = sorted({*FORMATS.values()})
        source = io.BytesIO(content)
    with (
        reading(
            Path(name),
            f"a {' or '.join(kinds)} image",
            "replace it",
            found="a damaged file",
            errors=bomb,
        ),
        Image.open(source, formats=kinds) as image,
    ):
        plain = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
        if size is not None:
            plain = plain.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        pixels = np.asarray(plain)
    return pixels.reshape(*pixels.shape[:2], -1)

"""Decoding of image files of one size."""

import contextlib
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
    size: Size | None = None,
    *,
    published: Size | None = None,
    remedy: str = "replace it",
) -> np.ndarray:
    """Decodes images of one size.

    Args:
      names: What images are called in error messages.
      read: Function from the number of an image to its file, or the content of it.
      size: Height and width to which images are resized; by default, all must have the
        same.
      published: Height and width that all must have; by default, those of the first.

    Returns:
      Pixels, uint8 [n, height, width, channels] with one channel if all are gray, and
      else three.
    """
    # Imported here, since it takes a while and few datasets need it.
    from PIL import Image

    like = ""
    sides = size or published
    if sides is None:
        with _opened(names[0], read(0), remedy) as image:
            sides = image.height, image.width
        like = f" as in {names[0]}"
    pixels = np.empty((len(names), *sides, 3), np.uint8)

    def fill(i: int) -> bool:
        with _opened(names[i], read(i), remedy) as image:
            if size is None and (image.height, image.width) != sides:
                resize = "give a size, to which all images are resized"
                raise ValueError(
                    f"{names[i]}: expected {sides[0]} x {sides[1]} pixels{like}, found "
                    f"{image.height} x {image.width}; {resize if like else remedy}"
                )
            is_gray = image.mode in ("1", "L", "LA")
            plain = image.convert("L" if is_gray else "RGB")
            if size is not None:
                plain = plain.resize(size[::-1], Image.Resampling.BILINEAR)
            pixels[i] = np.asarray(plain).reshape(*sides, -1)
        return is_gray

    with ThreadPoolExecutor() as threads:  # decoding releases the interpreter lock
        gray = list(threads.map(fill, range(len(names))))
    return pixels[..., :1].copy() if all(gray) else pixels


@contextlib.contextmanager
def _opened(name: str | Path, content: Path | bytes, remedy: str) -> Iterator[Any]:
    """An image of Pillow, whose pixels are not decoded yet."""
    from PIL import Image

    bomb = Image.DecompressionBombError, Image.DecompressionBombWarning
    file: Any = content
    if isinstance(content, Path):
        kinds = [FORMATS[content.suffix.lower()]]
    else:
        file, kinds = io.BytesIO(content), sorted({*FORMATS.values()})
    wanted = f"a {' or '.join(kinds)} image"
    with (
        reading(Path(name), wanted, remedy, found="a damaged file", errors=bomb),
        Image.open(file, formats=kinds) as image,
    ):
        yield image

"""Sources of data sets: their files, published facts about them, how to get them.

Readers use them to find and verify files. Error messages, `data.status` and the command
`fedjax-muon data` report them.
"""

import bz2
import gzip
import hashlib
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_muon.core.reading import check_size, reading
from fedjax_muon.data.dataset import Dataset

LIMIT = 2**28  # bytes of an unpacked file; the largest published one has 1.6e8
LINE_LIMIT = 2**12  # bytes per line of a file whose number of lines is published
REQUIRED = "scikit-learn"  # a required package with data sets
CHUNK = 2**20  # bytes that are unpacked at a time
PACKED: dict[str, tuple[str, Callable[..., Any]]] = {
    ".gz": ("gzip", gzip.open),
    ".bz2": ("bzip2", bz2.open),
    ".xz": ("xz", lzma.open),
}


class File(NamedTuple):
    """A file as published. A field that is None is unknown and not checked."""

    # relative to the folder of the data set, or a pattern such as train/*.json, whose
    # first match stands for all
    name: str
    size: int | None = None  # bytes, unpacked
    lines: int | None = None
    rows: int | None = None  # examples, counted when the file is read
    md5: str | None = None  # of the unpacked file
    namesakes: tuple[tuple[str, str], ...] = ()
    # (MD5, data set) of files with the same name


class Layout(NamedTuple):
    """One form in which a data set is stored: files in one folder, and their reader."""

    files: tuple[File, ...]
    folders: tuple[str, ...]
    # relative to the data directory; the first one with all files is used
    read: Callable[[list[Path]], Dataset]  # pixels in uint8
    url: str = ""
    how: str = ""  # how to get the files, unless by a plain download
    packed: tuple[str, ...] = ()  # suffixes of packed files, such as .gz
    check: Callable[[list[Path]], object] | None = None  # quick, without decoding

    @property
    def remedy(self) -> str:
        """How to replace missing or damaged files."""
        return self.how or f"download from {self.url}"


class Source(NamedTuple):
    """A description of a data set, known before its files are read."""

    example: str  # shape or kind of an example, such as 28 x 28 x 1
    examples: tuple[int, int] | None  # training and test examples, as published
    classes: int
    license: str
    layouts: tuple[Layout, ...] = ()  # the first one that is present is read
    prepared: str = ""  # name in tensorflow-datasets
    scaled: bool = False  # whether its files are scaled, so it is not standardized
    package: str = REQUIRED  # that has the data set, if it is embedded

    @property
    def embedded(self) -> bool:
        """Whether the data set is part of an installed package."""
        return any(not layout.files for layout in self.layouts)


class Located(NamedTuple):
    """A layout of a data set, and the paths of its files in the same order."""

    layout: Layout
    folder: Path
    paths: list[Path]


def located(name: str, source: Source, directory: Path) -> Located:
    """Finds the files of a data set, without reading them.

    Args:
      name: Name of the data set, for the error message.
      source: Description of the data set.

    Returns:
      The first layout whose files are all present in one folder.

    Raises:
      FileNotFoundError: If no folder has all files; the message says how to get them.
    """
    for layout in source.layouts:
        for folder in layout.folders:
            paths = [
                next(existing(directory / folder, file, layout), None)
                for file in layout.files
            ]
            present = [path for path in paths if path is not None]
            if len(present) == len(paths):
                return Located(layout, directory / folder, present)
    raise FileNotFoundError(_missing(name, source, directory))


def verify(found: Located) -> None:
    """Compares files with their published sizes and checksums.

    Args:
      found: Files of a data set.
    """
    for file, path in zip(found.layout.files, found.paths, strict=True):
        _verify_file(file, path, found.layout.remedy)


def existing(folder: Path, file: File, layout: Layout) -> Iterator[Path]:
    """Yields the paths of a file, packed or not, that exist in a folder.

    Args:
      folder: Folder to search.
      file: File to look for.
      layout: Layout of the file, with the suffixes of packed files.

    Yields:
      Paths that exist.
    """
    if "*" in file.name:
        yield from sorted(folder.glob(file.name))
    for suffix in ("", *layout.packed):
        path = folder / f"{file.name}{suffix}"
        if path.is_file():
            yield path


def unpacked(path: Path, limit: int = LIMIT) -> bytes:
    """Reads a file, unpacked if its suffix is that of gzip, bzip2 or xz.

    A file can unpack to a thousand times its size, so unpacking stops at the limit.

    Args:
      path: Path of the file.
      limit: Largest plausible number of unpacked bytes.

    Returns:
      The unpacked content.
    """
    if path.suffix not in PACKED:
        check_size(path, limit)
        return path.read_bytes()
    check_size(path, LIMIT)
    kind, opened = PACKED[path.suffix]
    found = f"a damaged one, or one cut off after {path.stat().st_size} bytes"
    again = "delete it and download it again"
    chunks, size = [], 0
    with (
        reading(path, f"a complete {kind} file", again, found=found),
        opened(path, "rb") as file,
    ):
        while chunk := file.read(CHUNK):
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                raise ValueError(
                    f"{path}: expected at most {limit} unpacked bytes, found more; it "
                    f"is damaged, or another file: {again}"
                )
    return b"".join(chunks)


def check_labels(labels: np.ndarray, num_classes: int, path: Path) -> None:
    """Checks the labels of a file.

    Args:
      labels: Labels in the order of the file.
      path: Path of the file, for the error message.
    """
    wrong = np.flatnonzero(labels >= num_classes)
    if len(wrong):
        raise ValueError(
            f"{path}: expected labels in 0..{num_classes - 1}, found "
            f"{labels[wrong[0]]} in example {wrong[0]}; the file is damaged, download "
            "it again"
        )


def verify_rows(found: Located, dataset: Dataset) -> None:
    """Compares the numbers of examples that were read with the published ones.

    Args:
      found: Files of a data set: those of training and test examples, or one of both.
      dataset: What was read from them.
    """
    counts = [len(dataset.x_train), len(dataset.x_test)]
    if len(found.paths) == 1:
        counts = [sum(counts)]
    for file, path, count in zip(found.layout.files, found.paths, counts, strict=False):
        if file.rows is not None and count != file.rows:
            raise ValueError(
                f"{path}: expected {file.rows} examples as published, found {count}; "
                "it was cut off, or is another file: delete it and "
                f"{found.layout.remedy}"
            )


def _verify_file(file: File, path: Path, remedy: str) -> None:
    size, lines, md5 = path.stat().st_size, None, None
    packed = path.suffix in PACKED
    # A plain file of another size is not read at all.
    if (file.lines is not None or file.md5 is not None) and (
        packed or file.size in (None, size)
    ):
        content = unpacked(path, _limit(file))
        size = len(content)
        # The last line may have no line break.
        lines = content.count(b"\n") + (content[-1:] not in (b"", b"\n"))
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    again = f"delete it and {remedy}"
    for what, expected, found in (
        ("bytes", file.size, size),
        ("lines", file.lines, lines),
    ):
        if expected is not None and found != expected:
            raise ValueError(
                f"{path}: expected {expected} {what} as published, found {found}; it "
                f"was cut off, or is another file: {again}"
            )
    if file.md5 is not None and md5 != file.md5:
        other = dict(file.namesakes).get(str(md5))
        if other is not None:
            raise ValueError(
                f"{path}: this is {other}'s file of that name; give the folder of the "
                f"right set, or its parent with a folder for each set, or {again}"
            )
        raise ValueError(
            f"{path}: expected the MD5 {file.md5} as published, found {md5}; it is "
            f"damaged, or another file: {again}"
        )


def _limit(file: File) -> int:
    """The largest plausible number of unpacked bytes of a published file."""
    if file.size is not None:
        # One more, so that a longer file is told from the published one.
        return file.size + 1
    return LIMIT if file.lines is None else LINE_LIMIT * (file.lines + 1)


def _missing(name: str, source: Source, directory: Path) -> str:
    ways = [_absent(layout, directory) for layout in source.layouts]
    if source.prepared:
        ways.append(
            f"run fedjax_muon.data.prepare({source.prepared!r}, {str(directory)!r}) "
            f"once and load 'tfds:{source.prepared}'"
        )
    return f"{name}: {'; or '.join(ways)}"


def _absent(layout: Layout, directory: Path) -> str:
    """The missing files, their folders, and how to get them."""
    folders = [directory / folder for folder in layout.folders]
    names = [file.name for file in layout.files]
    packed = f" (or with {', '.join(layout.packed)})" if layout.packed else ""
    if len(names) == 1:
        paths = " or ".join(str(folder / names[0]) for folder in folders)
        return f"there is no {paths}{packed}; {layout.remedy}"
    listed = f"{', '.join(names[:-1])} and {names[-1]}{packed}"
    neither = "neither " if len(folders) == 2 else "none of " if folders[1:] else ""
    joint = " nor " if len(folders) == 2 else ", "
    where = f"{neither}{joint.join(map(str, folders))} has {'' if neither else 'not '}"
    partial = [text for folder in folders if (text := _lacks(folder, layout))]
    return f"{where}{listed}; {layout.remedy}{''.join(partial)}"


def _lacks(folder: Path, layout: Layout) -> str:
    """The missing files of a folder that has some of the files."""
    lacking = [
        file.name for file in layout.files if not any(existing(folder, file, layout))
    ]
    if len(lacking) == len(layout.files):
        return ""
    return f" ({folder} lacks {', '.join(lacking)})"

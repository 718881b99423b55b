"""Where datasets are: their files, published facts about them, how to get them.

`loading` finds and verifies files by them. Error messages and the command
`fedjax-muon list` say how to get them.
"""

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_muon.data.dataset import Dataset
from fedjax_muon.files import check_size, reading, visible

LIMIT = 2**28  # bytes of an unpacked file; the largest published one has 1.6e8
LINE_LIMIT = 2**12  # bytes per line of a file whose number of lines is published
CHUNK = 2**20  # bytes that are unpacked at a time
PACKED: dict[str, tuple[str, Callable[..., Any]]] = {
    ".gz": ("gzip", gzip.open),
    ".bz2": ("bzip2", bz2.open),
    ".xz": ("xz", lzma.open),
}


class File(NamedTuple):
    """A file as published. A field that is None is unknown and not checked."""

    # relative to the folder of the dataset, or a pattern such as train/*.json, whose
    # first match stands for all
    name: str
    size: int | None = None  # bytes, unpacked
    lines: int | None = None
    rows: int | None = None  # examples, counted when the file is read


class Layout(NamedTuple):
    """One form in which a dataset is stored: files in one folder, and their reader."""

    files: tuple[File, ...]
    # relative to the data directory, or to the package; the first one with all files
    # is used
    folders: tuple[str, ...]
    read: Callable[..., Dataset]  # paths of the files -> pixels in uint8
    url: str = ""
    how: str = ""  # how to get the files, unless by a plain download
    packed: tuple[str, ...] = ()  # suffixes of packed files, such as .gz

    @property
    def remedy(self) -> str:
        """How to replace missing or damaged files."""
        return self.how or f"download from {self.url}"


class Source(NamedTuple):
    """A description of a dataset, known before its files are read."""

    example: str  # shape or kind of an example, such as 28 x 28 x 1
    examples: tuple[int, int] | None  # training and test examples, as published
    classes: int
    license: str
    layouts: tuple[Layout, ...] = ()  # the first one that is present is read
    prepared: str = ""  # name in tensorflow-datasets
    scaled: bool = False  # whether its files are scaled, so it is not standardized
    package: str = ""  # that has the files, by its name for pip


class Located(NamedTuple):
    """A layout of a dataset, and the paths of its files in the same order."""

    layout: Layout
    folder: Path
    paths: list[Path]

    @property
    def place(self) -> Path:
        """The folder, or the only file."""
        return self.paths[0] if len(self.paths) == 1 else self.folder


def located(name: str, source: Source, directory: Path) -> Located:
    """Finds the first layout whose files are all present in one folder."""
    for layout in source.layouts:
        for folder in layout.folders:
            paths = [
                next(existing(directory / folder, file, layout), None)
                for file in layout.files
            ]
            present = [path for path in paths if path is not None]
            if len(present) == len(paths):
                return Located(layout, directory / folder, present)
    ways = [_missing(layout, directory) for layout in source.layouts]
    if source.prepared:
        ways.append(
            f"run fedjax_muon.data.prepare({source.prepared!r}, {str(directory)!r}) "
            f"once and load 'tfds:{source.prepared}'"
        )
    raise FileNotFoundError(f"{name}: {'; or '.join(ways)}")


def existing(folder: Path, file: File, layout: Layout) -> Iterator[Path]:
    """Yields the paths of a file, packed or not, that exist in a folder."""
    if "*" in file.name:
        yield from visible(folder, file.name)
    for suffix in ("", *layout.packed):
        path = folder / f"{file.name}{suffix}"
        if path.is_file():
            yield path


def unpacked(path: Path, limit: int = LIMIT) -> bytes:
    """Reads a file, unpacked if its suffix is that of gzip, bzip2 or xz.

    A file can unpack to a thousand times its size, so unpacking stops at the limit, the
    largest plausible number of unpacked bytes.
    """
    if path.suffix not in PACKED:
        check_size(path, limit)
        return path.read_bytes()
    check_size(path, LIMIT)
    kind, opened = PACKED[path.suffix]
    damage = f"a damaged one, or one cut off after {path.stat().st_size} bytes"
    again = "delete it and download it again"
    chunks, size = [], 0
    with (
        reading(path, f"a complete {kind} file", again, found=damage),
        opened(path, "rb") as file,
    ):
        while chunk := file.read(CHUNK):
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                raise ValueError(
                    f"{path}: expected at most {limit} unpacked bytes, found more; the "
                    f"file is damaged or the wrong one: {again}"
                )
    return b"".join(chunks)


def verify(files: Located) -> None:
    """Compares files with their published sizes."""
    for file, path in zip(files.layout.files, files.paths, strict=True):
        _verify_file(file, path, files.layout.remedy)


def verify_rows(files: Located, dataset: Dataset) -> None:
    """Compares the numbers of examples that were read with the published ones.

    The files are those of training and test examples, or one of both.
    """
    counts = [len(dataset.x_train), len(dataset.x_test)]
    if len(files.paths) == 1:
        counts = [sum(counts)]
    for file, path, count in zip(files.layout.files, files.paths, counts, strict=False):
        if file.rows is not None and count != file.rows:
            raise ValueError(
                f"{path}: expected {file.rows} examples as published, found {count}; "
                "the file is truncated or the wrong one: delete it and "
                f"{files.layout.remedy}"
            )


def _verify_file(file: File, path: Path, remedy: str) -> None:
    size, lines = path.stat().st_size, None
    # A plain file of another size is not read at all.
    known = file.lines is not None or (file.size is not None and path.suffix in PACKED)
    if known and (path.suffix in PACKED or file.size in (None, size)):
        content = unpacked(path, _limit(file))
        size = len(content)
        # The last line may have no line break.
        lines = content.count(b"\n") + (content[-1:] not in (b"", b"\n"))
    again = f"delete it and {remedy}"
    pairs = {"bytes": (file.size, size), "lines": (file.lines, lines)}
    for what, (expected, count) in pairs.items():
        if expected is not None and count != expected:
            raise ValueError(
                f"{path}: expected {expected} {what} as published, found {count}; the "
                f"file is truncated or the wrong one: {again}"
            )


def _limit(file: File) -> int:
    """The largest plausible number of unpacked bytes of a published file."""
    if file.size is not None:
        # One more, so that a longer file is told from the published one.
        return file.size + 1
    return LIMIT if file.lines is None else LINE_LIMIT * (file.lines + 1)


def _missing(layout: Layout, directory: Path) -> str:
    """The missing files, their folders, and how to get them."""
    folders = [directory / folder for folder in layout.folders]
    names = [file.name for file in layout.files]
    packed = f" (or with {', '.join(layout.packed)})" if layout.packed else ""
    partial = ""
    for folder in folders:  # that have some of the files
        lacking = [f.name for f in layout.files if not any(existing(folder, f, layout))]
        if len(lacking) < len(names):
            partial += f" ({folder} lacks {', '.join(lacking)})"
    where = " or ".join(map(str, folders))
    return f"no {', '.join(names)}{packed} in {where}; {layout.remedy}{partial}"

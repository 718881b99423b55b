"""Where a data set comes from: its files, what is published of them, how to get them.

Readers find and verify their files by it; errors, `data.status` and the command
`fedjax-muon data` speak from it.
"""

import bz2
import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedjax_muon.data.dataset import Dataset


class File(NamedTuple):
    """A file as published. What is None is not known for certain, and not checked."""

    name: str  # below the set's folder
    size: int | None = None  # bytes, unpacked
    lines: int | None = None
    md5: str | None = None  # of what is unpacked
    namesakes: tuple[tuple[str, str], ...] = ()  # md5 and set, of files named the same


class Layout(NamedTuple):
    """One way in which a set lies in files, all in one folder."""

    files: tuple[File, ...]
    folders: tuple[str, ...]  # below the data directory; the first that has all counts
    read: Callable[[list[Path]], Dataset]  # pixels in uint8
    url: str = ""
    how: str = ""  # how to get the files, where that is not a plain download
    packed: tuple[str, ...] = ()  # suffixes that files may have, such as .gz
    check: Callable[[list[Path]], object] | None = None  # quick: nothing is decoded

    @property
    def remedy(self) -> str:
        """What to do where files are missing or damaged."""
        return self.how or f"download from {self.url}"


class Source(NamedTuple):
    """What is known of a set before its files are read."""

    example: str  # what one is, such as 28 x 28 x 1
    examples: tuple[int, int] | None  # to train on and to test on, as published
    classes: int
    licence: str
    layouts: tuple[Layout, ...] = ()  # the first that is there is read
    prepared: str = ""  # what tensorflow-datasets calls it
    scaled: bool = False  # in its files, so that it is not standardised

    @property
    def embedded(self) -> bool:
        """Whether it comes with a package."""
        return any(not layout.files for layout in self.layouts)


class Located(NamedTuple):
    """A layout of a set, and its files in the same order."""

    layout: Layout
    folder: Path
    paths: list[Path]


def located(name: str, source: Source, directory: Path) -> Located:
    """The files of the set, all in one folder; what is in them is not looked at.

    Raises `FileNotFoundError`, which says how to get them, if no folder has all.
    """
    for layout in source.layouts:
        for folder in layout.folders:
            paths = [
                next(existing(directory / folder, file, layout), None)
                for file in layout.files
            ]
            there = [path for path in paths if path is not None]
            if len(there) == len(paths):
                return Located(layout, directory / folder, there)
    raise FileNotFoundError(_missing(name, source, directory))


def verify(found: Located) -> None:
    """Raises `ValueError` for a file that is not what was published, as far as known:
    one that was cut off, or another of the same name."""
    for file, path in zip(found.layout.files, found.paths, strict=True):
        _verify_file(file, path, found.layout.remedy)


def existing(folder: Path, file: File, layout: Layout) -> Iterator[Path]:
    """Where the file is in `folder`, packed or not."""
    for suffix in ("", *layout.packed):
        path = folder / f"{file.name}{suffix}"
        if path.is_file():
            yield path


def unpacked(path: Path) -> bytes:
    """What is in a file, by its suffix one of gzip, bzip2 or xz, or none of these.

    Raises `ValueError` for a packed file that was cut off or is damaged.
    """
    content = path.read_bytes()
    kinds: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
        ".gz": ("gzip", gzip.decompress),
        ".bz2": ("bzip2", bz2.decompress),
        ".xz": ("xz", lzma.decompress),
    }
    if path.suffix not in kinds:
        return content
    kind, decompress = kinds[path.suffix]
    try:
        return decompress(content)
    except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(
            f"{path}: expected a complete {kind} file, found a damaged one, or one cut "
            f"off after {len(content)} bytes ({error}); delete it and fetch it again"
        ) from error


def _verify_file(file: File, path: Path, remedy: str) -> None:
    size, lines, md5 = path.stat().st_size, None, None
    if file.lines is not None or file.md5 is not None:
        content = unpacked(path)
        size = len(content)
        # the last line may lack its end
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


def _missing(name: str, source: Source, directory: Path) -> str:
    ways = [_absent(layout, directory) for layout in source.layouts]
    if source.prepared:
        ways.append(
            f"run fedjax_muon.data.prepare({source.prepared!r}, {str(directory)!r}) "
            f"once and load 'tfds:{source.prepared}'"
        )
    return f"{name}: {'; or '.join(ways)}"


def _absent(layout: Layout, directory: Path) -> str:
    """Which files are missing where, and how to get them."""
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
    """What a folder that has some of the files lacks."""
    lacking = [
        file.name for file in layout.files if not any(existing(folder, file, layout))
    ]
    if len(lacking) == len(layout.files):
        return ""
    return f" ({folder} lacks {', '.join(lacking)})"

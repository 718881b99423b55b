"""Files: damaged ones end in one error that names them, new ones are written whole.

A written file is made beside its place, flushed to the disk and then renamed, so that
it is the old one or the new one at any moment.
"""

import contextlib
import csv
import lzma
import os
import pickle
import secrets
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

# What parsers raise on damaged input. Many do not check what they read: a wrong length
# is an index out of range, a wrong type has no such attribute.
DAMAGE: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    csv.Error,
    lzma.LZMAError,
    pickle.PickleError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
OF_SYSTEMS = (  # in lower case, without those that begin with a dot
    "#recycle",
    "$recycle.bin",
    "@eadir",
    "__macosx",
    "__pycache__",
    "desktop.ini",
    "ehthumbs.db",
    "lost+found",
    "system volume information",
    "thumbs.db",
)
WINDOWS = os.name == "nt"
TEXT_LIMIT = 2**24  # bytes of a file of names or settings; the largest has 3 million
REASON_LENGTH = 300  # letters of a parser's own message


def is_hidden(path: Path) -> bool:
    """Whether a name is of the operating system or of a program, and no user's data.

    Example:
      >>> [is_hidden(Path(name)) for name in ("._0.png", "__MACOSX", "0.png")]
      [True, True, False]
    """
    name = path.name.lower()
    return name.startswith((".", "~$")) or name in OF_SYSTEMS


def visible(folder: Path, pattern: str) -> list[Path]:
    """The paths below a folder that match a pattern, in order, without hidden ones."""
    every = sorted(folder.glob(pattern))
    below = ((path, path.relative_to(folder)) for path in every)
    return [p for p, r in below if not any(map(is_hidden, (r, *r.parents)))]


@contextlib.contextmanager
def reading(
    path: Path,
    expected: str,
    remedy: str = "download it again",
    *,
    found: str = "a damaged one",
    errors: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Turns the errors of a parser into one `ValueError` of one line.

    Errors of the operating system, and a `ValueError` that names the path already, are
    raised as they are, unless they are among `errors`.

    Args:
      found: What the file is instead, empty if the parser's message says so.
      errors: Further classes of errors that mean damage.
    """
    caught: tuple[type[Exception], ...] = (*DAMAGE, OSError, *errors)
    try:
        yield
    except caught as error:
        if not isinstance(error, errors):
            text = str(error)
            named = str(path) in text and "\n" not in text
            if isinstance(error, ValueError) and named:
                raise
            if isinstance(error, OSError) and error.filename is not None:
                raise
        instead = f", found {found}" if found else ""
        raise ValueError(
            f"{path}: expected {expected}{instead} ({reason(error)}); {remedy}"
        ) from error


@contextlib.contextmanager
def named(what: object) -> Iterator[None]:
    """Begins the message of a `ValueError` with what it is about, such as a path."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def reason(error: Exception) -> str:
    """The message of an error on one line, or its class if it has none."""
    text = " ".join(str(error).split())
    # The message of a KeyError is the key alone.
    if isinstance(error, KeyError) or not text:
        text = f"{type(error).__name__} {text}".strip()
    text = text.encode(errors="replace").decode()
    return text if len(text) <= REASON_LENGTH else f"{text[: REASON_LENGTH - 3]}..."


def check_size(path: Path, limit: int = TEXT_LIMIT) -> None:
    """Rejects a file that is larger than any valid one, before it is read."""
    size = path.stat().st_size
    if size > limit:
        raise ValueError(
            f"{path}: expected at most {limit} bytes, found {size}; the file is "
            "damaged or the wrong one: replace it with the original"
        )


def read_text(path: Path, *, errors: str = "strict") -> str:
    """Reads a small file in UTF-8."""
    check_size(path)
    with reading(path, "text in UTF-8"):
        return path.read_text(encoding="utf-8", errors=errors)


# ------------------------------------------------------------------------------ writing


def write(path: Path, text: str | bytes, mode: int = 0o666) -> None:
    """Writes a file atomically; it is on disk when this returns.

    Raises:
      OSError: If it can't be written; the old file is unchanged.
    """
    temporary = beside(path, text, mode)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def beside(path: Path, text: str | bytes, mode: int = 0o666) -> Path:
    """Writes a temporary file in the folder of another one, and flushes it to the disk.

    Raises:
      OSError: If it can't be written; nothing is left then.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with open(os.open(temporary, flags, mode), "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def sync(directory: Path) -> None:
    """Flushes the names of a directory's files to the disk."""
    if WINDOWS:  # directories can't be opened there
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def claim(path: Path, text: str) -> bool:
    """Writes a file unless it is there; of several processes that try, one succeeds."""
    temporary = beside(path, text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links, such as exFAT, or a mounted drive
        try:
            path.open("x").close()
        except FileExistsError:
            return False
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)
    return True

"""Small files that are written whole or not at all.

A file is written beside its place, flushed to the disk and then renamed, so that it is
the old one or the new one at any moment.
"""

import os
import secrets
from pathlib import Path


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
    if os.name == "nt":  # directories can't be opened there
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

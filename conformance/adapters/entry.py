"""What the judge knows of a package, or of a code that is a repository."""

import importlib
import importlib.metadata
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]
FIND = "[reproduction](../conformance/findings/{}), {}"  # a file, and lines


class Entry(NamedTuple):
    """What is judged, and by which vectors.

    `run(task, module)` is an implementation for `check.py`. The note is shown where it
    departs: what its documents say of it, and the line of the package.
    """

    what: str
    vectors: str  # names with spaces between
    run: Callable[..., Any]
    note: str = ""


class Package(NamedTuple):
    """A package of an index; or a repository `owner/name`, which has no module."""

    name: str
    module: str
    read: str  # the version whose lines the notes name
    entries: tuple[Entry, ...]


def package(name: str, module: str, read: str, *entries: Entry) -> Package:
    return Package(name, module, read, entries)


def found(package: Package) -> tuple[Any, str] | None:
    """The module, or the folder of a repository, and its version; None if missing.

    The environment variable CLONES names a folder with repositories `owner/name`.
    """
    if package.module:
        try:
            module = importlib.import_module(package.module)
        except Exception as error:  # whatever a package does that does not fit here
            print(f"{package.name} cannot be imported: {error}")
            return None
        version = importlib.metadata.version(package.name)
        return module, version.partition("+")[0]  # without the build
    folder = Path(os.environ.get("CLONES", "clones")) / package.name
    if not folder.is_dir():
        return None
    command = ["git", "-C", str(folder), "rev-parse", "--short=7", "HEAD"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return folder, said.stdout.strip()

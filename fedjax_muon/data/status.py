"""Which data sets are there, and whether their files are whole."""

from pathlib import Path
from typing import Literal, NamedTuple

from fedjax_muon.data import prepared
from fedjax_muon.data.names import PREPARED, Directory, data_directory, source_of
from fedjax_muon.data.source import File, located, verify


class Status(NamedTuple):
    """Whether `load` finds what it needs."""

    state: Literal["there", "missing", "damaged", "ambiguous"]
    place: Path | None = None  # of what is there: the folder, or the only file
    problem: str = ""  # if it is not just there; and what to do
    verified: bool = False  # sizes or checksums of it are published, and are these


def status(name: str, data_dir: Directory = None) -> Status:
    """Looks for the files of a set, at their sizes, and at checksums that are known.

    Arguments as `load`'s. Images and texts are not decoded, so that more damage may
    come to light when they are. Raises `ValueError` for an unknown name.
    """
    source = source_of(name)
    if source.embedded:
        return Status("there")
    try:
        directory = data_directory(name, data_dir)
    except ValueError as error:
        return Status("missing", problem=str(error))
    try:
        if name.startswith(PREPARED):
            return _prepared(name.removeprefix(PREPARED), directory)
        found = located(name, source, directory)
    except FileNotFoundError as error:
        return Status("missing", problem=str(error))
    place = found.folder if len(found.paths) > 1 else found.paths[0]
    try:
        verify(found)
        if found.layout.check is not None:
            found.layout.check(found.paths)
    except ValueError as error:
        return Status("damaged", place, str(error))
    known = any(file != File(file.name) for file in found.layout.files)
    return Status("there", place, verified=known)


def _prepared(plain: str, directory: Path) -> Status:
    try:
        folder = prepared.locate(plain, directory)
    except ValueError as error:
        return Status("ambiguous", directory / plain, str(error))
    try:
        prepared.check(folder)
    except ValueError as error:
        return Status("damaged", folder, str(error))
    return Status("there", folder)

"""The status of data sets: whether their files are present and complete."""

from pathlib import Path
from typing import Literal, NamedTuple

from fedjax_muon.data import prepared
from fedjax_muon.data.names import PREPARED, Directory, data_directory, source_of
from fedjax_muon.data.packages import folder_of
from fedjax_muon.data.source import REQUIRED, File, Source, located, verify


class Status(NamedTuple):
    """Whether `load` finds the files that it needs."""

    state: Literal["present", "missing", "damaged", "ambiguous"]
    place: Path | None = None  # the folder, or the only file, unless it is missing
    problem: str = ""  # what is wrong, and what to do
    verified: bool = False  # whether published sizes or checksums match


def status(name: str, data_dir: Directory = None) -> Status:
    """Checks the files of a data set: their presence, sizes and known checksums.

    Images and texts are not decoded, so reading them can reveal further damage.

    Args:
      name: Name of the data set, as for `load`.
      data_dir: Directory with the files, as for `load`.

    Returns:
      The state of the files, and the problem if there is one.

    Example:
      >>> status("digits").state
      'present'
    """
    source = source_of(name)
    if source.embedded:
        return _embedded(source)
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
    except OSError as error:  # such as a folder that may not be read
        return Status("damaged", directory, str(error))
    place = found.folder if len(found.paths) > 1 else found.paths[0]
    try:
        verify(found)
        if found.layout.check is not None:
            found.layout.check(found.paths)
    except (ValueError, OSError) as error:
        return Status("damaged", place, str(error))
    # The numbers of rows are known only once the files are read.
    known = any(
        file._replace(rows=None) != File(file.name) for file in found.layout.files
    )
    return Status("present", place, verified=known)


def _embedded(source: Source) -> Status:
    if source.package == REQUIRED:
        return Status("present")
    try:
        folder_of(source.package)
    except ValueError as error:
        return Status("missing", problem=str(error))
    return Status("present")


def _prepared(plain: str, directory: Path) -> Status:
    try:
        folder = prepared.locate(plain, directory)
    except ValueError as error:
        return Status("ambiguous", directory / plain, str(error))
    try:
        prepared.check(folder)
    except ValueError as error:
        return Status("damaged", folder, str(error))
    return Status("present", folder)

"""Files that installed packages have, without an import of the packages."""

from importlib.util import find_spec
from pathlib import Path

from fedjax_muon.versions import install_command


def folder_of(package: str) -> Path:
    """Finds the files of a package.

    Args:
      package: Name of the package, for pip and for an import.
    """
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            f"the package {package} is not installed; run {install_command(package)}"
        )
    return Path(found.submodule_search_locations[0])

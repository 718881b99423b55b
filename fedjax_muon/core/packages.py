"""Packages that are not required: which one is missing, and how it is installed."""

import importlib.util

from fedjax_muon.versions import install_command


def check_installed(package: str, user: str) -> None:
    """Checks that a package is installed, without an import of it.

    Args:
      package: Name of the package, for pip and for an import.
      user: What needs it, for the error.
    """
    if importlib.util.find_spec(package) is None:
        raise ValueError(
            f"{user} needs {package}, which is not installed; run: "
            f"{install_command(package)}"
        )

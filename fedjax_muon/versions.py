"""Allowed and installed versions of the required packages.

The bounds are those of `pyproject.toml`, read from the metadata of the installed
package, so that they are written once. In a checkout that is not installed there is no
metadata, and nothing is checked.
"""

import importlib
import importlib.util
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

PACKAGE = "fedjax-muon"
COMPUTING = (PACKAGE, "jax", "jaxlib", "flax", "optax", "numpy")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


PACKAGE_VERSION = _version(PACKAGE) or "unknown"


def of_computing() -> dict[str, str]:
    """Versions of everything that decides about bits."""
    packages = {name: metadata.version(name) for name in COMPUTING}
    return {"python": platform.python_version(), **packages}


def requirements() -> dict[str, Requirement]:
    """Every required and optional package by its name; empty if not installed."""
    try:
        lines = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return {}
    found = [Requirement(line) for line in lines]
    return {one.name: one for one in found if not one.extras}


def install_command(*names: str) -> str:
    """The pip command that installs packages in versions that are allowed.

    Example:
      >>> install_command("dp-accounting")
      'pip install "dp-accounting<0.7,>=0.6"'
    """
    known = requirements()
    specs = [
        f"{name}{known[name].specifier if name in known else ''}" for name in names
    ]
    return "pip install " + " ".join(f'"{spec}"' for spec in specs)


def check_installed(package: str, user: str, *, module: str | None = None) -> None:
    """Checks that an optional package is installed, without an import of it."""
    if importlib.util.find_spec(module or package) is None:
        raise ImportError(
            f"{user} needs {package}, which is not installed; run: "
            f"{install_command(package)}"
        )


def optional(package: str, user: str, *, module: str | None = None) -> Any:
    """Imports an optional package, or a module of it; errors are those of the check."""
    name = module or package
    check_installed(package, user, module=name.split(".")[0])
    return importlib.import_module(name)


def check_versions() -> None:
    """Checks the installed versions of all required packages.

    The command `fedjax-muon` ends with the message alone, without a traceback.
    """
    wrong = []
    for name, requirement in requirements().items():
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        installed = _version(name)
        if installed is None or not requirement.specifier.contains(
            Version(installed), prereleases=True
        ):
            wrong.append((name, installed or "not installed", requirement.specifier))
    if not wrong:
        return
    what = "; ".join(
        f"{name} is {here}, allowed is {bound}" for name, here, bound in wrong
    )
    command = install_command(*(name for name, _, _ in wrong))
    message = f"{PACKAGE} {PACKAGE_VERSION}: {what}; run: {command}"
    if Path(sys.argv[0]).stem in (PACKAGE, "-m"):  # nobody is there to catch an error
        print(f"{PACKAGE}: error: {message}", file=sys.stderr)
        sys.exit(2)
    raise ImportError(message)

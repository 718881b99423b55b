"""Allowed and installed versions of the required packages.

The bounds are those of `pyproject.toml`, read from the metadata of the installed
package, so that they are written once. In a checkout that is not installed there is no
metadata, and nothing is checked. Too old a version is an error. Newer ones than those
that were tested usually work, so they only warn.
"""

import importlib
import importlib.util
import platform
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

PACKAGE = "fedjax-muon"
# The first versions that are not tested. They are no bounds of the package, since a
# preinstalled JAX, as on Colab, could then not be kept.
UNTESTED = {"jax": "<0.13", "jaxlib": "<0.13"}
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
    return {one.name: one for one in found if one.specifier}


def _tested(requirement: Requirement) -> SpecifierSet:
    return requirement.specifier & SpecifierSet(UNTESTED.get(requirement.name, ""))


def install_command(*names: str) -> str:
    """The pip command that installs packages in versions that are allowed.

    Example:
      >>> install_command("dp-accounting")
      'pip install "dp-accounting<0.7,>=0.6"'
    """
    known = requirements()
    specs = [
        name + str(_tested(known[name]) if name in known else "") for name in names
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

    Warns of versions that are newer than the tested ones. The command `fedjax-muon`
    ends with the message alone, without a traceback.
    """
    wrong: dict[str, str] = {}
    newer: dict[str, str] = {}
    for name, requirement in requirements().items():
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        found, bounds = _version(name), _tested(requirement)
        if found is None:
            wrong[name] = f"{name} is not installed, tested is {bounds}"
            continue
        for bound in bounds:
            if not bound.contains(found, prereleases=True):
                place = newer if bound.operator == "<" else wrong
                place[name] = f"{name} is {found}, tested is {bounds}"
    if newer and not wrong:
        command = install_command(*newer)
        warnings.warn(
            f"{PACKAGE} {PACKAGE_VERSION}: {'; '.join(newer.values())}; if something "
            f"fails, run: {command}",
            stacklevel=2,
        )
    if not wrong:
        return
    message = f"{PACKAGE} {PACKAGE_VERSION}: {'; '.join(wrong.values())}; run: "
    message += install_command(*wrong)
    if Path(sys.argv[0]).stem in (PACKAGE, "-m"):  # nobody is there to catch an error
        print(f"{PACKAGE}: error: {message}", file=sys.stderr)
        sys.exit(2)
    raise ImportError(message)

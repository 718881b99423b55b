"""Packages that only slow tests need."""

import importlib
import os
from types import ModuleType

import pytest


def needs(name: str) -> ModuleType:
    """Imports a module of the extra dev.

    Without it the test skips; at the top of a file, all tests of the file do.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if "MISSING_PACKAGES_FAIL" in os.environ:
            raise
        why = f"{missing.name} is not installed; run pip install -e '.[dev]'"
        pytest.skip(why, allow_module_level=True)

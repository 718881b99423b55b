"""Packages of optional extras, which only some slow tests need."""

import importlib
import os
import warnings
from types import ModuleType

import pytest


def needs(name: str, extra: str = "dev") -> ModuleType:
    """Imports a module of an extra.

    Where it is missing, the test skips; at the top of a file, all tests of the file do.
    What CI has installed must not be missing.
    """
    try:
        with warnings.catch_warnings():  # of the package itself, and not ours to mend
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if os.environ.get("INSTALLED_EXTRA") == extra:
            raise
        why = f"{missing.name} is not installed; run pip install -e '.[{extra}]'"
        pytest.skip(why, allow_module_level=True)

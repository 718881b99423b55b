"""Federated optimization built around Muon, in JAX.

    import fedjax_muon as fm

Names are those of `__init__.pyi`; a module is imported when its name is first used.
"""

import difflib
import types
from typing import Any

import lazy_loader

from fedjax_muon.startup import quiet_libtpu
from fedjax_muon.versions import PACKAGE_VERSION, check_versions

check_versions()
quiet_libtpu()

__version__ = PACKAGE_VERSION
_attribute, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
PLACES = (
    "decentralized",
    "minimax",
    "transforms",
    "tasks",
    "models",
    "data",
    "privacy",
)


def __getattr__(name: str) -> Any:
    try:
        return _attribute(name)
    except AttributeError:
        if name.startswith("_"):
            raise
    for place in PLACES:
        found = getattr(_attribute(place), name, None)
        if found is not None and not isinstance(found, types.ModuleType):
            raise AttributeError(f"{name!r} is in {__name__}.{place}", name=name)
    near = difflib.get_close_matches(name, __all__, 1, 0.6)
    advice = f"; did you mean {near[0]!r}?" if near else ""
    raise AttributeError(f"{__name__} has no {name!r}{advice}", name=name)


def __dir__() -> list[str]:
    return sorted(__all__)

"""Federated optimization built around Muon, in JAX.

    import fedjax_muon as fm

Names are those of `__init__.pyi`; a module is imported when its name is first used.
"""

import lazy_loader

from fedjax_muon.versions import PACKAGE_VERSION, check_versions

check_versions()

__version__ = PACKAGE_VERSION
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

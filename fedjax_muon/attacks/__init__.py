"""Attacks on the releases of private training.

`canary` audits a mechanism with records made to be detected, and `inversion`
reconstructs examples from what an agent releases.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Audits of privacy: attacks with records made to be detected.

`bounds` has lower bounds of epsilon from the success of any attack, and `canary` the
records, and scores of what is seen of them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

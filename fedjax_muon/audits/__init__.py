"""Audits of privacy: attacks with records made to be detected, and their findings.

`bounds` has lower bounds of epsilon from the success of any attack, and `canary` the
records, and scores of what is seen of them. `worlds` runs a prepared private simulation
many times, with and without a canary; `agents` and `clients` say what is seen, and
`findings` tests the claim.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

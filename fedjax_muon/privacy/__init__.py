"""Differential privacy: accounting, guarantees, a ledger, and private clients.

A `PrivacySpec` describes what a run releases: `Release` has the clip (`Each`, `Split`,
...) and the noise (`Inside` or `Output`), a sampling (`Poisson`, `Cyclic`, ...) the
batches, and an adversary (`Neighbor`, `TrustedServer`) what is seen.
`report` computes epsilon and lists all conditions; `calibrated` finds the noise for an
epsilon. `ClientPrivacy` makes a federated simulation private, and
`decentralized.AgentPrivacy` a decentralized one; each has a `Guarantee`. Epsilons need
the extra `privacy`, which installs dp-accounting.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

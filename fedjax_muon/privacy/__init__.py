"""Differential privacy: accounting, guarantees, a ledger, and private clients.

A `PrivacySpec` describes what a run releases. A `Release` describes the clip (`Each`,
`Split`, ...) and the noise (`Inside` or `Output`), a sampling (`Poisson`, `Cyclic`,
...) describes the batches, and an adversary (`Neighbor`, `TrustedServer`) describes who
sees what. `report` computes epsilon and lists every condition; `calibrated` finds the
noise for a given epsilon. `ClientPrivacy` makes a federated simulation private, and
`decentralized.ExamplePrivacy` a decentralized one; each comes with a `Guarantee`.
Computing epsilon needs the extra `privacy`, which installs dp-accounting.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

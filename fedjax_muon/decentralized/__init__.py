"""Decentralized methods; `ALL` has each with its paper and its published grid.

All names in `ALL` are functions of this module. None of them guarantees privacy. Those
in `PRIVATE_METHODS`, such as `decentralized.dpmixsgd`, do, with an `ExamplePrivacy`.
"""

from typing import TYPE_CHECKING

import lazy_loader

from fedjax_muon.decentralized import estimators
from fedjax_muon.decentralized.dsgd import dp_sgda_unclipped, dsgd, dsgd_muon, dsgda
from fedjax_muon.decentralized.gossip import Estimator, Gossip, Iteration
from fedjax_muon.decentralized.methods import ALL
from fedjax_muon.decentralized.private import PRIVATE, Mechanism, PrivateAgents
from fedjax_muon.decentralized.private_methods import (
    ALL as PRIVATE_METHODS,
    ExamplePrivacy,
    dp_ftrl,
    dp_ftrl_buffered,
    dp_sgda,
    dpmixsgd,
    dpmixsgd_inside,
    private_storm,
)
from fedjax_muon.decentralized.suda import (
    suda,
    suda_muon,
    suda_muon_extra,
    suda_muon_gt,
)
from fedjax_muon.decentralized.tracking import (
    demuon,
    dm_hsgd,
    dpmixsgd_unclipped,
    gradient_tracking,
    gradient_tracking_muon,
)

if TYPE_CHECKING:
    from fedjax_muon.decentralized import topology
    from fedjax_muon.decentralized.mixing import dense, shifted, sparse
else:  # they import networkx and datasets, which the help of commands does not need
    __getattr__, _, _ = lazy_loader.attach(
        __name__,
        ["topology"],
        {"mixing": ["dense", "shifted", "sparse"]},
    )

__all__ = [
    "ALL",
    "PRIVATE",
    "PRIVATE_METHODS",
    "Estimator",
    "ExamplePrivacy",
    "Gossip",
    "Iteration",
    "Mechanism",
    "PrivateAgents",
    "demuon",
    "dense",
    "dm_hsgd",
    "dp_ftrl",
    "dp_ftrl_buffered",
    "dp_sgda",
    "dp_sgda_unclipped",
    "dpmixsgd",
    "dpmixsgd_inside",
    "dpmixsgd_unclipped",
    "dsgd",
    "dsgd_muon",
    "dsgda",
    "estimators",
    "gradient_tracking",
    "gradient_tracking_muon",
    "private_storm",
    "shifted",
    "sparse",
    "suda",
    "suda_muon",
    "suda_muon_extra",
    "suda_muon_gt",
    "topology",
]


def __dir__() -> list[str]:
    return __all__

"""Decentralized methods; `ALL` has each with its paper and its published grid.

None of them guarantees privacy. `PRIVATE` has methods that do, as part of an
`AgentPrivacy`, which is an argument of `decentralize`.
"""

from typing import TYPE_CHECKING

import lazy_loader

from fedjax_muon.decentralized import estimators
from fedjax_muon.decentralized.dsgd import dsgd
from fedjax_muon.decentralized.gossip import Estimator, Gossip, Iteration
from fedjax_muon.decentralized.methods import ALL
from fedjax_muon.decentralized.private import PRIVATE, Mechanism
from fedjax_muon.decentralized.suda import suda
from fedjax_muon.decentralized.tracking import gradient_tracking

if TYPE_CHECKING:
    from fedjax_muon.decentralized import topology
    from fedjax_muon.decentralized.agent_privacy import AgentPrivacy
    from fedjax_muon.decentralized.mixing import dense, shifted, sparse

# they import networkx and datasets, which the help of the command line does not need
__getattr__, _, _ = lazy_loader.attach(
    __name__,
    ["topology"],
    {"agent_privacy": ["AgentPrivacy"], "mixing": ["dense", "shifted", "sparse"]},
)

__all__ = [
    "ALL",
    "PRIVATE",
    "AgentPrivacy",
    "Estimator",
    "Gossip",
    "Iteration",
    "Mechanism",
    "dense",
    "dsgd",
    "estimators",
    "gradient_tracking",
    "shifted",
    "sparse",
    "suda",
    "topology",
]

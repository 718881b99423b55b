"""Decentralized methods; `ALL` has each with its paper and its published grid.

None of them guarantees privacy. `PRIVATE` has methods that do, as part of an
`AgentPrivacy`, which is an argument of `decentralize`.
"""

from fedjax_muon.decentralized import estimators, topology
from fedjax_muon.decentralized.agent_privacy import AgentPrivacy
from fedjax_muon.decentralized.dsgd import dsgd
from fedjax_muon.decentralized.gossip import Estimator, Gossip, Iteration
from fedjax_muon.decentralized.methods import ALL
from fedjax_muon.decentralized.mixing import dense, shifted, sparse
from fedjax_muon.decentralized.private import PRIVATE, Mechanism
from fedjax_muon.decentralized.tracking import gradient_tracking

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
    "topology",
]

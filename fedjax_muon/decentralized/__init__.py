"""Decentralized methods; `ALL` has each with its paper and its published grid.

All names in `ALL` are functions of this module, presets too. None of them guarantees
privacy. Those in `PRIVATE`, such as `decentralized.dpmixsgd`, do, with the
`ExamplePrivacy` of an experiment. `AgentPrivacy` is the same for `decentralize`.
"""

from typing import TYPE_CHECKING, Any

import lazy_loader

from fedjax_muon.algorithms.registry import attribute_of
from fedjax_muon.decentralized import estimators
from fedjax_muon.decentralized.dsgd import dsgd
from fedjax_muon.decentralized.gossip import Estimator, Gossip, Iteration
from fedjax_muon.decentralized.methods import ALL
from fedjax_muon.decentralized.private import PRIVATE, Mechanism
from fedjax_muon.decentralized.private_methods import (
    ALL as PRIVATE_METHODS,
    ExamplePrivacy,
)
from fedjax_muon.decentralized.suda import suda
from fedjax_muon.decentralized.tracking import gradient_tracking

if TYPE_CHECKING:
    from fedjax_muon.decentralized import topology
    from fedjax_muon.decentralized.agent_privacy import AgentPrivacy
    from fedjax_muon.decentralized.mixing import dense, shifted, sparse

# they import networkx and datasets, which the help of the command line does not need
_lazy, _, _ = lazy_loader.attach(
    __name__,
    ["topology"],
    {"agent_privacy": ["AgentPrivacy"], "mixing": ["dense", "shifted", "sparse"]},
)

__all__ = [
    "ALL",
    "PRIVATE",
    "PRIVATE_METHODS",
    "AgentPrivacy",
    "Estimator",
    "ExamplePrivacy",
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


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _lazy(name)
    return attribute_of({**ALL, **PRIVATE_METHODS}, __name__, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *ALL, *PRIVATE})

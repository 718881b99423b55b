"""Private methods of agents, as rows whose options are plain numbers.

`decentralized.PRIVATE` has what they release. The rates were tried by hand on the
default job, on a seed that it does not use.
"""

from collections.abc import Callable
from typing import NamedTuple

from fedjax_muon.algorithms.registry import Method, by_name
from fedjax_muon.core import Hyper
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.private import PRIVATE, PrivateMethod


class PrivateAgents(NamedTuple):
    """A private method, before it is known how much noise it needs."""

    algorithm: Gossip  # without an estimator
    method: PrivateMethod
    beta: float  # of its mechanism


def _method(name: str, rate: float) -> Method:

    def function(lr: Hyper = rate) -> PrivateAgents:
        return PrivateAgents(PRIVATE[name].base(lr=lr), PRIVATE[name], beta=1.0)

    return _row(name, function)


def _storm(name: str, rate: float) -> Method:
    """A private method with a recursive estimate of the gradient."""

    def function(lr: Hyper = rate, *, beta: float = 0.1) -> PrivateAgents:
        """Private STORM.

        Args:
          beta: Weight of the fresh gradient in STORM.
        """
        return PrivateAgents(PRIVATE[name].base(lr=lr), PRIVATE[name], beta)

    return _row(name, function)


def _row(name: str, function: Callable[..., PrivateAgents]) -> Method:
    private, function.__name__ = PRIVATE[name], name
    return Method(function, private.label, private.paper, source=private.source)


ALL = by_name(
    _method("dp_sgda", 1.0),
    _method("dp_ftrl", 1.0),
    _method("dp_ftrl_buffered", 1.0),
    _storm("dpmixsgd", 0.1),
    _storm("dpmixsgd_inside", 0.1),
    _storm("private_storm", 0.3),
)

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


def _of(name: str, lr: Hyper, beta: float = 1.0) -> PrivateAgents:
    return PrivateAgents(PRIVATE[name].base(lr=lr), PRIVATE[name], beta)


def dp_sgda(lr: Hyper = 1.0) -> PrivateAgents:
    """DP-SGDA."""
    return _of("dp_sgda", lr)


def dp_ftrl(lr: Hyper = 1.0) -> PrivateAgents:
    """DP-FTRL with banded noise."""
    return _of("dp_ftrl", lr)


def dp_ftrl_buffered(lr: Hyper = 1.0) -> PrivateAgents:
    """DP-FTRL with the noise of a buffered linear Toeplitz matrix."""
    return _of("dp_ftrl_buffered", lr)


def dpmixsgd(lr: Hyper = 0.1, *, beta: float = 0.1) -> PrivateAgents:
    """DPMixSGD, clipped.

    Args:
      beta: Weight of the fresh gradient in STORM.
    """
    return _of("dpmixsgd", lr, beta)


def dpmixsgd_inside(lr: Hyper = 0.1, *, beta: float = 0.1) -> PrivateAgents:
    """DPMixSGD with noise that the recursion keeps."""
    return _of("dpmixsgd_inside", lr, beta)


def private_storm(lr: Hyper = 0.3, *, beta: float = 0.1) -> PrivateAgents:
    """Private STORM, with a clip of its own for the change of a gradient."""
    return _of("private_storm", lr, beta)


def _row(function: Callable[..., PrivateAgents]) -> Method:
    private = PRIVATE[function.__name__]
    return Method(function, private.label, private.paper, source=private.source)


ALL = by_name(
    _row(dp_sgda),
    _row(dp_ftrl),
    _row(dp_ftrl_buffered),
    _row(dpmixsgd),
    _row(dpmixsgd_inside),
    _row(private_storm),
)

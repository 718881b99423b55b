"""Accounting for federated runs with private clients.

A specification of the run gives a statement:

    facts = {"prologue": False, "private_states": False}  # of FedAvg
    run = {"rounds": 100, "noise_multiplier": 1.0, "delta": 1e-5}
    spec = client_spec(Poisson(100, 10), **run, **facts)
    print(report(calibrated(spec, epsilon=4.0)).statement())
"""

import dataclasses

from fedjax_muon.core import check_count
from fedjax_muon.privacy.correlated import Strategy
from fedjax_muon.privacy.guarantees import PrivacySpec
from fedjax_muon.privacy.releases import Correlated, Inside, Noise, Release
from fedjax_muon.privacy.sampling import FullBatch, Poisson, Sampling
from fedjax_muon.privacy.sensitivity import Each
from fedjax_muon.privacy.threats import TrustedServer

UNIT = "one client with all its examples"
SUMS = "the noisy sums of clipped messages"
COUNTS = "the noisy counts of messages that were short enough"


def client_spec(
    sampling: Sampling,
    *,
    rounds: int,
    noise_multiplier: float,
    delta: float,
    prologue: bool,
    private_states: bool,
    prologue_noise_multiplier: float | None = None,
    adaptive_clip: bool = False,
    strategy: Strategy | None = None,
) -> PrivacySpec:
    """Specifies what `private_clients` releases, for `report` and `calibrated`.

    Where a cohort is cut to `max_batch`, a client can keep another one from taking
    part, and so change its state. This is not accounted for, so that algorithms with
    client states need room for all clients.

    Args:
      sampling: `Poisson(N, S)` for `poisson_cohorts()`, `Poisson(N, S, room)` for
        `poisson_cohorts(room)`, `FullBatch(N)` for full participation of N clients.
      noise_multiplier: Noise multiplier of a round.
      delta: Below 1 / N.
      prologue: Whether the algorithm has a prologue, `bool(algorithm.prologue)`: one
        more release, in which all clients take part.
      private_states: Whether clients keep anything between rounds, that is, whether
        `algorithm.init_client(params)` has leaves.
      prologue_noise_multiplier: Noise multiplier of the prologue; `noise_multiplier` by
        default.
      adaptive_clip: Whether the clip norm is an `AdaptiveClip`. Then `noise_multiplier`
        is that of the sum and the count of a round together.
      strategy: How the noise is correlated between rounds. Under Poisson sampling, it
        is banded, and the `cycle` of the sampling is the number of bands.

    Returns:
      A specification whose unit is one client, with a trusted server.
    """
    check_count("rounds", rounds)
    if prologue_noise_multiplier is not None and not prologue:
        raise ValueError(
            "prologue_noise_multiplier needs an algorithm with a prologue, got "
            f"{prologue_noise_multiplier} and prologue=False"
        )
    if adaptive_clip and prologue:
        raise ValueError(
            "an adaptive clip norm needs an algorithm without a prologue, got "
            "prologue=True; give a number as clip_norm"
        )
    name = f"{SUMS} and {COUNTS}" if adaptive_clip else SUMS
    noise: Noise = Inside(noise_multiplier, prologue_noise_multiplier)
    if strategy is not None:
        if prologue:
            raise ValueError(
                "correlated noise needs an algorithm without a prologue, got "
                "prologue=True; leave out strategy"
            )
        noise = Correlated(noise_multiplier, strategy)
    release = Release(Each(1.0), noise)
    return PrivacySpec(
        {name: release},
        _checked_sampling(sampling, prologue, private_states),
        rounds + prologue,
        delta,
        threat=TrustedServer(),
        unit=UNIT,
    )


def _checked_sampling(
    sampling: Sampling, prologue: bool, private_states: bool
) -> Sampling:
    """The sampling of rounds, with the prologue as a first batch of all clients."""
    if not isinstance(sampling, Poisson | FullBatch):
        raise ValueError(
            "clients are accounted for under Poisson(N, S) or FullBatch(N), got "
            f"{sampling!r}: use poisson_cohorts, or full participation"
        )
    if isinstance(sampling, FullBatch):
        return sampling
    if sampling.first_batch is not None:
        raise ValueError(
            "use prologue=True instead of a first batch, got first_batch="
            f"{sampling.first_batch}"
        )
    room = sampling.max_batch
    if private_states and room is not None and room < sampling.group:
        raise ValueError(
            "clients that keep states need room for all clients: in a cohort cut to "
            f"{room}, one client changes the states of others"
        )
    if not prologue:
        return sampling
    return dataclasses.replace(sampling, first_batch=sampling.examples)

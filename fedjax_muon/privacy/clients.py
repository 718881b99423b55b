"""What a federated run with private clients promises: `client_privacy` in numbers.

facts = {"prologue": False, "private_states": False}  # of FedAvg
spec = client_spec(Poisson(100, 10), rounds=100, noise=1.0, delta=1e-5, **facts)
print(report(calibrated(spec, epsilon=4.0)).statement())
"""

import dataclasses

from fedjax_muon.core import check_count
from fedjax_muon.privacy.report import Inside, PrivacySpec, Release, TrustedServer
from fedjax_muon.privacy.sampling import FullBatch, Poisson, Sampling
from fedjax_muon.privacy.sensitivity import Each

UNIT = "one client with all its examples"


def client_spec(
    sampling: Sampling,
    *,
    rounds: int,
    noise: float,
    delta: float,
    prologue: bool,
    private_states: bool,
    first_noise: float | None = None,
) -> PrivacySpec:
    """What `private_clients` releases, for `report` and `calibrated`.

    Args:
      sampling: `Poisson(N, S)` for `poisson_cohorts()`, `Poisson(N, S, room)` for
        `poisson_cohorts(room)`, `FullBatch(N)` for full participation.
      rounds: how many there are.
      noise: multiplier of a round.
      delta: below 1 / N.
      prologue: whether the algorithm has one (`bool(algorithm.prologue)`): one more
        release, in which all clients take part.
      private_states: whether its clients keep anything between rounds
        (`algorithm.init_client(params)` has leaves). Where too large a cohort is cut
        short, a client can keep another from taking part, and so change what the other
        remembers, which is not accounted for.
      first_noise: multiplier of the prologue; `noise` by default.

    Raises `ValueError` for other samplings, such as cohorts of a fixed size, for
    private states where cohorts are cut short, a `first_noise` without a prologue, and
    numbers out of range.
    """
    if not isinstance(sampling, Poisson | FullBatch):
        raise ValueError(
            "clients are accounted for under Poisson(N, S) or FullBatch(N), got "
            f"{sampling!r}: use poisson_cohorts, or full participation"
        )
    check_count("rounds", rounds)
    if first_noise is not None and not prologue:
        raise ValueError(
            f"first_noise is that of the prologue, which is missing; got {first_noise}"
        )
    if isinstance(sampling, Poisson):
        if sampling.first is not None:
            raise ValueError(
                "say prologue=True in place of a first batch, got first="
                f"{sampling.first}"
            )
        short = sampling.longest is not None and sampling.longest < sampling.examples
        if private_states and short:
            raise ValueError(
                "clients that keep states need room for all: cut to "
                f"{sampling.longest}, one client changes what others remember"
            )
        if prologue:
            sampling = dataclasses.replace(sampling, first=sampling.examples)
    release = Release(Each(1.0), Inside(noise, first_noise))
    return PrivacySpec(
        {"the noisy sums of clipped messages": release},
        sampling,
        rounds + prologue,
        delta,
        threat=TrustedServer(),
        unit=UNIT,
    )

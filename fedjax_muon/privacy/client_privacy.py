"""Differential privacy for one client, as an argument of `federate`.

    privacy = ClientPrivacy(
        clip_norm=0.5, cohort=10, epsilon=4.0, delta=1e-5, rounds=100
    )
    simulation = federate(fedavg(lr=0.1), ..., privacy=privacy)
    print(simulation.guarantee.statement())

It decides cohorts, clip and noise, and nothing else does. What accounting must know
about the algorithm, its prologue and its client states, is read from the algorithm.
`client_spec` is the accounting alone, for algorithms that `private_clients` made.
"""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from fedjax_muon.core import Algorithm, check_count, check_range
from fedjax_muon.core.hyperparameters import plain
from fedjax_muon.privacy.client_mechanism import (
    AdaptiveClip,
    ClipNorm,
    check_adaptable,
    check_mean,
    message_fields,
    norms_of_sums,
    private_clients,
)
from fedjax_muon.privacy.clipping import Each
from fedjax_muon.privacy.correlated import Strategy, prefix_errors
from fedjax_muon.privacy.guarantees import (
    CLIENT,
    Guarantee,
    PrivacySpec,
    TrustedServer,
    calibrated,
    check_complete,
    check_epsilons,
    check_noise,
    checked_accountant,
    the_epsilon,
)
from fedjax_muon.privacy.releases import Correlated, Inside, Noise, Output, Release
from fedjax_muon.privacy.sampling import FullBatch, Poisson, Sampling, rare_size

NEGLECTED = 1e-3  # of delta, the probability that a cohort of a run is cut
# On digits with 30 and 100 rounds, runs learned up to a ratio of 1.7 and did not from
# 2.5 on.
HOPELESS = 2.0  # of the norm of all rounds' noise to the largest norm of all messages
SUMS = "the noisy sums of clipped messages"
COUNTS = "the noisy counts of messages that were short enough"


class PrivateAlgorithm(NamedTuple):
    """An algorithm with private clients, and what it guarantees."""

    algorithm: Algorithm
    guarantee: Guarantee


@dataclasses.dataclass(frozen=True)
class ClientPrivacy:
    """Differential privacy for each client.

    Every client joins a round independently with probability cohort / clients; if
    `cohort` is the number of clients, all of them take part in every round.

    Args:
      clip_norm: Largest norm of a client's message, or as in `private_clients`.
      cohort: Expected number of clients in a round. `train` and `compare` use the
        cohort of the call by default; `federate` needs it.
      rounds: Number of rounds that the guarantee covers; by default as for `cohort`.
      delta: Below one over the number of clients.
      epsilon: Epsilon of a whole run; inf means no noise and no privacy. `compare`
        takes several.
      noise_multiplier: In place of epsilon.
      prologue_noise_multiplier: For the prologue; by default, `noise_multiplier`.
      max_cohort: The largest cohort that is computed. By default, larger ones are so
        rare that delta covers them; if clients keep states, it is all clients.
      strategy: How the noise is correlated between rounds, as in DP-FTRL:
        `privacy.banded`, with which the clients are divided into groups that take
        turns, or, if all clients take part in every round, `privacy.buffered_toeplitz`.
      insecure_fixed_noise: Draw the noise from the seed, so that you can reproduce it.
        This gives no privacy.
      publish_training_metrics: Record training metrics too. The guarantee does not
        cover them.
    """

    _: dataclasses.KW_ONLY
    clip_norm: ClipNorm = 0.5
    cohort: int = 0  # of the call
    rounds: int = 0
    delta: float = 1e-5
    epsilon: float | tuple[float, ...] | None = None
    noise_multiplier: float | None = None
    prologue_noise_multiplier: float | None = None
    max_cohort: int | None = None
    strategy: Strategy | None = None
    insecure_fixed_noise: bool = False
    publish_training_metrics: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, plain(value))
        if isinstance(self.epsilon, list):
            object.__setattr__(self, "epsilon", tuple(self.epsilon))
        check_noise(self.epsilon, self.noise_multiplier, "noise_multiplier")
        check_count("cohort", self.cohort, 0)
        check_count("rounds", self.rounds, 0)
        check_epsilons(self.epsilon)
        for name in ("noise_multiplier", "prologue_noise_multiplier"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), open_low=True, schedules=False)
        if self.prologue_noise_multiplier is not None and self.epsilon is not None:
            raise ValueError(
                "epsilon decides the noise of the prologue too; leave out "
                "prologue_noise_multiplier, or give noise_multiplier"
            )
        if self.max_cohort is not None:
            check_count("max_cohort", self.max_cohort, self.cohort)

    def cycle(self, clients: int) -> int:
        """Returns the number of groups of clients that take turns.

        It is the number of bands of the noise, or 1 if all clients are in every round.
        """
        bands = 1 if self.strategy is None else self.strategy.bands
        return 1 if self.cohort == clients else bands or 1

    def applied(
        self, algorithm: Algorithm, params: Any, clients: int
    ) -> PrivateAlgorithm:
        """Makes an algorithm private, and derives its guarantee."""
        epsilon = the_epsilon(self.epsilon)
        check_complete({"cohort": self.cohort, "rounds": self.rounds})
        if algorithm.cohort_spec is not None:
            raise ValueError(
                "the algorithm is private already; leave out private_clients, since "
                "privacy decides clip and noise"
            )
        check_mean(algorithm)
        limit = "the number of clients"
        check_count("cohort", self.cohort, 1, clients, limit=limit)
        group = clients // self.cycle(clients)
        if self.max_cohort is not None and self.max_cohort > group:
            raise ValueError(
                f"max_cohort must be at most the {group} clients that a round is drawn "
                f"from, got {self.max_cohort}; lower it or leave it out"
            )
        if isinstance(self.clip_norm, AdaptiveClip):
            check_adaptable(algorithm)
        fields = message_fields(algorithm, params)
        if len(fields) > 1 and not isinstance(self.clip_norm, Mapping):
            warnings.warn(
                f"messages have {', '.join(fields)}, which share one clip and its "
                "noise; methods that send parameters alone, such as dp_fedmuon, lose "
                "less, or give clip_norm a norm for each field",
                stacklevel=4,
            )
        private_states = keeps_states(algorithm, params)
        sampling: Sampling = FullBatch(clients)
        if self.cohort < clients:
            sampling = Poisson(
                clients, self.cohort, self.max_cohort, cycle=self.cycle(clients)
            )
        spec = client_spec(
            sampling,
            rounds=self.rounds,
            noise_multiplier=self.noise_multiplier or 1.0,
            delta=self.delta,
            prologue=bool(algorithm.prologue),
            private_states=private_states,
            prologue_noise_multiplier=self.prologue_noise_multiplier,
            adaptive_clip=isinstance(self.clip_norm, AdaptiveClip),
            strategy=self.strategy,
        )
        checked_accountant(spec)
        if self.max_cohort is None and not private_states:
            spec = self._cut(spec)
        if epsilon is not None:
            spec = calibrated(spec, epsilon)
        (release,) = spec.releases.values()
        noise = release.noise
        assert not isinstance(noise, Output)  # by `client_spec`
        private = private_clients(
            algorithm,
            clip_norm=self.clip_norm,
            noise_multiplier=noise.multiplier,
            clients=clients,
            cohort=self.cohort,
            prologue_noise_multiplier=getattr(noise, "first_multiplier", None),
            strategy=self.strategy,
        )
        self._warn_if_hopeless(noise.multiplier, algorithm, params)
        guarantee = Guarantee(
            spec,
            self.rounds,
            self.insecure_fixed_noise,
            self.publish_training_metrics,
            self._assumptions(noise.multiplier),
            f"messages clipped to {self.clip_norm}; noise multiplier "
            f"{noise.multiplier:.4g}",
        )
        return PrivateAlgorithm(private, guarantee)

    def _warn_if_hopeless(
        self, noise_multiplier: float, algorithm: Algorithm, params: Any
    ) -> None:
        """Warns if the noise of all rounds together has a far larger norm than all
        clipped messages together can have."""
        noise, largest = norms_of_sums(
            algorithm, params, self.clip_norm, noise_multiplier, self.cohort
        )
        sums = self.rounds**0.5  # of unit noise, independent or correlated
        if self.strategy is not None:
            sums = float(prefix_errors(self.strategy, self.rounds)[-1])
        if noise * sums <= HOPELESS * largest * self.rounds:
            return
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        warnings.warn(
            f"the noise in the sum of each round has norm {noise:.3g}, but the clipped "
            f"messages of {self.cohort} clients have at most {largest:.3g}, so "
            f"{self.rounds} rounds are unlikely to learn anything; what helps is more "
            f"clients with a larger cohort, a model with fewer than {size:,} "
            f"parameters, or a larger delta than {self.delta:g}",
            stacklevel=5,
        )

    def _cut(self, spec: PrivacySpec) -> PrivacySpec:
        """The spec with cohorts that are cut where a larger one is rare.

        The cut changes epsilon by less than its accountant resolves.
        """
        if not isinstance(spec.sampling, Poisson):
            return spec
        group = spec.sampling.group
        room = rare_size(group, self.cohort, NEGLECTED * self.delta / self.rounds)
        if room >= group:
            return spec
        sampling = dataclasses.replace(spec.sampling, max_batch=room)
        return dataclasses.replace(spec, sampling=sampling)

    def _assumptions(self, noise_multiplier: float) -> tuple[str, ...]:
        if not isinstance(self.clip_norm, AdaptiveClip):
            return ()
        noise = self.clip_norm.noise(noise_multiplier, self.cohort)
        return (
            "the clip norm is adapted by a private quantile of the norms of messages "
            f"(quantile {self.clip_norm.quantile:g}); the noise of the count, "
            f"{noise.below:g}, and that of the sum, {noise.message:.4g} clip norms, "
            "are accounted for together",
        )


def keeps_states(algorithm: Algorithm, params: Any) -> bool:
    """Whether clients keep anything between rounds, of parameters of these shapes."""
    return bool(jax.tree.leaves(jax.eval_shape(algorithm.init_client, params)))


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
      sampling: `Poisson(N, S)` for `fm.poisson(S)`, `Poisson(N, S, room)` for
        `fm.poisson(S, room)`, `FullBatch(N)` for full participation of N clients.
      prologue: Whether the algorithm has a prologue, `bool(algorithm.prologue)`: one
        more release, in which all clients take part.
      private_states: Whether clients keep anything between rounds, that is, whether
        `algorithm.init_client(params)` has leaves.
      adaptive_clip: Whether the clip norm is an `AdaptiveClip`. Then `noise_multiplier`
        is that of the sum and the count of a round together.
      strategy: How the noise is correlated between rounds. Under Poisson sampling, it
        is banded, and the `cycle` of the sampling is the number of bands.
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
        unit=CLIENT,
    )


def _checked_sampling(
    sampling: Sampling, prologue: bool, private_states: bool
) -> Sampling:
    """The sampling of rounds, with the prologue as a first batch of all clients."""
    if not isinstance(sampling, Poisson | FullBatch):
        raise ValueError(
            "clients are accounted for under Poisson(N, S) or FullBatch(N), got "
            f"{sampling!r}: use fm.poisson, or full participation"
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

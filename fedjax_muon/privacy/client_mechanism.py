"""Differential privacy of clients, for any federated algorithm.

The server's state depends on a client only through a clipped message. The server
receives the noisy sum of the messages over the *expected* number of clients, as in
DP-FedAvg (McMahan et al. 2018, arXiv:1710.06963). The server and its channel to the
clients are trusted; everything that it broadcasts may be public. `client_privacy` adds
the guarantee and is the argument of `federate`. To use the mechanism on its own:

    algorithm = private_clients(
        fedavg(lr=0.1), clip_norm=0.5, noise_multiplier=1.0, clients=100, cohort=10
    )
    simulation = federate(algorithm, ..., cohort=fm.poisson(10, room=40))
    print(report(client_spec(Poisson(100, 10, 40), ...)).statement())
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_muon import core
from fedjax_muon.core import tree
from fedjax_muon.privacy.clipping import clipped
from fedjax_muon.privacy.correlated import Strategy
from fedjax_muon.privacy.gaussian import add_normal, sum_dtype

# Bounds of the clip norm. Without them it would leave the range of float32 after some
# hundred rounds in which all messages are zero, and never return.
SMALLEST, LARGEST = 1e-30, 1e30


class Contribution(NamedTuple):
    """What the server sums; also the standard deviations of the noise of the sums."""

    message: Any  # u_i, of a norm of at most 1
    below: Any  # h_i, 1/2 if the message was short enough, else -1/2


@dataclasses.dataclass(frozen=True)
class AdaptiveClip:
    """Clip norm of clients' messages that follows a private quantile of their norms.

    It is public: the server broadcasts it, and its noise is part of the accounting.
    In round t, the server broadcasts a clip norm C. It receives from every client i of
    the cohort

        u_i = m_i min(1, C / |m_i|) / C    and    h_i = [|m_i| <= C] - 1/2,

    for the message m_i, and updates with the expected cohort S

        mean = C (sum_i u_i + z_sum N(0, I)) / S
        b = (sum_i h_i + sigma_b N(0, 1)) / S + 1/2    (a noisy share of short messages)
        C <- C exp(-lr (b - quantile)).

    One client changes the sum of u by at most 1 and the sum of h by at most 1/2. So
    both together have the noise multiplier z if z_sum = (z^-2 - (2 sigma_b)^-2)^(-1/2).

    Source: Andrew et al. 2021, arXiv:1905.03871, Algorithm 1, with its defaults.
    """

    quantile: float = 0.5  # of the norms of the messages, in [0, 1]
    initial: float = 0.1  # clip norm of round 0
    lr: float = 0.2  # of the geometric update of the norm
    # sigma_b, standard deviation of the noise of the count; a twentieth of the expected
    # cohort by default
    count_noise: float | None = None

    def __post_init__(self) -> None:
        core.check_range("quantile", self.quantile, 0.0, 1.0, schedules=False)
        core.check_range("initial", self.initial, SMALLEST, LARGEST, schedules=False)
        core.check_range("lr", self.lr, open_low=True, schedules=False)
        if self.count_noise is not None:
            core.check_range(
                "count_noise", self.count_noise, open_low=True, schedules=False
            )

    def noise(self, noise_multiplier: float, cohort: int) -> Contribution:
        """Divides the noise of a round between the sum and the count."""
        if noise_multiplier == 0:
            return Contribution(0.0, 0.0)
        count = cohort / 20 if self.count_noise is None else self.count_noise
        ratio = noise_multiplier / (2 * count)
        if ratio >= 1:
            default = " (cohort / 20)" if self.count_noise is None else ""
            raise ValueError(
                f"count_noise{default} must be above {noise_multiplier / 2:g}, half of "
                f"the noise multiplier, got {count:g}; give AdaptiveClip a larger "
                "count_noise, or use a larger cohort"
            )
        return Contribution(noise_multiplier / math.sqrt(1 - ratio**2), count)

    def start(self) -> jax.Array:
        """Returns the clip norm of round 0, in float32 or the widest enabled dtype."""
        return jnp.asarray(self.initial, jnp.result_type(float))

    def following(self, clip: jax.Array, count: jax.Array, cohort: int) -> jax.Array:
        """Computes the clip norm of the next round from the noisy sum of h_i."""
        share = count / cohort + 0.5
        moved = clip * jnp.exp(-self.lr * (share - self.quantile))
        return jnp.clip(moved, SMALLEST, LARGEST).astype(clip.dtype)


def contribution(clip: jax.Array, message: Any) -> Contribution:
    """Computes what a client adds to the sums of the server.

    Its sensitivity holds for any `clip`, also for one that was changed on the way. Both
    fields are zero if the message is not finite, as if the client did not take part.
    """
    over = lambda message: tree.map(lambda x: (x / clip).astype(x.dtype), message)
    # First to C: a large entry over a small C would overflow. Then to 1: the bound must
    # not depend on a C that came with the message.
    unit = clipped(1.0, over(clipped(clip, message)))
    # an overflow here is above 1 as well
    half = jnp.where(optax.tree.norm(over(message)) <= 1, 0.5, -0.5)
    below = jnp.where(tree.all_finite(message), half, 0.0)
    return Contribution(unit, below.astype(clip.dtype))


def check_mean(algorithm: core.Algorithm) -> None:
    """Checks that the server of an algorithm needs only the mean of messages."""
    every = (*algorithm.prologue, *algorithm.exchanges)
    if any(e.attacks or e.stack or e.gather or e.reduce_sum for e in every):
        raise ValueError(
            "privacy adds noise to the sum of clipped messages, which robust "
            f"aggregation, attacks, or {algorithm!r} replace: leave out one of them"
        )


def check_adaptable(algorithm: core.Algorithm) -> None:
    """Checks that an algorithm sends one message per round, and none before."""
    check_one_exchange(algorithm, "AdaptiveClip", "give a number as clip_norm")


def check_one_exchange(algorithm: core.Algorithm, what: str, instead: str) -> None:
    """Checks it for `what`, and says what to do `instead`."""
    if algorithm.prologue or len(algorithm.exchanges) != 1:
        has = "a prologue" if algorithm.prologue else "several exchanges in a round"
        raise ValueError(
            f"{what} needs an algorithm with one exchange in a round and no prologue, "
            f"but this one has {has}; {instead}"
        )


WHOLE = "message"  # the name of a message that has no named fields
FixedNorm = float | Mapping[str, float]
ClipNorm = FixedNorm | AdaptiveClip


class MechanismState(NamedTuple):
    """What the server keeps between rounds besides the algorithm's state."""

    clip: Any  # C, the clip norm of the next round; () if it is fixed
    noise: Any  # memory of noise that is correlated between rounds; () without


class _WithClip(NamedTuple):
    """A broadcast or a message together with C, which `decode` needs."""

    inner: Any  # of the algorithm
    clip: Any  # as in `MechanismState`


@core.recorded
def private_clients(
    algorithm: core.Algorithm,
    *,
    clip_norm: ClipNorm,
    noise_multiplier: float,
    clients: int,
    cohort: int,
    prologue_noise_multiplier: float | None = None,
    strategy: Strategy | None = None,
) -> core.Algorithm:
    """Clips the message of every client, and adds noise to their sum.

    Source: DP-FedAvg, McMahan et al. 2018, arXiv:1710.06963.

    Every message, including those of the prologue, is clipped as the server receives
    it, also after decompression. The mean is replaced by (sum + noise) / cohort, so
    that one message changes it by at most clip_norm / cohort, and neither the members
    of the cohort nor their number is revealed. A message with a NaN or an infinity
    counts as zero, and a client state with one is discarded: no client is reported as
    lost. The noise is added even if no message arrives.

    Args:
      clip_norm: Largest L2 norm of a message as a whole; or one norm for each field of
        the messages by name ("params", "control", ...), which are then clipped
        separately. A message without fields is called "message". An `AdaptiveClip` for
        a norm of the message as a whole that follows a quantile of the norms.
      noise_multiplier: Standard deviation of the noise of a round over its sensitivity.
        If n fields are sent in a round, each has noise of noise_multiplier * sqrt(n) *
        its norm, so that all together have this multiplier. 0 clips only.
      clients: N, the number of all clients.
      cohort: S, the expected number of clients in a round, by which sums are divided.
        The algorithm receives it in place of the actual number.
      prologue_noise_multiplier: Noise multiplier of the prologue, in which all clients
        take part; `noise_multiplier` by default.
      strategy: How the noise is correlated between rounds; independent by default.

    Returns:
      An algorithm that accepts uniform weights only. As soon as it is given parameters,
      it raises `ValueError` if `clip_norm` does not name the fields of the messages.
      What the server computes from the noisy mean has no further privacy cost, but it
      may leave the valid range: a second moment that clients send (FAFED, FedLADA) may
      become negative. The server's state is `core.Wrapped` around a `MechanismState`.
    """
    _check(clip_norm, noise_multiplier, prologue_noise_multiplier, clients, cohort)
    check_mean(algorithm)
    if strategy is not None:
        check_one_exchange(algorithm, "correlated noise", "leave out strategy")
    if isinstance(clip_norm, AdaptiveClip):
        check_adaptable(algorithm)
    if prologue_noise_multiplier is None:
        prologue_noise_multiplier = noise_multiplier
    first = len(algorithm.prologue)
    shapes = partial(core.received_shapes, algorithm)
    fraction = cohort / clients
    before = _Phase(slice(first), clients, 1.0, prologue_noise_multiplier)
    rounds = _Phase(slice(first, None), cohort, fraction, noise_multiplier)

    def bound_of(number: int, phase: _Phase) -> _Bound:
        if isinstance(clip_norm, AdaptiveClip):
            return _adaptive(clip_norm, phase)
        return _fixed(clip_norm, phase, number)

    def init(params: Any) -> core.Wrapped:
        sent = shapes(params)
        if not isinstance(clip_norm, AdaptiveClip):
            _check_names(clip_norm, sent)
        bound, noise = bound_of(first, rounds), ()
        clip = bound.start()
        if strategy is not None:
            sums = jax.eval_shape(bound.added, clip, _summed(sent[first]))
            noise = strategy.start(sums)
        return core.wrapped(algorithm.init(params), MechanismState(clip, noise))

    def change(number: int, exchange: core.Exchange) -> core.Exchange:
        phase = before if number < first else rounds
        bound = bound_of(number, phase)
        return _private_exchange(exchange, number, phase, bound, shapes, strategy)

    return core.map_exchanges(change, algorithm)._replace(
        init=init, uniform_weights=True, cohort_spec=(clients, cohort)
    )


class _Phase(NamedTuple):
    """What all exchanges of the prologue, or of a round, have in common."""

    exchanges: slice  # their numbers
    size: int  # expected number of clients
    fraction: float  # of all clients
    noise_multiplier: float

    def public(self, round: core.Round) -> core.Round:
        """Hides how many clients take part."""
        return round._replace(clients=self.size, fraction=self.fraction)


class _Bound(NamedTuple):
    """How the messages of an exchange are bounded by a clip norm C."""

    start: Callable[[], Any]  # -> C of round 0
    added: Callable[[Any, Any], Any]  # (C, message) -> what the server sums
    sigma: Callable[[Any, list[Any]], Any]
    # (C, shapes of all messages) -> standard deviations of the noise of the sums
    mean: Callable[[Any, Any, Any], Any]  # (C, noisy sums, shapes) -> mean message
    following: Callable[[Any, Any], Any]  # (C, noisy sums) -> C of the next round


def _fixed(clip_norm: FixedNorm, phase: _Phase, number: int) -> _Bound:
    """Messages are clipped to the same norms in all rounds."""

    def added(clip: Any, message: Any) -> Any:
        whole = tree.where(tree.all_finite(message), message, tree.zeros_like(message))
        return clipped(_norms(clip_norm, message), whole)

    def sigma(clip: Any, sent: list[Any]) -> Any:
        norms = [_norms(clip_norm, message) for message in sent]
        fields = len(jax.tree.leaves(norms[phase.exchanges]))
        factor = phase.noise_multiplier * math.sqrt(fields)
        return tree.map(lambda norm: factor * norm, norms[number])

    def mean(clip: Any, noisy: Any, sent: Any) -> Any:
        return tree.map(lambda t, s: (t / phase.size).astype(s.dtype), noisy, sent)

    return _Bound(tuple, added, sigma, mean, lambda clip, noisy: clip)


def _adaptive(clip_norm: AdaptiveClip, phase: _Phase) -> _Bound:
    """The sums are those of messages over C, and of a count, which moves C."""
    noise = clip_norm.noise(phase.noise_multiplier, phase.size)

    def mean(clip: Any, noisy: Any, sent: Any) -> Any:
        scale = lambda t, like: (clip * t / phase.size).astype(like.dtype)
        return tree.map(scale, noisy.message, sent)

    def following(clip: Any, noisy: Any) -> Any:
        return clip_norm.following(clip, noisy.below, phase.size)

    sigma = lambda clip, sent: noise
    return _Bound(clip_norm.start, contribution, sigma, mean, following)


def _private_exchange(
    exchange: core.Exchange,
    number: int,
    phase: _Phase,
    bound: _Bound,
    shapes: Callable[[Any], list[Any]],
    strategy: Strategy | None,
) -> core.Exchange:
    """The exchange with clipped messages and a noisy sum."""

    def prepare(state: Any, round: core.Round) -> core.Wrapped:
        return core.wrapped(
            exchange.prepare(state.inner, phase.public(round)), state.kept
        )

    def broadcast(state: Any, round: core.Round) -> _WithClip:
        shared = exchange.broadcast(state.inner, phase.public(round))
        return _WithClip(shared, state.kept.clip)

    def client(
        objective: core.Objective,
        shared: _WithClip,
        before: Any,
        batches: Any,
        round: core.Round,
    ) -> tuple[_WithClip, Any]:
        message, after = exchange.client(
            objective, shared.inner, before, batches, phase.public(round)
        )
        after = tree.where(tree.all_finite(after), after, before)
        return _WithClip(message, shared.clip), after

    def decode(sent: _WithClip) -> Any:
        return bound.added(sent.clip, _received(exchange, sent.inner))

    def server(state: Any, total: Any, round: core.Round) -> core.Wrapped:
        clip, past = state.kept
        sent = shapes(state.params)
        noisy, past = _noisy(strategy, round, bound.sigma(clip, sent), total, past)
        mean = bound.mean(clip, noisy, sent[number])
        inner = exchange.server(state.inner, mean, phase.public(round))
        return core.wrapped(inner, MechanismState(bound.following(clip, noisy), past))

    return exchange._replace(
        broadcast=broadcast,
        client=client,
        server=server,
        decode=decode,
        reduce_sum=True,
        local_params=None,  # parameters of their own are kept inside, not around it
        prepare=prepare,
    )


def _noisy(
    strategy: Strategy | None, round: core.Round, sigma: Any, total: Any, past: Any
) -> tuple[Any, Any]:
    """A sum with noise, and the memory of noise that is correlated between rounds."""
    key = jax.random.fold_in(round.key, core.streams.CLIENT_PRIVACY)
    if strategy is None:
        return add_normal(key, sigma, total), past
    noise, past = strategy.next(add_normal(key, sigma, tree.zeros_like(total)), past)
    return tree.add(total, noise), past


def _summed(sent: Any) -> Any:
    """The shapes of sums of messages, which are in float32 or wider."""
    return tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, sum_dtype(x)), sent)


def _received(exchange: core.Exchange, sent: Any) -> Any:
    """A message, in float32 or wider: rounding of sums must not exceed the norm."""
    return tree.map(lambda x: x.astype(sum_dtype(x)), exchange.decode(sent))


def _fields_of(message: Any) -> dict[str, Any]:
    """The fields of a message that have arrays, which can be clipped separately."""
    named = hasattr(message, "_fields")
    fields = message._asdict() if named else {WHOLE: message}
    return {name: field for name, field in fields.items() if jax.tree.leaves(field)}


def message_fields(algorithm: core.Algorithm, params: Any) -> list[str]:
    """The fields of the messages of a round, such as ["params", "momentum"]."""
    messages = core.received_shapes(algorithm, params)[len(algorithm.prologue) :]
    return [name for message in messages for name in _fields_of(message)]


def norms_of_sums(
    algorithm: core.Algorithm,
    params: Any,
    clip_norm: ClipNorm,
    noise_multiplier: float,
    cohort: int,
) -> tuple[float, float]:
    """The expected norm of the noise in the sums of a round, and the largest norm of
    the sums without noise, of a cohort of expected size."""
    if isinstance(clip_norm, AdaptiveClip):
        noise_multiplier = clip_norm.noise(noise_multiplier, cohort).message
        clip_norm = clip_norm.initial
    sent = core.received_shapes(algorithm, params)[len(algorithm.prologue) :]
    norms = [_norms(clip_norm, message) for message in sent]
    count = lambda norm, field: sum(x.size for x in jax.tree.leaves(field))
    counts = tree.map(count, norms, sent)
    squares = np.square(jax.tree.leaves(norms))
    noise = np.sqrt(len(squares) * squares @ jax.tree.leaves(counts))
    return noise_multiplier * float(noise), cohort * float(np.sqrt(squares.sum()))


def _norms(clip_norm: FixedNorm, message: Any) -> Any:
    """A prefix of the message: one norm for each field that is clipped."""
    if not jax.tree.leaves(message):
        return message
    if not isinstance(clip_norm, Mapping):
        return clip_norm
    if not hasattr(message, "_fields"):
        return clip_norm[WHOLE]
    return message._replace(**{name: clip_norm[name] for name in _fields_of(message)})


def _check(
    clip_norm: ClipNorm,
    noise_multiplier: float,
    prologue_noise_multiplier: float | None,
    clients: int,
    cohort: int,
) -> None:
    norms = clip_norm if isinstance(clip_norm, Mapping) else {"": clip_norm}
    if isinstance(clip_norm, AdaptiveClip):
        norms = {}  # it has checked itself
    for name, bound in norms.items():
        label = f"clip_norm of {name}" if name else "clip_norm"
        core.check_range(label, bound, open_low=True, schedules=False)
    core.check_range("noise_multiplier", noise_multiplier, schedules=False)
    if prologue_noise_multiplier is not None:
        core.check_range(
            "prologue_noise_multiplier", prologue_noise_multiplier, schedules=False
        )
    core.check_count("clients", clients)
    core.check_count("cohort", cohort)
    core.check_range("cohort", cohort, 1, clients, schedules=False)


def _check_names(clip_norm: FixedNorm, sent: list[Any]) -> None:
    if not isinstance(clip_norm, Mapping):
        return
    names = {name for message in sent for name in _fields_of(message)}
    if names != clip_norm.keys():
        raise ValueError(
            "clip_norm must name the fields of all messages, "
            f"{', '.join(sorted(names))}; got {', '.join(sorted(clip_norm)) or 'none'}"
        )

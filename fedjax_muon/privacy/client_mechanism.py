"""Differential privacy of clients, for any federated algorithm.

The server's state depends on a client only through a clipped message. The server
receives the noisy sum of the messages over the *expected* number of clients, as in
DP-FedAvg (McMahan et al. 2018, arXiv:1710.06963). The server and its channel to the
clients are trusted; everything that it broadcasts may be public. `client_privacy` has
the guarantee, and the argument of `federate`. By hand:

    algorithm = private_clients(
        fedavg(lr=0.1), clip_norm=0.5, noise_multiplier=1.0, clients=100, cohort=10
    )
    simulation = federate(algorithm, ..., cohort_size=10, cohorts=poisson_cohorts(40))
    print(report(client_spec(Poisson(100, 10, 40), ...)).statement())
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Round,
    check_count,
    check_range,
    map_exchanges,
    message_shapes,
    recorded,
    streams,
    tree,
)
from fedjax_muon.privacy.adaptive_clip import (
    AdaptiveClip,
    Contribution,
    check_adaptable,
    check_one_exchange,
    contribution,
)
from fedjax_muon.privacy.clipping import clipped
from fedjax_muon.privacy.correlated import Strategy
from fedjax_muon.privacy.gaussian import add_normal, sum_dtype

WHOLE = "message"  # the only part of a message without named fields
FixedNorm = float | Mapping[str, float]
ClipNorm = FixedNorm | AdaptiveClip


class PrivateServer(NamedTuple):
    """State of a server that also keeps what the mechanism needs between rounds."""

    params: Any  # of the algorithm
    inner: Any  # the rest of its state
    clip: Any  # C, the clip norm of the next round
    noise: Any  # memory of noise that is correlated between rounds; () without


def _private_server(state: Any, clip: Any, noise: Any) -> PrivateServer:
    return PrivateServer(state.params, state._replace(params=()), clip, noise)


def _inner(server: PrivateServer) -> Any:
    """The state of the algorithm."""
    return server.inner._replace(params=server.params)


class _Shared(NamedTuple):
    """What the server broadcasts, with the clip norm."""

    inner: Any  # broadcast of the algorithm
    clip: jax.Array


class _Sent(NamedTuple):
    """A message with the norm to clip it to, since `decode` has nothing else."""

    inner: Any  # message of the algorithm
    clip: jax.Array


@recorded
def private_clients(
    algorithm: Algorithm,
    *,
    clip_norm: ClipNorm,
    noise_multiplier: float,
    clients: int,
    cohort: int,
    prologue_noise_multiplier: float | None = None,
    strategy: Strategy | None = None,
) -> Algorithm:
    """Clips the message of every client, and adds noise to their sum.

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
        If n parts are sent in a round, each has noise of noise_multiplier * sqrt(n) *
        its norm, so that all together have this multiplier. 0 clips only.
      clients: N, the number of all clients.
      cohort: S, the expected number of clients in a round, by which sums are divided.
        The algorithm receives it in place of the actual number.
      prologue_noise_multiplier: Noise multiplier of the prologue, in which all clients
        take part; `noise_multiplier` by default.
      strategy: How the noise is correlated between rounds; independent by default.

    Returns:
      An algorithm that accepts uniform weights only. As soon as it is given parameters,
      it raises `ValueError` if `clip_norm` names other parts than the messages have.
      What the server computes from the noisy mean has no further privacy cost, but it
      may leave the valid range: a second moment that clients send (FAFED, FedLADA) may
      become negative. With an `AdaptiveClip` or a strategy, the server's state is a
      `PrivateServer`.
    """
    _check(clip_norm, noise_multiplier, prologue_noise_multiplier, clients, cohort)
    if strategy is not None:
        check_one_exchange(algorithm, "correlated noise", "leave out strategy")
    if isinstance(clip_norm, AdaptiveClip):
        phase = _Phase(slice(None), cohort, cohort / clients, noise_multiplier)
        adaptive = _adaptive(algorithm, phase, clip_norm, strategy)
        return adaptive._replace(uniform_weights=True, cohort_spec=(clients, cohort))
    if prologue_noise_multiplier is None:
        prologue_noise_multiplier = noise_multiplier
    first = len(algorithm.prologue)
    shapes = partial(_shapes, algorithm)
    fraction = cohort / clients
    before = _Phase(slice(first), clients, 1.0, prologue_noise_multiplier)
    rounds = _Phase(slice(first, None), cohort, fraction, noise_multiplier)

    def init(params: Any) -> Any:
        sent = shapes(params)
        _check_names(clip_norm, sent)
        state = algorithm.init(params)
        if strategy is None:
            return state
        return _private_server(state, (), strategy.start(_summed(sent[0])))

    def change(number: int, exchange: Exchange) -> Exchange:
        phase = before if number < first else rounds
        return _private_exchange(exchange, number, phase, clip_norm, shapes, strategy)

    return map_exchanges(change, algorithm)._replace(
        init=init, uniform_weights=True, cohort_spec=(clients, cohort)
    )


class _Phase(NamedTuple):
    """What all exchanges of the prologue, or of a round, have in common."""

    exchanges: slice  # their numbers
    size: int  # expected number of clients
    fraction: float  # of all clients
    noise_multiplier: float

    def public(self, round: Round) -> Round:
        """Hides how many clients take part."""
        return round._replace(clients=self.size, fraction=self.fraction)


def _private_exchange(
    exchange: Exchange,
    number: int,
    phase: _Phase,
    clip_norm: FixedNorm,
    shapes: Callable[[Any], list[Any]],
    strategy: Strategy | None,
) -> Exchange:
    """The exchange with clipped messages and a noisy sum."""
    inner_of = lambda state: state if strategy is None else _inner(state)

    def broadcast(state, round):
        return exchange.broadcast(inner_of(state), phase.public(round))

    def client(objective, shared, before, batches, round):
        message, after = exchange.client(
            objective, shared, before, batches, phase.public(round)
        )
        return message, tree.where(tree.all_finite(after), after, before)

    def decode(sent):
        message = _received(exchange, sent)
        whole = tree.where(tree.all_finite(message), message, tree.zeros_like(message))
        return clipped(_norms(clip_norm, message), whole)

    def server(state, total, round):
        sent = shapes(state.params)
        norms = [_norms(clip_norm, message) for message in sent]
        parts = len(jax.tree.leaves(norms[phase.exchanges]))
        factor = phase.noise_multiplier * math.sqrt(parts)
        sigma = tree.map(lambda norm: factor * norm, norms[number])
        past = () if strategy is None else state.noise
        noisy, past = _noisy(strategy, round, sigma, total, past)
        over = lambda t, like: (t / phase.size).astype(like.dtype)
        mean = tree.map(over, noisy, sent[number])
        inner = exchange.server(inner_of(state), mean, phase.public(round))
        return inner if strategy is None else _private_server(inner, (), past)

    return Exchange(broadcast, client, server, decode, reduce_sum=True)


def _adaptive(
    algorithm: Algorithm,
    phase: _Phase,
    clip_norm: AdaptiveClip,
    strategy: Strategy | None,
) -> Algorithm:
    """The algorithm with messages clipped to a norm of the server's state."""
    check_adaptable(algorithm)
    noise = clip_norm.noise(phase.noise_multiplier, phase.size)
    shapes = partial(_shapes, algorithm)

    def init(params: Any) -> PrivateServer:
        clip = clip_norm.start()
        sums = Contribution(_summed(shapes(params)[0]), clip)
        past = () if strategy is None else strategy.start(sums)
        return _private_server(algorithm.init(params), clip, past)

    def change(number: int, exchange: Exchange) -> Exchange:
        del number  # there is one
        return _adaptive_exchange(exchange, phase, clip_norm, noise, shapes, strategy)

    return map_exchanges(change, algorithm)._replace(init=init)


def _adaptive_exchange(
    exchange: Exchange,
    phase: _Phase,
    clip_norm: AdaptiveClip,
    noise: Contribution,
    shapes: Callable[[Any], list[Any]],
    strategy: Strategy | None,
) -> Exchange:
    """The exchange with a noisy sum of messages over C, and a noisy count."""

    def broadcast(state, round):
        inner = exchange.broadcast(_inner(state), phase.public(round))
        return _Shared(inner, state.clip)

    def client(objective, shared, before, batches, round):
        message, after = exchange.client(
            objective, shared.inner, before, batches, phase.public(round)
        )
        after = tree.where(tree.all_finite(after), after, before)
        return _Sent(message, shared.clip), after

    def decode(sent):
        return contribution(sent.clip, _received(exchange, sent.inner))

    def server(state, total, round):
        (sent,) = shapes(state.params)
        noisy, past = _noisy(strategy, round, noise, total, state.noise)
        scale = lambda t, like: (state.clip * t / phase.size).astype(like.dtype)
        mean = tree.map(scale, noisy.message, sent)
        inner = exchange.server(_inner(state), mean, phase.public(round))
        clip = clip_norm.following(state.clip, noisy.below, phase.size)
        return _private_server(inner, clip, past)

    return Exchange(broadcast, client, server, decode, reduce_sum=True)


def _noisy(
    strategy: Strategy | None, round: Round, sigma: Any, total: Any, past: Any
) -> tuple[Any, Any]:
    """A sum with noise, and the memory of noise that is correlated between rounds."""
    key = jax.random.fold_in(round.key, streams.CLIENT_PRIVACY)
    if strategy is None:
        return add_normal(key, sigma, total), past
    noise, past = strategy.next(add_normal(key, sigma, tree.zeros_like(total)), past)
    return tree.add(total, noise), past


def _summed(sent: Any) -> Any:
    """The shapes of sums of messages, which are in float32 or wider."""
    return tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, sum_dtype(x)), sent)


def _received(exchange: Exchange, sent: Any) -> Any:
    """A message, in float32 or wider: rounding of sums must not exceed the norm."""
    return tree.map(lambda x: x.astype(sum_dtype(x)), exchange.decode(sent))


def _shapes(algorithm: Algorithm, params: Any) -> list[Any]:
    """Shapes of what is averaged in all exchanges, beginning with the prologue's."""
    exchanges = (*algorithm.prologue, *algorithm.exchanges)
    received = lambda exchange, sent: jax.eval_shape(exchange.decode, sent)
    return list(map(received, exchanges, message_shapes(algorithm, params)))


def _parts(message: Any) -> dict[str, Any]:
    """The parts that are clipped separately; fields without arrays are not parts."""
    named = hasattr(message, "_fields")
    parts = message._asdict() if named else {WHOLE: message}
    return {name: part for name, part in parts.items() if jax.tree.leaves(part)}


def parts_of_rounds(algorithm: Algorithm, params: Any) -> list[str]:
    """The parts of the messages of a round, such as ["params", "momentum"].

    Args:
      params: Parameters, or their shapes.
    """
    messages = _shapes(algorithm, params)[len(algorithm.prologue) :]
    return [name for message in messages for name in _parts(message)]


def _norms(clip_norm: FixedNorm, message: Any) -> Any:
    """A prefix of the message: one norm for each part that is clipped."""
    if not jax.tree.leaves(message):
        return message
    if not isinstance(clip_norm, Mapping):
        return clip_norm
    if not hasattr(message, "_fields"):
        return clip_norm[WHOLE]
    return message._replace(**{name: clip_norm[name] for name in _parts(message)})


def _check(
    clip_norm: ClipNorm,
    noise_multiplier: float,
    prologue_noise_multiplier: float | None,
    clients: int,
    cohort: int,
) -> None:
    parts = clip_norm if isinstance(clip_norm, Mapping) else {"": clip_norm}
    if isinstance(clip_norm, AdaptiveClip):
        parts = {}  # it has checked itself
    for name, bound in parts.items():
        label = f"clip_norm of {name}" if name else "clip_norm"
        check_range(label, bound, open_low=True, schedules=False)
    check_range("noise_multiplier", noise_multiplier, schedules=False)
    if prologue_noise_multiplier is not None:
        check_range(
            "prologue_noise_multiplier", prologue_noise_multiplier, schedules=False
        )
    check_count("clients", clients)
    check_count("cohort", cohort)
    check_range("cohort", cohort, 1, clients, schedules=False)


def _check_names(clip_norm: FixedNorm, sent: list[Any]) -> None:
    if not isinstance(clip_norm, Mapping):
        return
    names = {name for message in sent for name in _parts(message)}
    if names != clip_norm.keys():
        raise ValueError(
            "clip_norm must name the parts of all messages, "
            f"{', '.join(sorted(names))}; got {', '.join(sorted(clip_norm)) or 'none'}"
        )

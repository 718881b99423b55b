"""Differential privacy of clients, for any algorithm.

    algorithm = private_clients(
        fedavg(lr=0.1), clip_norm=0.5, noise_multiplier=1.0, clients=100, cohort=10
    )
    simulation = federate(algorithm, ..., cohort_size=10, cohorts=poisson_cohorts(40))
    print(report(client_spec(Poisson(100, 10, 40), ...)).statement())

What the server makes of a round depends on a client through a clipped message alone,
of which it sees the noisy sum over the *expected* number of clients, as in DP-FedAvg
(McMahan et al. 2018, arXiv:1710.06963). The server and its channel to the clients are
trusted, everything it broadcasts may be public. `privacy.clients` says what that is
worth.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

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
from fedjax_muon.privacy.clipping import clipped
from fedjax_muon.privacy.gaussian import add_normal, wide

WHOLE = "message"  # the only part of a message without named fields


@recorded
def private_clients(
    algorithm: Algorithm,
    *,
    clip_norm: float | Mapping[str, float],
    noise_multiplier: float,
    clients: int,
    cohort: int,
    prologue_noise_multiplier: float | None = None,
) -> Algorithm:
    """Bounds and hides what every client adds to the server's state.

    Every message, the prologue's too, is clipped as the server receives it, also after
    decompression. The mean is replaced by (sum + noise) / cohort: a message more or
    less moves it by at most clip_norm / cohort, and who took part is not seen, nor how
    many. Messages with a NaN or an infinity count as zero, and a client state with one
    is not kept. Nobody is lost, and the noise is there even if no message arrives.

    Args:
      algorithm: The algorithm to wrap.
      clip_norm: Largest norm of a message as a whole; or for each field of the messages
        by name ("params", "control", ...), then clipped apart. A message without
        fields is called "message".
      noise_multiplier: Of a round, standard deviation over sensitivity. Where n parts
        are sent in a round, each gets noise of noise_multiplier * sqrt(n) * its norm,
        so that all together have this multiplier. 0 clips only.
      clients: N, how many clients there are.
      cohort: S, the expected number of clients in a round, by which sums are divided.
        The algorithm itself sees it in place of how many there were.
      prologue_noise_multiplier: Of the prologue, in which all clients take part;
        `noise_multiplier` by default.

    Returns:
      An algorithm that accepts uniform weights only. As soon as it is given parameters,
      it raises `ValueError` if `clip_norm` names other parts than the messages have.
      What the server does with the noisy mean is free of charge, but not always sane: a
      second moment that clients send (FAFED, FedLADA) may become negative.

    Raises:
      ValueError: If sizes, norms or multipliers are out of range.

    Example:
      >>> algorithm = private_clients(
      ...     fedavg(lr=0.1),
      ...     clip_norm=0.5,
      ...     noise_multiplier=1.0,
      ...     clients=100,
      ...     cohort=10,
      ... )
    """
    _check(clip_norm, noise_multiplier, prologue_noise_multiplier, clients, cohort)
    first = len(algorithm.prologue)
    shapes = partial(_shapes, algorithm)

    def init(params):
        _check_names(clip_norm, shapes(params))
        return algorithm.init(params)

    def change(number: int, exchange: Exchange) -> Exchange:
        early = number < first
        size = clients if early else cohort
        multiplier = noise_multiplier
        if early and prologue_noise_multiplier is not None:
            multiplier = prologue_noise_multiplier
        phase = slice(first) if early else slice(first, None)

        def seen(round: Round) -> Round:
            return round._replace(clients=size, fraction=size / clients)

        def broadcast(state, round):
            return exchange.broadcast(state, seen(round))

        def client(objective, shared, before, batches, round):
            message, after = exchange.client(
                objective, shared, before, batches, seen(round)
            )
            return message, tree.where(tree.all_finite(after), after, before)

        def decode(sent):
            # in float32 or better: rounding of sums must not exceed the norm
            message = tree.map(lambda x: x.astype(wide(x)), exchange.decode(sent))
            return clipped(_limits(clip_norm, message), message)

        def server(state, total, round):
            sent = shapes(state.params)
            limits = [_limits(clip_norm, message) for message in sent]
            together = len(jax.tree.leaves(limits[phase]))
            factor = multiplier * math.sqrt(together)
            sigma = tree.map(lambda bound: factor * bound, limits[number])
            key = jax.random.fold_in(round.key, streams.CLIENT_PRIVACY)
            noisy = add_normal(key, sigma, total)
            over = lambda t, like: (t / size).astype(like.dtype)
            mean = tree.map(over, noisy, sent[number])
            return exchange.server(state, mean, seen(round))

        return Exchange(broadcast, client, server, decode, reduce_sum=True)

    return map_exchanges(change, algorithm)._replace(
        init=init, uniform_weights=True, cohort_spec=(clients, cohort)
    )


def _shapes(algorithm: Algorithm, params) -> list[Any]:
    """Of what the mean is taken of, in all exchanges, the prologue's first."""
    exchanges = (*algorithm.prologue, *algorithm.exchanges)
    received = lambda exchange, sent: jax.eval_shape(exchange.decode, sent)
    return list(map(received, exchanges, message_shapes(algorithm, params)))


def _parts(message) -> dict[str, Any]:
    """What is clipped apart if limits have names; fields without arrays are none."""
    named = hasattr(message, "_fields")
    parts = message._asdict() if named else {WHOLE: message}
    return {name: part for name, part in parts.items() if jax.tree.leaves(part)}


def _limits(clip_norm, message):
    """A prefix of the message: one norm for all that is clipped together."""
    if not jax.tree.leaves(message):
        return message
    if not isinstance(clip_norm, Mapping):
        return clip_norm
    if not hasattr(message, "_fields"):
        return clip_norm[WHOLE]
    return message._replace(**{name: clip_norm[name] for name in _parts(message)})


def _check(
    clip_norm, noise_multiplier, prologue_noise_multiplier, clients, cohort
) -> None:
    parts = clip_norm if isinstance(clip_norm, Mapping) else {"": clip_norm}
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


def _check_names(clip_norm, sent) -> None:
    if not isinstance(clip_norm, Mapping):
        return
    names = {name for message in sent for name in _parts(message)}
    if names != clip_norm.keys():
        raise ValueError(
            "clip_norm must name the parts of all messages, "
            f"{', '.join(sorted(names))}; got {', '.join(sorted(clip_norm)) or 'none'}"
        )

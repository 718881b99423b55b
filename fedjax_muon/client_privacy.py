"""Differential privacy of clients, for any algorithm.

    private = private_clients(fedavg, limit=0.5, noise=1.0, clients=100, cohort=10)
    simulation = simulate(
        partial(private, lr=0.1), ..., cohort_size=10, cohorts=poisson_cohorts(40)
    )
    print(report(client_spec(Poisson(100, 10, 40), ...)).statement())

What the server makes of a round depends on a client through a clipped message alone,
of which it sees the noisy sum over the *expected* number of clients, as in DP-FedAvg
(McMahan et al. 2018, arXiv:1710.06963). The server and its channel to the clients are
trusted, everything it broadcasts may be public. `privacy.clients` says what that is
worth.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from typing import Any

import jax

from fedjax_muon import tree
from fedjax_muon.clipping import clipped
from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Round,
    map_exchanges,
    messages,
    still,
)
from fedjax_muon.estimators import add_normal, wide
from fedjax_muon.privacy.sampling import check_count
from fedjax_muon.ranges import check_range

Factory = Callable[..., Algorithm]  # (grad_fn, **hyper) -> Algorithm
STREAM = (1 << 20) + 1  # of the server's key, which noise is drawn from
WHOLE = "message"  # the only part of a message without named fields


def private_clients(
    factory: Factory,
    *,
    limit: float | Mapping[str, float],
    noise: float,
    clients: int,
    cohort: int,
    first_noise: float | None = None,
) -> Factory:
    """The same algorithm, but no client's part in the server's state can be told.

    Every message, the prologue's too, is clipped as the server receives it, also after
    decompression. The mean is replaced by (sum + noise) / cohort: a message more or
    less moves it by at most limit / cohort, and who took part is not seen, nor how
    many. Messages with a NaN or an infinity count as zero, and a private state with one
    is not kept. Nobody is lost, and the noise is there even if nobody is heard.

    Args:
      factory: makes the algorithm: `fedavg`, `algorithms.ALL["fedavg"]`, a partial.
      limit: largest norm of a message as a whole; or for each field of the messages
        by name ("params", "control", ...), then clipped apart. A message without
        fields is called "message".
      noise: multiplier of a round, standard deviation over sensitivity. Where n parts
        are sent in a round, each gets noise of noise * sqrt(n) * its limit, so that
        all together have this multiplier. 0 clips only.
      clients: N.
      cohort: S, the expected number of clients in a round, by which sums are divided.
        The algorithm itself sees it in place of how many there were.
      first_noise: multiplier of the prologue, in which all clients take part; `noise`
        by default.

    Returns a factory with the same arguments, whose algorithms accept uniform weights
    only. They raise `ValueError`, as soon as they are given parameters, if `limit`
    names other parts than the messages have. Raises `ValueError` for sizes, limits and
    multipliers out of range.

    What the server does with the noisy mean is free of charge, but not always sane: a
    second moment that clients send (FAFED, FedLADA) may become negative.
    """
    _check(limit, noise, first_noise, clients, cohort)

    def private(grad_fn, **hyper) -> Algorithm:
        algorithm = factory(grad_fn, **hyper)
        first = len(algorithm.prologue)
        shapes = partial(_shapes, factory(still, **hyper))

        def init(params):
            _check_names(limit, shapes(params))
            return algorithm.init(params)

        def change(number: int, exchange: Exchange) -> Exchange:
            early = number < first
            size = clients if early else cohort
            multiplier = noise if first_noise is None or not early else first_noise
            phase = slice(first) if early else slice(first, None)

            def seen(round: Round) -> Round:
                return round._replace(clients=size, fraction=size / clients)

            def broadcast(state, round):
                return exchange.broadcast(state, seen(round))

            def client(shared, mine, batches, round):
                message, kept = exchange.client(shared, mine, batches, seen(round))
                return message, tree.where(tree.all_finite(kept), kept, mine)

            def decode(sent):
                # in float32 or better: rounding of sums must not exceed the limit
                message = tree.map(lambda x: x.astype(wide(x)), exchange.decode(sent))
                return clipped(_limits(limit, message), message)

            def server(state, total, round):
                sent = shapes(state.params)
                limits = [_limits(limit, message) for message in sent]
                together = len(jax.tree.leaves(limits[phase]))
                factor = multiplier * math.sqrt(together)
                sigma = tree.map(lambda bound: factor * bound, limits[number])
                key = jax.random.fold_in(round.key, STREAM)
                noisy = add_normal(key, sigma, total)
                over = lambda t, like: (t / size).astype(like.dtype)
                mean = tree.map(over, noisy, sent[number])
                return exchange.server(state, mean, seen(round))

            return Exchange(broadcast, client, server, decode, summed=True)

        return map_exchanges(change, algorithm)._replace(
            init=init, uniform=True, made_for=(clients, cohort)
        )

    return update_wrapper(private, factory)


def _shapes(algorithm: Algorithm, params) -> list[Any]:
    """Of what the mean is taken of, in all exchanges, the prologue's first."""
    exchanges = (*algorithm.prologue, *algorithm.exchanges)
    received = lambda exchange, sent: jax.eval_shape(exchange.decode, sent)
    return list(map(received, exchanges, messages(algorithm, params)))


def _parts(message) -> dict[str, Any]:
    """What is clipped apart if limits have names; fields without arrays are none."""
    named = hasattr(message, "_fields")
    parts = message._asdict() if named else {WHOLE: message}
    return {name: part for name, part in parts.items() if jax.tree.leaves(part)}


def _limits(limit, message):
    """A prefix of the message: one limit for everything that is clipped together."""
    if not jax.tree.leaves(message):
        return message
    if not isinstance(limit, Mapping):
        return limit
    if not hasattr(message, "_fields"):
        return limit[WHOLE]
    return message._replace(**{name: limit[name] for name in _parts(message)})


def _check(limit, noise, first_noise, clients, cohort) -> None:
    parts = limit if isinstance(limit, Mapping) else {"": limit}
    for name, bound in parts.items():
        label = f"limit of {name}" if name else "limit"
        check_range(label, bound, open_low=True, schedules=False)
    check_range("noise", noise, schedules=False)
    if first_noise is not None:
        check_range("first_noise", first_noise, schedules=False)
    check_count("clients", clients)
    check_count("cohort", cohort)
    check_range("cohort", cohort, 1, clients, schedules=False)


def _check_names(limit, sent) -> None:
    if not isinstance(limit, Mapping):
        return
    names = {name for message in sent for name in _parts(message)}
    if names != limit.keys():
        raise ValueError(
            f"limit must name the parts of all messages, {', '.join(sorted(names))}; "
            f"got {', '.join(sorted(limit)) or 'none'}"
        )

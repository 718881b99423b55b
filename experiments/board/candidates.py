"""Methods defined here, to test whether a rate needs no search.

RULES.md has their rules, "Candidates". They are FedMuon but for what is said.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import fedjax_muon as fm
from experiments.board.row import Method, Row
from experiments.board.rows import EVERYWHERE, RULES, waiting
from fedjax_muon import core
from fedjax_muon.core import Params, local_steps
from fedjax_muon.transforms import muon_dimension_numbers
from fedjax_muon.transforms.layout import is_numbers, to_matrices


class Sized(NamedTuple):
    """FedMuon's message, and the norm of each change."""

    params: Params
    momentum: Params
    norms: Any


def norms_of(change: Params) -> Any:
    return jax.tree.map(jnp.linalg.norm, change)


def full_length(lr: core.Hyper) -> core.Algorithm:
    """Gives the mean change of each leaf the mean norm of the clients' changes."""
    plain = fm.fedmuon(lr)
    (main,) = plain.exchanges

    def client(objective, broadcast, client_state, batches, round):
        message, _ = main.client(objective, broadcast, client_state, batches, round)
        norms = norms_of(message.params)
        return Sized(message.params, message.momentum, norms), client_state

    def server(state, mean, round):
        short = norms_of(mean.params)
        longer = lambda x, norm, now: x * jnp.where(now > 0, norm / now, 1)
        change = jax.tree.map(longer, mean.params, mean.norms, short)
        return main.server(state, mean._replace(params=change), round)

    return plain._replace(exchanges=(main._replace(client=client, server=server),))


class First(NamedTuple):
    """The mean gradient of a client at the first parameters, and its mean loss."""

    momentum: Params
    loss: jax.Array


class State(NamedTuple):
    """FedMuon's state, and what its rates are multiplied by."""

    params: Params
    momentum: Params
    factor: jax.Array  # float32 [], the root of 2 f / g per round


def own_rate(lr: core.Hyper, rounds: int) -> core.Algorithm:
    """FedMuon whose rate follows from the mean loss f and momentum m before round 0.

    The rate is `lr sqrt(2 f / (T g))` for T local steps in all rounds together, and g
    the mean nuclear norm of the matrices of m. Steps of a fixed length a on a function
    of smoothness L have their best bound, `f / (a T) + L a / 2`, at the root of
    2 f / (L T); here L is proportional to the gradient.
    """
    plain = fm.fedmuon()
    (main,) = plain.exchanges

    def init(params):
        start = plain.init(params)
        return State(start.params, start.momentum, jnp.float32(0))

    def first(objective, broadcast, client_state, batches, round):
        step = lambda _, *row: ((), objective.value_and_grad(broadcast.params, *row))
        loss, m = local_steps(step, (), batches, round)[1]
        return First(m, loss), client_state

    def start(state, mean, round):
        factor = jnp.sqrt(2 * mean.loss / (rounds * nuclear_norm(mean.momentum)))
        return State(state.params, mean.momentum, factor.astype(jnp.float32))

    def client(objective, broadcast, client_state, batches, round):
        rate = broadcast.factor * core.value_at(lr, round) / jnp.sqrt(round.steps)
        (own,) = fm.fedmuon(rate).exchanges
        return own.client(objective, broadcast[:2], client_state, batches, round)

    def server(state, mean, round):
        moved = main.server(state, mean, round)
        return State(moved.params, moved.momentum, state.factor)

    (prologue,) = plain.prologue
    return plain._replace(
        init=init,
        exchanges=(main._replace(client=client, server=server),),
        prologue=(prologue._replace(client=first, server=start),),
    )


def nuclear_norm(tree: Params) -> jax.Array:
    """The mean over all matrices of a pytree."""
    numbers, leaves = muon_dimension_numbers(tree), jax.tree.leaves(tree)
    known = jax.tree.leaves(numbers, is_leaf=is_numbers)
    norms = [
        jnp.linalg.norm(to_matrices(number, leaf), "nuc")
        for number, leaf in zip(known, leaves, strict=True)
        if number is not None
    ]
    return jnp.mean(jnp.stack(norms))


def _robust(make: Method) -> Method:
    """With the trimmed mean of the baseline under attack."""
    _, trimmed = RULES["trimmed_mean"]
    if make is own_rate:
        return lambda lr, rounds: fm.robust(own_rate(lr, rounds), trimmed)
    return lambda lr: fm.robust(full_length(lr), trimmed)


def _rows(name: str, label: str, make: Method, lr: float) -> dict[str, Row]:
    """The rows of a candidate on all tracks with clients that trust the server."""
    first = Row(f"{label} (defined here)", make, {"lr": lr}, EVERYWHERE)
    return {
        name: first,
        f"{name}_tokens": first._replace(tracks=("tokens",)),
        f"{name}_waiting": first._replace(
            tracks=("stragglers",), sizes={"cohort": waiting}
        ),
        f"{name}_trimmed_mean": first._replace(
            method=_robust(make), tracks=("attackers",)
        ),
    }


CANDIDATES = {
    **_rows("own_rate", "FedMuon, own rate", own_rate, 0.2),
    **_rows("full_length", "FedMuon, full length", full_length, 0.03),
}

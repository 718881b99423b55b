"""One bit per parameter: clients send signs, and the server takes the majority."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon import core, transforms
from fedjax_muon.core import tree
from fedjax_muon.wrappers.compression import (
    Compressor,
    compress,
    compress_broadcasts,
    signs,
)


class State(NamedTuple):
    params: Any
    opt: optax.OptState  # of the server's rule


class Client(NamedTuple):
    momentum: Any
    opt: optax.OptState  # of the local rule


class Signs(NamedTuple):
    direction: Any


@core.recorded
def sign_vote(
    lr: core.Hyper = 0.001,
    *,
    momentum: core.Hyper = 0.9,
    rule: optax.GradientTransformation | None = None,
    server_rule: optax.GradientTransformation | None = None,
) -> core.Algorithm:
    """SignSGD with a majority vote, and momentum at the clients (Signum).

    In a round, S of N clients take a gradient at x, and the server takes one step:

        m_i <- momentum m_i + (1 - momentum) grad_i(x)
        x <- x - lr server_rule(sign(sum_i sign(rule(m_i))))

    A message has one bit per parameter. Signs of zeros and ties are drawn at random.
    Momenta begin at 0. All weights must be equal. A round is one step, however many
    batches a client has.

    Source: Bernstein et al. 2019, ICLR, arXiv:1810.05291, Algorithm 1. Checked against
    independent code, of the authors of SignMuon.

    Args:
      lr: Learning rate of the server, 0.0001 to 0.01.
      momentum: Weight of the past in the clients' momenta, in [0, 1), usually 0.9.
      rule: Rule of the clients' momenta, without a learning rate, before signs are
        taken; by default the identity.
      server_rule: Rule of the majority's signs, without a learning rate; by default the
        identity.

    Example:
      >>> sizes = {"cohort": 3, "local_steps": 1, "batch_size": 8}
      >>> simulation = fm.federate(fm.sign_vote(), task, digits, clients, **sizes)
      >>> simulation.meter.bytes_after(1)  # a bit for a parameter's four bytes
      Traffic(down=3720, up=120)

    See also: `signmuon`, `muonusign` and `muonsign`, which orthogonalize; `ef21_muon`
    with `fm.signs()` has error feedback.
    """
    core.check_range("lr", lr)
    core.check_range("momentum", momentum, 0.0, 1.0)
    local = optax.identity() if rule is None else rule
    above = optax.identity() if server_rule is None else server_rule

    def init(params):
        return State(params, above.init(params))

    def init_client(params):
        return Client(tree.zeros_like(params), local.init(params))

    def client(objective, broadcast, state, batches, round):
        x = broadcast.params
        g = core.mean_gradient(objective, x, batches, round)
        m = tree.mix(g, core.value_at(momentum, round), state.momentum)
        direction, opt = local.update(m, state.opt, x)
        # NaN has a sign: the state says that the message must be left out
        finite = tree.all_finite(direction)
        m = tree.map(lambda v: jnp.where(finite, v, jnp.nan), m)
        return Signs(direction), Client(m, opt)

    def server(state, mean, round):
        vote = _majority(mean.direction, round.key)
        x, opt = core.descend(
            state.params, core.value_at(lr, round), above, state.opt, vote
        )
        return State(x, opt)

    main = core.Exchange(core.broadcast_params, client, server)
    plain = core.Algorithm(init, init_client, (main,), uniform_weights=True)
    return compress(plain, _bits())


def _bits() -> Compressor:
    """Signs without a magnitude, as votes have."""
    whole = signs()
    encode = lambda x, key: whole.encode(x, key)[0]
    return Compressor(encode, lambda bits, like: whole.decode((bits, 1), like))


def _majority(mean: Any, key: jax.Array) -> Any:
    """The signs of a mean of signs; a tie is drawn."""
    leaves, structure = jax.tree.flatten(mean)
    keys = jax.random.split(jax.random.fold_in(key, core.streams.VOTE), len(leaves))
    # of S signs, a mean that is no tie is at least 1 / S
    voted = [
        jnp.where(jnp.abs(x) < 1e-5, jax.random.rademacher(k, x.shape, x.dtype), x)
        for x, k in zip(leaves, keys, strict=True)
    ]
    return tree.map(jnp.sign, jax.tree.unflatten(structure, voted))


@core.recorded
def signmuon(
    lr: core.Hyper = 0.001,
    *,
    momentum: core.Hyper = 0.9,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """SignMuon: the signs of orthogonalized momenta, by a majority vote.

    Source: Smirnova and Kravatskiy 2026, arXiv:2607.29674. Checked against the authors'
    code, from which it departs: theirs has AdamW at the server for parameters that are
    not matrices, and divides the rate of a matrix by sqrt(fan_in). The same as
    `fm.sign_vote(rule=by_rank(orthogonalize()))`.

    Args:
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
    """
    rule = transforms.default_rule(None, polar, _polar)
    return sign_vote(lr=lr, momentum=momentum, rule=rule)


@core.recorded
def muonusign(
    lr: core.Hyper = 0.01,
    *,
    momentum: core.Hyper = 0.9,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """MuonUSign: Muon's step along the majority of the signs of momenta.

    Source: Smirnova and Kravatskiy 2026, arXiv:2607.29674. Checked against the authors'
    code, from which it departs: theirs has AdamW at the server for parameters that are
    not matrices, and multiplies the rate of a matrix by sqrt(max(1, fan_out / fan_in)).
    The same as `fm.sign_vote(server_rule=by_rank(orthogonalize()))` with other
    defaults.

    Args:
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
    """
    rule = transforms.default_rule(None, polar, _polar)
    return sign_vote(lr=lr, momentum=momentum, server_rule=rule)


@core.recorded
def muonsign(
    lr: core.Hyper = 0.001,
    *,
    momentum: core.Hyper = 0.9,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """MuonSign: one bit per parameter in both directions.

    With the momenta of `sign_vote`, the server takes the step

        x <- x - lr sign(polar(sign(sum_i sign(m_i))))

    and broadcasts its signs, see `compress_broadcasts`. A zero of the polar factor
    stays zero.

    Source: Smirnova and Kravatskiy 2026, arXiv:2607.29674. Checked against the authors'
    code, from which it departs: theirs has AdamW at the server for parameters that are
    not matrices, and divides the rate of a matrix by sqrt(fan_in).

    Args:
      lr: Learning rate of the server, 0.0001 to 0.01.
      momentum: Weight of the past in the clients' momenta, in [0, 1), usually 0.9.
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.

    Example:
      >>> sizes = {"cohort": 3, "local_steps": 1, "batch_size": 8}
      >>> simulation = fm.federate(fm.muonsign(), task, digits, clients, **sizes)
      >>> simulation.meter.bytes_after(1)  # a scale of each array on the way down
      Traffic(down=168, up=120)

    See also: `signmuon` and `muonusign`; `ef21_muon` with error feedback.
    """
    signed = optax.stateless_with_tree_map(lambda d, _: jnp.sign(d))
    rule = optax.chain(transforms.default_rule(None, polar, _polar), signed)
    plain = sign_vote(lr=lr, momentum=momentum, server_rule=rule)
    return compress_broadcasts(plain, signs())


def _polar(polar: transforms.Polar) -> optax.GradientTransformation:
    return transforms.by_rank(transforms.orthogonalize(polar))

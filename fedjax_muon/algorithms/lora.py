"""Federated low-rank adapters: one exchange, and the averages that people compare.

Layers with adapters have the kernel W + c a b, with a [in, q] and b [q, out], of which
clients train a and b. The mean of their kernels has mean_i (a_i b_i), which is not
(mean_i a_i) (mean_i b_i). The methods differ in what they do about it:

    FedIT       a, b <- mean_i a_i, mean_i b_i            the difference stays
    FFA-LoRA    b <- mean_i b_i                           a is common, nobody moves it
    RoLoRA      b <- mean_i b_i  or  a <- mean_i a_i      in even and in odd rounds
    FedSA-LoRA  a <- mean_i a_i                           b_i stays at its client
    FedEx-LoRA  as FedIT, W <- W + c mean_i ((a_i - a) (b_i - b))
    FLoRA       W <- W + c mean_i (a_i b_i)               new a_i and b_i per round
    FlexLoRA    a b <- mean_i (a_i b_i), up to its q largest singular values

FedIT: arXiv:2305.05644. FFA-LoRA: arXiv:2403.12313. RoLoRA: arXiv:2502.01755, without
authors' code; that b moves first follows from b = 0 at the start, where a has no
gradient. FedSA-LoRA: arXiv:2410.01463. FedEx-LoRA: arXiv:2410.09432. FLoRA:
arXiv:2409.05976. FlexLoRA: arXiv:2402.11505. Updates were checked against the authors'
code where there is some. The papers were not read.

The last three need the messages of all clients, and not their mean. A client that was
absent lacks the changes of W, so the kernels count as broadcast in every round.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    Number,
    ParamsMessage,
    Reconstructed,
    Round,
    check_count,
    check_range,
    descend,
    local_steps,
    no_client_state,
    recorded,
    streams,
    tree,
    value_at,
)
from fedjax_muon.tasks.lora import draw_a
from fedjax_muon.transforms.lora import check_kernel, folded, map_adapters
from fedjax_muon.wrappers.personalization import Personal, merged

Adapter = Mapping[str, Any]  # {"a", "b"}, and with "kernel" if the server moves W
BOTH: Mapping[str, Any] = {"a": True, "b": True}


class State(NamedTuple):
    params: Any


class Average(NamedTuple):
    """What clients train and send of an adapter, and what the server makes of it."""

    # the parts that are broadcast and sent, or their share in a mean over rounds
    down: Mapping[str, float] = BOTH
    up: Mapping[str, float] = BOTH
    # round index -> the factors that move in the round
    moving: Callable[[jax.Array], Mapping[str, Any]] = lambda index: BOTH
    own: tuple[str, ...] = ()  # factors that stay at their clients
    renewed: bool = False  # whether clients begin every round with new factors
    ranks: tuple[int, ...] | None = None  # of every client; by default all have q
    # (adapter, a_i [S, in, q], b_i [S, q, out], p_i [S]) -> adapter; by default, the
    # factors move by the means of their changes
    merge: Callable[..., Adapter] | None = None


def _factors(params: Any) -> Any:
    """All parameters but the kernels, which no client changes."""
    return map_adapters(lambda node: {"a": node["a"], "b": node["b"]}, params)


def _put(params: Any, factors: Any) -> Any:
    """Replaces the parameters that are not kernels."""
    return map_adapters(lambda node, pair: {**node, **pair}, params, factors)


def _only(names: Any, factors: Any, rest: Any = lambda leaf: leaf) -> Any:
    """None in the place of factors that are not among the names."""
    of_pair = lambda pair: {k: x if k in names else None for k, x in pair.items()}
    return map_adapters(of_pair, factors, rest=rest)


def _nbytes(params: Any, parts: Mapping[str, float], average: Average) -> float:
    """Bytes of these parts of the adapters, and of all other parameters."""

    def of_adapter(node: Adapter) -> float:
        rank = node["a"].shape[-1]
        taken = [min(r, rank) / rank for r in average.ranks or (rank,)]
        used = sum(taken) / len(taken)  # of the columns of a, and of the rows of b
        shares = {name: part * used for name, part in parts.items()}
        shares["kernel"] = parts.get("kernel", 0.0)
        return sum(shares.get(k, 0.0) * tree.nbytes(x) for k, x in node.items())

    return sum(jax.tree.leaves(map_adapters(of_adapter, params, rest=tree.nbytes)))


def _begun(average: Average, params: Any, round: Round) -> Any:
    """The factors that a client begins with, and the parameters beside them."""
    keys = jax.random.fold_in(round.key, streams.ADAPTERS)
    number = itertools.count()

    def of_pair(node: Adapter) -> Adapter:
        a, b = node["a"], node["b"]
        if average.renewed:
            key = jax.random.fold_in(keys, next(number))
            a, b = draw_a(key, a.shape, a.dtype), jnp.zeros_like(b)
        if average.ranks is not None:  # rules leave columns without gradients at 0
            rank = jnp.asarray(average.ranks, jnp.int32)[round.client]
            there = jnp.arange(a.shape[-1]) < rank
            a, b = jnp.where(there, a, 0), jnp.where(there[:, None], b, 0)
        return {"a": a, "b": b}

    return map_adapters(of_pair, params)


def _exchange(
    lr: Hyper, rule: optax.GradientTransformation, average: Average
) -> Algorithm:
    """Local training of factors and of the parameters beside them."""
    check_range("lr", lr)
    gather = average.merge is not None

    def init(params):
        if "kernel" in average.down:
            map_adapters(check_kernel, params)
        return State(params)

    def init_client(params):
        return Personal((), _only(average.own, params, rest=lambda leaf: None))

    def broadcast(state, round):
        nbytes = _nbytes(state.params, average.down, average)
        return ParamsMessage(Reconstructed(state.params, nbytes))

    def client(objective, broadcast, before, batches, round):
        whole = broadcast.params.value
        if average.own:
            whole = merged(whole, before.params)
        start, moving = _begun(average, whole, round), average.moving(round.index)

        def moved(new, old):
            return {k: _where(moving.get(k, False), new[k], old[k]) for k in new}

        def step(now, batch, key):
            x, opt = now
            g = _factors(objective.grad(_put(whole, x), batch, key))
            g = map_adapters(moved, g, tree.zeros_like(g), rest=lambda g, _: g)
            new, opt = descend(x, value_at(lr, round), rule, opt, g)
            new = _factors(objective.project(_put(whole, new)))
            return (map_adapters(moved, new, x, rest=lambda new, _: new), opt), ()

        (x, _), _ = local_steps(step, (start, rule.init(start)), batches, round)
        sent = _only(average.up, x if gather else tree.sub(x, start))
        nbytes = _nbytes(whole, average.up, average)
        after = init_client(_put(whole, x)) if average.own else before
        return ParamsMessage(Reconstructed(sent, nbytes)), after

    def server(state, mean, round):
        moving = average.moving(round.index)

        def move(node, change):
            sent = {k: d for k, d in change.items() if d is not None}
            add = lambda k, d: _where(moving[k], node[k] + d, node[k])
            return {**node, **{k: add(k, d) for k, d in sent.items()}}

        if average.merge is None:
            return State(
                map_adapters(move, state.params, mean.params.value, rest=jnp.add)
            )
        merge, shares = average.merge, mean.shares
        of_all = lambda node, pairs: merge(node, pairs["a"], pairs["b"], shares)
        sent = mean.messages.params.value
        with jax.default_matmul_precision("highest"):
            # of changes, so that nothing moves where no client does
            average_of = lambda old, x: old + _mean(x - old[None], shares)
            return State(map_adapters(of_all, state.params, sent, rest=average_of))

    main = Exchange(broadcast, client, server, gather=gather)
    keep = init_client if average.own else no_client_state
    spec = None if average.ranks is None else (len(average.ranks), None)
    return Algorithm(init, keep, (main,), cohort_spec=spec)


def _where(choice: Any, new: jax.Array, old: jax.Array) -> jax.Array:
    """`jnp.where` without an operation for choices that are known."""
    if isinstance(choice, bool):
        return new if choice else old
    return jnp.where(choice, new, old)


def _mean(x: jax.Array, shares: jax.Array) -> jax.Array:
    return jax.vmap(jnp.multiply)(shares.astype(x.dtype), x).sum(0)


def _summed(a: jax.Array, b: jax.Array, shares: jax.Array) -> jax.Array:
    """The mean of a_i b_i, one product of the factors side by side."""
    weighed = shares.astype(a.dtype)[:, None, None] * a
    return jnp.tensordot(weighed, b, axes=[[0, 2], [0, 1]])


ADAM = optax.scale_by_adam()


@recorded
def fedit(
    lr: Hyper = 0.0003, *, rule: optax.GradientTransformation = ADAM
) -> Algorithm:
    """FedIT: averages of both factors, each on its own; FedAvg of adapters.

    Args:
      lr: Local learning rate.
      rule: Local rule of the factors and of other parameters, reset every round,
        without a learning rate.
    """
    return _exchange(lr, rule, Average())


@recorded
def ffa_lora(
    lr: Hyper = 0.001, *, rule: optax.GradientTransformation = ADAM
) -> Algorithm:
    """FFA-LoRA: the factor a stays at its common start, which is never sent.

    The mean of the products is exact. With client-level privacy there is noise in b
    only; noise in both factors would be multiplied.

    Args:
      rule: Local rule, reset every round, without a learning rate.
    """
    of_b: Mapping[str, Any] = {"b": True}
    return _exchange(lr, rule, Average(of_b, of_b, lambda index: of_b))


@recorded
def rolora(
    lr: Hyper = 0.001, *, rule: optax.GradientTransformation = ADAM
) -> Algorithm:
    """RoLoRA: b moves in even rounds and a in odd ones, so that means are exact.

    Compare it at equal bytes: both factors have moved after two rounds. It needs
    synchronous rounds, where all clients train the same factor.

    Args:
      rule: Local rule, reset every round, without a learning rate.
    """
    half = {"a": 0.5, "b": 0.5}  # one of them; their mean over two rounds
    moving = lambda index: {"a": index % 2 == 1, "b": index % 2 == 0}
    return _exchange(lr, rule, Average(half, half, moving))


@recorded
def fedsa_lora(
    lr: Hyper = 0.02, *, rule: optax.GradientTransformation = optax.identity()
) -> Algorithm:
    """FedSA-LoRA: clients share a, and keep b for themselves.

    There is no global model: evaluate clients with their own parameters, as with
    `keep_own`. A client that was never sampled has the shared a and the initial b.

    Args:
      rule: Local rule, reset every round, without a learning rate.
    """
    of_a = {"a": 1.0}
    return _exchange(lr, rule, Average(of_a, of_a, own=("b",)))


@recorded
def fedex_lora(
    lr: Hyper = 0.001,
    *,
    scale: Number = 2.0,
    rule: optax.GradientTransformation = ADAM,
) -> Algorithm:
    """FedEx-LoRA: averages of both factors, whose error the server adds to W.

    The authors' code transposes this error in all layers.

    Args:
      scale: Factor c of a b, alpha / rank of the task, which has `folded=True`.
      rule: Local rule, reset every round, without a learning rate.
    """
    check_range("scale", scale, open_low=True, schedules=False)

    def merge(node, a, b, shares):
        da, db = a - node["a"][None], b - node["b"][None]
        mean_a, mean_b = _mean(da, shares), _mean(db, shares)
        error = _summed(da - mean_a[None], db - mean_b[None], shares)
        moved = {"a": node["a"] + mean_a, "b": node["b"] + mean_b}
        return {**moved, "kernel": tree.add_scaled(node["kernel"], scale, error)}

    return _exchange(lr, rule, Average({**BOTH, "kernel": 1.0}, merge=merge))


@recorded
def flora(
    lr: Hyper = 0.0003,
    *,
    scale: Number = 2.0,
    ranks: tuple[int, ...] | None = None,
    rule: optax.GradientTransformation = ADAM,
) -> Algorithm:
    """FLoRA: stacked factors, whose product the server adds to W.

    Clients draw a and begin with b = 0 in every round. The stacked factors take less
    than W, which is counted here, for the few clients that were there in all rounds.

    Args:
      scale: Factor c of a b, alpha / rank of the task, which has `folded=True`.
      ranks: The rank of every client, at most that of the task; 0 is allowed.
      rule: Local rule, reset every round, without a learning rate.
    """
    check_range("scale", scale, open_low=True, schedules=False)
    _check_ranks(ranks, 0)

    def merge(node, a, b, shares):
        update = _summed(a, b, shares)
        return {**node, "kernel": tree.add_scaled(node["kernel"], scale, update)}

    average = Average({"kernel": 1.0}, renewed=True, ranks=ranks, merge=merge)
    made = _exchange(lr, rule, average)

    init = lambda params: State(folded(made.init(params).params, scale))
    return made._replace(init=init)


@recorded
def flexlora(
    lr: Hyper = 0.001,
    *,
    ranks: tuple[int, ...] | None = None,
    rule: optax.GradientTransformation = ADAM,
) -> Algorithm:
    """FlexLoRA: the mean of the products, cut to the rank of every client.

    From the singular value decomposition U S V^T of the mean, client i begins with the
    first q_i columns of a = U and rows of b = S V^T. What is cut is lost. It is
    computed from the stacked factors and never from a matrix [in, out]. The authors
    have a scale 16 / q_i per client; here, it is the task's for all of them.

    Args:
      ranks: The rank of every client, from 1 to that of the task.
      rule: Local rule, reset every round, without a learning rate.
    """
    _check_ranks(ranks, 1)

    def merge(node, a, b, shares):
        rank = a.shape[-1]
        weighed = shares.astype(a.dtype)[:, None, None] * a
        wide = jnp.moveaxis(weighed, 0, 1).reshape(a.shape[1], -1)  # [in, S q]
        tall = b.reshape(-1, b.shape[-1])  # [S q, out]
        (left, of_a), (right, of_b) = map(jnp.linalg.qr, (wide, tall.T))
        u, s, vt = jnp.linalg.svd(of_a @ of_b.T, full_matrices=False)
        columns, rows = left @ u, s[:, None] * (vt @ right.T)
        missing = max(0, rank - len(s))  # of factors with more columns than the kernel
        return {
            **node,
            "a": jnp.pad(columns, ((0, 0), (0, missing)))[:, :rank],
            "b": jnp.pad(rows, ((0, missing), (0, 0)))[:rank],
        }

    return _exchange(lr, rule, Average(ranks=ranks, merge=merge))


def _check_ranks(ranks: tuple[int, ...] | None, least: int) -> None:
    for rank in ranks or ():
        check_count("ranks", rank, least)

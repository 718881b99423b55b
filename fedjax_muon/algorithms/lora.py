"""Federated low-rank adapters: one exchange, and the averages that people compare.

Layers with adapters use the kernel W + c a b, with a [in, q] and b [q, out], of which
clients train a and b. The mean of their kernels contains mean_i (a_i b_i), which
differs from (mean_i a_i) (mean_i b_i). The methods differ in what they do about it.
Their papers were not read; the updates were checked against the authors' code where
there is some.

The last three need the messages of all clients, and not their mean. A client that was
absent lacks the changes of W, so the kernels count as broadcast in every round.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon import core
from fedjax_muon.core import tree
from fedjax_muon.tasks.lora import draw_a
from fedjax_muon.transforms.lora import (
    check_adapters,
    check_kernel,
    folded,
    map_adapters,
)
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


def _begun(average: Average, params: Any, round: core.Round) -> Any:
    """The factors that a client begins with, and the parameters beside them."""
    keys = jax.random.fold_in(round.key, core.streams.ADAPTERS)
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
    lr: core.Hyper, rule: optax.GradientTransformation, average: Average
) -> core.Algorithm:
    """Local training of factors and of the parameters beside them."""
    core.check_range("lr", lr)
    gather = average.merge is not None

    def init(params):
        check_adapters(params)
        if "kernel" in average.down:
            map_adapters(check_kernel, params)
        return State(params)

    def init_client(params):
        return Personal((), _only(average.own, params, rest=lambda leaf: None))

    def broadcast(state, round):
        nbytes = _nbytes(state.params, average.down, average)
        return core.ParamsMessage(core.Reconstructed(state.params, nbytes))

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
            new, opt = core.descend(x, core.value_at(lr, round), rule, opt, g)
            new = _factors(objective.project(_put(whole, new)))
            return (map_adapters(moved, new, x, rest=lambda new, _: new), opt), ()

        (x, _), _ = core.local_steps(step, (start, rule.init(start)), batches, round)
        sent = _only(average.up, x if gather else tree.sub(x, start))
        nbytes = _nbytes(whole, average.up, average)
        after = init_client(_put(whole, x)) if average.own else before
        return core.ParamsMessage(core.Reconstructed(sent, nbytes)), after

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

    main = core.Exchange(broadcast, client, server, gather=gather)
    keep = init_client if average.own else core.no_client_state
    spec = None if average.ranks is None else (len(average.ranks), None)
    return core.Algorithm(init, keep, (main,), cohort_spec=spec)


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


@core.recorded
def fedit(
    lr: core.Hyper = 0.0003, *, rule: optax.GradientTransformation = ADAM
) -> core.Algorithm:
    """FedIT: averages of both low-rank factors, each on its own; FedAvg of adapters.

    A layer uses the kernel W + c a b, of which clients train a and b by the local rule:

        a <- mean_i a_i,    b <- mean_i b_i

    The mean of the products a_i b_i differs from the product of the means; the
    difference stays.

    Source: Zhang et al. 2023, arXiv:2305.05644. Checked against the authors' code.

    Args:
      lr: Local learning rate: 0.0001 to 0.01 for Adam, 0.01 to 0.1 for LoRA-Muon.
      rule: Local rule of the factors and of other parameters, reset every round,
        without a learning rate; Adam by default.

    Example:
      >>> model, shape = fm.models.MLP(10, (4,)), digits.x_train.shape[1:]
      >>> layers = {"rank": 2, "layers": ("Dense_0",), "head": "head"}
      >>> frozen = task.init(jax.random.key(0))
      >>> adapted = fm.tasks.lora.lora_classification(model, frozen, shape, **layers)
      >>> algorithm = fm.fedit(lr=0.05, rule=fm.transforms.lora_muon())
      >>> sizes = {"cohort": 4, "local_steps": 5, "batch_size": 8}
      >>> simulation = fm.federate(algorithm, adapted, digits, clients, **sizes)

    See also: `fedex_lora`, `flora` and `flexlora` average products exactly; `ffa_lora`
    and `rolora` move one factor.
    """
    return _exchange(lr, rule, Average())


@core.recorded
def ffa_lora(
    lr: core.Hyper = 0.001, *, rule: optax.GradientTransformation = ADAM
) -> core.Algorithm:
    """FFA-LoRA: clients train the low-rank factor b, and a stays at its common start.

    Nobody moves or sends a, so that the mean of the products is exact:

        b <- mean_i b_i,    mean_i (a b_i) = a mean_i b_i

    With client-level privacy, noise enters b only; noise in both factors would be
    multiplied.

    Source: Sun et al. 2024, ICLR, arXiv:2403.12313. Checked against independent code.

    Args:
      lr: Local learning rate: 0.0003 to 0.01 for Adam.
      rule: Local rule, reset every round, without a learning rate; Adam by default.

    Example:
      >>> layer = {"a": jnp.ones((64, 2)), "b": jnp.zeros((2, 10))}
      >>> algorithm = fm.ffa_lora(lr=0.003)
      >>> state = algorithm.init({"layer": layer})

    See also: `rolora` moves both factors in turns, `fedit` both at once.
    """
    of_b: Mapping[str, Any] = {"b": True}
    return _exchange(lr, rule, Average(of_b, of_b, lambda index: of_b))


@core.recorded
def rolora(
    lr: core.Hyper = 0.001, *, rule: optax.GradientTransformation = ADAM
) -> core.Algorithm:
    """RoLoRA: the low-rank factors b and a move in turns, so that means are exact.

        b <- mean_i b_i in even rounds,    a <- mean_i a_i in odd rounds

    Compare it at equal bytes: both factors have moved after two rounds. It needs
    synchronous rounds, where all clients train the same factor.

    Source: Chen et al. 2025, arXiv:2502.01755. Not verified: there is no authors' code,
    and the paper was not read. That b moves first follows from b = 0 at the start,
    where a receives no gradient.

    Args:
      lr: Local learning rate: 0.0003 to 0.01 for Adam.
      rule: Local rule, reset every round, without a learning rate; Adam by default.

    Example:
      >>> muon = fm.transforms.lora_muon()
      >>> algorithm = fm.rolora(lr=0.05, rule=muon)

    See also: `ffa_lora` never moves a, `fedit` moves both at once.
    """
    half = {"a": 0.5, "b": 0.5}  # one of them; their mean over two rounds
    moving = lambda index: {"a": index % 2 == 1, "b": index % 2 == 0}
    return _exchange(lr, rule, Average(half, half, moving))


@core.recorded
def fedsa_lora(
    lr: core.Hyper = 0.02, *, rule: optax.GradientTransformation = optax.identity()
) -> core.Algorithm:
    """FedSA-LoRA: clients share the low-rank factor a, and keep b for themselves.

        a <- mean_i a_i,    b_i stays at client i

    There is no global model: evaluate clients with their own parameters, as with
    `keep_own`. A client that was never sampled uses the shared a and the initial b.

    Source: Guo et al. 2024, arXiv:2410.01463. Checked against the authors' code.

    Args:
      lr: Local learning rate: 0.01 to 0.1 for SGD, 0.0003 to 0.01 for Adam.
      rule: Local rule, reset every round, without a learning rate; SGD by default.

    Example:
      >>> layer = {"a": jnp.ones((64, 2)), "b": jnp.zeros((2, 10))}
      >>> own = fm.fedsa_lora(lr=0.02).init_client({"layer": layer})
      >>> jax.tree.leaves(own)[0].shape  # b, what a client keeps
      (2, 10)

    See also: `personalization.keep_own` for layers, `fedit` shares both factors.
    """
    of_a = {"a": 1.0}
    return _exchange(lr, rule, Average(of_a, of_a, own=("b",)))


@core.recorded
def fedex_lora(
    lr: core.Hyper = 0.001,
    *,
    scale: core.Number = 2.0,
    rule: optax.GradientTransformation = ADAM,
) -> core.Algorithm:
    """FedEx-LoRA: averages of both low-rank factors, whose error the server adds to W.

    With the means a and b of the factors a_i and b_i,

        W <- W + c mean_i ((a_i - a) (b_i - b))

    so that the kernel W + c a b is the mean of the clients' kernels. The server needs
    the messages of all clients, and not their mean.

    Source: Singhal et al. 2024, arXiv:2410.09432. Checked against the authors' code,
    which transposes the error in all layers.

    Args:
      lr: Local learning rate: 0.0003 to 0.01 for Adam.
      scale: Factor c of a b, alpha / rank of the task, which has `folded=True`.
      rule: Local rule, reset every round, without a learning rate; Adam by default.

    Example:
      >>> model, shape = fm.models.MLP(10, (4,)), digits.x_train.shape[1:]
      >>> layers = {"rank": 2, "layers": ("Dense_0",), "head": "head"}
      >>> frozen, folded = task.init(jax.random.key(0)), {"alpha": 4, "folded": True}
      >>> lora = fm.tasks.lora.lora_classification
      >>> adapted = lora(model, frozen, shape, **layers, **folded)
      >>> sizes = {"cohort": 4, "local_steps": 5, "batch_size": 8}
      >>> exact = fm.fedex_lora(scale=2.0)  # alpha / rank
      >>> simulation = fm.federate(exact, adapted, digits, clients, **sizes)

    See also: `fedit` leaves the error, `flora` and `flexlora` are exact in other ways.
    """
    core.check_range("scale", scale, open_low=True, schedules=False)

    def merge(node, a, b, shares):
        da, db = a - node["a"][None], b - node["b"][None]
        mean_a, mean_b = _mean(da, shares), _mean(db, shares)
        error = _summed(da - mean_a[None], db - mean_b[None], shares)
        moved = {"a": node["a"] + mean_a, "b": node["b"] + mean_b}
        return {**moved, "kernel": tree.add_scaled(node["kernel"], scale, error)}

    return _exchange(lr, rule, Average({**BOTH, "kernel": 1.0}, merge=merge))


@core.recorded
def flora(
    lr: core.Hyper = 0.0003,
    *,
    scale: core.Number = 2.0,
    ranks: tuple[int, ...] | None = None,
    rule: optax.GradientTransformation = ADAM,
) -> core.Algorithm:
    """FLoRA: stacked low-rank factors, whose product the server adds to W.

    Clients draw a_i and begin with b_i = 0 in every round, and the server updates

        W <- W + c mean_i (a_i b_i)

    The stacked factors take less than W, which is counted here, for the few clients
    that were there in all rounds.

    Source: Wang et al. 2024, NeurIPS, arXiv:2409.05976. Checked against the authors'
    code.

    Args:
      lr: Local learning rate: 0.0001 to 0.01 for Adam.
      scale: Factor c of a b, alpha / rank of the task, which has `folded=True`.
      ranks: The rank of every client, at most that of the task; 0 is allowed.
      rule: Local rule, reset every round, without a learning rate; Adam by default.

    Example:
      >>> algorithm = fm.flora(lr=0.001, ranks=(8, 4, 4, 2))  # of four clients
      >>> algorithm.cohort_spec
      (4, None)

    See also: `flexlora` keeps factors of unequal ranks, `fedex_lora` factors of one
    rank.
    """
    core.check_range("scale", scale, open_low=True, schedules=False)
    _check_ranks(ranks, 0)

    def merge(node, a, b, shares):
        update = _summed(a, b, shares)
        return {**node, "kernel": tree.add_scaled(node["kernel"], scale, update)}

    average = Average({"kernel": 1.0}, renewed=True, ranks=ranks, merge=merge)
    made = _exchange(lr, rule, average)

    init = lambda params: State(folded(made.init(params).params, scale))
    return made._replace(init=init)


@core.recorded
def flexlora(
    lr: core.Hyper = 0.001,
    *,
    ranks: tuple[int, ...] | None = None,
    rule: optax.GradientTransformation = ADAM,
) -> core.Algorithm:
    """FlexLoRA: the mean of the products, cut to the rank of every client.

    The server computes the singular value decomposition of the mean product,

        U S V^T = mean_i (a_i b_i),    a <- U,    b <- S V^T

    and client i begins with the first q_i columns of a and rows of b. What is cut is
    lost. The server never builds a matrix [in, out], but works with the stacked
    factors.

    Source: Bai et al. 2024, NeurIPS, arXiv:2402.11505. Checked against the authors'
    code, from which it departs: they use a scale 16 / q_i per client; here, all clients
    use the task's.

    Args:
      lr: Local learning rate: 0.0003 to 0.01 for Adam.
      ranks: The rank of every client, from 1 to that of the task.
      rule: Local rule, reset every round, without a learning rate; Adam by default.

    Example:
      >>> algorithm = fm.flexlora(lr=0.001, ranks=(8, 4, 4, 2))  # of four clients
      >>> fm.flexlora(ranks=(8, 0))
      Traceback (most recent call last):
      ValueError: ranks must be at least 1, got 0

    See also: `flora` for unequal ranks too, `fedit` for equal ones.
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
        core.check_count("ranks", rank, least)

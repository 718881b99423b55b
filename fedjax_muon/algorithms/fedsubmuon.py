"""FedSubMuon: Muon on small matrices in shared subspaces of the kernels.

The kernel of a layer with an adapter is W + c U X V, with orthonormal U [in, q] and V
[q, out] that all clients share, and X [q, q], which they train and send.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    Number,
    Objective,
    ParamsMessage,
    Reconstructed,
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
from fedjax_muon.transforms import Polar, default_rule, muon
from fedjax_muon.transforms.lora import (
    check_adapters,
    check_kernel,
    folded,
    is_adapter,
    map_adapters,
)

SEEDS = 8  # bytes of the seeds of both bases of a layer


class Space(NamedTuple):
    """The subspace of a layer's kernel, and the matrix in it."""

    left: jax.Array  # U [in, q]
    core: jax.Array  # X [q, q]
    right: jax.Array  # V [q, out]


class State(NamedTuple):
    params: Any  # of which adapters have a = U and b = X V
    spaces: tuple[Space, ...]


class Trained(NamedTuple):
    """What clients train: the matrices, and all parameters beside adapters."""

    cores: tuple[jax.Array, ...]
    rest: Any


class Sketches(NamedTuple):
    """The gradient of a kernel in the subspace of the other side."""

    left: jax.Array  # G V^T [in, q]
    right: jax.Array  # U^T G [q, out]


class Change(NamedTuple):
    """What clients send."""

    trained: Trained
    sketches: tuple[Sketches, ...] = ()


def _rest(params: Any) -> Any:
    return map_adapters(lambda node: (), params)


def _adapters(params: Any) -> list[Any]:
    nodes = jax.tree.leaves(params, is_leaf=is_adapter)
    return [node for node in nodes if is_adapter(node)]


def _in(spaces: tuple[Space, ...], params: Any) -> Any:
    """The adapters of these subspaces."""
    left = iter(spaces)

    def one(node):
        space = next(left)
        return {**node, "a": space.left, "b": space.core @ space.right}

    return map_adapters(one, params)


def _drawn(state: State, scale: Number, key: jax.Array) -> State:
    """The same model with new subspaces, in which nothing is learned yet."""
    draw = jax.nn.initializers.orthogonal()
    spaces = []
    for number, space in enumerate(state.spaces):
        left, right = jax.random.split(jax.random.fold_in(key, number))
        new = Space(
            draw(left, space.left.shape, space.left.dtype),
            jnp.zeros_like(space.core),
            draw(right, space.right.shape, space.right.dtype),
        )
        spaces.append(new)
    return State(_in(tuple(spaces), folded(state.params, scale)), tuple(spaces))


def _check(params: Any) -> None:
    check_adapters(params)
    for node in _adapters(params):
        (fan_in, rank), fan_out = node["a"].shape, node["b"].shape[1]
        check_kernel(node)
        if rank > min(fan_in, fan_out):
            raise ValueError(
                f"a subspace of rank {rank} does not fit a kernel of {fan_in} x "
                f"{fan_out}; lower rank"
            )


def _exchange(
    lr: Hyper,
    rule: optax.GradientTransformation,
    scale: Number,
    fresh: Callable[[jax.Array], jax.Array],
    probe: int | None = None,
    turned: Callable[[State, Any], State] | None = None,
) -> Algorithm:
    """Training in subspaces.

    Args:
      fresh: Whether the subspaces are drawn before the round of an index.
      probe: In the last of so many rounds, clients send sketches, and the server has
        `turned` the subspaces.
    """
    check_range("lr", lr)
    check_range("scale", scale, open_low=True, schedules=False)
    probing = lambda index: (index + 1) % (probe or 1) == 0

    def init(params):
        _check(params)
        params = folded(params, scale)
        square = lambda a: jnp.zeros((a.shape[1], a.shape[1]), a.dtype)
        sides = [(node["a"], node["b"]) for node in _adapters(params)]
        return State(params, tuple(Space(a, square(a), b) for a, b in sides))

    def prepare(state, round):
        key = jax.random.fold_in(round.key, streams.ADAPTERS)
        renew = lambda state: _drawn(state, scale, key)
        with jax.default_matmul_precision("highest"):
            return jax.lax.cond(fresh(round.index), renew, lambda state: state, state)

    def nbytes(spaces, rest):
        """Bytes of matrices, and of sketches or bases (seeds unless they turn)."""
        sides = lambda s: tree.nbytes((s.left, s.right)) / probe if probe else SEEDS
        return sum(tree.nbytes(s.core) + sides(s) for s in spaces) + tree.nbytes(rest)

    def broadcast(state, round):
        sent = nbytes(state.spaces, _rest(state.params))
        return ParamsMessage(Reconstructed(state, sent))

    def client(objective, broadcast, client_state, batches, round):
        params, spaces = broadcast.params.value
        start = Trained(tuple(space.core for space in spaces), _rest(params))

        def whole(x):
            pairs = zip(spaces, x.cores, strict=True)
            moved = tuple(space._replace(core=core) for space, core in pairs)
            return _in(moved, map_adapters(lambda node, _: node, params, x.rest))

        def step(now, batch, key):
            x, opt = now
            g = objective.grad(whole(x), batch, key)
            pairs = zip(_adapters(g), spaces, strict=True)
            of_cores = tuple(node["b"] @ space.right.T for node, space in pairs)
            of_all = Trained(of_cores, _rest(g))
            x, opt = descend(x, value_at(lr, round), rule, opt, of_all)
            return (x._replace(rest=_rest(objective.project(whole(x)))), opt), ()

        (x, _), _ = local_steps(step, (start, rule.init(start)), batches, round)
        change = tree.sub(x, start)
        if probe is None:
            sent = nbytes(spaces, change.rest) - SEEDS * len(spaces)
            return ParamsMessage(Reconstructed(Change(change), sent)), client_state

        def sketched():
            last = jax.tree.map(lambda leaf: leaf[round.steps - 1], batches)
            key = jax.random.fold_in(round.key, streams.ADAPTERS)
            return _sketches(objective, whole(x), spaces, scale, last, key)

        none = tree.zeros_like(jax.eval_shape(sketched))
        sketches = jax.lax.cond(probing(round.index), sketched, lambda: none)
        sent = nbytes(spaces, change.rest)
        return ParamsMessage(
            Reconstructed(Change(change, sketches), sent)
        ), client_state

    def server(state, mean, round):
        change, sketches = mean.params.value
        rest = tree.add(_rest(state.params), change.rest)
        pairs = zip(state.spaces, change.cores, strict=True)
        spaces = tuple(space._replace(core=space.core + d) for space, d in pairs)
        params = map_adapters(lambda node, _: node, state.params, rest)
        after = State(_in(spaces, params), spaces)
        if turned is None:
            return after
        turn = lambda state: turned(state, sketches)
        with jax.default_matmul_precision("highest"):
            return jax.lax.cond(probing(round.index), turn, lambda state: state, after)

    main = Exchange(broadcast, client, server, prepare=prepare)
    return Algorithm(init, no_client_state, (main,))


def _sketches(
    objective: Objective,
    params: Any,
    spaces: tuple[Space, ...],
    scale: Number,
    batch: Any,
    key: jax.Array,
) -> tuple[Sketches, ...]:
    """Gradients of the kernels in the subspaces, by those of the factors.

    With U V in place of U X V, and the difference in the kernel, the model is the same,
    and the gradients of a and b are c G V^T and c U^T G.
    """
    spread = iter(spaces)

    def one(node):
        space = next(spread)
        rest = node["a"] @ (node["b"] - space.right)
        kernel = tree.add_scaled(node["kernel"], scale, rest)
        return {"a": node["a"], "b": space.right, "kernel": kernel}

    g = objective.grad(map_adapters(one, params), batch, key)
    part = lambda x: tree.scale(x, 1 / scale)
    return tuple(Sketches(part(n["a"]), part(n["b"])) for n in _adapters(g))


def _turned(basis: jax.Array, sketch: jax.Array, step: Number) -> jax.Array:
    """The basis [n, q] of a subspace turned toward the gradients, sketch [n, q]."""
    within = basis.T @ sketch
    toward = (sketch - basis @ within) @ within.T
    norm = jnp.linalg.norm
    size = norm(toward)
    unit = toward / jnp.where(size > 0, size, 1)
    q, r = jnp.linalg.qr(basis + jnp.asarray(step, basis.dtype) * norm(basis) * unit)
    return q * jnp.where(jnp.diag(r) < 0, -1, 1).astype(q.dtype)[None]


def _default(
    rule: optax.GradientTransformation | None, momentum: Hyper, polar: Polar | None
) -> optax.GradientTransformation:
    return default_rule(rule, polar, lambda polar: muon(momentum, polar=polar))


@recorded
def fedsubmuon(
    lr: Hyper = 0.005,
    *,
    momentum: Hyper = 0.95,
    refresh: int | None = 5,
    scale: Number = 2.0,
    rule: optax.GradientTransformation | None = None,
    polar: Polar | None = None,
) -> Algorithm:
    """FedSubMuon: clients train small matrices in subspaces that are drawn anew.

    The kernel of a layer is W + c U X V, with orthonormal U and V that all clients
    share. Clients train and send X [q, q]:

        X_i <- X_i - lr rule(grad of X),    then    X <- mean_i X_i

    Every `refresh` rounds, the server moves c U X V into W and draws U and V. A client
    that was absent needs the matrices of the changes that it missed; these are not
    counted. Parameters beside adapters are trained too.

    Source: Chen et al. 2026, arXiv:2609.06073. Checked against the authors' code, from
    which it departs: they freeze the other parameters, and their first subspace, of v2,
    lasts refresh - 1 rounds. Of the paper, the abstract was read.

    Args:
      lr: Local learning rate, 0.001 to 0.05.
      momentum: Momentum of the default rule, in [0, 1), usually 0.9 or 0.95.
      refresh: Rounds between two draws of subspaces, usually 1 to 20; None for the
        first one only.
      scale: Factor c of a b, alpha / rank of the task, which has `folded=True`; the
        authors use none, as a task with alpha=rank.
      rule: Local rule of X, reset every round, by default Muon with `momentum`.
      polar: Function that the default rule computes polar factors with; by default,
        five Newton-Schulz steps.

    Example:
      >>> model, shape = fm.models.MLP(10, (4,)), digits.x_train.shape[1:]
      >>> layers = {"rank": 2, "layers": ("Dense_0",), "head": "head"}
      >>> frozen, folded = task.init(jax.random.key(0)), {"alpha": 4, "folded": True}
      >>> lora = fm.tasks.lora.lora_classification
      >>> adapted = lora(model, frozen, shape, **layers, **folded)
      >>> algorithm = fm.fedsubmuon(lr=0.01, scale=2.0)  # alpha / rank

    See also: `fedsubmuon_gt` turns subspaces toward the gradients; `fedit` and `flora`
    average low-rank adapters.
    """
    if refresh is not None:
        check_count("refresh", refresh)
    fresh = lambda index: index % refresh == 0 if refresh else index == 0
    return _exchange(lr, _default(rule, momentum, polar), scale, fresh)


@recorded
def fedsubmuon_gt(
    lr: Hyper = 0.005,
    *,
    momentum: Hyper = 0.95,
    refresh: int = 5,
    step: Number = 0.05,
    scale: Number = 2.0,
    rule: optax.GradientTransformation | None = None,
    polar: Polar | None = None,
) -> Algorithm:
    """FedSubMuon-GT: clients train small matrices in subspaces that turn.

    Local training equals that of `fedsubmuon`. At the end of every `refresh` rounds,
    clients send G_i V^T and U^T G_i for the gradients G_i of W at their last
    parameters, on their last batch, and the server turns the subspaces:

        H <- mean_i G_i V^T;    T <- (H - U U^T H) (U^T H)^T
        U <- qr(U + step |U| T / |T|)

    and likewise for V. X becomes the part of U X V in the new subspaces, and the rest
    is added to W, so that the model does not change. Bytes are means over rounds.

    Source: Chen et al. 2026, arXiv:2609.06073. Checked against the authors' code, from
    which it departs: they freeze the other parameters, and draw new batches for G_i. Of
    the paper, the abstract was read.

    Args:
      lr: Local learning rate, 0.001 to 0.05.
      momentum: Momentum of the default rule, in [0, 1), usually 0.9 or 0.95.
      refresh: Rounds between two turns, usually 1 to 20.
      step: Length of a turn in proportion to the norm of the basis, in [0, 1]: the
        authors' option of a relative step. Their default is a multiple of the
        gradients' squares.
      scale: Factor c of a b, alpha / rank of the task, which has `folded=True`; the
        authors use none, as a task with alpha=rank.
      rule: Local rule of X, reset every round, by default Muon with `momentum`.
      polar: Function that the default rule computes polar factors with; by default,
        five Newton-Schulz steps.

    Example:
      >>> algorithm = fm.fedsubmuon_gt(lr=0.01, refresh=10, step=0.1, scale=2.0)

    See also: `fedsubmuon` draws subspaces at random.
    """
    check_count("refresh", refresh)
    check_range("step", step, 0.0, 1.0, schedules=False)

    def turned(state, sketches):
        moved, kernels = [], []
        rows = zip(_adapters(state.params), state.spaces, sketches, strict=True)
        for node, space, sketch in rows:
            left = _turned(space.left, sketch.left, step)
            right = _turned(space.right.T, sketch.right.T, step).T
            core = (left.T @ space.left) @ space.core @ (space.right @ right.T)
            lost = space.left @ space.core @ space.right - left @ core @ right
            kernels.append(tree.add_scaled(node["kernel"], scale, lost))
            moved.append(Space(left, core, right))
        given = iter(kernels)
        put = lambda node: {**node, "kernel": next(given)}
        params = map_adapters(put, state.params)
        return State(_in(tuple(moved), params), tuple(moved))

    fresh = lambda index: index == 0
    rule = _default(rule, momentum, polar)
    return _exchange(lr, rule, scale, fresh, refresh, turned)

"""Runs decentralized algorithms. It knows the interface, never an algorithm.

A *mixer* makes an iteration's `mix` for one agent. It is called as

    mixer(index, network) -> mix

where `network` says which agent it is and brings what others send. Agents are mapped
along a named axis, so that an algorithm reads like one agent's program.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import Partial
from jax.typing import ArrayLike

from fedjax_muon.core import Objective, tree
from fedjax_muon.decentralized.gossip import Gossip, Iteration

AGENTS = "agents"  # the axis of those agents that share a device
DEVICES = "devices"
_SPLIT, _SAME = PartitionSpec(DEVICES), PartitionSpec()


class State(NamedTuple):
    """The state of all agents between iterations."""

    # int32 [], t of the next iteration
    index: jax.Array  # type: ignore[assignment]  # hides tuple.index
    nodes: Any  # the algorithm's states, leaves [m, ...]; has `.params`


class Network(NamedTuple):
    """What an agent's mixer needs of the others."""

    agent: jax.Array  # int32 [], from 0
    agents: int  # m
    gather: Callable[[jax.Array], jax.Array]  # one agent's [...] -> everyone's [m, ...]
    # one agent's [...], k -> that of agent (agent + k) mod m
    shift: Callable[[jax.Array, int], jax.Array]


Mixer = Callable[[jax.Array, Network], Callable[[Any], Any]]


def dense(weights: ArrayLike | Sequence | Callable[[jax.Array], jax.Array]) -> Mixer:
    """x_i <- sum_j W[i, j] x_j, by a matrix product.

    Args:
      weights: W [m, m]; or [T, m, m], a sequence that repeats; or a function of t that
        gives the W of iteration t. What an agent hears in one iteration, however many
        messages, is all by the same W.

    Of arrays the mixer is a pytree, which may be an argument of a compiled function.

    Raises `ValueError` for weights of another shape, or whose rows and columns do not
    sum to 1, without which means are not kept; those of a function are taken as given.
    """
    if callable(weights):
        return lambda index, network: _dense(weights(index), network)
    return Partial(_dense_of, _checked(weights))


def shifted(weights: ArrayLike | Sequence) -> Mixer:
    """As `dense`, by one shift of all messages for every offset (j - i) mod m at which
    there is a weight W[i, j]: for rings, tori and exponential graphs, where the offsets
    are few.

    Between devices only the rows that cross are sent; the others gather everyone's. Any
    weights [m, m] or [T, m, m] are right, but those of a random graph or a star have
    all offsets and are slow. A function of t raises `TypeError`.
    """
    matrices = _known(weights)
    agents = matrices.shape[1]
    rows = np.arange(agents)
    by_offset = {k: matrices[:, rows, (rows + k) % agents] for k in range(agents)}
    # offsets are keys, and so known when the mixer is an argument
    return Partial(_shifted, {k: w for k, w in by_offset.items() if w.any()})


def sparse(weights: ArrayLike | Sequence) -> Mixer:
    """As `dense`, by a sum over neighbours: for many agents with few neighbours each.

    The lists of neighbours are padded to the longest, with weight 0. `weights` are
    [m, m] or [T, m, m] with zeros where there is no edge; a function of t, whose graph
    would not be known, raises `TypeError`.
    """
    matrices = _known(weights)
    degree = max(1, int((matrices != 0).sum(2).max()))
    # stable: an agent's neighbours in their order, then others whose weight is zero
    order = np.argsort(matrices == 0, axis=2, kind="stable")[:, :, :degree]
    shares = np.take_along_axis(matrices, order, 2)
    return Partial(_sparse, order.astype(np.int32), shares)


def _dense_of(every, index, network):
    return _dense(jnp.asarray(every)[index % len(every)], network)


def _dense(weights, network):
    row = weights[network.agent]

    def mix(x):
        others = _gathered(x, network, len(row))
        w = row.astype(others.dtype)
        product = jnp.tensordot(w, others, 1, precision=lax.Precision.HIGHEST)
        return product.astype(x.dtype)

    return functools.partial(jax.tree.map, mix)


def _sparse(order, shares, index, network):
    mine = (index % len(order), network.agent)
    ids, row = jnp.asarray(order)[mine], jnp.asarray(shares)[mine]

    def mix(x):
        others = _gathered(x, network, order.shape[1])

        def hear(total, slot):
            id, w = slot
            return total + w.astype(others.dtype) * others[id], None

        none = jnp.zeros_like(x, others.dtype)
        return lax.scan(hear, none, (ids, row))[0].astype(x.dtype)

    return functools.partial(jax.tree.map, mix)


def _shifted(shares, index, network):
    offsets = list(shares)
    _check_agents(shares[offsets[0]].shape[1], network)
    mine = lambda w: jnp.asarray(w)[index % len(w), network.agent]
    row = [mine(shares[k]) for k in offsets]

    def mix(x):
        long = jnp.promote_types(x.dtype, jnp.float32)
        hear = lambda k, w: w.astype(long) * network.shift(x, k).astype(long)
        return sum(map(hear, offsets, row)).astype(x.dtype)

    return functools.partial(jax.tree.map, mix)


def _gathered(x, network, agents):
    """Everyone's x in float32 or better."""
    _check_agents(agents, network)
    return network.gather(x).astype(jnp.promote_types(x.dtype, jnp.float32))


def _check_agents(agents, network):
    if network.agents != agents:
        raise ValueError(
            f"the weights are those of {agents} agents, but there are {network.agents}"
        )


def _known(weights) -> np.ndarray:
    """Weights as [T, m, m], if they are no function."""
    if callable(weights):
        raise TypeError("these weights must be arrays; give a function of t to `dense`")
    return _checked(weights)


def _checked(weights) -> np.ndarray:
    """Weights as [T, m, m]."""
    w = np.asarray(weights, np.float64)
    every = w[None] if w.ndim == 2 else w
    if every.ndim != 3 or every.shape[1] != every.shape[2] or every.size == 0:
        raise ValueError(f"weights must be [m, m] or [T, m, m], got shape {w.shape}")
    off = max(np.abs(every.sum(axis) - 1).max() for axis in (1, 2))
    if not off <= 1e-5:
        raise ValueError(
            f"rows and columns of weights must sum to 1, one is off by {off:g}"
        )
    return every


def _iteration(key, index, agent):
    mine = jax.random.fold_in(jax.random.fold_in(key, index), agent)
    return Iteration(index, *jax.random.split(mine))


def placements(devices: Sequence[jax.Device]) -> tuple[Any, Any]:
    """Where states of agents are on these devices, and what all devices have.

    Without devices both are None, JAX's default. Typed as `Any`, since trees of them
    have the types of what they speak of.
    """
    if not devices:
        return None, None
    mesh = _mesh(devices)
    return NamedSharding(mesh, _SPLIT), NamedSharding(mesh, _SAME)


def _mesh(devices) -> Mesh:
    return Mesh(np.array(devices), (DEVICES,))


def _shift(agents: int, parts: int, x, k: int):
    """The x of the agent k further on, for agents in equal parts on a ring of devices.

    What agents on a device send are rows of one array; a device sends those that cross.
    """
    ahead, rows = divmod(k % agents, agents // parts)
    here = lax.all_gather(x, AGENTS)
    later = _from(ahead, parts, here[rows:])
    pieces = [later, _from(ahead + 1, parts, here[:rows])] if rows else [later]
    return jnp.concatenate(pieces)[lax.axis_index(AGENTS)]


def _from(ahead: int, parts: int, x):
    """The x of the device so many further on."""
    if ahead % parts == 0:
        return x
    pairs = [((device + ahead) % parts, device) for device in range(parts)]
    return lax.ppermute(x, DEVICES, pairs)


def make(
    algorithm: Gossip,
    objective: Objective,
    mixer: Mixer,
    agents: int,
    devices: Sequence[jax.Device] = (),
):
    """Builds `start(params, batches, key) -> State`, which is iteration 0, and
    `step(state, batches, key) -> State`, to be jitted with the state donated.

    `params` are one agent's: all begin alike. The leaves of `batches` lead with [m];
    those of iteration 0 may have another size. `key` is the same typed key in every
    iteration; an agent's keys are folded from it, t and the agent's number. Given
    several devices, the agents lie on them in equal parts.

    Raises `ValueError` unless there is an agent, for devices that do not divide them,
    and, when called, for batches of another number of agents.
    """
    return make_from(lambda _: (algorithm, objective, mixer), (), agents, devices)


def make_from(
    build: Callable[[Any], tuple[Gossip, Objective, Mixer]],
    shared: Any,
    agents: int,
    devices: Sequence[jax.Device] = (),
):
    """As `make`, of the algorithm, the objective and the mixer
    `build(shared)`.

    `shared` are arrays that every device has whole, as the agents' data. Those that lie
    on several devices must come this way: a program that is divided among devices
    cannot close over them.
    """
    if agents < 1:
        raise ValueError(f"agents must be at least 1, got {agents}")
    parts = max(1, len(devices))
    if agents % parts:
        raise ValueError(
            f"devices must divide the {agents} agents equally, got {parts} devices"
        )

    def network():
        here = lax.axis_index(AGENTS)
        near = functools.partial(lax.all_gather, axis_name=AGENTS)
        shift = functools.partial(_shift, agents, parts)
        if parts == 1:
            return Network(here, agents, near, shift)
        first = lax.axis_index(DEVICES) * (agents // parts)
        far = functools.partial(lax.all_gather, axis_name=DEVICES, tiled=True)
        return Network(first + here, agents, lambda x: far(near(x)), shift)

    def everywhere(of):
        def local(nodes, batches, key, index, shared):
            algorithm, objective, mixer = build(shared)

            def one(node, batch):
                net = network()
                iteration = _iteration(key, index, net.agent)
                return of(algorithm)(
                    objective, node, mixer(index, net), batch, iteration
                )

            return jax.vmap(one, axis_name=AGENTS)(nodes, batches)

        if parts == 1:
            return local
        # Unchecked, since an `all_gather` of mapped agents cannot be typed (JAX 0.10).
        # Gradients are safe from sums over devices: all agents' parameters are split.
        return jax.shard_map(
            local,
            mesh=_mesh(devices),
            in_specs=(_SPLIT, _SPLIT, _SAME, _SAME, _SAME),
            out_specs=_SPLIT,
            check_vma=False,
        )

    def check(batches):
        sizes = {jnp.shape(x)[:1] for x in jax.tree.leaves(batches)}
        if sizes != {(agents,)}:
            raise ValueError(
                f"batches must lead with the {agents} agents, got {sorted(sizes)}"
            )

    def start(params, batches, key):
        check(batches)
        _, objective, _ = build(shared)
        nodes = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (agents, *jnp.shape(x))),
            objective.project(params),
        )
        first = jnp.int32(0)
        run = everywhere(operator.attrgetter("start"))
        return State(first + 1, run(nodes, batches, key, first, shared))

    def step(state, batches, key):
        check(batches)
        run = everywhere(operator.attrgetter("step"))
        nodes = run(state.nodes, batches, key, state.index, shared)
        return State(state.index + 1, nodes)

    return start, step


class Traffic(NamedTuple):
    """Bytes that one agent sends to each neighbour."""

    first: int  # at t = 0
    later: int  # at every t >= 1


def traffic(algorithm: Gossip, objective: Objective, params, first, batch) -> Traffic:
    """Bytes that a neighbour is sent in an iteration.

    Read off the interface by shapes, without running anything. `first` and `batch` are
    one agent's batches at t = 0 and later; arrays may be `ShapeDtypeStruct`s.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))

    def sent(method, state, batch):
        messages = []

        def mix(message):
            messages.append(tree.nbytes(message))
            return message

        def run(state, batch, key):
            return method(
                objective, state, mix, batch, Iteration(jnp.int32(1), key, key)
            )

        after = jax.eval_shape(run, state, batch, key)
        return sum(messages), after

    begun, state = sent(algorithm.start, params, first)
    return Traffic(begun, sent(algorithm.step, state, batch)[0])

"""Engine of decentralized algorithms: keys, agents on devices, and traffic.

The engine depends on the interface of algorithms only. Agents are mapped along a named
axis, so that an algorithm is written as the program of one agent.
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

from fedjax_muon.core import Objective, check_count, tree
from fedjax_muon.decentralized.gossip import Gossip, Iteration
from fedjax_muon.decentralized.mixing import Mixer, Network

AGENTS = "agents"  # the axis of those agents that share a device
DEVICES = "devices"
_SHARDED, _REPLICATED = PartitionSpec(DEVICES), PartitionSpec()


class State(NamedTuple):
    """The state of all agents between iterations."""

    # int32 [], t of the next iteration
    index: jax.Array  # type: ignore[assignment]  # hides tuple.index
    agents: Any  # the algorithm's states, leaves [m, ...]; has `.params`


def _iteration(key: jax.Array, index: jax.Array, agent: jax.Array) -> Iteration:
    agent_key = jax.random.fold_in(jax.random.fold_in(key, index), agent)
    return Iteration(index, *jax.random.split(agent_key))


def placements(devices: Sequence[jax.Device]) -> tuple[Any, Any]:
    """The shardings of agents' states, and of what all devices have.

    Both are None without devices, for JAX's default.
    """
    if not devices:
        return None, None
    mesh = _mesh(devices)
    return NamedSharding(mesh, _SHARDED), NamedSharding(mesh, _REPLICATED)


def _mesh(devices: Sequence[jax.Device]) -> Mesh:
    return Mesh(np.array(devices), (DEVICES,))


def _shift(agents: int, shares: int, x: jax.Array, k: int) -> jax.Array:
    """The x of the agent k places ahead; agents are in equal shares on the devices.

    The messages of the agents on a device are rows of one array; only the rows that
    cross are sent.
    """
    ahead, rows = divmod(k % agents, agents // shares)
    local = lax.all_gather(x, AGENTS)
    near = _from(ahead, shares, local[rows:])
    pieces = [near, _from(ahead + 1, shares, local[:rows])] if rows else [near]
    return jnp.concatenate(pieces)[lax.axis_index(AGENTS)]


def _from(ahead: int, shares: int, x: jax.Array) -> jax.Array:
    """The x of the device `ahead` places further on the ring."""
    if ahead % shares == 0:
        return x
    pairs = [((device + ahead) % shares, device) for device in range(shares)]
    return lax.ppermute(x, DEVICES, pairs)


Start = Callable[[Any, Any, jax.Array], State]
Step = Callable[[State, Any, jax.Array], State]


def make(
    algorithm: Gossip,
    objective: Objective,
    mixer: Mixer,
    agents: int,
    devices: Sequence[jax.Device] = (),
) -> tuple[Start, Step]:
    """Builds the two functions that run an algorithm, which are not jitted.

    Returns:
      `start(params, batches, key) -> State`, which is iteration 0, and
      `step(state, batches, key) -> State`, whose state may be donated. `params` are
      those of one agent: all start alike. Leaves of `batches` are [m, ...]; those of
      iteration 0 may have another size. `key` is the same typed key in every iteration;
      an agent's keys are folded from it, t and the agent's number. Both raise
      `ValueError` for batches of another number of agents.

    Example:
      >>> objective = Objective(lambda params, batch, key: params - batch)
      >>> mixer = decentralized.dense(np.full((2, 2), 0.5))
      >>> start, step = decentralized.engine.make(
      ...     decentralized.dsgd(lr=0.1), objective, mixer, agents=2
      ... )
      >>> state = start(jnp.zeros(3), jnp.ones((2, 3)), jax.random.key(0))
    """
    return make_from(lambda _: (algorithm, objective, mixer), (), agents, devices)


def make_from(
    build: Callable[[Any], tuple[Gossip, Objective, Mixer]],
    shared: Any,
    agents: int,
    devices: Sequence[jax.Device] = (),
) -> tuple[Start, Step]:
    """Builds the functions of `make` for an algorithm that depends on arrays.

    Arrays that lie on several devices must be passed in this way: a program that is
    divided among devices cannot close over them.

    Args:
      build: Function of `shared` that returns the algorithm, the objective and the
        mixer.
      shared: Arrays that every device has as a whole, such as the agents' data.
    """
    check_count("agents", agents)
    shares = max(1, len(devices))
    if agents % shares:
        raise ValueError(
            f"devices must divide the {agents} agents equally, got {shares} devices"
        )

    def start(params: Any, batches: Any, key: jax.Array) -> State:
        _check_batches(batches, agents)
        _, objective, _ = build(shared)
        copies = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (agents, *jnp.shape(x))),
            objective.project(params),
        )
        first = jnp.int32(0)
        run = _over_agents(operator.attrgetter("start"), build, agents, devices)
        return State(first + 1, run(copies, batches, key, first, shared))

    def step(state: State, batches: Any, key: jax.Array) -> State:
        _check_batches(batches, agents)
        run = _over_agents(operator.attrgetter("step"), build, agents, devices)
        states = run(state.agents, batches, key, state.index, shared)
        return State(state.index + 1, states)

    return start, step


def _over_agents(
    method: Callable[[Gossip], Callable],
    build: Callable[[Any], tuple[Gossip, Objective, Mixer]],
    agents: int,
    devices: Sequence[jax.Device],
) -> Callable:
    """Maps a method of the algorithm over all agents, equally many on each device."""
    shares = max(1, len(devices))

    def local(
        states: Any, batches: Any, key: jax.Array, index: jax.Array, shared: Any
    ) -> Any:
        algorithm, objective, mixer = build(shared)

        def one(state: Any, batch: Any) -> Any:
            network = _network(agents, shares)
            iteration = _iteration(key, index, network.agent)
            return method(algorithm)(
                objective, state, mixer(index, network), batch, iteration
            )

        return jax.vmap(one, axis_name=AGENTS)(states, batches)

    if shares == 1:
        return local
    # Unchecked, since an `all_gather` of mapped agents cannot be typed (JAX 0.10).
    # Gradients are not summed over devices: all agents' parameters are sharded.
    return jax.shard_map(
        local,
        mesh=_mesh(devices),
        in_specs=(_SHARDED, _SHARDED, _REPLICATED, _REPLICATED, _REPLICATED),
        out_specs=_SHARDED,
        check_vma=False,
    )


def _network(agents: int, shares: int) -> Network:
    """The network as seen by the mapped agent."""
    local = lax.axis_index(AGENTS)
    near = functools.partial(lax.all_gather, axis_name=AGENTS)
    shift = functools.partial(_shift, agents, shares)
    if shares == 1:
        return Network(local, agents, near, shift)
    first = lax.axis_index(DEVICES) * (agents // shares)
    far = functools.partial(lax.all_gather, axis_name=DEVICES, tiled=True)
    return Network(first + local, agents, lambda x: far(near(x)), shift)


def _check_batches(batches: Any, agents: int) -> None:
    sizes = {jnp.shape(x)[:1] for x in jax.tree.leaves(batches)}
    if sizes != {(agents,)}:
        raise ValueError(
            f"the first axis of batches must be the {agents} agents, got "
            f"{sorted(sizes)}"
        )


class LinkTraffic(NamedTuple):
    """Bytes that one agent sends to each neighbor."""

    first: int  # at t = 0
    later: int  # at every t >= 1


def traffic(
    algorithm: Gossip, objective: Objective, params: Any, first: Any, batch: Any
) -> LinkTraffic:
    """Counts the bytes that an agent sends to each neighbor in an iteration.

    They follow from the shapes of messages, without running anything.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))

    def sent(method: Callable, state: Any, batch: Any) -> tuple[int, Any]:
        messages: list[int] = []

        def mix(message: Any) -> Any:
            messages.append(tree.nbytes(message))
            return message

        def run(state: Any, batch: Any, key: jax.Array) -> Any:
            iteration = Iteration(jnp.int32(1), key, key)
            return method(objective, state, mix, batch, iteration)

        after = jax.eval_shape(run, state, batch, key)
        return sum(messages), after

    at_start, state = sent(algorithm.start, params, first)
    return LinkTraffic(at_start, sent(algorithm.step, state, batch)[0])

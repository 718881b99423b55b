"""Cohorts on several devices, of one process or of many.

Whole rounds run inside `jax.shard_map`, so that all communication is explicit in this
module. Each device runs an equal part of the cohort, and one sum over devices ends an
exchange. The private states of all clients are divided among the devices in equal parts
too. Where all clients take part, each runs on the device that has its state. Otherwise,
the states of a cohort are sent to the devices that run it before local training, and
back afterwards. Local training itself has no communication. Examples that are divided
among the devices are sent to the devices that need them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fedjax_muon.engine.plans import (
    LOCAL,
    PADDING_ID,
    Client,
    CohortMember,
    Plan,
    Result,
    Store,
    pad_cohort,
)

Devices = Sequence[jax.Device]
CLIENTS = "clients"  # the axis of devices
# `Any`, since trees of specs have the types of the trees that they describe
SHARDED: Any = PartitionSpec(CLIENTS)
REPLICATED: Any = PartitionSpec()


def mesh_of(devices: Devices) -> Mesh:
    """Makes a mesh of one axis, along which clients are divided among the devices."""
    if not devices or len(set(devices)) < len(devices):
        raise ValueError(f"needs one or more devices, each once, got {devices}")
    return Mesh(np.array(devices), (CLIENTS,), axis_types=(AxisType.Auto,))


def across(
    devices: Devices, function: Callable[..., Any], given: Any, result: Any
) -> Callable[..., Any]:
    """Makes a function that runs on all devices in parallel.

    On each device `function` sees the device's part of `SHARDED` arrays, and all of
    `REPLICATED` ones.
    """
    # Unchecked, since `jax.grad` would sum values over devices that are not marked as
    # varying, and users' rules start from constants, which are not marked.
    return jax.shard_map(
        function,
        mesh=mesh_of(devices),
        in_specs=given,
        out_specs=result,
        check_vma=False,
    )


def shardings(devices: Devices, specs: Any) -> Any:
    """Converts specs to shardings of arrays on some devices."""
    mesh = mesh_of(devices)
    is_spec = lambda spec: isinstance(spec, PartitionSpec)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=is_spec)


def placed(tree: Any, devices: Devices, specs: Any) -> Any:
    """Puts a pytree of arrays on the devices.

    Args:
      specs: A prefix of `tree` with leaves `SHARDED` and `REPLICATED`.
    """
    return jax.device_put(tree, shardings(devices, specs))


def replicated(tree: Any, devices: Devices) -> Any:
    """Puts a copy of a pytree on every device; repeated arrays are copied once."""
    leaves, structure = jax.tree.flatten(tree)
    unique = {id(x): x for x in leaves}
    # In the order of the leaves: unlike that of ids, it is the same in all processes.
    copies = placed(list(unique.values()), devices, REPLICATED)
    by_id = dict(zip(unique, copies, strict=True))
    return jax.tree.unflatten(structure, [by_id[id(x)] for x in leaves])


def sharded(inner: Plan, num_clients: int) -> Plan:
    """Makes a plan that divides a cohort among devices.

    A cohort that the number of devices does not divide is padded with clients of weight
    0. A cohort of all clients runs where their states are, and any other cohort in the
    order of its members. Use the plan inside `across`, with the client states
    `SHARDED`. The number of devices must divide that of client states
    (`engine.init(..., shares=len(devices))`).
    """

    def plan(
        client: Client, broadcast: Any, client_states: Any, members: CohortMember
    ) -> Result:
        devices, count = lax.axis_size(CLIENTS), len(members.weight)
        is_everyone = count == num_clients  # since the members of a cohort are distinct
        order = jnp.argsort(members.id) if is_everyone else None
        members = pad_cohort(_ordered(members, order), devices)
        kind, size = members.weight.dtype, len(members.weight) // devices
        own = lambda x: x.reshape(devices, size, *x.shape[1:])[_device()]
        total, client_states, aux = inner(
            client,
            broadcast,
            client_states,
            jax.tree.map(own, members),
            _at_home(size) if is_everyone else _store(client_states),
        )

        def in_cohort(x: jax.Array) -> jax.Array:
            x = x.astype(kind) if x.dtype == bool else x
            zeros = jnp.zeros((devices * size, *x.shape[1:]), x.dtype)
            return lax.dynamic_update_slice_in_dim(zeros, x, _device() * size, 0)

        # One vector, for one reduction.
        flat, unravel = ravel_pytree((total, jax.tree.map(in_cohort, aux)))
        total, summed = unravel(lax.psum(flat, CLIENTS))
        back_to = lambda x, old: x[:count] > 0 if old.dtype == bool else x[:count]
        aux = jax.tree.map(back_to, summed, aux)
        back = None if order is None else jnp.argsort(order)
        return total, client_states, _ordered(aux, back)

    return plan


def _ordered(rows: Any, order: jax.Array | None) -> Any:
    return rows if order is None else jax.tree.map(lambda x: x[order], rows)


def sharded_gather(x: jax.Array, ids: jax.Array) -> jax.Array:
    """Gathers x[ids] from a `SHARDED` array, inside `across`.

    All devices must call it at the same time, each with its own ids.

    Returns:
      The rows, with zeros for ids that do not exist.
    """
    at, is_local = _local_rows(ids, len(x))
    rows = x[jnp.where(is_local, at, 0)]
    mask = is_local.reshape(is_local.shape + (1,) * (rows.ndim - is_local.ndim))
    return lax.psum_scatter(jnp.where(mask, rows, 0), CLIENTS)


def _device() -> jax.Array:
    """The number of this device."""
    return lax.axis_index(CLIENTS)


def _local_rows(ids: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The ids of all devices [devices, ...] as positions among the `count` rows of this
    device, and whether they are in range."""
    at = lax.all_gather(ids, CLIENTS) - _device() * count
    return at, (at >= 0) & (at < count)


def _at_home(count: int) -> Store:
    """Access to client states on the device that runs the clients, `count` of them."""

    def place(ids: jax.Array) -> jax.Array:
        return jnp.where(ids == PADDING_ID, PADDING_ID, ids - _device() * count)

    return Store(
        lambda client_states, ids: LOCAL.take(client_states, place(ids)),
        lambda client_states, ids, rows: LOCAL.put(client_states, place(ids), rows),
    )


def _store(client_states: Any) -> Store:
    """Access to client states that are `SHARDED`."""
    leaves = jax.tree.leaves(client_states)
    if not leaves:
        return Store(
            lambda client_states, ids: client_states,
            lambda client_states, ids, rows: client_states,
        )
    count = len(leaves[0])

    def put(client_states: Any, ids: jax.Array, rows: Any) -> Any:
        at, is_local = _local_rows(ids, count)
        at = jnp.where(is_local, at, count)  # past the end: not written
        return jax.tree.map(
            lambda x, row: x.at[at].set(lax.all_gather(row, CLIENTS), mode="drop"),
            client_states,
            rows,
        )

    return Store(
        lambda client_states, ids: jax.tree.map(
            lambda x: sharded_gather(x, ids), client_states
        ),
        put,
    )

"""A cohort on several devices, of one process or of many.

Whole rounds run inside `jax.shard_map`, so that devices exchange nothing but what is
written here. Each runs an equal part of the cohort, and one sum over devices ends an
exchange. The private states of all clients lie on the devices in equal parts too; a
client's state travels to the device that runs it and back, before and after its local
training, which itself has no communication. So do its examples, if they are divided.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fedjax_muon.engine.plans import Plan, Store, pad_cohort

Devices = Sequence[jax.Device]
CLIENTS = "clients"  # the axis of devices
# `Any`, since trees of them have the types of what they speak of
SHARDED: Any = PartitionSpec(CLIENTS)
REPLICATED: Any = PartitionSpec()


def mesh_of(devices: Devices) -> Mesh:
    """The devices along one axis, over which clients are divided.

    Raises `ValueError` for no devices, or one that is given twice.
    """
    if not devices or len(set(devices)) < len(devices):
        raise ValueError(f"needs one or more devices, each once, got {devices}")
    return Mesh(np.array(devices), (CLIENTS,), axis_types=(AxisType.Auto,))


def across(devices: Devices, function: Callable, given, result) -> Callable:
    """`function` on every device at once, on its part of what is `SHARDED` and on all
    of what is `REPLICATED`: prefixes of its arguments, and of what it returns."""
    # Unchecked: `jax.grad` would sum over devices what is not marked as varying, and
    # rules that users write start from constants, which are not.
    return jax.shard_map(
        function,
        mesh=mesh_of(devices),
        in_specs=given,
        out_specs=result,
        check_vma=False,
    )


def shardings(devices: Devices, specs):
    """What `specs`, of `SHARDED` and `REPLICATED`, say of arrays on these devices."""
    mesh = mesh_of(devices)
    is_spec = lambda spec: isinstance(spec, PartitionSpec)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=is_spec)


def placed(tree, devices: Devices, specs):
    """Puts `tree` on the devices; `specs` is a prefix of it, as of `shardings`."""
    return jax.device_put(tree, shardings(devices, specs))


def replicated(tree, devices: Devices):
    """Puts a copy on every device, of an array that occurs twice only one."""
    leaves, structure = jax.tree.flatten(tree)
    once = {id(x): x for x in leaves}
    # in their own order, which unlike that of ids is the same in all processes
    copies = placed(list(once.values()), devices, REPLICATED)
    found = dict(zip(once, copies, strict=True))
    return jax.tree.unflatten(structure, [found[id(x)] for x in leaves])


def sharded(inner: Plan) -> Plan:
    """The devices divide a cohort; each runs its part by the plan `inner`.

    A cohort that the devices do not divide is padded with clients of weight 0. To be
    used inside `across` them, with the client states `SHARDED`, whose number the
    devices must divide (`engine.init(..., parts=len(devices))`).
    """

    def plan(client, shared, client_states, rows):
        devices, count = lax.axis_size(CLIENTS), len(rows.weight)
        rows = pad_cohort(rows, devices)
        everyone = jnp.zeros(rows.weight.shape, rows.weight.dtype)
        size = len(everyone) // devices
        own = lambda x: x.reshape(devices, size, *x.shape[1:])[_me()]
        total, client_states, aux = inner(
            client,
            shared,
            client_states,
            jax.tree.map(own, rows),
            _store(client_states),
        )
        told = lambda n: lax.dynamic_update_slice(
            everyone, n.astype(everyone.dtype), (_me() * size,)
        )
        # as one vector, for one reduction
        flat, unravel = ravel_pytree((total, jax.tree.map(told, aux)))
        total, aux = unravel(lax.psum(flat, CLIENTS))
        return total, client_states, jax.tree.map(lambda n: n[:count] > 0, aux)

    return plan


def sharded_gather(x: jax.Array, ids: jax.Array) -> jax.Array:
    """x[ids] of an x that is `SHARDED`, wherever the rows lie; zeros where there is no
    such row. All devices must ask at the same time, each for rows of its own."""
    at, here = _asked(ids, len(x))
    rows = x[jnp.where(here, at, 0)]
    mask = here.reshape(here.shape + (1,) * (rows.ndim - here.ndim))
    return lax.psum_scatter(jnp.where(mask, rows, 0), CLIENTS)


def _me() -> jax.Array:
    return lax.axis_index(CLIENTS)


def _asked(ids, held: int):
    """Everyone's ids [devices, ...] as places among the rows held here, and whether
    they are."""
    at = lax.all_gather(ids, CLIENTS) - _me() * held
    return at, (at >= 0) & (at < held)


def _store(client_states) -> Store:
    """Rows of client states that are `SHARDED`."""
    leaves = jax.tree.leaves(client_states)
    if not leaves:
        return Store(
            lambda client_states, ids: client_states,
            lambda client_states, ids, rows: client_states,
        )
    held = len(leaves[0])

    def put(client_states, ids, rows):
        at, here = _asked(ids, held)
        at = jnp.where(here, at, held)  # past the end: not written
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

"""A cohort on several devices, of one process or of many.

Devices play equal parts of the cohort side by side, and one sum over devices ends an
exchange. The private states of all clients lie on the devices in equal parts too; a
client's state travels to the device that plays it and back, before and after its local
training, which itself has no communication.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fedjax_muon.plans import Plan, Store, default_plan, filled

CLIENTS = "clients"  # the axis of devices
SPLIT, SAME = PartitionSpec(CLIENTS), PartitionSpec()


def mesh_of(devices: Sequence[jax.Device]) -> Mesh:
    """The devices along one axis, over which clients are divided.

    Raises `ValueError` for no devices, or one that is given twice.
    """
    if not devices or len(set(devices)) < len(devices):
        raise ValueError(f"needs one or more devices, each once, got {devices}")
    return Mesh(np.array(devices), (CLIENTS,), axis_types=(AxisType.Auto,))


def replicated(devices: Sequence[jax.Device]) -> NamedSharding:
    """The same on all devices."""
    return NamedSharding(mesh_of(devices), SAME)


def divided(devices: Sequence[jax.Device]) -> NamedSharding:
    """Equal parts of the leading axis."""
    return NamedSharding(mesh_of(devices), SPLIT)


def sharded(devices: Sequence[jax.Device], inner: Plan | None = None) -> Plan:
    """Each device plays its part of the cohort by the plan `inner`, the default one if
    none is given.

    A cohort that the devices do not divide is padded with clients of weight 0. The
    pool must have a multiple of rows (`engine.init(..., parts=len(devices))`), and
    should be placed as `divided`. Over several processes, all their devices are given
    (`jax.devices()`), and all processes make the same calls.
    """
    mesh = mesh_of(devices)
    inner = inner or default_plan()

    def plan(client, shared, pool, rows):
        count = len(rows.weight)
        rows = filled(rows, len(devices))

        def part(shared, pool, rows):
            store = _store(pool, len(devices))
            total, pool, notes = inner(client, shared, pool, rows, store)
            first = lax.axis_index(CLIENTS) * len(rows.weight)
            place = lambda note: _placed(note, first, count + -count % len(devices))
            # as one vector, for one reduction
            flat, unravel = ravel_pytree((total, jax.tree.map(place, notes)))
            total, notes = unravel(lax.psum(flat, CLIENTS))
            return total, pool, jax.tree.map(lambda note: note[:count] > 0, notes)

        # Unchecked: `jax.grad` would sum over devices what is not marked as varying,
        # and rules that users write start from constants, which are not.
        return jax.shard_map(
            part,
            mesh=mesh,
            in_specs=(SAME, SPLIT, SPLIT),
            out_specs=(SAME, SPLIT, SAME),
            check_vma=False,
        )(shared, pool, rows)

    return plan


def _placed(note, first, total: int):
    """A device's notes [S / devices], which are true or false, among all [S]."""
    everyone = jnp.zeros(total, jnp.float32)
    return lax.dynamic_update_slice(everyone, note.astype(jnp.float32), (first,))


def _store(pool, devices: int) -> Store:
    """Rows that may lie on another device. All devices must ask at the same time."""
    leaves = jax.tree.leaves(pool)
    if not leaves:
        return Store(lambda pool, ids: pool, lambda pool, ids, rows: pool)
    held = len(leaves[0])

    def asked(ids):
        """Everyone's ids [devices, ...] as places here; whether they are."""
        at = lax.all_gather(ids, CLIENTS) - lax.axis_index(CLIENTS) * held
        return at, (at >= 0) & (at < held)

    def take(pool, ids):
        at, here = asked(ids)

        def one(x):
            rows = x[jnp.where(here, at, 0)]
            mask = here.reshape(here.shape + (1,) * (rows.ndim - here.ndim))
            return lax.psum_scatter(jnp.where(mask, rows, 0), CLIENTS)

        return jax.tree.map(one, pool)

    def put(pool, ids, rows):
        at, here = asked(ids)
        at = jnp.where(here, at, held)  # past the end: not written

        def one(x, row):
            return x.at[at].set(lax.all_gather(row, CLIENTS), mode="drop")

        return jax.tree.map(one, pool, rows)

    return Store(take, put)


def placement(state, devices: Sequence[jax.Device]):
    """Where an `engine.State` lies: clients' states divided, all else everywhere."""
    same, split = replicated(devices), divided(devices)
    where = jax.tree.map(lambda _: same, state)
    return where._replace(pool=jax.tree.map(lambda _: split, state.pool))

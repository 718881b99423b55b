"""Devices of a process, and processes of a run: decided before JAX is first used."""

import os

import jax

LIFE_SIGN = 30  # seconds without one, after which a process counts as dead
FORCED = "xla_force_host_platform_device_count"  # XLA's flag for virtual CPU devices
# of processes that nobody but you started
PLACES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def begin(devices: int, *, distributed: bool = False) -> None:
    """Makes as many devices of a CPU as are asked for, and joins other processes.

    These are the ones that SLURM, Open MPI, Kubernetes or Cloud TPU started; or those
    of the environment variables JAX_COORDINATOR_ADDRESS (HOST:PORT of process 0),
    JAX_NUM_PROCESSES, and JAX_PROCESS_ID (from 0).

    Raises `ValueError` if the others are not to be found.
    """
    cores = min(devices, os.cpu_count() or 1)
    forced = FORCED in os.environ.get("XLA_FLAGS", "")  # the option would undo it
    present: int = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]  # added at run time
    if cores > max(1, present) and not forced:
        jax.config.update("jax_num_cpu_devices", cores)
    if distributed:
        try:
            jax.distributed.initialize(*_by_hand(), heartbeat_timeout_seconds=LIFE_SIGN)
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"the other processes were not found: {error}") from error


def _by_hand() -> tuple[str | None, int | None, int | None]:
    """The coordinator, the number of processes, and that of this one, if given."""
    given = [os.environ.get(name) for name in PLACES]
    coordinator, *numbers = given
    if None in numbers and {*numbers} != {None}:
        raise ValueError(f"{', '.join(PLACES)} go together, got {given}")
    try:
        count, number = (None if x is None else int(x) for x in numbers)
    except ValueError as error:
        raise ValueError(f"{PLACES[1]} and {PLACES[2]} must be numbers") from error
    return coordinator, count, number


def devices_of(count: int) -> tuple[jax.Device, ...]:
    """The first `count` devices of every process; none for one device of one process,
    which JAX uses by itself. Raises `ValueError` if there are fewer."""
    here = jax.local_device_count()
    if not 1 <= count <= here:
        raise ValueError(
            f"devices must be between 1 and the {here} that this host has "
            f"({jax.local_devices()[0].device_kind}), got {count}"
        )
    if count == jax.process_count() == 1:
        return ()
    taken = [jax.local_devices(i)[:count] for i in range(jax.process_count())]
    return tuple(device for several in taken for device in several)

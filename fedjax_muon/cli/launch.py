"""Which devices a command runs on: decided before JAX is first used."""

import dataclasses
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import jax
from jax.experimental import multihost_utils

from fedjax_muon.cli.errors import is_refusal

LIFE_SIGN = 30  # seconds without one, after which a process counts as dead
SECONDS_BETWEEN_LOOKS = 5
FORCED = "xla_force_host_platform_device_count"  # XLA's flag for virtual CPU devices


@dataclasses.dataclass(frozen=True)
class Launch:
    """How this process joins others that run the same command, on hosts of their own.

    All must see the run directory.
    """

    distributed: bool = False
    """Join the other processes started by SLURM, Open MPI, Kubernetes or Cloud TPU."""
    coordinator: str | None = None
    """HOST:PORT of process 0, if you started the processes yourself."""
    num_processes: int | None = None
    """Number of processes, with --coordinator."""
    process_id: int | None = None
    """Number of this process, from 0, with --coordinator."""


def begin(launch: Launch, devices: int) -> None:
    """Makes as many devices of a CPU as are asked for, and joins other processes.

    Raises `ValueError` for options that do not go together, and if the others are not
    to be found.
    """
    by_hand = (launch.coordinator, launch.num_processes, launch.process_id)
    if any(x is not None for x in by_hand) and None in by_hand:
        raise ValueError(
            "coordinator, num_processes and process_id go together; got "
            f"{launch.coordinator}, {launch.num_processes}, {launch.process_id}"
        )
    cores = min(devices, os.cpu_count() or 1)
    forced = FORCED in os.environ.get("XLA_FLAGS", "")  # the option would undo it
    present: int = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]  # added at run time
    if cores > max(1, present) and not forced:
        jax.config.update("jax_num_cpu_devices", cores)
    if launch.distributed or launch.coordinator is not None:
        # else JAX aborts a process that waits while another one has ended
        jax.config.update("jax_enable_recoverability", True)
        try:
            jax.distributed.initialize(*by_hand, heartbeat_timeout_seconds=LIFE_SIGN)
        except RuntimeError as error:
            raise ValueError(f"the other processes were not found: {error}") from error


def devices_of(count: int) -> tuple[jax.Device, ...]:
    """The first `count` devices of every process; none for one device of one process,
    which JAX uses by itself. Raises `ValueError` if there are fewer."""
    here = jax.local_device_count()
    if count > here:
        raise ValueError(
            f"devices must be at most the {here} that this host has "
            f"({jax.local_devices()[0].device_kind}), got {count}"
        )
    if count == jax.process_count() == 1:
        return ()
    taken = [jax.local_devices(i)[:count] for i in range(jax.process_count())]
    return tuple(device for several in taken for device in several)


def device_words(count: int) -> str:
    """What `count` devices a process are, such as "cpu" or "2 x NVIDIA H100"."""
    devices = devices_of(count) or jax.devices()[:1]
    many = f"{len(devices)} x " if len(devices) > 1 else ""
    return f"{many}{devices[0].device_kind}"


@contextmanager
def together(resume: str) -> Iterator[None]:
    """Says what to do, and ends at once, if another process is gone.

    What has been saved stays as it is.
    """
    if jax.process_count() == 1:
        yield
        return
    # Orbax logs the traceback of an error that it raises too.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(resume, over), daemon=True)
    watch.start()
    try:
        yield
        multihost_utils.sync_global_devices("the end")  # nobody leaves before
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if is_refusal(error):
            raise
        _abandon(resume, str(error).splitlines()[0][:200])
    finally:
        over.set()


def _watch(resume: str, over: threading.Event) -> None:
    """Ends this process if another one is gone, for which it may wait anywhere."""
    while not over.wait(SECONDS_BETWEEN_LOOKS):
        try:
            with multihost_utils.live_devices(jax.devices()) as live:
                gone = len(live) < jax.device_count()
        except (multihost_utils.ProcessFailureError, jax.errors.JaxRuntimeError):
            gone = True
        if gone and not over.is_set():
            _abandon(resume, f"it gave no sign of life for {LIFE_SIGN} s")


def _abandon(resume: str, reason: str) -> NoReturn:
    print(
        f"process {jax.process_index()}: another process has ended, or cannot be "
        f"reached ({reason}); start all of them again, with: {resume}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)  # an orderly exit would wait for the one that is gone

"""Machines without a TPU on which its compiler, libtpu, is installed."""

import importlib.util
import os
from pathlib import Path

# `ahead_of_time` compiles for hosts of four such chips too
NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
CHIPS = ("accel[0-9]*", "vfio/[0-9]*")  # devices of TPUs, older and newer ones


def quiet_libtpu(devices: Path = Path("/dev")) -> None:
    """Keeps libtpu from reporting errors about a TPU that is not there.

    When JAX looks for devices, libtpu's C library asks the machine for the kind of its
    TPU and for the names of its hosts. Without a TPU, it prints "E0000 ... unexpected
    worker hostname ... TPU_WORKER_HOSTNAMES", unless the environment answers.
    """
    there = any(any(devices.glob(pattern)) for pattern in CHIPS)
    if not there and importlib.util.find_spec("libtpu") is not None:
        for name, value in NO_TPU.items():
            os.environ.setdefault(name, value)

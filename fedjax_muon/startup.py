"""What is set before JAX starts or compiles: a silent libtpu, programs kept on disk.

Functions import what they need, since `versions` first says whether it is there.
"""

import importlib.util
import os
import warnings
from pathlib import Path

# `ahead_of_time` compiles for hosts of four such chips too
NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
CHIPS = ("accel[0-9]*", "vfio/[0-9]*")  # devices of TPUs, older and newer ones
_LEAST, _DEFAULT = "jax_persistent_cache_min_compile_time_secs", 1.0


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


def cache_programs(directory: Path | None = None) -> None:
    """Keeps compiled programs on disk, so that the next process need not compile them.

    It has no effect where JAX has a cache already, by the environment variable
    `JAX_COMPILATION_CACHE_DIR` or an earlier call. The command `fedjax-muon` calls it.
    Programs that compile in less than a second are kept too, unless you set
    `JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS`. JAX warns about every program that it
    can't write or read, and compiles it; delete the directory if programs are damaged.

    Args:
      directory: Directory of the programs; by default in the user's cache directory.
        Nobody else may be able to write to it, since JAX runs what it finds there.

    Example:
      >>> fm.cache_programs()  # before the first program is compiled
    """
    import jax
    import platformdirs

    given = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]  # JAX adds its options at run time
    if given is not None:
        return
    try:
        default = platformdirs.user_cache_path("fedjax_muon") / "programs"
        place = directory or default
        place.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, KeyError) as error:  # there is no home
        warnings.warn(f"compiled programs are not kept: {error}", stacklevel=2)
        return
    jax.config.update("jax_compilation_cache_dir", str(place))
    # JAX keeps only what took a second, but the first round needs many small programs.
    if getattr(jax.config, _LEAST) == _DEFAULT:
        jax.config.update(_LEAST, 0.0)

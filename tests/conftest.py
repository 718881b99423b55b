"""Strictness for the whole suite; the settings apply before any test imports JAX."""

import gc
import os
import tempfile
from importlib.metadata import version

# Most of the time of these tests is compilation, of programs that run for moments. Of
# XLA's passes all run; the code generator alone optimizes less, and of the two for CPUs
# that there were before 0.11 it is the one that is done a third sooner.
os.environ["XLA_FLAGS"] = " ".join(
    (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false" * version("jaxlib").startswith("0.10."),
    )
)

# Workers share the cores already, and threads of linear algebra would wait for them.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"

# Many tests compile the same programs. The first process makes a cache for all; tests
# must not write to the user's. JAX locks a cache whose size is limited, so that nobody
# reads an incomplete file. Caches of XLA would make its path a part of every key.
if "PYTEST_XDIST_WORKER" not in os.environ:
    PROGRAMS = tempfile.TemporaryDirectory()
    os.environ["JAX_COMPILATION_CACHE_DIR"] = PROGRAMS.name
    os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2**32)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    os.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"

import jax

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Not jax_numpy_dtype_promotion="strict": optax's own Adam and schedules break it. The
# battery checks instead that a round leaves every dtype of the state as it was.

# Tracing allocates much that lives on, which the collector would visit again and again.
gc.set_threshold(200_000, 50, 100)

# ledgers of private runs are in the user's data directory
LEDGERS = tempfile.TemporaryDirectory()
os.environ["XDG_DATA_HOME"] = LEDGERS.name

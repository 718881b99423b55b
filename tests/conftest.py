"""Strictness for the whole suite; the settings apply before any test imports JAX."""

import gc
import os
import re
import sys
import tempfile
from importlib.metadata import version

# Most of the time of these tests is compilation, of programs that run for moments. Of
# XLA's passes all run; the code generator alone optimizes less, and of the two for CPUs
# it is the older one, which is done in half the time. JAX 0.10 has another flag for it.
os.environ["XLA_FLAGS"] = " ".join(
    (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false"
        if version("jaxlib").startswith("0.10.")
        else "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters",
    )
)

# Workers share the cores already, and threads of linear algebra would wait for them.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Not jax_numpy_dtype_promotion="strict": optax's own Adam and schedules break it. The
# battery checks instead that a round leaves every dtype of the state as it was.

# Tracing allocates much that lives on, which the collector would visit again and again.
gc.set_threshold(200_000, 50, 100)

# ledgers of private runs are in the user's data directory
LEDGERS = tempfile.TemporaryDirectory()
os.environ["XDG_DATA_HOME"] = LEDGERS.name

# Many tests compile the same programs, in workers and in processes that they start. All
# of them share one cache, which is not the user's. JAX locks it only if it has a size.
PROGRAMS = tempfile.TemporaryDirectory()
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers have that of the main process
    os.environ["JAX_COMPILATION_CACHE_DIR"] = PROGRAMS.name
os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2**33)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_compilation_cache_max_size", 2**33)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


ALL_SLOW = re.compile(r"^pytestmark = \[?pytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path, config):
    """The default run does not even import files of which all tests are slow."""
    if config.option.markexpr == "not slow" and collection_path.suffix == ".py":
        return True if ALL_SLOW.search(collection_path.read_text()) else None
    return None


def pytest_configure(config):
    """Without the extra dev, slow tests that need it skip; but CI must run them all."""
    if os.environ.get("CI") == "true" and config.option.markexpr == "slow":
        os.environ.setdefault("INSTALLED_EXTRA", "dev")


@pytest.fixture(autouse=True, scope="module")
def _releases_programs():
    """A module's compiled programs are most of what a worker's memory would grow by."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(autouse=True)
def _closes_figures():
    """A figure that one test leaves open would be among the figures of another."""
    yield
    if plots := sys.modules.get("matplotlib.pyplot"):
        plots.close("all")

"""Strictness for the whole suite; the settings apply before any test imports JAX."""

import os

# Most of the time of these tests is compilation, of programs that run for moments. Of
# XLA's passes all run; the code generator alone optimizes less.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
)

import jax

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Not jax_numpy_dtype_promotion="strict": optax's own Adam and schedules break it. The
# battery checks instead that a round leaves every dtype of the state as it was.

# The command keeps compiled programs in the user's cache: here they would count as
# compiled, and nothing of a test belongs into anyone's home.
jax.config.update("jax_enable_compilation_cache", False)

"""Compiled programs: how they are traced, and kept on disk between processes."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import jax
import platformdirs

P = ParamSpec("P")
T = TypeVar("T")


def promoting(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: numbers of different types may meet in what the function traces.

    Rules of optax, such as Adam, need it where `jax_numpy_dtype_promotion` is "strict".
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    return run


_LEAST, _DEFAULT = "jax_persistent_cache_min_compile_time_secs", 1.0


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
    """
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

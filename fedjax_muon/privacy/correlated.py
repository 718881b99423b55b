"""Correlated noise between steps: matrix-factorization mechanisms, as DP-FTRL.

With C a lower-triangular Toeplitz matrix, independent noise z_0, z_1, ... and clipped
gradients d_t, the releases are d_t + w_t with w = C^-1 z. The negative correlation of
the noise cancels in the sum of all gradients, which is what moves the parameters. The
releases are a function of C d + z, a Gaussian mechanism whose sensitivity is the norm
of C applied to the steps in which a record takes part (Kairouz et al. 2021,
arXiv:2103.00039; Denisov et al. 2022, arXiv:2202.08312).

    strategy = banded(steps=1001, bands=16)
    strategy = buffered(steps=1001, separation=325)

`banded` matrices allow sampling to amplify privacy: a record that is drawn at most once
in `bands` steps has parts of the releases that do not overlap (Choquette-Choo et al.
2023, arXiv:2306.08153). `buffered` ones need memory for a few vectors only, for any
number of steps (Dvijotham et al. 2024, arXiv:2404.16706). The entries of C are found by
jax-privacy, an optional package.
"""

import dataclasses
import functools
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import check_count, check_range, tree
from fedjax_muon.versions import install_command


@dataclasses.dataclass(frozen=True)
class Banded:
    """C with as many bands as there are coefficients."""

    coefficients: tuple[float, ...]  # c_0, c_1, ..., of the first column of C

    def __post_init__(self) -> None:
        if not self.coefficients:
            raise ValueError("coefficients must have at least one number, got none")
        check_range("c_0", self.coefficients[0], open_low=True, schedules=False)
        for coefficient in self.coefficients:
            check_range("coefficients", coefficient, schedules=False)

    def __str__(self) -> str:
        return f"{self.bands} bands"

    @property
    def bands(self) -> int:
        """Number of bands."""
        return len(self.coefficients)

    def column(self, steps: int) -> np.ndarray:
        """Returns the first column of C, float64 [steps]."""
        c = np.zeros(steps)
        c[: self.bands] = self.coefficients[:steps]
        return c

    def start(self, like: Any) -> Any:
        """Returns the memory before step 0: the last bands - 1 values of w."""
        shape = lambda x: jnp.zeros((self.bands - 1, *x.shape), x.dtype)
        return tree.map(shape, like)

    def next(self, z: Any, memory: Any) -> tuple[Any, Any]:
        """Returns the noise of a step, w_t = (z_t - sum_k c_k w_{t-k}) / c_0.

        Args:
          z: Independent noise, a pytree of arrays.
          memory: From the step before.

        Returns:
          The correlated noise, and the memory after the step.
        """
        first, *rest = self.coefficients
        if not rest:
            return tree.map(lambda z: z / first, z), memory
        past = lambda m: jnp.tensordot(jnp.asarray(rest, m.dtype), m, 1)
        w = tree.map(lambda z, m: (z - past(m)) / first, z, memory)
        shift = lambda w, m: jnp.concatenate([w[None], m[:-1]])
        return w, tree.map(shift, w, memory)


@dataclasses.dataclass(frozen=True)
class Buffered:
    """C with c_0 = 1 and c_k = sum_i scale_i decay_i^(k - 1), a few buffers."""

    decay: tuple[float, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.decay or len(self.decay) != len(self.scale):
            raise ValueError(
                "every buffer has a decay and a scale, got "
                f"{len(self.decay)} and {len(self.scale)}"
            )
        for decay, scale in zip(self.decay, self.scale, strict=True):
            check_range("decay", decay, 0, 1, schedules=False)
            check_range("scale", scale, schedules=False)

    def __str__(self) -> str:
        return f"{len(self.decay)} buffers"

    @property
    def bands(self) -> None:
        """None: all entries below the diagonal of C may be positive."""
        return

    def column(self, steps: int) -> np.ndarray:
        """Returns the first column of C, float64 [steps]."""
        powers = np.power.outer(np.asarray(self.decay), np.arange(steps - 1))
        return np.concatenate([[1.0], np.asarray(self.scale) @ powers])

    def start(self, like: Any) -> Any:
        """Returns the memory before step 0, one vector per buffer."""
        shape = lambda x: jnp.zeros((len(self.decay), *x.shape), x.dtype)
        return tree.map(shape, like)

    def next(self, z: Any, memory: Any) -> tuple[Any, Any]:
        """Returns the noise of a step, w_t = z_t - sum_i scale_i m_i.

        Args:
          z: Independent noise, a pytree of arrays.
          memory: From the step before.

        Returns:
          The correlated noise, and the memory after the step.
        """
        read = lambda m: jnp.tensordot(jnp.asarray(self.scale, m.dtype), m, 1)
        w = tree.map(lambda z, m: z - read(m), z, memory)
        fade = lambda m: jnp.einsum("i,i...->i...", jnp.asarray(self.decay, m.dtype), m)
        return w, tree.map(lambda w, m: fade(m) + w[None], w, memory)


Strategy = Banded | Buffered


@functools.lru_cache(maxsize=32)  # takes seconds
def banded(steps: int, bands: int) -> Banded:
    """Finds the banded matrix of least noise in the sums of gradients.

    The mean over all steps of the squared error of the sum of gradients up to a step is
    minimized, for a record that takes part in one step. The columns of C have norm 1.

    Args:
      steps: Number of steps, step 0 included.
      bands: Number of bands; 1 is independent noise.

    Returns:
      The strategy.

    Raises:
      ImportError: If jax-privacy is not installed.
    """
    check_count("steps", steps)
    check_count("bands", bands, high=steps, limit="the steps")
    if bands == 1:
        return Banded((1.0,))
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        found = library().toeplitz.optimize_banded_toeplitz(n=steps, bands=bands)
    c = np.maximum(np.asarray(found, np.float64), 0)
    return Banded(tuple(map(float, c / np.linalg.norm(c))))


@functools.lru_cache(maxsize=32)  # takes up to a minute
def buffered(steps: int, separation: int, buffers: int = 2) -> Buffered:
    """Finds the buffered matrix of least noise in the sums of gradients.

    The mean over all steps of the squared error is minimized, for a record that takes
    part once in `separation` steps.

    Args:
      steps: Number of steps, step 0 included.
      separation: Smallest distance of two steps in which a record takes part.

    Returns:
      The strategy.

    Raises:
      ImportError: If jax-privacy is not installed.
    """
    check_count("steps", steps)
    check_count("separation", separation)
    check_count("buffers", buffers)
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        found = library().buffered_toeplitz.optimize(
            n=steps,
            min_sep=min(separation, steps),
            max_participations=None,
            error="mean",
            min_buffers=buffers,
            max_buffers=buffers,
        )
        decay, scale = np.asarray(found.buf_decay), np.asarray(found.output_scale)
    return Buffered(tuple(map(float, decay)), tuple(map(float, scale)))


def prefix_errors(strategy: Strategy, steps: int) -> np.ndarray:
    """Returns the standard deviation of the noise in all sums of releases.

    Args:
      strategy: How the noise is correlated.

    Returns:
      The standard deviation of w_0 + ... + w_t for z of standard deviation 1, [steps].
    """
    inverse = np.zeros(steps)  # first column of C^-1
    c = strategy.column(steps)
    for t in range(steps):
        inverse[t] = ((t == 0) - c[1 : t + 1] @ inverse[t - 1 :: -1][:t]) / c[0]
    return np.sqrt(np.cumsum(np.cumsum(inverse) ** 2))


def library() -> ModuleType:
    """Returns `jax_privacy.matrix_factorization`; raises `ImportError` without it."""
    try:
        from jax_privacy import matrix_factorization
    except ImportError as error:
        raise ImportError(
            f"correlated noise needs jax-privacy: {install_command('jax-privacy')}"
        ) from error
    return matrix_factorization

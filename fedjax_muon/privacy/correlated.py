"""Correlated noise between steps: matrix-factorization mechanisms, as DP-FTRL.

With C a lower-triangular Toeplitz matrix, independent noise z_0, z_1, ... and clipped
gradients d_t, the releases are d_t + w_t with w = C^-1 z. The negative correlation of
the noise cancels in the sum of all gradients, which is what moves the parameters. The
releases are a function of C d + z, a Gaussian mechanism whose sensitivity is the norm
of C applied to the steps in which a record takes part (Kairouz et al. 2021,
arXiv:2103.00039; Denisov et al. 2022, arXiv:2202.08312).

    strategy = banded(steps=1001, bands=16)
    strategy = buffered_toeplitz(steps=1001, separation=325)

`banded` matrices allow sampling to amplify privacy: a record that is drawn at most once
in `bands` steps has parts of the releases that do not overlap. Those of
`buffered_toeplitz` need memory for a few vectors only, for any number of steps. The
entries of C are found by jax-privacy, an optional package.

More bands cancel more noise in the sum of gradients, but a record may be drawn only
once in so many steps, and sampling then amplifies privacy less. `best_banded` chooses
their number, which depends on the sampling rate, the number of steps and epsilon.
"""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import check_count, check_range, tree
from fedjax_muon.privacy.accounting import Pld, calibrate_noise
from fedjax_muon.privacy.sampling import Poisson
from fedjax_muon.versions import optional


@dataclasses.dataclass(frozen=True)
class Banded:
    """C with as many bands as there are coefficients.

    Source: Choquette-Choo et al. 2023, arXiv:2306.08153.
    """

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
        """Returns w_t = (z_t - sum_k c_k w_{t-k}) / c_0, and the next memory."""
        first, *rest = self.coefficients
        if not rest:
            return tree.map(lambda z: z / first, z), memory
        past = lambda m: jnp.tensordot(jnp.asarray(rest, m.dtype), m, 1)
        w = tree.map(lambda z, m: (z - past(m)) / first, z, memory)
        shift = lambda w, m: jnp.concatenate([w[None], m[:-1]])
        return w, tree.map(shift, w, memory)


@dataclasses.dataclass(frozen=True)
class BufferedToeplitz:
    """C with c_0 = 1 and c_k = sum_i scale_i decay_i^(k - 1), a few buffers.

    Source: Dvijotham et al. 2024, arXiv:2404.16706.
    """

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
        """Returns w_t = z_t - sum_i scale_i m_i, and the next memory."""
        read = lambda m: jnp.tensordot(jnp.asarray(self.scale, m.dtype), m, 1)
        w = tree.map(lambda z, m: z - read(m), z, memory)
        fade = lambda m: jnp.einsum("i,i...->i...", jnp.asarray(self.decay, m.dtype), m)
        return w, tree.map(lambda w, m: fade(m) + w[None], w, memory)


Strategy = Banded | BufferedToeplitz
ROUGH = Pld(1e-3)  # the chosen strategy is accounted for exactly, when it is used


@functools.lru_cache(maxsize=32)  # takes seconds
def banded(steps: int, bands: int) -> Banded:
    """Finds the banded matrix of least noise in the sums of gradients.

    The mean over all steps of the squared error of the sum of gradients up to a step is
    minimized, for a record that takes part in one step. The columns of C have norm 1.
    """
    check_count("steps", steps)
    check_count("bands", bands, high=steps, limit="the number of steps")
    if bands == 1:
        return Banded((1.0,))
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        best = _library().toeplitz.optimize_banded_toeplitz(n=steps, bands=bands)
    c = np.maximum(np.asarray(best, np.float64), 0)
    return Banded(tuple(map(float, c / np.linalg.norm(c))))


@functools.lru_cache(maxsize=32)  # takes up to a minute
def buffered_toeplitz(
    steps: int, separation: int, buffers: int = 2
) -> BufferedToeplitz:
    """Finds the buffered matrix of least noise in the sums of gradients.

    The mean over all steps of the squared error is minimized, for a record that takes
    part once in `separation` steps.

    Args:
      separation: Smallest distance of two steps in which a record takes part.
    """
    check_count("steps", steps)
    check_count("separation", separation)
    check_count("buffers", buffers)
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        best = _library().buffered_toeplitz.optimize(
            n=steps,
            min_sep=min(separation, steps),
            max_participations=None,
            error="mean",
            min_buffers=buffers,
            max_buffers=buffers,
        )
        decay, scale = np.asarray(best.buf_decay), np.asarray(best.output_scale)
    return BufferedToeplitz(tuple(map(float, decay)), tuple(map(float, scale)))


def prefix_errors(strategy: Strategy, steps: int) -> np.ndarray:
    """Returns the standard deviations of w_0 + ... + w_t for z of 1, [steps]."""
    inverse = np.zeros(steps)  # first column of C^-1
    c = strategy.column(steps)
    for t in range(steps):
        inverse[t] = ((t == 0) - c[1 : t + 1] @ inverse[t - 1 :: -1][:t]) / c[0]
    return np.sqrt(np.cumsum(np.cumsum(inverse) ** 2))


@functools.lru_cache(maxsize=64)  # takes seconds
def best_banded(
    examples: int, batch: int, steps: int, *, epsilon: float, delta: float
) -> Banded:
    """Finds the banded matrix of least noise at an epsilon.

    Numbers of bands are powers of two, up to the first that has more noise in the sums
    of gradients, in the mean over all steps. With one band, noise is independent, as in
    DP-SGD.
    """
    Poisson(examples, batch)  # raises if the numbers do not fit
    best, least = Banded((1.0,)), np.inf
    for bands in itertools.takewhile(
        lambda bands: bands <= min(steps, examples // batch),
        (2**i for i in itertools.count()),
    ):
        strategy = banded(steps, bands)
        noise = _noise(examples // bands, batch, -(-steps // bands), epsilon, delta)
        error = noise * np.sqrt(np.mean(prefix_errors(strategy, steps) ** 2))
        if error >= least:
            break
        best, least = strategy, error
    return best


def _noise(records: int, batch: int, turns: int, epsilon: float, delta: float) -> float:
    spent = lambda z: ROUGH.epsilon(Poisson(records, batch), z, turns, delta)
    return calibrate_noise(spent, epsilon, tolerance=1e-3)


def _library() -> Any:
    module = "jax_privacy.matrix_factorization"
    return optional("jax-privacy", "correlated noise", module=module)

"""What an audit sees of an agent or a client if noise is correlated between steps.

Multiplied by C, the noise is independent. If sampling amplifies privacy, the parts of a
record in the releases do not overlap, and one number for each of its turns is
sufficient: the product with a column of C.
"""

import numpy as np
from scipy import signal

from fedjax_muon.privacy.correlated import Strategy
from fedjax_muon.privacy.guarantees import PrivacySpec
from fedjax_muon.privacy.releases import Correlated
from fedjax_muon.privacy.sampling import Poisson


def whitened(estimates: np.ndarray, spec: PrivacySpec) -> np.ndarray:
    """Multiplies [N, T, m, d] by C, in claimed standard deviations of the noise."""
    noise, sensitivity = _of(spec)
    return product(noise.strategy, estimates) / (noise.multiplier * sensitivity)


def product(strategy: Strategy, values: np.ndarray) -> np.ndarray:
    """Multiplies [N, T, ...] by C along the steps."""
    steps = values.shape[1]
    column = strategy.column(steps).reshape((1, steps) + (1,) * (values.ndim - 2))
    return signal.fftconvolve(values, column, axes=1)[:, :steps]


def seen(white: np.ndarray, spec: PrivacySpec) -> np.ndarray:
    """Returns what is sufficient for the canary, the first example of its owner.

    Args:
      white: From `whitened`, in the direction of the canary, [N, T].

    Returns:
      One number for each turn of the canary's group; without groups, as it is.
    """
    columns = _columns(spec, white.shape[1])
    return white if columns is None else white @ columns.T


def pattern(spec: PrivacySpec, joins: np.ndarray) -> np.ndarray:
    """Returns what the canary adds to `seen`, in claimed standard deviations.

    Args:
      joins: Sign of its gradient where it takes part and 0 elsewhere, [T].
    """
    noise, _ = _of(spec)
    steps = len(joins)
    column = noise.strategy.column(steps)
    if not isinstance(spec.sampling, Poisson):
        return np.convolve(joins, column)[:steps] / noise.multiplier
    turns = np.arange(0, steps, spec.sampling.cycle)
    norms = np.array([np.linalg.norm(column[: steps - t]) for t in turns])
    return joins[turns] * norms / noise.multiplier


def _columns(spec: PrivacySpec, steps: int) -> np.ndarray | None:
    """Columns of C for the turns of the first group, of norm 1, [turns, T]."""
    if not isinstance(spec.sampling, Poisson):
        return None
    noise, _ = _of(spec)
    column = noise.strategy.column(steps)
    at = np.arange(0, steps, spec.sampling.cycle)
    columns = np.array([np.concatenate([np.zeros(t), column[: steps - t]]) for t in at])
    return columns / np.linalg.norm(columns, axis=1, keepdims=True)


def _of(spec: PrivacySpec) -> tuple[Correlated, float]:
    (release,) = spec.releases.values()
    assert isinstance(release.noise, Correlated)  # the caller has checked it
    return release.noise, release.clip.sensitivity(release.beta, spec.sampling.batch)

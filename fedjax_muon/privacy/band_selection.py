"""Choice of the number of bands of correlated noise, under sampling.

More bands cancel more noise in the sum of gradients, but a record may be drawn only
once in so many steps, and sampling then amplifies privacy less. The best number depends
on the sampling rate, the number of steps and epsilon (Choquette-Choo et al. 2023,
arXiv:2306.08153, section 4).
"""

import functools
import itertools

import numpy as np

from fedjax_muon.privacy.accounting import Pld
from fedjax_muon.privacy.calibration import calibrate_noise
from fedjax_muon.privacy.correlated import Banded, banded, prefix_errors
from fedjax_muon.privacy.sampling import Poisson

ROUGH = Pld(1e-3)  # the chosen strategy is accounted for exactly, when it is used


@functools.lru_cache(maxsize=64)  # takes seconds
def best_banded(
    examples: int, batch: int, steps: int, *, epsilon: float, delta: float
) -> Banded:
    """Finds the banded matrix of least noise at an epsilon.

    Numbers of bands are powers of two, up to the first that has more noise in the sums
    of gradients, in the mean over all steps. With one band, noise is independent, as in
    DP-SGD.

    Args:
      examples: Number of records; of the agent that has fewest.
      batch: Expected number of records in a batch.
      steps: Number of steps, step 0 included.
      epsilon: Of all steps together, positive.
      delta: Below 1 / examples.

    Returns:
      The strategy.

    Raises:
      ImportError: If dp-accounting or jax-privacy is not installed.
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

"""Scores of reconstructed images in [0, 1], [B, height, width, channels].

PSNR and SSIM are those of scikit-image, an optional package; without it, `ImportError`
says how to install it. An attack finds the images of a batch in no particular order, so
that they are matched first. Every score should be compared with that of `mean_guess`,
the baseline that uses no release.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

from experiments.inversion.releases import Reconstruction
from fedjax_muon.versions import optional

CEILING = 100.0  # dB: 1e-5 of a pixel's range; exact images have infinity


class Score(NamedTuple):
    """Means over a batch."""

    psnr: float  # in dB, at most CEILING for every image
    ssim: float  # at most 1
    labels: float  # share of correct labels


def score(x: ArrayLike, y: ArrayLike, restored: Reconstruction) -> Score:
    """Scores a reconstruction against the true examples.

    Reconstructed images are clipped to [0, 1], as any attacker would do, and matched to
    the true ones together with their labels.

    Args:
      x: True images in [0, 1], [B, height, width, channels].
      y: True classes, [B].
      restored: Result of an attack.

    Returns:
      Means over the batch.

    Raises:
      ImportError: If scikit-image is not installed.
    """
    x, guess = _wide(x), np.clip(_wide(restored.x), 0, 1)
    _check_images(x, guess)
    y = np.asarray(y)
    if y.shape != (len(x),) or len(restored.labels) != len(x):
        raise ValueError(
            f"labels must be [{len(x)}] and restored ones [{len(x)}, classes], got "
            f"{y.shape} and {np.shape(restored.labels)}"
        )
    order = matched(x, guess)
    pairs = list(zip(x, guess[order], strict=True))
    classes = np.argmax(restored.labels, axis=1)[order]
    return Score(
        psnr=float(np.mean([psnr(a, b) for a, b in pairs])),
        ssim=float(np.mean([ssim(a, b) for a, b in pairs])),
        labels=float(np.mean(classes == y)),
    )


def mean_guess(
    x_train: ArrayLike, y_train: ArrayLike, classes: int, size: int = 1
) -> Reconstruction:
    """Returns the baseline that uses no release: the mean image of the training set.

    Args:
      x_train: Training images, [n, ...].
      y_train: Training classes, [n].
      size: Number of examples, which all share the mean image.

    Returns:
      The mean image and the shares of the classes, repeated `size` times.
    """
    image = np.mean(np.asarray(x_train), axis=0, dtype=np.float64)
    labels = np.asarray(y_train)
    shares = np.bincount(labels, minlength=classes) / len(labels)
    return Reconstruction(
        x=np.broadcast_to(image, (size, *image.shape)),
        labels=np.broadcast_to(shares, (size, classes)),
    )


def matched(x: ArrayLike, guess: ArrayLike) -> np.ndarray:
    """Matches reconstructed images to true ones, with the least total squared error.

    Args:
      x: True images, [B, ...].
      guess: Reconstructed images, [B, ...].

    Returns:
      For each true image, the index of its reconstruction, [B].
    """
    _check_images(x, guess)
    a, b = (_wide(images).reshape(len(_wide(images)), -1) for images in (x, guess))
    errors = ((a[:, None] - b[None]) ** 2).sum(2)
    return linear_sum_assignment(errors)[1]


def psnr(image: ArrayLike, guess: ArrayLike) -> float:
    """Returns the peak signal-to-noise ratio, 10 log10(1 / mean squared error).

    Args:
      image: True image in [0, 1], any shape.
      guess: Reconstructed image, same shape.

    Returns:
      The ratio in dB, at most CEILING.

    Raises:
      ImportError: If scikit-image is not installed.
    """
    image, guess = _wide(image), _wide(guess)
    if np.mean((image - guess) ** 2) <= 10 ** (-CEILING / 10):
        return CEILING
    ratio = _metrics().peak_signal_noise_ratio(image, guess, data_range=1.0)
    return float(ratio)


def ssim(image: ArrayLike, guess: ArrayLike) -> float:
    """Returns the structural similarity of two images, with 7 x 7 windows.

    Args:
      image: True image in [0, 1], [height, width, channels].
      guess: Reconstructed image, same shape.

    Returns:
      The similarity, at most 1.

    Raises:
      ImportError: If scikit-image is not installed.
    """
    image, guess = _wide(image), _wide(guess)
    if image.ndim != 3 or min(image.shape[:2]) < 7:
        raise ValueError(
            "SSIM needs [height, width, channels] of at least 7 x 7 pixels, got "
            f"{image.shape}"
        )
    metrics = _metrics()
    return float(
        metrics.structural_similarity(image, guess, data_range=1.0, channel_axis=-1)
    )


def _wide(a: ArrayLike) -> np.ndarray:
    return np.asarray(a, np.float64)


def _check_images(x: ArrayLike, guess: ArrayLike) -> None:
    if np.shape(x) != np.shape(guess) or np.ndim(x) < 2:
        raise ValueError(
            "images and restored ones must have one shape [B, ...], got "
            f"{np.shape(x)} and {np.shape(guess)}"
        )


def _metrics() -> Any:
    return optional("scikit-image", "scoring images", module="skimage.metrics")

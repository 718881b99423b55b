"""How near an attack came: images in [0, 1], [B, height, width, channels].

PSNR and SSIM are those of scikit-image (optional; `ImportError` says how to install
it). An attack that finds an example's image finds it in no order, so the images of a
batch are matched first. Beside every score belongs that of `mean_guess`, which looks at
no release at all.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedjax_muon.attacks.inversion.releases import Restored
from fedjax_muon.versions import install_command

CEILING = 100.0  # dB: 1e-5 of a pixel's range; exact images have infinity


class Score(NamedTuple):
    """Means over a batch."""

    psnr: float  # dB, every image's at most CEILING
    ssim: float  # at most 1
    labels: float  # share of labels that are right


def score(x, y, restored: Restored) -> Score:
    """The scores of `restored` against images x in [0, 1] and integer labels y [B].

    Restored images are cut to [0, 1], as any attacker would, matched to x, and labels
    go with their images. Raises `ValueError` for arrays that do not agree.
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


def mean_guess(x_train, y_train, classes: int, size: int = 1) -> Restored:
    """The baseline without any release: the training set's mean image and the shares
    of its classes, `size` times."""
    image = np.mean(x_train, axis=0, dtype=np.float64)
    shares = np.bincount(y_train, minlength=classes) / len(y_train)
    return Restored(
        x=np.broadcast_to(image, (size, *image.shape)),
        labels=np.broadcast_to(shares, (size, classes)),
    )


def matched(x, guess) -> np.ndarray:
    """Which guess [B] belongs to each image, with the least squared error in all."""
    _check_images(x, guess)
    a, b = (_wide(images).reshape(len(images), -1) for images in (x, guess))
    errors = ((a[:, None] - b[None]) ** 2).sum(2)
    return linear_sum_assignment(errors)[1]


def psnr(image, guess) -> float:
    """10 log10(1 / mean squared error) of images in [0, 1], in dB, at most CEILING."""
    image, guess = _wide(image), _wide(guess)
    if np.mean((image - guess) ** 2) <= 10 ** (-CEILING / 10):
        return CEILING
    ratio = _metrics().peak_signal_noise_ratio(image, guess, data_range=1.0)
    return float(ratio)


def ssim(image, guess) -> float:
    """Structural similarity of [height, width, channels] in [0, 1], window 7 x 7."""
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


def _wide(a) -> np.ndarray:
    return np.asarray(a, np.float64)


def _check_images(x, guess) -> None:
    if np.shape(x) != np.shape(guess) or np.ndim(x) < 2:
        raise ValueError(
            "images and restored ones must have one shape [B, ...], got "
            f"{np.shape(x)} and {np.shape(guess)}"
        )


def _metrics() -> Any:
    try:
        from skimage import metrics
    except ImportError as error:
        raise ImportError(
            f"scores of images need scikit-image: {install_command('scikit-image')}"
        ) from error
    return metrics

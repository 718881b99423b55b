"""The mean and the standard deviation of the channels of a training set."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Standardization(NamedTuple):
    """How the inputs of a data set were standardized.

    A model that was trained on standardized inputs takes new ones in the same form.
    """

    mean: np.ndarray  # float32 [channels]
    std: np.ndarray  # float32 [channels], positive

    def apply(self, x: ArrayLike) -> np.ndarray:
        """Standardizes inputs by the statistics of the training set.

        Args:
          x: Numbers [..., channels], as they were before the data set was standardized.

        Returns:
          (x - mean) / std in float32, of the shape of `x`.
        """
        x = np.asarray(x)
        if x.dtype.kind not in "iufb" or x.shape[-1:] != self.mean.shape:
            raise ValueError(
                f"x must be numbers [..., {len(self.mean)}], got "
                f"{x.dtype}{list(x.shape)}"
            )
        # Integers beyond 8 bits would become float64.
        if (x.dtype.kind in "iu" and x.dtype.itemsize > 1) or x.dtype == np.float64:
            x = x.astype(np.float32)
        standardized = x - self.mean
        standardized /= self.std
        return standardized


def check_standardization(
    saved: Standardization | None, loaded: Standardization | None
) -> None:
    """Compares the standardization of a saved model with that of a data set.

    Args:
      saved: Standardization of the data set that the model was trained on.
      loaded: Standardization of the data set that the model is to be used with.
    """
    difference = _difference(saved, loaded)
    if difference:
        raise ValueError(
            f"other normalization at load: {difference}; apply the standardization "
            "that was saved with the model"
        )


def _difference(
    saved: Standardization | None, loaded: Standardization | None
) -> str | None:
    if saved is None or loaded is None:
        if saved is loaded:
            return None
        one, other = ("not ", "") if saved is None else ("", "not ")
        return (
            f"the model was {one}trained on standardized inputs, and the data set is "
            f"{other}standardized"
        )
    if saved.mean.shape != loaded.mean.shape:
        return (
            f"the model was trained on {len(saved.mean)} channels, and the data set "
            f"has {len(loaded.mean)}"
        )
    for name, ours, theirs in zip(saved._fields, saved, loaded, strict=True):
        wrong = ~np.isclose(ours, theirs, rtol=1e-5, atol=1e-6 * float(saved.std.max()))
        if wrong.any():
            i = int(np.argmax(wrong))
            return (
                f"the {name} of channel {i} is {ours[i]:g} in the model and "
                f"{theirs[i]:g} in the data set"
            )
    return None

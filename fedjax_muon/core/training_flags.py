"""Arguments by which models are told whether they train, as Flax names them."""

import inspect
from typing import Any

ON = ("train", "training", "is_training")
OFF = ("deterministic", "use_running_average")


def flags_of(model: Any, *, training: bool) -> dict[str, bool]:
    """The arguments of a call of a model of flax.linen or flax.nnx that say whether it
    trains; none if it takes none.

    Example:
      >>> import flax.linen as nn
      >>> flags_of(nn.Dropout(0.5), training=True)
      {'deterministic': False}
    """
    given = inspect.signature(type(model).__call__).parameters
    values = dict.fromkeys(ON, training) | dict.fromkeys(OFF, not training)
    return {name: value for name, value in values.items() if name in given}

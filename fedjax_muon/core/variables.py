"""Variables of models with BatchNorm, whose running statistics are not trained."""

from typing import Any, NamedTuple

import jax


class Variables(NamedTuple):
    """Flax's collections; `model.apply(variables._asdict(), x)` takes them. As a task's
    gradient, that of `params`, and the statistics after the pass."""

    params: Any
    batch_stats: Any  # the running means and variances


def refuse_statistics(params: Any, what: str) -> None:
    """Raises `ValueError` if there are running statistics, which something lacks."""
    known = lambda node: isinstance(node, Variables)
    if any(map(known, jax.tree.leaves(params, is_leaf=known))):
        raise ValueError(
            f"running statistics of BatchNorm do not go with {what}; use GroupNorm or "
            "LayerNorm"
        )

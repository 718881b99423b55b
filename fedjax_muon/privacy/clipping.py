"""Clips: how far one record can move a stream of gradients or messages.

An agent estimates its gradient by g_t = c g_{t-1} + d_t, c = 1 - beta (STORM; with beta
= 1, g_t is the plain gradient). A `Clip` bounds the share of one example in d_t, for
which it takes both of its gradients, at x_t and at x_{t-1}:

    Each(C)        clip_C(new) - c clip_C(old)               S = (2 - beta) C / b
    Difference(C)  clip_C(new - c old)                       S = C / b
    Split(C, D)    beta clip_C(new) + c clip_D(new - old)    S = (beta C + c D) / b

d_t is the sum of all shares over b, the *expected* batch size, since the actual size
would reveal how many examples there were. S is the sensitivity of d_t to one added or
removed example; replacing an example counts twice. At t = 0 it is that of beta = 1. The
mechanism clips, and scales its noise, by the same object that accounting reads.
`Each` is STORM on clipped gradients (Xian et al. 2021, NeurIPS), clipped differences
are those of DIFF2 (Murata and Suzuki 2023, arXiv:2302.03884), and `Split` combines
both: its second clip bounds how much the gradient of an example changes in one step.

Norms are of all variables together; a mechanism also takes a `Pair` of norms of x and
y. Norms may change in every step, by public values, only if the noise scales with them,
as `releases.Inside` does. Gradients that are not finite count as zero.
"""

import dataclasses
import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from fedjax_muon.core import check_range, tree
from fedjax_muon.core.pair import Pair

# of all variables together, or of each of them
ClipNorm = float | jax.Array | Pair


def clipped(clip_norm: Any, g: Any) -> Any:
    """Scales a pytree down to a norm of at most `clip_norm`.

    A part that is short enough keeps every bit. A part with an entry that
    is not finite becomes zero. The result is exact to rounding for numbers of any size.

    Args:
      clip_norm: Largest L2 norm of `g` as a whole; or a prefix of its tree, with one
        norm for each field, which is then clipped separately.
      g: Gradient or message, a pytree of arrays.
    """

    def one(norm_limit: Any, part: Any) -> Any:
        leaves = jax.tree.leaves(part)
        dtype = jnp.result_type(jnp.float32, *leaves)
        largest = jnp.stack([jnp.max(jnp.abs(x)).astype(dtype) for x in leaves]).max()
        # A power of two, by which squares stay in range. Division by the largest entry
        # would not work: it compiles to a product with its reciprocal, which may be
        # subnormal, so that huge gradients would become zero and appear short.
        far = jnp.finfo(dtype).maxexp * 5 // 16
        up, down = 2.0 ** (2 * far), 2.0 ** (-2 * far)
        small, large = largest < 2.0**-far, largest > 2.0**far
        scale = jnp.where(large, down, jnp.where(small, up, 1)).astype(dtype)
        unit = jax.tree.map(lambda x: scale * x, part)
        norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(unit)))
        long = norm > scale * norm_limit
        safe = jnp.where(long, norm, 1)
        cut = jax.tree.map(
            lambda x, u: (norm_limit * (u / safe)).astype(x.dtype), part, unit
        )
        finite = tree.all_finite(part)
        return tree.where(finite, tree.where(long, cut, part), tree.zeros_like(part))

    return jax.tree.map(one, clip_norm, g)


class Clip(Protocol):
    """How one example's share of d is bounded."""

    def share(self, new: Any, old: Any, beta: Any) -> Any:
        """The share; both gradients and `beta` have all leaves of the parameters."""

    def sensitivity(self, beta: Any, batch: Any) -> Any:
        """S, one value for every norm; `beta` is a number or has all leaves."""

    def full_batch_change(self, beta: float, batch: int) -> float:
        """Bound of a change in every step t >= 1, if the record is in every batch."""


@dataclasses.dataclass(frozen=True)
class Each:
    """Clips both gradients: clip(g(x_t)) - c clip(g(x_{t-1})).

    The change reaches (2 - beta) clip_norm / batch when the gradient flips. A record in
    consecutive batches changes the output by less than the sum of its changes, since
    the sum telescopes.
    """

    clip_norm: ClipNorm  # of each gradient

    def __post_init__(self) -> None:
        _check_norm("clip_norm", self.clip_norm)

    def share(self, new: Any, old: Any, beta: Any) -> Any:
        faded = tree.map(lambda b, x: (1 - b) * x, beta, clipped(self.clip_norm, old))
        return tree.sub(clipped(self.clip_norm, new), faded)

    def sensitivity(self, beta: Any, batch: Any) -> Any:
        least, _ = _extremes(self.clip_norm, beta)
        return jax.tree.map(lambda c, b: (2 - b) * c / batch, self.clip_norm, least)

    def full_batch_change(self, beta: float, batch: int) -> float:
        return beta * self.sensitivity(1.0, batch)


@dataclasses.dataclass(frozen=True)
class Difference:
    """Clips the innovation g(x_t) - c g(x_{t-1}) of every example."""

    clip_norm: ClipNorm  # of the innovation

    def __post_init__(self) -> None:
        _check_norm("clip_norm", self.clip_norm)

    def share(self, new: Any, old: Any, beta: Any) -> Any:
        innovation = tree.map(lambda n, o, b: n - (1 - b) * o, new, old, beta)
        return clipped(self.clip_norm, innovation)

    def sensitivity(self, beta: Any, batch: Any) -> Any:
        del beta
        return jax.tree.map(lambda c: c / batch, self.clip_norm)

    full_batch_change = sensitivity


@dataclasses.dataclass(frozen=True)
class Split:
    """Clips gradient and change: beta clip(g(x_t)) + c clip(g(x_t) - g(x_{t-1})).

    If norms are numbers and x and y have different beta, the sensitivity is an upper
    bound.
    """

    clip_norm: ClipNorm  # of the gradient
    change_clip_norm: ClipNorm  # of its change in one step, of the same kind

    def __post_init__(self) -> None:
        _check_norm("clip_norm", self.clip_norm)
        _check_norm("change_clip_norm", self.change_clip_norm)
        if isinstance(self.clip_norm, Pair) != isinstance(self.change_clip_norm, Pair):
            raise ValueError(
                "clip_norm and change_clip_norm must be both numbers or both pairs, "
                f"got {self.clip_norm!r} and {self.change_clip_norm!r}"
            )

    def share(self, new: Any, old: Any, beta: Any) -> Any:
        gradient = clipped(self.clip_norm, new)
        change = clipped(self.change_clip_norm, tree.sub(new, old))
        return tree.map(lambda b, n, m: b * n + (1 - b) * m, beta, gradient, change)

    def sensitivity(self, beta: Any, batch: Any) -> Any:
        extremes = _extremes(self.clip_norm, beta)
        bound = lambda c, d, least, most: (most * c + (1 - least) * d) / batch
        return jax.tree.map(bound, self.clip_norm, self.change_clip_norm, *extremes)

    full_batch_change = sensitivity


def _extremes(norms: Any, beta: Any) -> tuple[Any, Any]:
    """The smallest and the largest beta under every norm; beta may be one number."""
    if jax.tree_util.all_leaves([beta]):
        beta = jax.tree.map(lambda _: beta, norms)
    least = lambda _, part: functools.reduce(jnp.minimum, jax.tree.leaves(part))
    most = lambda _, part: functools.reduce(jnp.maximum, jax.tree.leaves(part))
    return jax.tree.map(least, norms, beta), jax.tree.map(most, norms, beta)


def _check_norm(name: str, norm: ClipNorm) -> None:
    check_range(name, norm, open_low=True, schedules=False)

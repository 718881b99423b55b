"""Adaptive clipping: a clip norm that follows a quantile of the messages' norms.

Andrew, Thakkar, McMahan and Ramaswamy 2021, arXiv:1905.03871, Algorithm 1. In round t,
the server broadcasts a clip norm C. It receives from every client i of the cohort

    u_i = m_i min(1, C / |m_i|) / C    and    h_i = [|m_i| <= C] - 1/2,

for the message m_i, and updates with the expected cohort S

    mean = C (sum_i u_i + z_sum N(0, I)) / S
    b = (sum_i h_i + sigma_b N(0, 1)) / S + 1/2    (a noisy share of short messages)
    C <- C exp(-lr (b - quantile)).

One client changes the sum of u by at most 1 and the sum of h by at most 1/2. So both
together have the noise multiplier z if z_sum = (z^-2 - (2 sigma_b)^-2)^(-1/2).
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import Algorithm, check_range, tree
from fedjax_muon.privacy.clipping import clipped

# Bounds of the clip norm. Without them it would leave the range of float32 after some
# hundred rounds in which all messages are zero, and never return.
SMALLEST, LARGEST = 1e-30, 1e30


class Contribution(NamedTuple):
    """What the server sums; also the standard deviations of the noise of the sums."""

    message: Any  # u_i, of a norm of at most 1
    below: Any  # h_i, 1/2 if the message was short enough, else -1/2


@dataclasses.dataclass(frozen=True)
class AdaptiveClip:
    """Clip norm of clients' messages that follows a private quantile of their norms.

    It is public: the server broadcasts it, and its noise is part of the accounting. The
    defaults are those of Andrew et al. 2021, arXiv:1905.03871.
    """

    quantile: float = 0.5  # of the norms of the messages, in [0, 1]
    initial: float = 0.1  # clip norm of round 0
    lr: float = 0.2  # of the geometric update of the norm
    # sigma_b, standard deviation of the noise of the count; a twentieth of the expected
    # cohort by default
    count_noise: float | None = None

    def __post_init__(self) -> None:
        check_range("quantile", self.quantile, 0.0, 1.0, schedules=False)
        check_range("initial", self.initial, SMALLEST, LARGEST, schedules=False)
        check_range("lr", self.lr, open_low=True, schedules=False)
        if self.count_noise is not None:
            check_range("count_noise", self.count_noise, open_low=True, schedules=False)

    def noise(self, noise_multiplier: float, cohort: int) -> Contribution:
        """Divides the noise of a round between the sum and the count."""
        if noise_multiplier == 0:
            return Contribution(0.0, 0.0)
        count = cohort / 20 if self.count_noise is None else self.count_noise
        ratio = noise_multiplier / (2 * count)
        if ratio >= 1:
            default = " (cohort / 20)" if self.count_noise is None else ""
            raise ValueError(
                f"count_noise{default} must be above {noise_multiplier / 2:g}, half of "
                f"the noise multiplier, got {count:g}; give AdaptiveClip a larger "
                "count_noise, or use a larger cohort"
            )
        return Contribution(noise_multiplier / math.sqrt(1 - ratio**2), count)

    def start(self) -> jax.Array:
        """Returns the clip norm of round 0, in float32 or the widest enabled dtype."""
        return jnp.asarray(self.initial, jnp.result_type(float))

    def following(self, clip: jax.Array, count: jax.Array, cohort: int) -> jax.Array:
        """Computes the clip norm of the next round from the noisy sum of h_i."""
        share = count / cohort + 0.5
        moved = clip * jnp.exp(-self.lr * (share - self.quantile))
        return jnp.clip(moved, SMALLEST, LARGEST).astype(clip.dtype)


def contribution(clip: jax.Array, message: Any) -> Contribution:
    """Computes what a client adds to the sums of the server.

    Its sensitivity holds for any `clip`, also for one that was changed on the way. Both
    parts are zero if the message is not finite, as if the client did not take part.
    """
    over = lambda parts: tree.map(lambda x: (x / clip).astype(x.dtype), parts)
    # First to C: a large entry over a small C would overflow. Then to 1: the bound must
    # not depend on a C that came with the message.
    unit = clipped(1.0, over(clipped(clip, message)))
    # an overflow here is above 1 as well
    half = jnp.where(optax.tree.norm(over(message)) <= 1, 0.5, -0.5)
    below = jnp.where(tree.all_finite(message), half, 0.0)
    return Contribution(unit, below.astype(clip.dtype))


def check_adaptable(algorithm: Algorithm) -> None:
    """Checks that an algorithm sends one message in a round, and none before."""
    check_one_exchange(algorithm, "AdaptiveClip", "give a number as clip_norm")


def check_one_exchange(algorithm: Algorithm, what: str, instead: str) -> None:
    """The same for anything that needs it, with what to do otherwise."""
    if algorithm.prologue or len(algorithm.exchanges) != 1:
        has = "a prologue" if algorithm.prologue else "several exchanges in a round"
        raise ValueError(
            f"{what} needs an algorithm with one exchange in a round and no prologue, "
            f"this one has {has}; {instead}"
        )

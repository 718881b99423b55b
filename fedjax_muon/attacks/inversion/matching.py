"""Inversion by search: examples whose gradient is that which was released.

`deep_leakage` is DLG (Zhu et al. 2019, arXiv:1906.08935): images x and label logits l
start from N(0, 1), and L-BFGS minimises

    |gradient(params, x, softmax(l)) - release|^2 .

`cosine_matching` (Geiping et al. 2020, arXiv:2003.14053) knows the labels and that
pixels lie in a box; it minimises, with the signs of gradients given to Adam and a rate
that falls tenfold after 3/8, 5/8 and 7/8 of the steps,

    1 - <gradient, release> / (|gradient| |release|) + variation TV(x) .

Factories compile once, for any number of releases.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import optimize

from fedjax_muon.attacks.inversion.releases import Gradient, Restored
from fedjax_muon.core import check_range

FOUND = 1e-12  # of the release's squared norm: what is left of it in float32


def deep_leakage(
    gradient: Gradient,
    shape: tuple[int, ...],
    classes: int,
    *,
    size: int = 1,
    steps: int = 300,
    restarts: int = 4,
) -> Callable[..., Restored]:
    """DLG: (params, release, key) -> the `size` examples [*shape] and their labels.

    Computes in float64. `params` are what `gradient` takes. Of at most `restarts`
    searches of `steps` iterations the nearest counts; the first that is exact is the
    last. Attacks raise `ValueError` for a release that is zero or not finite.
    """
    _check_counts(size=size, steps=steps, restarts=restarts)
    images = (size, *shape)
    pixels = int(np.prod(images))

    def parts(v):
        return v[:pixels].reshape(images), v[pixels:].reshape(size, classes)

    @jax.jit
    @jax.value_and_grad
    def distance(v, params, release):
        x, logits = parts(v)
        found = gradient(params, x, jax.nn.softmax(logits))
        return _square(jax.tree.map(jnp.subtract, found, release))

    def attack(params, release, key) -> Restored:
        enough = FOUND * _checked_norm(release) ** 2
        with jax.enable_x64(True):
            params, release = (_as_type(jnp.float64, a) for a in (params, release))
            starts = (restarts, pixels + size * classes)
            found = []
            for start in np.asarray(jax.random.normal(key, starts, jnp.float64)):
                end = optimize.minimize(
                    lambda v: tuple(map(np.asarray, distance(v, params, release))),
                    start,
                    jac=True,
                    method="L-BFGS-B",
                    # the distance itself is small: its decrease tells nothing
                    options={"maxiter": steps, "ftol": 0.0, "gtol": 0.0, "maxcor": 20},
                    callback=_stop_below(enough),
                )
                found.append(end)
                if end.fun <= enough:
                    break
            nearest = min(found, key=lambda end: end.fun)
            x, logits = parts(jnp.asarray(nearest.x))
            return Restored(np.asarray(x), np.asarray(jax.nn.softmax(logits)))

    return attack


def cosine_matching(
    gradient: Gradient,
    shape: tuple[int, int, int],
    *,
    steps: int = 1000,
    restarts: int = 2,
    rate: float = 0.1,
    variation: float = 1e-3,
    box: tuple[float, float] = (0.0, 1.0),
) -> Callable[..., Restored]:
    """Cosine and total variation: (params, release, labels, key) -> examples [*shape].

    As many examples as `labels` [B, classes] has rows. The length of the release does
    not count. `variation` weighs the mean absolute difference of neighbouring pixels.
    Of `restarts` searches that with the least objective counts. Attacks raise
    `ValueError` for a release that is zero or not finite.
    """
    _check_counts(steps=steps, restarts=restarts)
    check_range("rate", rate, open_low=True, schedules=False)
    check_range("variation", variation, schedules=False)
    if len(shape) != 3 or not box[0] < box[1]:
        raise ValueError(
            "shape must be (height, width, channels) and box (low, high), got "
            f"{shape} and {box}"
        )
    falls = {steps * k // 8: 0.1 for k in (3, 5, 7)}
    schedule = optax.piecewise_constant_schedule(rate, falls)
    optimizer = optax.chain(optax.scale_by_sign(), optax.adam(schedule))

    def objective(x, params, unit, labels):
        found = gradient(params, x, labels)
        length = jnp.sqrt(_square(found))
        cosine = _dot(found, unit) / jnp.maximum(length, jnp.finfo(x.dtype).tiny)
        return 1 - cosine + variation * total_variation(x)

    def search(start, params, unit, labels):
        def body(carry, _):
            x, state, best, least = carry
            value, slope = jax.value_and_grad(objective)(x, params, unit, labels)
            best, least = jax.tree.map(
                lambda a, b: jnp.where(value < least, a, b), (x, value), (best, least)
            )
            updates, state = optimizer.update(slope, state, x)
            x = jnp.clip(optax.apply_updates(x, updates), *box)
            return (x, state, best, least), None

        first = (start, optimizer.init(start), start, jnp.asarray(jnp.inf, start.dtype))
        (_, _, best, least), _ = jax.lax.scan(body, first, None, steps)
        return best, least

    @jax.jit
    def searches(key, params, unit, labels):
        starts = jax.random.normal(key, (restarts, len(labels), *shape))
        every = jax.vmap(search, in_axes=(0, None, None, None))
        found, least = every(starts.clip(*box), params, unit, labels)
        return found[jnp.argmin(least)]

    def attack(params, release, labels, key) -> Restored:
        norm = _checked_norm(release)
        unit = jax.tree.map(lambda a: jnp.asarray(a / norm, jnp.float32), release)
        labels = jnp.asarray(labels, jnp.float32)
        x = searches(key, _as_type(jnp.float32, params), unit, labels)
        return Restored(np.asarray(x), np.asarray(labels))

    return attack


def total_variation(x):
    """The mean absolute differences of neighbours, down plus across, of [B, H, W, C].

    Anisotropic. An axis of one pixel has no neighbours and counts as zero.
    """
    steps = [jnp.diff(x, axis=axis) for axis in (1, 2)]
    return sum(jnp.abs(step).mean() for step in steps if step.size)


def _dot(a, b):
    return sum(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum(a * b), a, b)))


def _square(a):
    return _dot(a, a)


def _as_type(dtype, a):
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), a)


def _stop_below(enough):
    def stop(intermediate_result):
        if intermediate_result.fun <= enough:
            raise StopIteration

    return stop


def _checked_norm(release) -> float:
    squares = [np.sum(np.float64(a) ** 2) for a in jax.tree.leaves(release)]
    norm = float(np.sqrt(sum(squares)))
    if not (np.isfinite(norm) and norm > 0):
        raise ValueError(f"a release must be finite and not zero, got norm {norm}")
    return norm


def _check_counts(**counts):
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {count!r}")

"""Inversion by search: examples whose gradient is the one that was released.

`deep_leakage` is DLG (Zhu et al. 2019, arXiv:1906.08935): images x and label logits l
start from N(0, 1), and L-BFGS minimizes

    |gradient(params, x, softmax(l)) - release|^2 .

`cosine_matching` (Geiping et al. 2020, arXiv:2003.14053) knows the labels and the range
of pixels. It minimizes, by Adam on the signs of gradients with a learning rate that
falls by a factor of 10 after 3/8, 5/8 and 7/8 of the steps,

    1 - <gradient, release> / (|gradient| |release|) + variation TV(x) .

Both return an attack that is compiled once, for any number of releases.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import optimize

from experiments.inversion.releases import Gradient, Reconstruction
from fedjax_muon.core import check_range

# squared distance over the release's squared norm that counts as zero in float32
EXACT = 1e-12


def deep_leakage(
    gradient: Gradient,
    shape: tuple[int, ...],
    classes: int,
    *,
    size: int = 1,
    steps: int = 300,
    restarts: int = 4,
) -> Callable[[Any, Any, jax.Array], Reconstruction]:
    """Returns DLG, an attack that searches for examples and labels.

    Args:
      gradient: What was released, as a function of the examples.
      shape: Shape of an example.
      size: Number of examples in the batch.
      steps: L-BFGS iterations of a search, at most.
      restarts: Number of searches, at most. The nearest result counts; an exact one
        ends the attack.

    Returns:
      A function (params, release, key) -> examples, [size, *shape], and their labels.
      It computes in float64, and raises `ValueError` for a release that is zero or not
      finite.
    """
    _check_counts(size=size, steps=steps, restarts=restarts)
    images = (size, *shape)
    pixels = int(np.prod(images))

    def parts(v: jax.Array) -> tuple[jax.Array, jax.Array]:
        return v[:pixels].reshape(images), v[pixels:].reshape(size, classes)

    @jax.jit
    @jax.value_and_grad
    def distance(v: jax.Array, params: Any, release: Any) -> jax.Array:
        x, logits = parts(v)
        found = gradient(params, x, jax.nn.softmax(logits))
        return _square(jax.tree.map(jnp.subtract, found, release))

    def attack(params: Any, release: Any, key: jax.Array) -> Reconstruction:
        enough = EXACT * _checked_norm(release) ** 2
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
                    # the distance itself is small: its decrease is no criterion
                    options={"maxiter": steps, "ftol": 0.0, "gtol": 0.0, "maxcor": 20},
                    callback=_stop_below(enough),
                )
                found.append(end)
                if end.fun <= enough:
                    break
            nearest = min(found, key=lambda end: end.fun)
            x, logits = parts(jnp.asarray(nearest.x))
            labels = jax.nn.softmax(logits)
            return Reconstruction(np.asarray(x), np.asarray(labels))

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
) -> Callable[[Any, Any, Any, jax.Array], Reconstruction]:
    """Returns an attack by cosine distance and total variation, with known labels.

    The norm of the release does not matter.

    Args:
      gradient: What was released, as a function of the examples.
      shape: Height, width and channels of an image.
      steps: Steps of a search.
      restarts: Number of searches. The one with the smallest objective counts.
      rate: Learning rate of Adam at the start.
      variation: Weight of the total variation.
      box: Smallest and largest value of a pixel.

    Returns:
      A function (params, release, labels, key) -> examples, [B, *shape], for labels
      [B, classes]. It computes in float32, and raises `ValueError` for a release that
      is zero or not finite.
    """
    _check_counts(steps=steps, restarts=restarts)
    check_range("rate", rate, open_low=True, schedules=False)
    check_range("variation", variation, schedules=False)
    if len(shape) != 3 or not box[0] < box[1]:
        raise ValueError(
            "shape must be (height, width, channels) and box (low, high), got "
            f"{shape} and {box}"
        )

    def objective(x: jax.Array, params: Any, unit: Any, labels: jax.Array) -> Any:
        found = gradient(params, x, labels)
        length = jnp.sqrt(_square(found))
        cosine = _dot(found, unit) / jnp.maximum(length, jnp.finfo(x.dtype).tiny)
        return 1 - cosine + variation * total_variation(x)

    search = _sign_search(objective, steps, rate, box)

    @jax.jit
    def best(key: jax.Array, params: Any, unit: Any, labels: jax.Array) -> jax.Array:
        starts = jax.random.normal(key, (restarts, len(labels), *shape))
        every = jax.vmap(search, in_axes=(0, None, None, None))
        found, least = every(starts.clip(*box), params, unit, labels)
        return found[jnp.argmin(least)]

    def attack(
        params: Any, release: Any, labels: Any, key: jax.Array
    ) -> Reconstruction:
        norm = _checked_norm(release)
        unit = jax.tree.map(lambda a: jnp.asarray(a / norm, jnp.float32), release)
        labels = jnp.asarray(labels, jnp.float32)
        x = best(key, _as_type(jnp.float32, params), unit, labels)
        return Reconstruction(np.asarray(x), np.asarray(labels))

    return attack


def _sign_search(
    objective: Callable[..., Any], steps: int, rate: float, box: tuple[float, float]
) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Adam on signs within a box: (start, ...) -> best point visited, its objective."""
    falls = {steps * k // 8: 0.1 for k in (3, 5, 7)}
    schedule = optax.piecewise_constant_schedule(rate, falls)
    optimizer = optax.chain(optax.scale_by_sign(), optax.adam(schedule))

    def search(start: jax.Array, *rest: Any) -> tuple[jax.Array, jax.Array]:
        def step(carry: Any, _: None) -> tuple[Any, None]:
            x, state, best, least = carry
            value, slope = jax.value_and_grad(objective)(x, *rest)
            best, least = jax.tree.map(
                lambda a, b: jnp.where(value < least, a, b), (x, value), (best, least)
            )
            updates, state = optimizer.update(slope, state, x)
            x = jnp.clip(optax.apply_updates(x, updates), *box)
            return (x, state, best, least), None

        first = (start, optimizer.init(start), start, jnp.asarray(jnp.inf, start.dtype))
        (_, _, best, least), _ = jax.lax.scan(step, first, None, steps)
        return best, least

    return search


def total_variation(x: jax.Array) -> jax.Array:
    """Returns the mean absolute difference of neighboring pixels, down plus across.

    This is the anisotropic form. An axis of one pixel counts as zero.

    Args:
      x: Images, [B, height, width, channels].

    Returns:
      A scalar.
    """
    steps = [jnp.diff(x, axis=axis) for axis in (1, 2)]
    total: Any = sum(jnp.abs(step).mean() for step in steps if step.size)
    return total


def _dot(a: Any, b: Any) -> Any:
    return sum(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum(a * b), a, b)))


def _square(a: Any) -> Any:
    return _dot(a, a)


def _as_type(dtype: Any, a: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), a)


def _stop_below(enough: float) -> Callable[[Any], None]:
    def stop(intermediate_result: optimize.OptimizeResult) -> None:
        if intermediate_result.fun <= enough:
            raise StopIteration

    return stop


def _checked_norm(release: Any) -> float:
    squares = [np.sum(np.float64(a) ** 2) for a in jax.tree.leaves(release)]
    norm = float(np.sqrt(sum(squares)))
    if not (np.isfinite(norm) and norm > 0):
        raise ValueError(f"a release must be finite and not zero, got norm {norm}")
    return norm


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {count!r}")

"""What is learned: parameters, a loss to differentiate, and scores to report.

A `Task` is three pure functions, and all that the rest of the library knows of a model.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax


class Batch(NamedTuple):
    """B examples. Those with weight 0 are padding: any finite x, any valid y."""

    x: jax.Array  # [B, ...]
    y: jax.Array  # [B], integers from 0: the classes
    weight: jax.Array  # [B], float32, not negative
    client: jax.Array | None = None  # int32 [], whose batch it is
    shares: jax.Array | None = None  # float32 [classes], in all examples of that client
    ids: jax.Array | None = None  # int32 [B], which training examples they are


class Scores(NamedTuple):
    """One entry an example, to be averaged by whoever knows the weights."""

    loss: jax.Array  # [B], nats
    correct: jax.Array  # [B], bool
    score: jax.Array | None = None  # [B], what ranks examples of two classes, if any


class Task(NamedTuple):
    init: Callable[[jax.Array], Any]  # key -> params
    # (params, batch, key) -> gradient of the weighted mean loss over the batch
    grad: Callable[[Any, Batch, jax.Array], Any]
    evaluate: Callable[[Any, jax.Array, jax.Array], Scores]  # (params, x, y) -> scores


def classification(model: nn.Module, example_shape: tuple[int, ...]) -> Task:
    """Softmax cross-entropy of `model`, which maps [B, *example_shape] to [B, classes].

    The mean over a batch is sum(w l) / sum(w), and 0 for a batch of padding alone.
    `grad` hands its key to the model as the stream "dropout"; `init` and `evaluate`
    have no such stream. So a model drops where it is given a key if it says

        nn.Dropout(rate, deterministic=not self.has_rng("dropout"))(x)

    Raises ValueError for a model with variables other than its parameters (such as
    batch statistics, which are not a function of the parameters), or whose output is
    not one logit for each of two or more classes; `grad` and `evaluate` raise it for
    labels that are not integers and for arrays that do not agree on B.
    """
    _check_model(model, example_shape)
    loss = cross_entropy(model)

    def init(key):
        return model.init(key, jnp.zeros((1, *example_shape)))["params"]

    def grad(params, batch, key):
        check_batch(batch.x, batch.y, batch.weight)
        return jax.grad(loss)(params, batch, key)

    def evaluate(params, x, y):
        check_batch(x, y)
        logits = logits_of(model, params, x)
        correct = jnp.argmax(logits, axis=-1) == y
        return Scores(loss=_cross_entropies(logits, y), correct=correct)

    return Task(init=init, grad=grad, evaluate=evaluate)


def cross_entropy(model: nn.Module) -> Callable[[Any, Batch, jax.Array], jax.Array]:
    """(params, batch, key) -> the mean cross-entropy over the batch."""

    def loss(params, batch, key):
        losses = _cross_entropies(logits_of(model, params, batch.x, key), batch.y)
        return weighted_mean(losses, batch.weight)

    return loss


def logits_of(model: nn.Module, params, x, key: jax.Array | None = None) -> jax.Array:
    """The model's output [B, classes]; it drops only if it is given a key."""
    apply: Callable[..., Any] = model.apply
    streams = {} if key is None else {"dropout": key}
    logits = apply({"params": params}, x, rngs=streams)
    # half precision is enough for logits, not for their log-softmax
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))


def weighted_mean(values, weight):
    """sum(w v) / sum(w), and 0 if all weights are."""
    total = jnp.sum(weight)
    return jnp.sum(weight * values) / jnp.where(total > 0, total, 1)


def _cross_entropies(logits, y):
    return optax.losses.softmax_cross_entropy_with_integer_labels(logits, y)


def _check_model(model, example_shape):
    batch = 3  # not 1, which would hide a model that loses or adds an axis
    x = jax.ShapeDtypeStruct((batch, *example_shape), jnp.float32)
    logits, variables = jax.eval_shape(model.init_with_output, jax.random.key(0), x)
    if set(variables) != {"params"}:
        raise ValueError(
            "a model must have the variables 'params' and no others, got "
            f"{sorted(variables)}; use GroupNorm or LayerNorm for BatchNorm"
        )
    shape = getattr(logits, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != batch or shape[1] < 2:
        raise ValueError(
            f"a model must map {x.shape} to logits ({batch}, classes), two or more "
            f"classes, got {type(logits).__name__ if shape is None else shape}"
        )


def check_batch(x, y, *weight):
    """Raises `ValueError` for labels that are not integers, and arrays that do not
    agree on B."""
    if not jnp.issubdtype(y.dtype, jnp.integer):
        raise ValueError(f"labels must be integers from 0, got dtype {y.dtype}")
    shapes = [a.shape for a in (y, *weight)]
    if any(shape != x.shape[:1] for shape in shapes):
        raise ValueError(
            f"labels and weights must have shape [B] = {x.shape[:1]}, got {shapes}"
        )

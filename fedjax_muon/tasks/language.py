"""Language modeling: the cross-entropy of every next token."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

from fedjax_muon.core import Params
from fedjax_muon.core.training_flags import flags_of
from fedjax_muon.data import Dataset
from fedjax_muon.tasks.classification import logits_of, weighted_mean
from fedjax_muon.tasks.metrics import mean_loss
from fedjax_muon.tasks.task import Batch, Limit, Scores, Task, as_partial

SCORED = 2**16  # training tokens that evaluations score
TOGETHER = 2**12  # tokens whose logits evaluations hold together


def language(model: nn.Module, dataset: Dataset) -> Task:
    """Prediction of every next token, by the cross-entropy.

    The loss of a window of T + 1 tokens is the mean over the T that follow another one,
    in nats. Metrics are the loss in nats per token; the perplexity, which is its
    exponential; and, if the tokens' bytes are known, the bits per byte: the nats of all
    tokens that are text over ln 2 and their UTF-8 bytes. Bits per byte can be compared
    between tokenizers; the others can't. Special tokens are not text. A tokenizer that
    loses text has no bytes (`data.tokenizers.from_file`), so its models have no bits
    per byte.

    For prompts with answers (`data.from_jsonl`), only the tokens of answers are scored,
    and the loss of an example is the mean over these tokens.

    Evaluations score at most 65,536 training tokens.

    Args:
      model: Maps token ids [B, T] to logits [B, T, vocabulary], such as
        `models.GPT(256, context=128)`.
      dataset: Windows of tokens, such as from `data.from_text`.

    Example:
      >>> dataset = fm.data.from_text({"a": 9 * "to be or not to be "}, window=16)
      >>> task = language(fm.models.GPT(256, 16, 8, 1, 2), dataset)
    """
    init, nbytes, window = parts_of(model, dataset)
    return from_logits(init, partial(logits_of, model), nbytes, window)


def parts_of(
    model: nn.Module, dataset: Dataset
) -> tuple[Callable[[jax.Array], Params], np.ndarray | None, int]:
    """The model's initial parameters, the tokens' bytes, and the tokens of a window."""
    _check(model, dataset)
    tokenizer = dataset.tokenizer
    nbytes = None
    if tokenizer is not None and tokenizer.nbytes.any():
        nbytes = np.zeros(dataset.tokens, np.int32)
        nbytes[: tokenizer.vocabulary] = tokenizer.nbytes

    def init(key: jax.Array) -> Params:
        begin: Callable[..., Any] = model.init
        first = jnp.zeros((1, 1), jnp.int32)
        return begin(key, first, **flags_of(model, training=False))["params"]

    return init, nbytes, dataset.x_train.shape[1] - 1


def from_logits(
    init: Callable[[jax.Array], Any],
    logits: Callable[..., jax.Array],
    nbytes: np.ndarray | None,
    window: int,
) -> Task:
    """Language modeling by a function (params, tokens[, key]) that returns logits.

    Args:
      nbytes: The UTF-8 bytes of every token, int32 [vocabulary].
      window: T, the number of tokens that are predicted in an example.
    """
    held = as_partial(logits)
    table = None if nbytes is None else jnp.asarray(nbytes)
    metrics: dict[str, Any] = {"loss": mean_loss, "perplexity": perplexity}
    if nbytes is not None:
        metrics["bits_per_byte"] = bits_per_byte
    return Task(
        init=init,
        grad=Partial(_grad, held),
        evaluate=Partial(_evaluate, held, table),
        metrics={name: Partial(metric) for name, metric in metrics.items()},
        scored=Limit(max(1, SCORED // window)),
    )


def _losses(
    logits: Partial, params: Params, x: jax.Array, *key: jax.Array
) -> jax.Array:
    """The nats of every token of windows [B, T + 1] that follows another, [B, T]."""
    ids = x.astype(jnp.int32)
    if _has_prompts(x):
        ids = jnp.where(ids < 0, ~ids, ids)
    outputs = logits(params, ids[:, :-1], *key)
    return optax.losses.softmax_cross_entropy_with_integer_labels(outputs, ids[:, 1:])


def _has_prompts(x: jax.Array) -> bool:
    """Whether tokens may be negative: those that are read, and not predicted."""
    return jnp.issubdtype(x.dtype, jnp.signedinteger)


def _means(losses: jax.Array, x: jax.Array) -> jax.Array:
    """The mean of the nats [B, T] of every window over the tokens it predicts."""
    if not _has_prompts(x):
        return losses.mean(1)
    predicted = x[:, 1:] >= 0
    # of windows without prompts, these are the bits of the mean
    plain, count = losses.mean(1), predicted.sum(1)
    means = jnp.where(predicted, losses, 0).sum(1) / jnp.maximum(count, 1)
    return jnp.where(count == losses.shape[1], plain, means)


def _grad(logits: Partial, params: Params, batch: Batch, key: jax.Array) -> Params:
    def loss(params: Params) -> jax.Array:
        losses = _losses(logits, params, batch.x, key)
        return weighted_mean(_means(losses, batch.x), batch.weight)

    return jax.grad(loss)(params)


def _evaluate(
    logits: Partial,
    nbytes: jax.Array | None,
    params: Params,
    x: jax.Array,
    y: jax.Array,
) -> Scores:
    del y  # the number of a document

    def one(window: jax.Array) -> Scores:
        losses = _losses(logits, params, window[None])
        scores = {"loss": _means(losses, window[None])[0]}
        if nbytes is None:
            return scores
        ids, losses = window[1:].astype(jnp.int32), losses[0]
        sizes = jnp.where(ids < 0, 0, nbytes[ids])
        scores["nats"] = jnp.where(sizes > 0, losses, 0).sum()
        return scores | {"bytes": sizes.sum().astype(jnp.float32)}

    together = max(1, TOGETHER // (x.shape[1] - 1))
    return jax.lax.map(one, x, batch_size=min(together, len(x)))


def perplexity(scores: Mapping[str, jax.Array], y: jax.Array) -> jax.Array:
    """Metric: the exponential of the mean loss."""
    return jnp.exp(mean_loss(scores, y))


def bits_per_byte(scores: Mapping[str, jax.Array], y: jax.Array) -> jax.Array:
    """Metric: the bits of all tokens that are text, by the bytes of all."""
    del y
    return scores["nats"].sum() / (math.log(2) * scores["bytes"].sum())


def _check(model: nn.Module, dataset: Dataset) -> None:
    """Raises `ValueError` unless a model predicts the tokens of a dataset."""
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise TypeError(f"a model must be a flax.linen module, got {kind}")
    x = dataset.x_train
    if x.ndim != 2 or x.dtype.kind not in "iu":
        raise ValueError(
            f"a language model needs windows of tokens, got {x.dtype}{list(x.shape)}; "
            "make them with data.from_text"
        )
    ids = jax.ShapeDtypeStruct((3, x.shape[1] - 1), jnp.int32)
    begin: Callable[..., Any] = model.init_with_output
    flags = flags_of(model, training=False)
    logits, variables = jax.eval_shape(
        lambda key, x: begin(key, x, **flags), jax.random.key(0), ids
    )
    if set(variables) != {"params"}:
        raise ValueError(
            "a model must have the variables 'params' and no others, got "
            f"{sorted(variables)}"
        )
    shape: tuple[int, ...] = getattr(logits, "shape", ())
    if len(shape) != 3 or shape[:2] != ids.shape or shape[2] < dataset.tokens:
        raise ValueError(
            f"a language model must map tokens {ids.shape} to logits "
            f"({ids.shape[0]}, {ids.shape[1]}, {dataset.tokens} or more), got {shape}; "
            "give it the vocabulary of the dataset"
        )

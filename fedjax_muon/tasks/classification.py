"""What is learned: parameters, a loss to differentiate, and scores to report.

A `Task` is three pure functions, and all that the rest of the library knows of a model.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_muon.core import GradFn, tree
from fedjax_muon.data import Dataset
from fedjax_muon.tasks.metrics import MEANS, mcc

# (params, x, key or nothing) -> logits [B, classes]; dropout only where there is a key
Logits = Callable[..., jax.Array]
Examples = Dataset | tuple[int, ...]  # a data set, or the shape of one example


class Batch(NamedTuple):
    """B examples. Those with weight 0 are padding: any finite x, any valid y."""

    x: jax.Array  # [B, ...]
    y: jax.Array  # [B], integers from 0: the classes
    weight: jax.Array  # [B], float32, not negative
    client: jax.Array | None = None  # int32 [], whose batch it is
    shares: jax.Array | None = None  # float32 [classes], in all examples of that client
    ids: jax.Array | None = None  # int32 [B], which training examples they are


# one entry an example, by name: "loss" [B], "correct" [B], ...
Scores = dict[str, jax.Array]
# (scores of all examples, labels [n]) -> number
Metric = Callable[[Scores, jax.Array], jax.Array]


class Task(NamedTuple):
    """Functions, pure ones. Arrays that they need and that are not trained, such as
    frozen weights, they may hold as a `jax.tree_util.Partial`: programs are given these
    as arguments, where a closure's arrays would be copied into every program."""

    init: Callable[[jax.Array], Any]  # key -> params
    # (params, batch, key) -> gradient of the weighted mean loss over the batch
    grad: Callable[[Any, Batch, jax.Array], Any]
    evaluate: Callable[[Any, jax.Array, jax.Array], Scores]  # (params, x, y) -> scores
    # params -> params in the constraint set; None if there are no constraints
    project: Callable[[Any], Any] | None = None
    # (params, batch, key) -> gradients of single examples, leaves [B, ...]; None if
    # those of `grad` on batches of one are meant
    example_grad: Callable[[Any, Batch, jax.Array], Any] | None = None
    # params -> gradient of the terms that touch no data; None if there are none
    public_grad: Callable[[Any], Any] | None = None
    # what is reported, by name: functions of the scores of all examples
    metrics: Mapping[str, Metric] = MEANS


def as_argument(task: Task) -> Task:
    """The task as a pytree of what its functions hold, for compiled programs. Its
    gradient, which loops inside loops ask for again and again, is traced once."""
    *functions, metrics = task
    held: Any = [None if f is None else as_partial(f) for f in functions]
    named = {name: as_partial(metric) for name, metric in metrics.items()}
    grad: Any = as_partial(task.grad)
    traced = Partial(jax.jit(grad.func), *grad.args, **grad.keywords)
    return Task(*held)._replace(grad=traced, metrics=named)


def as_partial(function: Callable) -> Partial:
    """The function as a pytree of what it holds, which is nothing unless it says so by
    being a `Partial`."""
    return function if isinstance(function, Partial) else Partial(function)


def per_example(grad_fn: GradFn) -> GradFn:
    """The gradients of a batch's examples, one by one, leaves [B, ...].

    `grad_fn` is that of a weighted mean over a batch with rows `x`, `y`, `weight` and,
    where it has them, `ids` (`tasks.Batch`). An example's gradient is that of a batch
    of itself alone, times its weight: exactly zero for padding. Each has its own key,
    the same one whenever the batch's key is the same. Takes the memory of B gradients.
    """

    def gradients(grad_fn, params, batch, key):
        def one(rows, weight, key):
            rows["weight"] = jnp.ones_like(weight)
            alone = jax.tree.map(lambda a: a[None], rows)
            g = grad_fn(params, batch._replace(**alone), key)
            return tree.where(weight > 0, tree.scale(weight, g), tree.zeros_like(g))

        keys = jax.random.split(key, batch.weight.shape[0])
        rows = {name: getattr(batch, name) for name in ("x", "y", "ids")}
        return jax.vmap(one)(rows, batch.weight, keys)

    return Partial(gradients, as_partial(grad_fn))


def example_shape_of(examples: Examples) -> tuple[int, ...]:
    """The shape of one example, of a data set or as it was given."""
    if isinstance(examples, Dataset):
        return examples.x_train.shape[1:]
    return tuple(examples)


def classification(model: nn.Module, examples: Examples) -> Task:
    """Softmax cross-entropy of `model`, which maps [B, *shape] to [B, classes].

    `examples` is the data set that is trained on, or the shape of one example.

    The mean over a batch is sum(w l) / sum(w), and 0 for a batch of padding alone.
    `grad` hands its key to the model as the stream "dropout"; `init` and `evaluate`
    have no such stream. So a model drops where it is given a key if it says

        nn.Dropout(rate, deterministic=not self.has_rng("dropout"))(x)

    Raises ValueError for a model with variables other than its parameters (such as
    batch statistics, which are not a function of the parameters), or whose output is
    not one logit for each of two or more classes; `grad` and `evaluate` raise it for
    labels that are not integers and for arrays that do not agree on B.
    """
    check_model(model, examples)
    shape = example_shape_of(examples)

    def init(key):
        return model.init(key, jnp.zeros((1, *shape)))["params"]

    return from_logits(init, partial(logits_of, model))


def from_logits(init: Callable[[jax.Array], Any], logits: Logits) -> Task:
    """Softmax cross-entropy, as of `classification`, of what `logits` gives."""
    held = as_partial(logits)
    return Task(init=init, grad=Partial(_grad, held), evaluate=Partial(_evaluate, held))


def starting_at(task: Task, params: Mapping[str, Any]) -> Task:
    """The task, whose parameters start at these; what they lack at the top, such as a
    head, starts as before.

    Raises ValueError if they are none of the task's, by names or shapes.
    """
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    absent = shapes.keys() - params.keys()
    wanted = {name: part for name, part in shapes.items() if name not in absent}
    for name in sorted(params):
        given = jax.tree.map(jnp.shape, params[name])
        if given != jax.tree.map(jnp.shape, wanted.get(name)):
            raise ValueError(
                f"parameters to start at must be the task's: {name} is none of "
                f"{', '.join(sorted(shapes))}, or of other shapes"
            )
    start = partial(_start, tuple(sorted(absent)))
    held = jax.tree.map(jnp.asarray, dict(params))
    return task._replace(init=Partial(start, as_partial(task.init), held))


def _start(names, init, params, key):
    return {**params, **_drawn(names, init, key)}


@partial(jax.jit, static_argnums=0)  # so that nothing else is drawn
def _drawn(names, init, key):
    params = init(key)
    return {name: params[name] for name in names}


def by_matthews(task: Task) -> Task:
    """The task of two classes, judged by Matthews' correlation, as GLUE judges CoLA."""
    return task._replace(
        evaluate=Partial(_predicting, as_partial(task.evaluate)),
        metrics={**task.metrics, "mcc": mcc},
    )


def _predicting(evaluate, params, x, y):
    scores = evaluate(params, x, y)
    return {**scores, "predicted": jnp.where(scores["correct"], y, 1 - y)}


def _grad(logits, params, batch, key):
    check_batch(batch.x, batch.y, batch.weight)
    return jax.grad(_loss, argnums=1)(logits, params, batch, key)


def _loss(logits, params, batch, key):
    losses = _cross_entropies(logits(params, batch.x, key), batch.y)
    return weighted_mean(losses, batch.weight)


def _evaluate(logits, params, x, y):
    check_batch(x, y)
    found = logits(params, x)
    correct = jnp.argmax(found, axis=-1) == y
    return {"loss": _cross_entropies(found, y), "correct": correct}


def cross_entropy(model: nn.Module) -> Callable[[Any, Batch, jax.Array], jax.Array]:
    """(params, batch, key) -> the mean cross-entropy over the batch."""
    return partial(_loss, partial(logits_of, model))


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


def check_model(model: nn.Module, examples: Examples) -> None:
    """Raises `ValueError` for a model that is none for `classification`, or that has
    another number of outputs than a data set has classes, and `TypeError` for what is
    no module of flax.linen."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"a model must be a flax.linen module, got {type(model).__name__}; modules "
            "of flax.nnx hold their parameters themselves: give tasks.from_logits "
            "their init and apply functions"
        )
    batch = 3  # not 1, which would hide a model that loses or adds an axis
    x = jax.ShapeDtypeStruct((batch, *example_shape_of(examples)), jnp.float32)
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
    if isinstance(examples, Dataset) and shape[1] != len(examples.classes):
        raise ValueError(
            f"this model has {shape[1]} outputs, the data set {len(examples.classes)} "
            "classes; give the model as many outputs as there are classes"
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

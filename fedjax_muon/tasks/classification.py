"""Classification with softmax cross-entropy."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_muon.core import Params, Variables
from fedjax_muon.core.training_flags import flags_of
from fedjax_muon.core.variables import refuse_statistics
from fedjax_muon.data import Dataset
from fedjax_muon.data.dataset import check_axes
from fedjax_muon.tasks.metrics import mcc
from fedjax_muon.tasks.task import Batch, Scores, Task, as_partial

# (params, x[, key]) -> logits [B, classes]; there is dropout only if a key is given
Logits = Callable[..., jax.Array]
Examples = Dataset | tuple[int, ...]  # a dataset, or the shape of one example
KNOWN = ({"params"}, {"params", "batch_stats"})  # collections of variables
TRAINS_ALWAYS = flax.errors.InvalidRngError, flax.errors.ModifyScopeVariableError


def example_shape_of(examples: Examples) -> tuple[int, ...]:
    """Returns the shape of one example."""
    shape = examples.x_train.shape[1:] if isinstance(examples, Dataset) else examples
    if len(shape) == 3:
        check_axes("x", (1, *shape))
    return tuple(shape)


def classification(model: nn.Module, examples: Examples) -> Task:
    """Classification with softmax cross-entropy.

    The mean loss over a batch is sum(w l) / sum(w), and 0 for a batch of padding alone.
    `grad` passes its key to the model as the stream "dropout"; `init` and `evaluate`
    have no such stream. A model whose `__call__` has an argument `train`, `training`,
    `is_training`, `deterministic` or `use_running_average` is told its mode. One
    without calls

        nn.Dropout(rate, deterministic=not self.has_rng("dropout"))(x)

    Parameters of a model with BatchNorm are `Variables`: `grad` normalizes by the
    examples of the batch, without padding, and `evaluate` by the running statistics.

    Returns:
      A task whose scores are "loss" and "correct". Its `grad` and `evaluate` raise
      `ValueError` for labels that are not integers, and for arrays whose first
      dimensions differ.
    """
    normalized = isinstance(check_model(model, examples), Variables)
    init = initial(model, example_shape_of(examples))
    task = from_logits(init, partial(logits_of, model))
    if normalized:
        task = task._replace(grad=Partial(partial(_grad_and_statistics, model)))
    return task


def initial(model: nn.Module, shape: tuple[int, ...]) -> Callable[[jax.Array], Params]:
    """The function of a key that draws the parameters of a model of such examples."""

    def init(key: jax.Array) -> Params:
        x = jnp.zeros((1, *shape))
        begin: Callable[..., Any] = model.init
        return _parameters(begin(key, x, **flags_of(model, training=False)))

    return init


def from_logits(init: Callable[[jax.Array], Any], logits: Logits) -> Task:
    """Classification with softmax cross-entropy of any function that returns logits.

    Args:
      init: Function of a key that returns the initial parameters.
      logits: Function `(params, x)` or `(params, x, key)` that returns logits
        [B, classes]; a key is given in training only.

    Example:
      >>> init = lambda key: {"w": jnp.zeros((64, 10))}
      >>> flat = lambda x: x.reshape(len(x), -1)
      >>> task = from_logits(init, lambda params, x, key=None: flat(x) @ params["w"])
    """
    held = as_partial(logits)
    return Task(init=init, grad=Partial(_grad, held), evaluate=Partial(_evaluate, held))


def starting_at(task: Task, params: Mapping[str, Any]) -> Task:
    """Replaces the initial parameters of a task, for instance by pretrained ones.

    Args:
      params: Initial parameters. Layers that are missing at the top level, such as a
        head, start as before.

    Example:
      >>> model = models.MLP(10)
      >>> task = classification(model, digits)
      >>> params = task.init(jax.random.key(0))
      >>> task = starting_at(task, {"Dense_0": params["Dense_0"]})
    """
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    refuse_statistics(shapes, "starting_at, but with Simulation.init(key, params=...)")
    absent = shapes.keys() - params.keys()
    wanted = {name: part for name, part in shapes.items() if name not in absent}
    for name in sorted(params):
        actual = jax.tree.map(jnp.shape, params[name])
        if actual != jax.tree.map(jnp.shape, wanted.get(name)):
            raise ValueError(
                f"initial parameters must match the task's: {name} is not one of "
                f"{', '.join(sorted(shapes))}, or has other shapes"
            )
    start = partial(_start, tuple(sorted(absent)))
    held = jax.tree.map(jnp.asarray, dict(params))
    return task._replace(init=Partial(start, as_partial(task.init), held))


def _start(
    names: tuple[str, ...], init: Partial, params: dict[str, Any], key: jax.Array
) -> dict[str, Any]:
    return {**params, **_drawn(names, init, key)}


@partial(jax.jit, static_argnums=0)  # compiled, so that only these layers are drawn
def _drawn(names: tuple[str, ...], init: Partial, key: jax.Array) -> dict[str, Any]:
    params = init(key)
    return {name: params[name] for name in names}


def by_matthews(task: Task) -> Task:
    """Adds Matthews' correlation to the metrics of a task, as GLUE does for CoLA.

    Returns:
      The task with the metric "mcc" and the score "predicted".
    """
    return task._replace(
        evaluate=Partial(_predicting, as_partial(task.evaluate)),
        metrics={**task.metrics, "mcc": mcc},
    )


def _predicting(
    evaluate: Partial, params: Params, x: jax.Array, y: jax.Array
) -> Scores:
    scores = evaluate(params, x, y)
    return {**scores, "predicted": jnp.where(scores["correct"], y, 1 - y)}


def _grad(logits: Partial, params: Params, batch: Batch, key: jax.Array) -> Params:
    check_batch(batch.x, batch.y, batch.weight)
    return jax.grad(_loss, argnums=1)(logits, params, batch, key)


def _loss(logits: Logits, params: Params, batch: Batch, key: jax.Array) -> jax.Array:
    losses = _cross_entropies(logits(params, batch.x, key), batch.y)
    return weighted_mean(losses, batch.weight)


def _grad_and_statistics(
    model: nn.Module, variables: Variables, batch: Batch, key: jax.Array
) -> Variables:
    """Padding is not normalized by, and a batch of padding alone changes nothing."""
    check_batch(batch.x, batch.y, batch.weight)
    there = batch.weight > 0
    some = jnp.any(there)
    how = {"rngs": {"dropout": key}, "mutable": ["batch_stats"]}
    apply: Callable[..., Any] = model.apply

    def loss(params: Params) -> tuple[jax.Array, Any]:
        given = variables._replace(params=params)._asdict()
        with nn.intercept_methods(partial(_without_padding, there | ~some)):
            flags = flags_of(model, training=True)
            logits, changed = apply(given, batch.x, **how, **flags)
        losses = _cross_entropies(_wide(logits), batch.y)
        return weighted_mean(losses, batch.weight), changed["batch_stats"]

    g, new = jax.grad(loss, has_aux=True)(variables.params)
    keep = lambda new, old: jnp.where(some, new, old).astype(old.dtype)
    return Variables(g, jax.tree.map(keep, new, variables.batch_stats))


def _without_padding(
    there: jax.Array, call: Callable[..., Any], args: Any, kwargs: Any, context: Any
) -> Any:
    """Calls a layer; BatchNorm gets the mask of the examples that are there."""
    if isinstance(context.module, nn.BatchNorm) and context.method_name == "__call__":
        x = args[0] if args else kwargs["x"]
        if x.shape[0] != len(there):
            raise ValueError(f"BatchNorm needs the examples on axis 0, got {x.shape}")
        mask = there.reshape(-1, *[1] * (x.ndim - 1))
        kwargs = {**kwargs, "mask": mask & kwargs.get("mask", True)}
    return call(*args, **kwargs)


def _evaluate(logits: Partial, params: Params, x: jax.Array, y: jax.Array) -> Scores:
    check_batch(x, y)
    outputs = logits(params, x)
    correct = jnp.argmax(outputs, axis=-1) == y
    return {"loss": _cross_entropies(outputs, y), "correct": correct}


def cross_entropy(model: nn.Module) -> Callable[[Any, Batch, jax.Array], jax.Array]:
    """Returns the loss of `classification` as a function."""
    return partial(_loss, partial(logits_of, model))


def logits_of(
    model: nn.Module, params: Params, x: jax.Array, key: jax.Array | None = None
) -> jax.Array:
    """Applies a model to a batch.

    Args:
      key: Key of the stream "dropout"; without one, nothing is dropped.

    Returns:
      Logits [B, classes], in float32 or a wider type.

    Example:
      >>> model = models.MLP(10)
      >>> params = classification(model, digits).init(jax.random.key(0))
      >>> logits_of(model, params, digits.x_test[:3]).shape
      (3, 10)
    """
    apply: Callable[..., Any] = model.apply
    streams = {} if key is None else {"dropout": key}
    flags = flags_of(model, training=key is not None)
    known = isinstance(params, Variables)
    variables = params._asdict() if known else {"params": params}
    return _wide(apply(variables, x, rngs=streams, **flags))


def _wide(logits: jax.Array) -> jax.Array:
    """Half precision is enough for logits, but not for their log-softmax."""
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))


def weighted_mean(values: jax.Array, weight: jax.Array) -> jax.Array:
    """Computes sum(w v) / sum(w), and 0 if all weights are 0.

    Example:
      >>> float(weighted_mean(jnp.array([1.0, 3.0]), jnp.array([1.0, 0.0])))
      1.0
    """
    total = jnp.sum(weight)
    return jnp.sum(weight * values) / jnp.where(total > 0, total, 1)


def _cross_entropies(logits: jax.Array, y: jax.Array) -> jax.Array:
    return optax.losses.softmax_cross_entropy_with_integer_labels(logits, y)


def check_model(
    model: nn.Module, examples: Examples, outputs: int | None = None
) -> Any:
    """Checks that a model can be trained by `classification`, or has some outputs.

    Returns:
      The shapes of its parameters, or of its `Variables`.
    """
    if not isinstance(model, nn.Module):
        if isinstance(model, type) and issubclass(model, nn.Module):
            raise TypeError(f"a model must be made first, as {model.__name__}(...)")
        raise TypeError(
            f"a model must be a flax.linen module, got {type(model).__name__}; modules "
            "of flax.nnx hold their parameters themselves: convert the function that "
            "makes one with models.from_nnx"
        )
    if outputs is None and isinstance(examples, Dataset) and not examples.classes:
        raise ValueError(
            "this dataset has targets and no classes; choose problems.regression, or "
            "tasks.regression"
        )
    batch = 3  # not 1, which would hide a model that drops or adds a dimension
    x = jax.ShapeDtypeStruct((batch, *example_shape_of(examples)), jnp.float32)
    key = jax.random.key(0)
    try:
        flags = flags_of(model, training=False)
        begin: Callable[..., Any] = model.init_with_output
        run = partial(begin, **flags)
        logits, variables = jax.eval_shape(run, key, x)
        if set(variables) in KNOWN:
            apply: Callable[..., Any] = model.apply
            jax.eval_shape(partial(apply, **flags), variables, x)
    except (*TRAINS_ALWAYS, ValueError) as error:
        if isinstance(error, ValueError) and '"deterministic" must' not in str(error):
            raise
        raise ValueError(
            "a model must drop nothing without training, and use running statistics; "
            "give its __call__ an argument train, and write "
            "nn.Dropout(rate, deterministic=not train)(x), or "
            "nn.BatchNorm(use_running_average=not train)(x)"
        ) from error
    except TypeError as error:
        if "missing" not in str(error):
            raise
        raise TypeError(
            f"a model must need x alone, and possibly train or deterministic: {error}"
        ) from error
    if set(variables) not in KNOWN:
        raise ValueError(
            "a model must have the variables 'params', and 'batch_stats' of BatchNorm, "
            f"and no others, got {sorted(variables)}"
        )
    shape = getattr(logits, "shape", None)
    columns = shape[1] if shape is not None and shape[:-1] == (batch,) else 0
    if columns < 2 if outputs is None else columns != outputs:
        wanted = f"logits ({batch}, classes), two or more classes"
        if outputs is not None:
            wanted = f"numbers ({batch}, {outputs})"
        got = type(logits).__name__ if shape is None else shape
        raise ValueError(f"a model must map {x.shape} to {wanted}, got {got}")
    if (
        outputs is None
        and isinstance(examples, Dataset)
        and columns != len(examples.classes)
    ):
        raise ValueError(
            f"this model has {columns} outputs, but the dataset has "
            f"{len(examples.classes)} classes; give the model as many outputs as there "
            "are classes"
        )
    return _parameters(variables)


def _parameters(variables: Any) -> Any:
    return variables["params"] if len(variables) == 1 else Variables(**variables)


def check_batch(x: jax.Array, y: jax.Array, *weight: jax.Array) -> None:
    """Checks the labels and weights of a batch."""
    if not jnp.issubdtype(y.dtype, jnp.integer):
        raise ValueError(f"labels must be integers from 0, got dtype {y.dtype}")
    shapes = [a.shape for a in (y, *weight)]
    if any(shape != x.shape[:1] for shape in shapes):
        raise ValueError(
            f"labels and weights must have shape [B] = {x.shape[:1]}, got {shapes}"
        )

"""The interface of a task.

A `Task` is a tuple of pure functions. The rest of the library knows nothing else about
a model.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_muon.core import GradFn, Params, tree
from fedjax_muon.tasks.metrics import MEANS


class Batch(NamedTuple):
    """B examples of one client.

    Examples with weight 0 are padding: their x is finite and their y valid, but both
    are otherwise arbitrary.

    Example:
      >>> batch = fm.Batch(digits.x_train[:8], digits.y_train[:8], jnp.ones(8))
      >>> gradient = task.grad(state.params, batch, jax.random.key(0))
    """

    x: jax.Array  # [B, ...]
    y: jax.Array  # [B], integers from 0: the classes
    weight: jax.Array  # [B], float32, not negative
    client: jax.Array | None = None  # int32 [], the client whose batch it is
    shares: jax.Array | None = None
    # float32 [classes], shares of the classes in all examples of that client
    ids: jax.Array | None = None  # int32 [B], the numbers of the training examples


# by name, one entry per example: "loss" [B], "correct" [B], ...
Scores = dict[str, jax.Array]
# (scores of all examples, labels [n]) -> number
Metric = Callable[[Scores, jax.Array], jax.Array]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Limit:
    """A largest number of examples, which programs are compiled for."""

    examples: int


class Task(NamedTuple):
    """What is trained: pure functions for the parameters, the gradient and the scores.

    Arrays that the functions need but that are not trained, such as frozen weights,
    belong in a `jax.tree_util.Partial`. Compiled programs take these as arguments,
    while the arrays of a closure would be copied into every program.

    Example:
      >>> task = fm.tasks.classification(fm.models.MLP(10), digits)
      >>> params = task.init(jax.random.key(0))
      >>> sorted(task.evaluate(params, digits.x_test[:4], digits.y_test[:4]))
      ['correct', 'loss']
    """

    init: Callable[[jax.Array], Any]  # key -> params
    # (params, batch, key) -> gradient of the weighted mean loss over the batch
    grad: Callable[[Any, Batch, jax.Array], Any]
    evaluate: Callable[[Any, jax.Array, jax.Array], Scores]  # (params, x, y) -> scores
    # params -> params in the constraint set; None if there are no constraints
    project: Callable[[Any], Any] | None = None
    # (params, batch, key) -> gradients of single examples, leaves [B, ...]; None if
    # they are those of `grad` on batches of one example
    example_grad: Callable[[Any, Batch, jax.Array], Any] | None = None
    # params -> gradient of the terms that depend on no data; None if there are none
    public_grad: Callable[[Any], Any] | None = None
    # reported metrics by name: functions of the scores of all examples
    metrics: Mapping[str, Metric] = MEANS
    scored: Limit = Limit(10_000)  # training examples in an evaluation


def as_argument(task: Task) -> Task:
    """Turns a task into a pytree, so that compiled programs can take it as an argument.

    The gradient and the scores are wrapped in `jax.jit`, since nested loops and several
    sets of examples would otherwise trace them many times.

    Returns:
      The same task, whose leaves are the arrays that its functions hold.
    """
    *functions, metrics, scored = task
    held: Any = [None if f is None else as_partial(f) for f in functions]
    named = {name: as_partial(metric) for name, metric in metrics.items()}
    traced = {name: _traced_once(getattr(task, name)) for name in ("grad", "evaluate")}
    return Task(*held)._replace(metrics=named, scored=scored, **traced)


def _traced_once(function: Callable[..., Any]) -> Partial:
    held: Any = as_partial(function)
    return Partial(Traced(held.func), *held.args, **held.keywords)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function in `jax.jit`, equal to another one of the same function.

    Simulations of one task then share the program of their scores.
    """

    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return jax.jit(self.function)(*args, **kwargs)


def as_partial(function: Callable[..., Any]) -> Partial:
    """Turns a function into a pytree of the arrays that it holds."""
    return function if isinstance(function, Partial) else Partial(function)


def per_example(grad_fn: GradFn) -> GradFn:
    """Derives the gradients of single examples from the gradient of a batch.

    The gradient of an example is that of a batch with this example alone, times its
    weight, so it is exactly zero for padding. Each example has its own key, a function
    of the key of the batch. All B gradients are in memory together.

    Returns:
      A function of the same arguments, whose result has leaves [B, ...].
    """

    def gradients(
        grad_fn: GradFn, params: Params, batch: Batch, key: jax.Array
    ) -> Params:
        def one(rows: dict[str, Any], weight: jax.Array, key: jax.Array) -> Params:
            rows["weight"] = jnp.ones_like(weight)
            alone = jax.tree.map(lambda a: a[None], rows)
            g = grad_fn(params, batch._replace(**alone), key)
            return tree.where(weight > 0, tree.scale(g, weight), tree.zeros_like(g))

        keys = jax.random.split(key, batch.weight.shape[0])
        rows = {name: getattr(batch, name) for name in ("x", "y", "ids")}
        return jax.vmap(one)(rows, batch.weight, keys)

    return Partial(gradients, as_partial(grad_fn))

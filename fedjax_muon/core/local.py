"""Local training, which all algorithms share: the loop over batches and one move."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from fedjax_muon.core import tree
from fedjax_muon.core.algorithm import Objective, Params, Round
from fedjax_muon.core.hyperparameters import Hyper, value_at


def descend(
    params: Params,
    lr: Any,
    rule: optax.GradientTransformation,
    opt: optax.OptState,
    direction: Params,
) -> tuple[Params, optax.OptState]:
    """Computes `params - lr * rule(direction)`.

    Args:
      params: Where the step begins.
      lr: Learning rate of this round: a number, or a tree of numbers that is a prefix
        of `params`.
      rule: An optax transformation without a learning rate.
      opt: State of the rule.
      direction: What the rule is applied to, shaped like `params`.

    Returns:
      The new parameters, and the new state of the rule.

    Example:
      >>> params, rule = {"w": jnp.ones(3)}, optax.trace(0.9)
      >>> g = {"w": jnp.ones(3)}
      >>> params, opt = descend(params, 0.1, rule, rule.init(params), g)
    """
    updates, opt = rule.update(direction, opt, params)
    return tree.sub_scaled(params, lr, updates), opt


def move(
    objective: Objective,
    params: Params,
    lr: Any,
    rule: optax.GradientTransformation,
    opt: optax.OptState,
    direction: Params,
) -> tuple[Params, optax.OptState]:
    """One local move: `project(params - lr * rule(direction))`.

    Local rules are reset every round unless an algorithm says otherwise; what must
    outlive a round travels as the algorithm's own state.

    Args:
      objective: Has the projection onto the constraint set.
      params: Where the move begins.
      lr: Learning rate of this round: a number, or a tree of numbers that is a prefix
        of `params`.
      rule: An optax transformation without a learning rate.
      opt: State of the rule.
      direction: What the rule is applied to, such as a gradient; shaped like `params`.

    Returns:
      The new parameters, and the new state of the rule.

    Example:
      >>> objective = Objective(lambda params, batch, key: params)
      >>> params, rule = {"w": jnp.ones(3)}, optax.scale_by_lion()
      >>> g = objective.grad(params, None, jax.random.key(0))
      >>> params, opt = move(objective, params, 0.1, rule, rule.init(params), g)
    """
    moved, opt = descend(params, lr, rule, opt, direction)
    return objective.project(moved), opt


def mean_direction(lr: Hyper, round: Round, dx):
    """-dx / (K lr): the mean of the directions whose K moves add up to dx."""
    weight = lambda lr: -1 / (round.steps * lr)
    return tree.scale(tree.map(weight, value_at(lr, round)), dx)


def local_steps(
    step: Callable[[Any, Any, jax.Array], tuple[Any, Any]],
    carry: Any,
    batches: Any,
    key: jax.Array,
) -> tuple[Any, Any]:
    """Scans a local step over the K batches of a client.

    Args:
      step: Called as `step(carry, batch, key) -> (carry, seen)`, where `seen` is
        whatever is averaged: gradients for control variates, or `()`.
      carry: What the first step starts from.
      batches: A pytree of arrays with leaves [K, ...].
      key: Typed key, which is split into one for each step.

    Returns:
      The last carry, and the mean of all `seen`, of which never more than one is
      stored.

    Example:
      >>> step = lambda x, batch, key: (x - 0.1 * (x - batch), ())
      >>> x, _ = local_steps(step, jnp.zeros(2), jnp.ones((5, 2)), jax.random.key(0))
    """
    keys = jax.random.split(key, jax.tree.leaves(batches)[0].shape[0])
    one = jax.tree.map(lambda x: x[0], (batches, keys))
    total = tree.zeros_like(jax.eval_shape(step, carry, *one)[1])

    def body(state, row):
        carry, total = state
        carry, seen = step(carry, *row)
        return (carry, tree.add(total, seen)), None

    (carry, total), _ = jax.lax.scan(body, (carry, total), (batches, keys))
    return carry, tree.scale(1 / len(keys), total)


def mean_gradient(
    objective: Objective, params: Params, batches: Any, key: jax.Array
) -> Params:
    """The mean gradient over all of `batches`, at one point: what prologues measure.

    Args:
      objective: Has the gradient.
      params: Where the gradient is taken.
      batches: A pytree of arrays with leaves [K, ...].
      key: Typed key, which is split into one for each batch.

    Returns:
      The mean of K gradients, shaped like `params`.

    Example:
      >>> objective = Objective(lambda x, batch, key: x - batch)
      >>> batches = jnp.ones((5, 2))
      >>> g = mean_gradient(objective, jnp.zeros(2), batches, jax.random.key(0))
    """
    step = lambda _, *row: ((), objective.grad(params, *row))
    return local_steps(step, (), batches, key)[1]

"""Local training, common to all algorithms: the loop over batches and one move."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
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
    """Computes `params - lr * rule(direction)`, and the new state of the rule.

    Args:
      lr: Learning rate of this round: a number, or a tree of numbers that is a prefix
        of `params`.

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

    Local rules are reset every round unless stated otherwise. Values that outlive a
    round are part of the algorithm's own state.

    Example:
      >>> objective = Objective(lambda params, batch, key: params)
      >>> params, rule = {"w": jnp.ones(3)}, optax.scale_by_lion()
      >>> g = objective.grad(params, None, jax.random.key(0))
      >>> params, opt = move(objective, params, 0.1, rule, rule.init(params), g)
    """
    moved, opt = descend(params, lr, rule, opt, direction)
    return objective.project(moved), opt


def after_change(broadcast: Any, message: Any) -> Params:
    """`local_params` of an exchange whose messages are x_i - x."""
    return tree.add(broadcast.params, message.params)


def before_change(broadcast: Any, message: Any) -> Params:
    """`local_params` of an exchange whose messages are x - x_i, pseudo-gradients."""
    return tree.sub(broadcast.params, message.params)


def mean_direction(lr: Hyper, round: Round, dx: Params, last: Params) -> Params:
    """Computes -dx / (K lr), the mean direction of K local moves whose sum is dx.

    In a round whose learning rate is 0, nothing moves and dx says nothing about the
    direction: the estimate of the last round is kept.
    """

    def estimate(lr: Any, dx: Params, last: Params) -> Params:
        weight = jnp.divide(-1.0, round.steps * lr)
        known = jnp.isfinite(weight)
        new = tree.scale(dx, jnp.where(known, weight, 0.0))
        return tree.where(known, new, last)

    return tree.map(estimate, value_at(lr, round), dx, last)


def local_steps(
    step: Callable[[Any, Any, jax.Array], tuple[Any, Any]],
    carry: Any,
    batches: Any,
    round: Round,
) -> tuple[Any, Any]:
    """Runs the local steps of a client, one for each of its K batches.

    Returns the last carry, and the mean of all outputs, which are never stored
    together.

    Args:
      step: Called as `step(carry, batch, key) -> (carry, output)`. The outputs are
        averaged: gradients for control variates, or `()`.
      batches: A pytree of arrays with leaves [K, ...]. If clients take different
        numbers of steps, there are more, and the first `round.steps` are used.
      round: The round; its key is split into one for each step.

    Example:
      >>> step = lambda x, batch, key: (x - 0.1 * (x - batch), ())
      >>> round = Round(jnp.int32(0), jax.random.key(0), 5, 1, 1.0)
      >>> x, _ = local_steps(step, jnp.zeros(2), jnp.ones((5, 2)), round)
    """
    keys = jax.random.split(round.key, jax.tree.leaves(batches)[0].shape[0])
    rows = (batches, keys)
    row_at = lambda k: jax.tree.map(lambda x: x[k], rows)
    total = tree.zeros_like(jax.eval_shape(step, carry, *row_at(0))[1])

    def body(state: tuple[Any, Any], row: tuple[Any, Any]) -> tuple[Any, None]:
        carry, total = state
        carry, output = step(carry, *row)
        return (carry, tree.add(total, output)), None

    if isinstance(round.steps, int):
        (carry, total), _ = jax.lax.scan(body, (carry, total), rows)
        return carry, tree.scale(total, 1 / len(keys))
    # each client ends after its own number of steps
    carry, total = jax.lax.fori_loop(
        0, round.steps, lambda k, state: body(state, row_at(k))[0], (carry, total)
    )
    return carry, tree.scale(total, 1 / round.steps)


def mean_gradient(
    objective: Objective, params: Params, batches: Any, round: Round
) -> Params:
    """Computes the mean gradient over all batches at one point, as prologues do.

    Example:
      >>> objective = Objective(lambda x, batch, key: x - batch)
      >>> round = Round(jnp.int32(0), jax.random.key(0), 5, 1, 1.0)
      >>> g = mean_gradient(objective, jnp.zeros(2), jnp.ones((5, 2)), round)
    """
    step = lambda _, *row: ((), objective.grad(params, *row))
    return local_steps(step, (), batches, round)[1]

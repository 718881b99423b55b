"""FedEx-LoRA: averages of low-rank adapters that are exact for their products.

arXiv:2410.09432. Layers with adapters have the kernel W + c a b. From the broadcast
(x, W), clients take local steps in the factors and the other parameters,

    x_i <- x_i - lr rule(grad_i(x_i; s)),    then    x <- mean_i x_i,
    W <- W + c (mean_i (a_i b_i) - a b),     with the mean factors a and b,

so that W + c a b is the mean of the kernels W + c a_i b_i. A client sends the product
of its changes of a and b, in whose mean the part of the mean change is subtracted: that
is the same difference, without cancellation. Checked against the authors' code, which
transposes the difference for all layers.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import optax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    Number,
    broadcast_params,
    check_range,
    descend,
    local_steps,
    no_client_state,
    recorded,
    tree,
    value_at,
)
from fedjax_muon.transforms.lora import is_pair


class State(NamedTuple):
    params: Any


class Message(NamedTuple):
    params: Any  # x_i - x, without the kernels
    products: Any  # of the changes of a and b


def _is_adapter(node: Any) -> bool:
    return isinstance(node, Mapping) and node.keys() == {"a", "b", "kernel"}


def _map_adapters(function: Any, *trees: Any) -> Any:
    """`function` of the adapters; the other leaves are those of the last tree."""
    one = lambda *nodes: function(*nodes) if _is_adapter(nodes[0]) else nodes[-1]
    return jax.tree.map(one, *trees, is_leaf=_is_adapter)


def _factors(params: Any) -> Any:
    """All parameters but the kernels, which no client changes."""
    return _map_adapters(lambda node: {"a": node["a"], "b": node["b"]}, params)


def _put(params: Any, factors: Any) -> Any:
    """Replaces the parameters that are not kernels."""
    return _map_adapters(lambda node, pair: {**node, **pair}, params, factors)


def _products(params: Any, changes: Any) -> list[jax.Array]:
    found: list[jax.Array] = []
    _map_adapters(lambda _, d: found.append(d["a"] @ d["b"]), params, changes)
    return found


@recorded
def fedex_lora(
    lr: Hyper = 0.001,
    *,
    scale: Number = 2.0,
    rule: optax.GradientTransformation = optax.scale_by_adam(),
) -> Algorithm:
    """FedAvg for LoRA adapters; the server folds the averaging error into W.

    For tasks whose adapters are {"a", "b", "kernel"}, as of
    `tasks.lora.lora_classification(folded=True)`; without adapters, it is FedAvg. A
    message contains a matrix of the size of each of these kernels.

    Args:
      lr: Local learning rate.
      scale: Factor c of a b, alpha / rank of the task.
      rule: Local rule, without a learning rate. It does not see the kernels.
    """
    check_range("lr", lr)
    check_range("scale", scale, open_low=True, schedules=False)

    def client(objective, broadcast, client_state, batches, round):
        whole = broadcast.params
        start = _factors(whole)

        def step(now, batch, key):
            x, opt = now
            g = _factors(objective.grad(_put(whole, x), batch, key))
            x, opt = descend(x, value_at(lr, round), rule, opt, g)
            return (_factors(objective.project(_put(whole, x))), opt), ()

        (x, _), _ = local_steps(step, (start, rule.init(start)), batches, round)
        change = tree.sub(x, start)
        return Message(change, _products(whole, change)), client_state

    def server(state, mean, round):
        del round
        moved = _put(state.params, tree.add(_factors(state.params), mean.params))
        products = _products(moved, mean.params)
        rest = iter(tree.sub(mean.products, products))

        def fold(node):
            kernel = tree.add_scaled(node["kernel"], scale, next(rest))
            return {**node, "kernel": kernel}

        return State(_map_adapters(fold, moved))

    def ends(broadcast, message):
        change = tree.add(_factors(broadcast.params), message.params)
        return _put(broadcast.params, change)

    def init(params):
        if any(map(is_pair, jax.tree.leaves(params, is_leaf=is_pair))):
            raise ValueError(
                "fedex_lora needs adapters with their kernels: give "
                "lora_classification(..., folded=True)"
            )
        return State(params)

    main = Exchange(broadcast_params, client, server, local_params=ends)
    return Algorithm(init, no_client_state, (main,))

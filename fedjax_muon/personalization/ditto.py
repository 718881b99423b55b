"""Ditto: every client trains a model of its own, near the one that all share.

Li et al. 2021, arXiv:2012.04221, Algorithm 1. With the parameters w that the client
received, and batches s of the same round,

    v_i <- v_i - lr (grad_i(v_i; s) + pull (v_i - w))

The algorithm that trains w is not changed.
"""

from typing import Any

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    check_range,
    local_steps,
    recorded,
    tree,
    value_at,
)
from fedjax_muon.personalization.personal import Personal


@recorded
def ditto(
    algorithm: Algorithm, *, personal_lr: Hyper = 0.1, pull: Hyper = 1.0
) -> Algorithm:
    """Adds a personal model to every client.

    Args:
      pull: Strength of the pull toward the shared model (lambda in the paper); 0 is
        training alone.
    """
    check_range("personal_lr", personal_lr)
    check_range("pull", pull)

    def init_client(params):
        return Personal(algorithm.init_client(params), params)

    def inner_only(exchange: Exchange) -> Exchange:
        def client(objective, broadcast, client_state, batches, round):
            inner, own = client_state
            message, inner = exchange.client(
                objective, broadcast, inner, batches, round
            )
            return message, Personal(inner, own)

        return exchange._replace(client=client)

    def with_personal(exchange: Exchange) -> Exchange:
        def client(objective, broadcast, client_state, batches, round):
            inner, own = client_state
            message, inner = exchange.client(
                objective, broadcast, inner, batches, round
            )

            def step(v: Any, batch: Any, key: Any) -> tuple[Any, tuple[()]]:
                back = tree.sub(v, broadcast.params)
                g = objective.grad(v, batch, key)
                d = tree.add_scaled(g, value_at(pull, round), back)
                rate = value_at(personal_lr, round)
                return objective.project(tree.sub_scaled(v, rate, d)), ()

            own, _ = local_steps(step, own, batches, round)
            return message, Personal(inner, own)

        return exchange._replace(client=client)

    first, *rest = algorithm.exchanges
    return algorithm._replace(
        init_client=init_client,
        prologue=tuple(map(inner_only, algorithm.prologue)),
        exchanges=(with_personal(first), *map(inner_only, rest)),
    )

"""Running statistics of BatchNorm, which clients update and do not train.

Every gradient that a client takes is a pass in training mode. It updates the running
statistics r by those of the batch, r <- momentum r + (1 - momentum) b. The algorithm
sees trained parameters alone, since gradients do not depend on r.
"""

from typing import Any, NamedTuple

import jax
from flax.traverse_util import flatten_dict

from fedjax_muon import core
from fedjax_muon.core import Variables
from fedjax_muon.core.variables import refuse_statistics
from fedjax_muon.wrappers.personalization import Personal, keep_own


class Sent(NamedTuple):
    """A broadcast or a message with statistics, None where clients keep them."""

    inner: Any
    batch_stats: Any


def fitted(algorithm: core.Algorithm, params: Any, *, own: bool) -> core.Algorithm:
    """An algorithm for parameters of this kind, whether clients keep their `own`
    BatchNorm layers (Li et al. 2021, arXiv:2102.07623) or not."""
    if not isinstance(params, Variables):
        if own:
            raise ValueError("own_norms is for models with BatchNorm; leave it out")
        refuse_statistics(params, "minimax problems")
        return algorithm
    if any(exchange.reduce_sum or exchange.gather for exchange in algorithm.exchanges):
        refuse_statistics(params, "a method that takes no mean of messages")
    if own:
        layers, trained = map(flatten_dict, (params.batch_stats, params.params))
        names = {path[:-1] for path in layers} & {path[:-1] for path in trained}
        algorithm = keep_own(algorithm, sorted(map("/".join, names)))
    return with_statistics(algorithm, own)


@core.recorded
def with_statistics(algorithm: core.Algorithm, own: bool) -> core.Algorithm:
    """Adds running statistics: parameters become `Variables`, and the server sets the
    mean of the statistics, or clients keep `own` ones in their `Personal` state."""

    def init_client(params):
        state = algorithm.init_client(params.params)
        is_personal = lambda node: isinstance(node, Personal)
        nodes = filter(is_personal, jax.tree.leaves(state, is_leaf=is_personal))
        count = lambda params: len(jax.tree.leaves(params))
        if any(count(node.params) == count(params.params) for node in nodes):
            refuse_statistics(params, "ditto, which trains two models at a client")
        return _joined(state, params.batch_stats) if own else state

    def change(exchange: core.Exchange) -> core.Exchange:
        def send(state, round):
            inner = exchange.broadcast(_trained(state), round)
            return Sent(inner, None if own else state.params.batch_stats)

        def client(objective, sent, before, batches, round):
            start = before.params.batch_stats if own else sent.batch_stats
            before = _trained(before) if own else before
            cells = jax.tree.map(jax.new_ref, start)  # JAX carries them through loops
            told = _updating(objective, cells)
            message, after = exchange.client(told, sent.inner, before, batches, round)
            end = jax.tree.map(lambda cell: cell[...], cells)
            if own:
                return Sent(message, None), _joined(after, end)
            return Sent(message, end), after

        def server(state, mean, round):
            after = exchange.server(_trained(state), mean.inner, round)
            return _joined(after, state.params.batch_stats if own else mean.batch_stats)

        def prepare(state, round):
            after = exchange.prepare(_trained(state), round)
            return _joined(after, state.params.batch_stats)

        return exchange._replace(
            broadcast=send,
            client=client,
            server=server,
            prepare=prepare,
            decode=lambda sent: sent._replace(inner=exchange.decode(sent.inner)),
            local_params=None,
        )

    init = lambda params: _joined(algorithm.init(params.params), params.batch_stats)
    changed = core.map_exchanges(lambda _, exchange: change(exchange), algorithm)
    return changed._replace(init=init, init_client=init_client)


def _updating(objective: core.Objective, cells: Any) -> core.Objective:
    """The objective of trained parameters, whose gradients update the statistics."""

    def at(params: Any) -> Variables:
        return Variables(params, jax.tree.map(lambda cell: cell[...], cells))

    def noted(found: Variables) -> Any:
        put = lambda cell, new: jax.ref.set(cell, ..., new)
        jax.tree.map(put, cells, found.batch_stats)
        return found.params

    def value_and_grad(params, batch, key):
        loss, found = objective.value_and_grad(at(params), batch, key)
        return loss, noted(found)

    single = "gradients of single examples, since a batch shares its statistics"
    return core.Objective(
        grad=lambda params, *rest: noted(objective.grad(at(params), *rest)),
        example_grad=lambda params, *_: refuse_statistics(at(params), single),
        value_and_grad=value_and_grad,
    )


def _joined(state: Any, statistics: Any) -> Any:
    """The state of a server or a client, whose parameters become all variables."""
    return state._replace(params=Variables(state.params, statistics))


def _trained(state: Any) -> Any:
    return state._replace(params=state.params.params)

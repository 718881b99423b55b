"""The parameters that clients keep for themselves."""

from typing import Any, NamedTuple

import jax

from fedjax_muon.core import Params


class Personal(NamedTuple):
    """State of a client that keeps parameters of its own."""

    inner: Any  # state of the algorithm that is wrapped
    params: Any  # its own parameters, None where it uses the server's


def merged(params: Params, own: Any) -> Params:
    """Puts a client's own parameters in the place of the server's.

    Args:
      own: The client's own parameters, None where it uses the server's.

    Example:
      >>> merged({"body": 1.0, "head": 2.0}, {"body": None, "head": 3.0})
      {'body': 1.0, 'head': 3.0}
    """
    is_none = lambda leaf: leaf is None
    choose = lambda own, leaf: leaf if own is None else own
    return jax.tree.map(choose, own, params, is_leaf=is_none)


def params_of_clients(params: Params, client_states: Any) -> Params | None:
    """Finds the parameters of every client.

    Returns:
      Parameters of all clients, leaves [N, ...]; None if clients keep none.
    """
    is_personal = lambda node: isinstance(node, Personal)
    nodes = jax.tree.leaves(client_states, is_leaf=is_personal)
    found = [node.params for node in nodes if is_personal(node)]
    if not found:
        return None
    number = len(jax.tree.leaves(found[0])[0])
    stacked = jax.tree.map(lambda x: jax.numpy.stack([x] * number), params)
    return merged(stacked, found[0])

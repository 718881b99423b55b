"""Secure sums over Flower: SecAgg+ by its mod at nodes and its workflow at the server.

The protocol and its cryptography are Flower's. Its workflow rounds at random; the
integers of `secure_sums` are handed over as numbers that it rounds to themselves.
"""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_muon.deploy.node import Node
from fedjax_muon.deploy.rounds import NO_ANSWER, Sum
from fedjax_muon.versions import optional
from fedjax_muon.wrappers.secure_sums import BITS, FEWEST

USER = "a secure sum over Flower"
flwr = optional("flwr", USER, module="flwr.app")
common = optional("flwr", USER, module="flwr.common")
compat = optional("flwr", USER, module="flwr.compat.common.recorddict_compat")

KIND = "fedjax_muon.request"  # of the bytes in Flower's parameters
UNIT = 2 ** (BITS - 1)  # integers over it lie in [-1, 1], the clipping range
ENOUGH = 2 / 3  # share of the clients of a sum that can remove all masks


def add_handler(app: Any, make_node: Callable[[Any], Node]) -> None:
    """Adds the part of a SuperNode in secure sums to a `ClientApp`."""
    mods = optional("flwr", USER, module="flwr.client.mod")

    @app.train(mods=[mods.secaggplus_mod])
    def summand(message: Any, context: Any) -> Any:
        asked = compat.recorddict_to_fitins(message.content, keep_input=True)
        (request,) = asked.parameters.tensors
        values = make_node(context).summand(request) / UNIT
        answer = common.FitRes(
            status=common.Status(common.Code.OK, ""),
            parameters=common.ndarrays_to_parameters([values]),
            num_examples=1,
            metrics={},
        )
        content = compat.fitres_to_recorddict(answer, keep_input=False)
        return flwr.Message(content, reply_to=message)


def summed(grid: Any, requests: Mapping[int, bytes], deadline: float | None) -> Sum:
    """Sums the summands of SuperNodes, by their ids.

    Args:
      deadline: Seconds for each of the four stages of the protocol.
    """
    nothing = np.zeros(0, np.int64)
    if len(requests) < FEWEST:
        reason = f"a secure sum needs {FEWEST} clients, and {len(requests)} are there"
        return Sum((), nothing, reason)
    server = optional("flwr", USER, module="flwr.server")
    workflow = optional("flwr", USER, module="flwr.server.workflow")
    names = optional("flwr", USER, module="flwr.server.workflow.constant")
    run = workflow.SecAggPlusWorkflow(
        num_shares=1.0,
        reconstruction_threshold=ENOUGH,
        max_weight=1.0,
        clipping_range=1.0,
        quantization_range=2 * UNIT,
        timeout=deadline,
    )
    state = flwr.RecordDict(
        {
            names.MAIN_CONFIGS_RECORD: flwr.ConfigRecord({names.Key.CURRENT_ROUND: 0}),
            names.MAIN_PARAMS_RECORD: flwr.ArrayRecord(),
        }
    )
    kept = _Requests(requests)
    context = flwr.Context(0, 0, {}, state, {})
    try:
        run(grid, server.LegacyContext(context, strategy=kept))
    except Exception as error:  # whatever nodes have sent; the workflow checks little
        return Sum((), nothing, f"SecAgg+ failed: {error!r}")
    if not kept.nodes:
        return Sum((), nothing, "SecAgg+ ended early: too few clients answered")
    total = np.rint(kept.mean * (len(kept.nodes) * UNIT)).astype(np.int64)
    return Sum(kept.nodes, total, NO_ANSWER)


class _Requests:
    """What the workflow calls of a strategy: it sends requests, and keeps the mean."""

    def __init__(self, requests: Mapping[int, bytes]) -> None:
        self.requests = requests
        self.nodes: list[int] = []  # whose summands are in the mean
        self.mean = np.zeros(0)

    def configure_fit(
        self, server_round: int, parameters: Any, client_manager: Any
    ) -> list[tuple[Any, Any]]:
        """The request of every node, as Flower's parameters."""
        del server_round, parameters, client_manager
        packed = lambda data: common.FitIns(common.Parameters([data], KIND), {})
        return [
            (types.SimpleNamespace(node_id=node), packed(data))
            for node, data in self.requests.items()
        ]

    def aggregate_fit(
        self, server_round: int, results: Sequence[tuple[Any, Any]], failures: Any
    ) -> tuple[None, dict[str, Any]]:
        """Keeps the mean, which all results have in place of their own."""
        del server_round, failures
        self.nodes = [proxy.node_id for proxy, _ in results]
        (self.mean,) = common.parameters_to_ndarrays(results[0][1].parameters)
        return None, {}

"""The simplest transport: nodes in the process of the server, called one by one."""

from collections.abc import Iterator, Mapping

from fedjax_muon.deploy.node import Node
from fedjax_muon.deploy.server import Send


def in_process(nodes: Mapping[int, Node]) -> Send:
    """Makes a transport to nodes of this process.

    Args:
      nodes: Nodes by client id; requests to others are never answered.
    """

    def send(
        requests: Mapping[int, bytes], deadline: float | None
    ) -> Iterator[tuple[int, bytes]]:
        del deadline
        for client, request in requests.items():
            if client in nodes:
                yield client, nodes[client].answer(request)

    return send

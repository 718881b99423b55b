"""A transport over Flower: SuperNodes hold the nodes, and a ServerApp runs `serve`.

    client_app = flower.client_app(make_node)    # of the SuperNodes

    @server_app.main()
    def main(grid, context):
        server = flower.FlowerServer(grid, num_clients=4)
        server.wait(4)
        ended = serve(shared, server.send, key, rounds=50, deadline=600)

`fedjax-muon deploy` writes such an app. No Strategy takes part: an algorithm may have
several exchanges in a round. Flower starts a process for every message. A node
therefore needs a directory for its states, and JAX's persistent compilation cache saves
most of the time of a small round.

Messages travel as arrays of bytes, which Flower divides into chunks of 5 MiB, so that
they are not limited to the 2 GiB of a protocol buffer.
"""

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from fedjax_muon.deploy import messages, secagg
from fedjax_muon.deploy.messages import MessageError
from fedjax_muon.deploy.node import Node
from fedjax_muon.deploy.rounds import Sum
from fedjax_muon.versions import optional

flwr = optional("flwr", "a node over Flower", module="flwr.app")
ClientApp = optional("flwr", "a node over Flower", module="flwr.clientapp").ClientApp
ErrorCode = optional("flwr", "", module="flwr.common.constant").ErrorCode

KIND = "fedjax_muon"  # name of the handlers and of the records
LOOK = 0.2  # seconds between looks for answers
LOOK_FOR_NODES = 1.0
SKEW = 300.0  # seconds by which clocks of nodes may differ, as in Flower
GONE = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE)


class _Sent(NamedTuple):
    client: int
    node: int  # id of the SuperNode


class FlowerServer:
    """The server's side: finds nodes, sends requests and collects answers.

    Every SuperNode is asked for the id of its client, when it is new. If two have the
    same client, the first is used for as long as it answers. The attribute `refused`
    says which SuperNodes are not used, and why; there is a warning for each.

    Args:
      patience: Seconds to wait, once, for a client without a SuperNode.
    """

    def __init__(self, grid: Any, num_clients: int, *, patience: float = 60.0) -> None:
        self.grid, self.num_clients, self.patience = grid, num_clients, patience
        self._reasons: dict[int, str] = {}  # why nodes are not used
        self._clients: dict[int, int] = {}  # by the ids of nodes, the first one first
        self._online: set[int] = set()
        self._silent: set[int] = set()  # nodes that did not answer in time
        self._asked: dict[str, int] = {}  # nodes by the ids of queries
        self._failed: set[int] = set()  # nodes that do not tell their client
        self._late: dict[str, _Sent] = {}  # requests of earlier calls
        self._gone: dict[int, float] = {}  # since when a client has no node
        self._looked = -LOOK_FOR_NODES
        self._lock = threading.Lock()  # of calls at the same time

    @property
    def refused(self) -> list[str]:
        """Why SuperNodes are not used, the newest reason of each."""
        return list(self._reasons.values())

    def connected(self) -> set[int]:
        """Returns the ids of the clients that have a SuperNode."""
        return set(self._nodes())

    def wait(self, count: int, seconds: float | None = None) -> set[int]:
        """Waits until so many clients have a SuperNode, and returns the ids of those
        that have one; by default, without a time limit."""
        begin = time.monotonic()
        self._failed.clear()
        while True:
            self._look()
            clients = self.connected()
            late = seconds is not None and time.monotonic() - begin > seconds
            if len(clients) >= count or late:
                return clients
            time.sleep(LOOK)

    def send(
        self, requests: Mapping[int, bytes], deadline: float | None
    ) -> Iterator[tuple[int, bytes]]:
        """Sends requests, and yields answers as they arrive; the transport of `serve`.

        If the SuperNode of a client disappears, another one that has the client gets
        the request. Errors of a ClientApp are yielded as refusals with Flower's reason,
        and late answers to earlier requests as they are, for `serve` to refuse. Several
        threads may send at the same time.

        Without a deadline in seconds, there is no limit for SuperNodes that are online.
        Flower may hold back a node that ends while it sends its answer for three
        minutes longer.
        """
        begin = time.monotonic()
        life = None if deadline is None else deadline + SKEW
        waiting = dict(requests)
        sent: dict[str, _Sent] = {}
        self._failed.clear()
        try:
            while waiting or sent:
                with self._lock:
                    self._look()
                    found = list(self._give_up(waiting))
                    sent |= self._push(waiting, life)
                    for client, data in self._pull(sent):
                        if data is None:  # the node has gone
                            waiting[client] = requests[client]
                        else:
                            found.append((client, data))
                yield from found
                if deadline is not None and time.monotonic() - begin > deadline:
                    break
                if not found:
                    time.sleep(LOOK)
        finally:
            with self._lock:
                self._late |= sent
                self._silent |= {request.node for request in sent.values()}

    def secure_sum(self, requests: Mapping[int, bytes], deadline: float | None) -> Sum:
        """Sums summands by SecAgg+; the transport of `serve` for `fm.secure_sums`.

        Args:
          deadline: Seconds for each of the four stages of the protocol.
        """
        waiting = dict(requests)
        while True:
            with self._lock:
                self._look()
                for _ in self._give_up(waiting):
                    pass  # its client is not in the sum
                nodes = self._nodes()
            if waiting.keys() <= nodes.keys():
                break
            time.sleep(LOOK)
        clients = {nodes[client]: client for client in waiting}
        asked = {node: waiting[client] for node, client in clients.items()}
        found = secagg.summed(self.grid, asked, deadline)
        return found._replace(clients=[clients[node] for node in found.clients])

    def _look(self) -> None:
        """Finds the nodes that are online, and asks new ones for their client."""
        if time.monotonic() - self._looked > LOOK_FOR_NODES:
            self._online = set(self.grid.get_node_ids())
            known = self._clients.keys() | self._asked.values() | self._failed
            for node in sorted(self._online - known):
                query = flwr.Message(flwr.RecordDict(), node, f"query.{KIND}")
                self._asked |= dict.fromkeys(self._pushed(query), node)
            self._looked = time.monotonic()
        for reply in self._replies(self._asked):
            self._introduce(self._asked.pop(reply.metadata.reply_to_message_id), reply)

    def _introduce(self, node: int, reply: Any) -> None:
        """Notes the client of a new node, or why there is none."""
        if reply.has_error():
            self._refuse(node, _reason(reply))
            return
        client = reply.content.config_records.get(KIND, {}).get("client")
        if type(client) is not int or not 0 <= client < self.num_clients:
            bound = self.num_clients - 1
            got = messages.plain(client)
            self._refuse(node, f"there are clients 0 to {bound}, got {got}")
            return
        first = self._nodes().get(client)
        self._clients[node] = client
        if first is not None and first not in self._silent:
            self._note(
                node,
                f"client {client} has SuperNode {first} already; SuperNode {node} is "
                "used if that one does not answer",
            )

    def _refuse(self, node: int, reason: str) -> None:
        self._failed.add(node)
        self._note(node, f"SuperNode {node} is not used: {reason}")

    def _note(self, node: int, text: str) -> None:
        text = messages.plain(text)
        if self._reasons.get(node) != text:
            self._reasons[node] = text
            warnings.warn(text, stacklevel=2)

    def _nodes(self) -> dict[int, int]:
        """The node of each client: the first one that is online and answers."""
        nodes: dict[int, int] = {}
        for node, client in self._clients.items():
            first = nodes.get(client)
            if node in self._online and (first is None or first in self._silent):
                nodes[client] = node
        return nodes

    def _give_up(self, waiting: dict[int, bytes]) -> Iterator[tuple[int, bytes]]:
        """Removes clients that have been without a node for too long."""
        now, nodes = time.monotonic(), self._nodes()
        for client in list(waiting):
            if client in nodes:
                self._gone.pop(client, None)
            elif now - self._gone.setdefault(client, now) > self.patience:
                del waiting[client]
                yield client, messages.refusal(client, "no SuperNode has this client")

    def _push(self, waiting: dict[int, bytes], life: float | None) -> dict[str, _Sent]:
        """Sends what waits for a node that is there now."""
        sent, nodes = {}, self._nodes()
        for client in [client for client in waiting if client in nodes]:
            request = flwr.Message(
                _packed(waiting[client]), nodes[client], f"train.{KIND}", ttl=life
            )
            for name in self._pushed(request):
                sent[name] = _Sent(client, nodes[client])
                del waiting[client]
        return sent

    def _pull(self, sent: dict[str, _Sent]) -> Iterator[tuple[int, bytes | None]]:
        """Takes what has arrived; nothing in place of bytes if a node has gone."""
        for reply in self._replies({**self._late, **sent}):
            name = reply.metadata.reply_to_message_id
            late = name in self._late
            client, node = (self._late if late else sent).pop(name)
            if reply.has_error():
                if late:
                    continue
                if reply.error.code in GONE:
                    self._clients.pop(node, None)
                    yield client, None
                    continue
            self._silent.discard(node)
            yield client, _answer(client, reply)

    def _pushed(self, message: Any) -> list[str]:
        """The id of a message, or nothing if its node has gone."""
        return [name for name in self.grid.push_messages([message]) if name]

    def _replies(self, names: Mapping[str, object]) -> list[Any]:
        if not names:
            return []
        replies = self.grid.pull_messages(list(names))
        return [r for r in replies if r.metadata.reply_to_message_id in names]


def client_app(make_node: Callable[[Any], Node]) -> Any:
    """Makes the `ClientApp` of SuperNodes, which answers requests of `FlowerServer`.

    Handlers of other messages may be added to it; `train` without a name takes part in
    secure sums.

    Args:
      make_node: Makes the node of a SuperNode from Flower's context; its `node_config`
        has the values of the option `--node-config`. The node should have a directory,
        in which it keeps its states from one process to the next.
    """
    app = ClientApp()

    @app.query(KIND)
    def client_of(message: Any, context: Any) -> Any:
        about = flwr.ConfigRecord({"client": make_node(context).client})
        return flwr.Message(flwr.RecordDict({KIND: about}), reply_to=message)

    @app.train(KIND)
    def answer(message: Any, context: Any) -> Any:
        request = _unpacked(message.content)
        return flwr.Message(
            _packed(make_node(context).answer(request)), reply_to=message
        )

    secagg.add_handler(app, make_node)
    return app


def _packed(data: bytes) -> Any:
    array = flwr.Array("uint8", (len(data),), KIND, data)
    return flwr.RecordDict({KIND: flwr.ArrayRecord({KIND: array})})


def _unpacked(content: Any) -> bytes:
    array = content.array_records.get(KIND, {}).get(KIND)
    if array is None:
        raise MessageError("the message has no bytes of fedjax_muon")
    return bytes(array.data)


def _answer(client: int, reply: Any) -> bytes:
    try:
        if reply.has_error():
            raise MessageError(_reason(reply))
        return _unpacked(reply.content)
    except MessageError as error:
        return messages.refusal(client, str(error))


def _reason(reply: Any) -> str:
    return f"Flower: {reply.error.reason} (code {reply.error.code})"

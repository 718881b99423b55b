"""A transport over TCP: nodes connect to the server, and again after a failure.

    with TcpServer(("127.0.0.1", 0), num_clients=4, token=token) as transport:
        ended = serve(shared, transport.send, key, rounds=50, deadline=60)

    join(address, 2, lambda greeting: node.answer, token=token)   # elsewhere

It uses the standard library alone, and never unpickles anything.
"""

import contextlib
import queue
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedjax_muon.deploy import messages
from fedjax_muon.deploy.frames import (
    SECONDS,
    RefusedError,
    introduce,
    receive_frame,
    send_frame,
    welcome,
)
from fedjax_muon.deploy.messages import Message, MessageError

Address = tuple[str, int]
LONGEST = 1 << 36  # bytes of a frame
SECONDS_TO_CLOSE = 5.0
LOOK = 0.1  # seconds between looks at what has changed
WAITS = 0.1, 3.0  # seconds before the first and before later attempts to connect
END = messages.write(Message({"end": True}, []))


class TcpServer:
    """The server's side: accepts nodes, sends requests and collects answers.

    Args:
      address: Host and port to listen on; with port 0, the system chooses one.
      num_clients: N, the number of clients.
      token: Secret that all nodes and the server share.
      greeting: Values, as of JSON, that every node is told when it connects.
      tls: Context for TLS, such as `ssl.create_default_context(CLIENT_AUTH)` with a
        certificate.
      patience: Seconds that a node which is not connected is waited for, once.
      longest: Bytes of the longest answer that is accepted.

    Raises:
      OSError: If the address can't be used.
    """

    def __init__(
        self,
        address: Address,
        num_clients: int,
        *,
        token: str,
        greeting: Mapping[str, Any] | None = None,
        tls: ssl.SSLContext | None = None,
        patience: float = 5.0,
        longest: int = LONGEST,
    ) -> None:
        self.num_clients, self.token, self.tls = num_clients, token, tls
        self.greeting, self.patience = dict(greeting or {}), patience
        self.longest = longest
        self.refused: list[str] = []  # why connections were not accepted
        self._changed = threading.Condition()
        self._connected: dict[int, socket.socket] = {}
        self._gone: dict[int, float] = {}  # since when a client is not connected
        self._requests: dict[int, bytes] = {}
        self._serial, self._closed = 0, False
        self._answers: queue.Queue[tuple[int, int, bytes]] = queue.Queue()
        self._listener = socket.create_server(address)
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def address(self) -> Address:
        """Host and port that nodes connect to."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    def connected(self) -> set[int]:
        """Returns the ids of the clients that are connected."""
        with self._changed:
            return set(self._connected)

    def wait(self, count: int, seconds: float | None = None) -> set[int]:
        """Waits until some clients are connected.

        Args:
          count: Number of clients.
          seconds: Longest time to wait; by default there is no bound.

        Returns:
          The ids of the clients that are connected.
        """
        with self._changed:
            enough = lambda: len(self._connected) >= count
            self._changed.wait_for(enough, seconds)
            return set(self._connected)

    def send(
        self, requests: Mapping[int, bytes], deadline: float | None
    ) -> Iterator[tuple[int, bytes]]:
        """Sends requests, and yields answers as they arrive; the transport of `serve`.

        A node that connects meanwhile receives its request then. Late answers to
        earlier requests are yielded too, for `serve` to refuse.

        Args:
          requests: Requests by client id.
          deadline: Seconds to wait for answers; by default there is no bound for nodes
            that are connected.

        Yields:
          The id of a client, and its answer.
        """
        begin = time.monotonic()
        with self._changed:
            self._serial += 1
            serial, self._requests = self._serial, dict(requests)
            for client in requests.keys() - self._connected.keys():
                self._gone.setdefault(client, begin)
            self._changed.notify_all()
        waiting = set(requests)
        while waiting:
            with contextlib.suppress(queue.Empty):
                answered, client, data = self._answers.get(timeout=LOOK)
                if answered == serial:
                    waiting.discard(client)
                yield client, data
                continue
            now = time.monotonic()
            if deadline is not None and now - begin > deadline:
                break
            with self._changed:
                for client in waiting - self._connected.keys():
                    if now - self._gone.get(client, begin) > self.patience:
                        waiting.discard(client)
        with self._changed:
            self._requests = {}

    def close(self) -> None:
        """Tells the nodes that the run has ended, and closes all connections."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._listener.close()
        end = time.monotonic() + SECONDS_TO_CLOSE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        with self._changed:
            for connection in self._connected.values():
                connection.close()

    def __enter__(self) -> "TcpServer":
        """Returns the server."""
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the server."""
        self.close()

    def _start(self, run: Callable[..., None], *given: Any) -> None:
        thread = threading.Thread(target=run, args=given, daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        self._listener.settimeout(LOOK)
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # closed
                return
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        """Speaks with one node until the connection ends."""
        client = None
        try:
            connection.settimeout(SECONDS)
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            client = welcome(connection, self.token, self.num_clients, self.greeting)
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            with self._changed:
                old = self._connected.pop(client, None)
                self._connected[client] = connection
                self._gone.pop(client, None)
                self._changed.notify_all()
            if old is not None:  # its node has started again
                _abandon(old)
            self._exchange(connection, client)
        except (OSError, MessageError, ssl.SSLError) as error:
            if client is None:
                self.refused.append(str(error))
        finally:
            connection.close()
            with self._changed:
                if client is not None and self._connected.get(client) is connection:
                    del self._connected[client]
                    self._gone[client] = time.monotonic()
                    self._changed.notify_all()

    def _has_news(self, client: int, last: int) -> bool:
        """Whether there is a request after the `last` one, or the end."""
        return self._closed or (self._serial > last and client in self._requests)

    def _exchange(self, connection: socket.socket, client: int) -> None:
        """Sends the client's requests, each after the answer to the one before."""
        last = 0
        while True:
            with self._changed:
                if not self._has_news(client, last):
                    self._changed.wait(LOOK)
                found, closed = self._has_news(client, last), self._closed
                serial, request = self._serial, self._requests.get(client)
            if closed:
                send_frame(connection, END)
                return
            if not found or request is None:
                if select.select([connection], [], [], 0)[0]:
                    raise ConnectionError("the node has closed the connection")
                continue
            send_frame(connection, request)
            self._answers.put((serial, client, receive_frame(connection, self.longest)))
            last = serial


def _abandon(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def join(
    address: Address,
    client: int,
    begin: Callable[[dict[str, Any]], Callable[[bytes], bytes]],
    *,
    token: str,
    tls: ssl.SSLContext | None = None,
    patience: float = 60.0,
    longest: int = LONGEST,
) -> int:
    """Connects a node to the server, and answers requests until the run ends.

    If the connection fails, the node connects again, with growing pauses.

    Args:
      address: Host and port of the server.
      client: Id of the client.
      begin: Called with the server's greeting when it is new; returns the function that
        answers requests, such as `node.answer`.
      tls: Context for TLS, such as `ssl.create_default_context(cafile=...)`.
      patience: Seconds without a server after which the node gives up.
      longest: Bytes of the longest request that is accepted.

    Returns:
      The number of requests that were answered.

    Raises:
      RefusedError: If the server refuses the node.
      ConnectionError: If there is no server.
    """
    greeting: dict[str, Any] | None = None
    answered, pause, seen = 0, WAITS[0], time.monotonic()
    reply: Callable[[bytes], bytes] | None = None
    while True:
        try:
            with _connect(address, tls) as connection:
                told = introduce(connection, token, client)
                connection.settimeout(None)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if reply is None or told != greeting:
                    greeting, reply = told, begin(told)
                pause = WAITS[0]
                while True:
                    request = receive_frame(connection, longest)
                    seen = time.monotonic()
                    if request == END:
                        return answered
                    send_frame(connection, reply(request))
                    answered += 1
                    seen = time.monotonic()
        except (OSError, MessageError) as error:
            if _is_final(error):
                raise
            if time.monotonic() - seen > patience:
                where = f"{address[0]}:{address[1]}"
                raise ConnectionError(
                    f"no server at {where} for {patience:g} seconds: {error}"
                ) from error
        time.sleep(pause)
        pause = min(2 * pause, WAITS[1])


def _is_final(error: Exception) -> bool:
    """Whether another attempt would end in the same way."""
    return isinstance(error, RefusedError | ssl.SSLCertVerificationError)


@contextlib.contextmanager
def _connect(address: Address, tls: ssl.SSLContext | None) -> Iterator[socket.socket]:
    with contextlib.ExitStack() as stack:
        connection = socket.create_connection(address, timeout=SECONDS)
        stack.callback(connection.close)
        if tls is not None:
            connection = tls.wrap_socket(connection, server_hostname=address[0])
            stack.callback(connection.close)
        yield connection

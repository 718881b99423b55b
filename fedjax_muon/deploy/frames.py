"""Frames on a socket, and the handshake of a node and the server.

A frame is its length, 8 bytes little-endian, and a message. Whoever receives states the
longest one that is accepted, and allocates nothing before.

Both sides prove that they know the token, by a keyed hash of the other side's random
challenge; the token itself is never sent. Without TLS, the messages that follow are
neither secret nor protected against changes on the way.
"""

import hashlib
import hmac
import secrets
import socket
import struct
from collections.abc import Mapping
from typing import Any

from fedjax_muon.deploy import messages
from fedjax_muon.deploy.messages import Message, MessageError

SIZE = struct.Struct("<Q")
SHORT = 1 << 20  # bytes of the longest frame of a handshake
CHUNK = 1 << 22  # bytes that are allocated at a time
SECONDS = 20.0  # of a handshake


class RefusedError(ConnectionError):
    """The other side does not accept this connection, and says why."""


def send_frame(connection: socket.socket, data: bytes) -> None:
    """Sends one frame.

    Args:
      connection: A connected socket, or one with TLS.
    """
    connection.sendall(SIZE.pack(len(data)))
    connection.sendall(data)


def receive_frame(connection: socket.socket, longest: int) -> bytes:
    """Receives one frame.

    Args:
      connection: A connected socket, or one with TLS.
      longest: Largest number of bytes that is accepted.

    Raises:
      ConnectionError: If the connection ends before the frame does.
      MessageError: If the frame is longer.
    """
    (size,) = SIZE.unpack(_receive(connection, SIZE.size))
    if size > longest:
        raise MessageError(f"a frame has {size} bytes, more than {longest}")
    return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(min(size - len(data), CHUNK))
        if not chunk:
            raise ConnectionError("the other side has closed the connection")
        data += chunk
    return bytes(data)


def welcome(
    connection: socket.socket, token: str, num_clients: int, greeting: Mapping[str, Any]
) -> int:
    """The server's side of the handshake.

    Args:
      connection: A new connection.
      greeting: What every node is told.

    Returns:
      The id of the client at the other side.

    Raises:
      RefusedError: If the node does not know the token, or there is no such client.
      MessageError: If the other side is no node.
    """
    challenge = secrets.token_hex(16)
    _send(connection, {"challenge": challenge})
    about = _receive_about(connection)
    client, theirs = about.get("client"), about.get("challenge")
    if type(client) is not int or type(theirs) is not str:
        raise MessageError("the other side is no node")
    expected = _proof(token, "node", challenge, theirs, client)
    if not hmac.compare_digest(expected, str(about.get("proof"))):
        raise _refuse(connection, "another token")
    if not 0 <= client < num_clients:
        raise _refuse(
            connection, f"there are clients 0 to {num_clients - 1}, got {client}"
        )
    proof = _proof(token, "server", challenge, theirs, client)
    _send(connection, {"proof": proof, "greeting": dict(greeting)})
    return client


def introduce(connection: socket.socket, token: str, client: int) -> dict[str, Any]:
    """The node's side of the handshake.

    Args:
      connection: A new connection.
      client: Id of the client.

    Returns:
      The server's greeting.

    Raises:
      RefusedError: If the server refuses the node, or does not know the token.
      MessageError: If the other side is no server.
    """
    theirs = _receive_about(connection).get("challenge")
    if type(theirs) is not str:
        raise MessageError("the other side is no server of fedjax_muon")
    challenge = secrets.token_hex(16)
    proof = _proof(token, "node", theirs, challenge, client)
    _send(connection, {"client": client, "challenge": challenge, "proof": proof})
    about = _receive_about(connection)
    if "refused" in about:
        raise RefusedError(f"the server refuses this node: {about['refused']}")
    expected = _proof(token, "server", theirs, challenge, client)
    if not hmac.compare_digest(expected, str(about.get("proof"))):
        raise RefusedError("the server has another token")
    greeting = about.get("greeting")
    return dict(greeting) if isinstance(greeting, dict) else {}


def _proof(token: str, side: str, of_server: str, of_node: str, client: int) -> str:
    text = f"{side} {of_server} {of_node} {client}"
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


def _send(connection: socket.socket, about: Mapping[str, Any]) -> None:
    send_frame(connection, messages.write(Message(about, [])))


def _receive_about(connection: socket.socket) -> Mapping[str, Any]:
    return messages.read(receive_frame(connection, SHORT)).about


def _refuse(connection: socket.socket, reason: str) -> RefusedError:
    _send(connection, {"refused": reason})
    return RefusedError(reason)

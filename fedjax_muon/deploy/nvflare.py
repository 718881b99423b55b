"""A transport over NVIDIA FLARE: the sites of a Collab job answer the server.

The job is a module that the server and all sites import. It publishes what a site
answers with, and its main function is the server program:

    answer = published(make_node)  # make_node("site-1") -> Node

    @collab.main
    def train():
        serve(shared, sites(collab.clients), key, rounds=50, deadline=600)

NVFlare forks processes that have imported the module, so importing it must not run JAX.
Messages travel as lists of arrays, which NVFlare streams one by one, so they may be of
any length. As bytes they would be limited to 4 GiB, and sites would need ten times the
memory.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from fedjax_muon.deploy import messages
from fedjax_muon.deploy.messages import MessageError
from fedjax_muon.deploy.node import Node
from fedjax_muon.deploy.rounds import Send
from fedjax_muon.versions import optional

nvflare = optional("nvflare", "a site of NVFlare", module="nvflare.collab")
errors = optional("nvflare", "", module="nvflare.collab.api.exceptions")
collab = nvflare.collab

PIECE = 1 << 26  # bytes of an array
Pieces = list[np.ndarray]
Results = queue.SimpleQueue[tuple[int, bytes | Exception]]


class Site(Protocol):
    """What is used of NVFlare's proxy of a site."""

    @property
    def name(self) -> str:
        """Name of the site."""

    def __call__(self, *, timeout: float | None) -> Any:
        """Returns the site's functions, which wait at most that many seconds."""


def sites(
    proxies: Iterable[Site],
    names: Mapping[int, str] | None = None,
    *,
    function: str = "answer",
) -> Send:
    """Makes a transport to the sites of a job; call it in the job's main function.

    A site that fails or is not in the job counts as one that refuses, with the reason.
    The server waits for a site that hangs until the deadline. NVFlare calls at most
    `max_call_threads_for_server` sites at once, an argument of `CollabRecipe`.

    Args:
      names: Names of the sites by client id; by default, client 0 is "site-1", client 1
        is "site-2" and so on.
    """
    known = {proxy.name: proxy for proxy in proxies}
    is_aborted = collab.context.is_aborted  # other threads have no context

    def send(
        requests: Mapping[int, bytes], deadline: float | None
    ) -> Iterator[tuple[int, bytes]]:
        begin, waiting = time.monotonic(), set(requests)
        results: Results = queue.SimpleQueue()
        for client, request in requests.items():
            name = f"site-{client + 1}" if names is None else names.get(client)
            if name not in known:
                reason = f"NVFlare: no site {name} in this job"
                results.put((client, messages.refusal(client, reason)))
                continue
            call = getattr(known[name](timeout=deadline), function)
            given = (results, client, call, request)
            # a daemon, since a call may go on after the deadline
            threading.Thread(target=_call, args=given, daemon=True).start()
        while waiting:
            try:
                client, result = results.get(timeout=_left(begin, deadline))
            except queue.Empty:
                return
            if is_aborted():  # calls have failed for this reason
                raise errors.RunAborted("the job has been aborted")
            if isinstance(result, Exception):
                raise result
            waiting.discard(client)
            yield client, result

    return send


def _call(
    results: Results, client: int, call: Callable[[Pieces], Any], request: bytes
) -> None:
    try:
        results.put((client, _joined(call(_divided(request)))))
    except (nvflare.CollabCallError, MessageError) as error:
        results.put((client, messages.refusal(client, f"NVFlare: {error}")))
    except Exception as error:  # `send` raises it
        results.put((client, error))


def _left(begin: float, deadline: float | None) -> float | None:
    """Seconds until the deadline."""
    return deadline and max(0.0, begin + deadline - time.monotonic())


def published(make_node: Callable[[str], Node]) -> Callable[[Pieces], Pieces]:
    """Makes the function that a site publishes; name it `answer` in the job's module.

    The node is made when the first request arrives. If the next request arrives while a
    site is still busy, those that wait are given up.

    Args:
      make_node: Makes the node of a site from the site's name. With a `directory`, the
        node continues with its states after a restart of the site.
    """
    busy = threading.Lock()
    node: Node | None = None
    newest: Pieces = []

    def answer(request: Pieces) -> Pieces:
        nonlocal node, newest
        newest = request
        with busy:  # NVFlare calls from several threads
            if request is not newest:
                raise RuntimeError("the server has sent another request meanwhile")
            if node is None:
                node = make_node(collab.site_name)
            return _divided(node.answer(_joined(request)))

    marked: Callable[[Pieces], Pieces] = collab.publish(answer)
    return marked


def _divided(data: bytes) -> Pieces:
    whole = np.frombuffer(data, np.uint8)
    return [whole[at : at + PIECE] for at in range(0, len(whole), PIECE)]


def _joined(pieces: Any) -> bytes:
    if not isinstance(pieces, list) or not all(map(_is_piece, pieces)):
        raise MessageError(f"this {type(pieces).__name__} is not a message in pieces")
    return b"".join(pieces)


def _is_piece(value: Any) -> bool:
    return isinstance(value, np.ndarray) and (value.ndim, value.dtype) == (1, np.uint8)

"""Nodes of a deployed run: their examples, their processes, tokens and certificates."""

import contextlib
import os
import secrets
import ssl
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.data import Dataset
from fedjax_muon.deploy.node import Node
from fedjax_muon.deploy.tcp import Address, TcpServer, join
from fedjax_muon.runs import own_code
from fedjax_muon.runs.config import Run
from fedjax_muon.runs.deploy import Facts, federation_of, run_of_greeting
from fedjax_muon.simulation.arguments import check_dataset

EXAMPLES, STATES, LOG = "examples.npz", "states", "node.log"
TOKEN = "FEDJAX_MUON_TOKEN"  # environment variable
SECONDS_TO_END, SECONDS_BETWEEN_LOOKS = 20.0, 0.5


def address_of(text: str) -> Address:
    """Reads HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"an address is HOST:PORT, got {text!r}")
    return host.strip("[]"), int(port)


def token_of(path: Path | None) -> str:
    """Reads the token of a run from a file or the environment."""
    token = path.read_text() if path is not None else os.environ.get(TOKEN, "")
    if not token.strip():
        raise ValueError(
            "the server and the nodes need the same secret; name a file that has it "
            f"with --token-file, or set {TOKEN}"
        )
    return token.strip()


def server_tls(
    certificate: Path | None, private_key: Path | None, authority: Path | None
) -> ssl.SSLContext | None:
    """Makes the server's TLS context; with an authority, nodes need certificates."""
    if certificate is None:
        if private_key is not None or authority is not None:
            raise ValueError("TLS on the server needs --certificate")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with _reading(certificate):
        context.load_cert_chain(certificate, private_key)
    if authority is not None:
        with _reading(authority):
            context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def node_tls(
    certificate: Path | None, private_key: Path | None, authority: Path | None
) -> ssl.SSLContext | None:
    """Makes a node's TLS context: the authority has signed the server's certificate."""
    if authority is None:
        if certificate is not None or private_key is not None:
            raise ValueError("TLS on a node needs --authority, the server's signer")
        return None
    with _reading(authority):
        context = ssl.create_default_context(cafile=authority)
    if certificate is not None:
        with _reading(certificate):
            context.load_cert_chain(certificate, private_key)
    return context


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        raise ValueError(f"{path} can't be used for TLS: {error}") from error


def save_examples(
    run_dir: Path, dataset: Dataset, parts: Sequence[np.ndarray]
) -> list[Path]:
    """Writes one directory for each node, with nothing but its examples.

    Args:
      run_dir: Where the directories are made.
      dataset: Provides the training examples.
      parts: For every client, the ids of its examples.

    Returns:
      The directories.
    """
    dataset, places = check_dataset(dataset), []
    for client, part in enumerate(parts):
        place = run_dir / f"node{client}"
        place.mkdir(exist_ok=True)
        x, y = np.asarray(dataset.x_train)[part], dataset.y_train[part]
        np.savez(place / EXAMPLES, x=x, y=y)
        places.append(place)
    return places


def load_examples(path: Path, facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    """Reads a node's examples.

    Args:
      path: NumPy archive with the arrays x and y.
      facts: What the server says of the examples.

    Returns:
      The arrays.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            x, y = archive["x"], archive["y"]
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} must be a NumPy archive with x and y, written by numpy.savez: "
            f"{error}"
        ) from error
    if x.shape[1:] != facts.shape or x.dtype.name != facts.dtype:
        raise ValueError(
            f"{path}: x must be {facts.dtype} of shape [n, "
            f"{', '.join(map(str, facts.shape))}], got {x.dtype}{list(x.shape)}"
        )
    return x, y


def run_node(
    address: Address,
    client: int,
    data: Path,
    states: Path | None,
    *,
    token: str,
    tls: ssl.SSLContext | None = None,
    patience: float = 60.0,
    own: Sequence[str] = (),
) -> int:
    """Runs one node until the server's run ends.

    Args:
      address: Host and port of the server.
      client: Id of the client.
      data: The client's examples.
      states: Where its states are kept; by default beside the examples.
      tls: Context for TLS.
      patience: Seconds without a server after which the node gives up.
      own: Algorithms and models MODULE:FUNCTION that the server may name, since they
        are imported here.

    Returns:
      The number of requests that were answered.
    """
    place = states or data.with_name(f"{data.stem}_{STATES}")

    def begin(greeting: dict[str, Any]) -> Callable[[bytes], bytes]:
        run, facts = run_of_greeting(greeting)
        check_own(run, own)
        x, y = load_examples(data, facts)
        return Node(federation_of(run, facts), client, x, y, place).answer

    return join(address, client, begin, token=token, tls=tls, patience=patience)


def check_own(run: Run, own: Sequence[str]) -> None:
    """Checks that a node's user has named all code that the server wants to run.

    Args:
      run: From the server.
      own: Algorithms and models MODULE:FUNCTION that are allowed.
    """
    for option, name in (("algorithm", run.algorithm), ("model", run.config.model)):
        if own_code.is_own(name) and name not in own:
            raise ValueError(
                f"the server's {option} is {name}, which is imported only if this node "
                f"has --{option} {name} too"
            )


def new_token() -> str:
    """Makes a secret for the nodes of one machine."""
    return secrets.token_urlsafe(24)


def wait_for_all(
    running: Sequence[subprocess.Popen], places: Sequence[Path], server: TcpServer
) -> None:
    """Waits until the nodes of this machine are connected.

    Args:
      running: Their processes.
      places: Their directories.
    """
    while len(server.wait(len(running), SECONDS_BETWEEN_LOOKS)) < len(running):
        for client, process in enumerate(running):
            if process.poll() is not None:
                raise ValueError(
                    f"the node of client {client} has ended; {places[client] / LOG} "
                    "says why"
                )


@contextlib.contextmanager
def processes(
    places: Sequence[Path], address: Address, token: str, options: Sequence[str] = ()
) -> Iterator[list[subprocess.Popen]]:
    """Runs one node in a process of its own for each directory.

    Args:
      places: Directories, each with a client's examples.
      address: Host and port of the server.
      options: Further options of the nodes.

    Yields:
      The processes, which are ended afterwards.
    """
    running: list[subprocess.Popen] = []
    here = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    path = {"PYTHONPATH": os.pathsep.join(here)} if options else {}
    try:
        for client, place in enumerate(places):
            command = [sys.executable, "-m", "fedjax_muon", "deploy"]
            command += ["--join", f"{address[0]}:{address[1]}", "--data", EXAMPLES]
            command += ["--client", str(client), *options]
            with (place / LOG).open("a") as log:
                process = subprocess.Popen(
                    command,
                    cwd=place,
                    env={**os.environ, **path, TOKEN: token},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            running.append(process)
        yield running
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_END)
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
                process.wait()

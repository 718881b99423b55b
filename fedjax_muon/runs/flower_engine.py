"""Flower's engine on this machine: a SuperLink and SuperNodes as processes.

They speak HTTP on the loopback address, on ports that are free. Flower starts a process
for every message; JAX's compiled programs are kept on disk for them.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

HOST, NAME = "127.0.0.1", "local-processes"
SECONDS_TO_START, SECONDS_TO_END, SECONDS_BETWEEN_LOOKS = 60.0, 10.0, 0.1
CONFIG = """\
[superlink]
default = "{name}"

[superlink.{name}]
address = "{address}"
insecure = true
"""


class Engine(NamedTuple):
    """A running engine."""

    nodes: list[subprocess.Popen]  # the SuperNodes
    environment: dict[str, str]

    def run(
        self,
        app: Path,
        config: Mapping[str, object],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Runs an app to its end, and prints what its server prints."""
        command = ["flwr", "run", str(app), NAME, "--stream"]
        command += ["--run-config", assignments(config)]
        process = subprocess.Popen(command, env=self.environment)
        try:
            while process.poll() is None:
                if stop():
                    raise KeyboardInterrupt
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            _end(process)
        if stop():
            raise KeyboardInterrupt
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)


@contextlib.contextmanager
def engine(
    place: Path,
    configs: Sequence[Mapping[str, object]],
    variables: Mapping[str, str] | None = None,
) -> Iterator[Engine]:
    """Runs a SuperLink, and a SuperNode for each configuration."""
    link, *ports = _free_ports(1 + len(configs))
    home = place / "flower"
    home.mkdir(parents=True, exist_ok=True)
    text = CONFIG.format(name=NAME, address=f"{HOST}:{link}")
    (home / "config.toml").write_text(text)
    environment = _environment(home, place / "programs") | dict(variables or {})
    start = ["flower-superlink", "--disable-runtime-dependency-installation"]
    with contextlib.ExitStack() as stack:
        stack.callback(_end_rest, home)
        process = _process(start, link, place / "superlink.log", environment)
        stack.callback(_end, process)
        _wait_for(link, process, place / "superlink.log")
        nodes = []
        for number, (port, config) in enumerate(zip(ports, configs, strict=True)):
            command = ["flower-supernode", "--superlink", f"{HOST}:{link}"]
            command += ["--node-config", assignments(config)]
            log = place / f"supernode{number}.log"
            nodes.append(_process(command, port, log, environment))
            stack.callback(_end, nodes[-1])
        yield Engine(nodes, environment)


def assignments(config: Mapping[str, object]) -> str:
    """Values by name, as options of Flower's commands.

    Example:
      >>> assignments({"partition-id": 0, "data": "mine.npz"})
      'partition-id=0 data="mine.npz"'
    """
    return " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())


def _environment(home: Path, programs: Path) -> dict[str, str]:
    programs_first = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return os.environ | {
        "PATH": os.pathsep.join(programs_first),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "JAX_COMPILATION_CACHE_DIR": str(programs),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)
        ]
        return [one.getsockname()[1] for one in sockets]


def _process(
    command: list[str], port: int, log: Path, environment: dict[str, str]
) -> subprocess.Popen:
    command = [*command, "--insecure", "--host", HOST, "--port", str(port)]
    with log.open("w") as file:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def _wait_for(port: int, process: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + SECONDS_TO_START
    while True:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port)):
            return
        if process.poll() is not None or time.monotonic() > end:
            raise TimeoutError(f"the SuperLink did not start; {log} says why")
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_rest(home: Path) -> None:
    """Ends processes of apps, whose parents may have been killed before."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("FLWR_HOME") == str(home):
                process.kill()

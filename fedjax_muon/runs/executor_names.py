"""Executors by name, for `fedjax-muon sweep --executor`."""

import contextlib
import importlib
import logging
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedjax_muon.simulation.executors import Jobs, Processes
from fedjax_muon.versions import install_command

SECONDS_TO_CONNECT = 10
NEEDED = {"dask": "distributed", "slurm": "submitit"}
KINDS = "processes:N, dask:ADDRESS, slurm or slurm:OPTION=VALUE,..."


def check(name: str) -> None:
    """Checks an executor before anything starts.

    Args:
      name: "processes:N", "dask:ADDRESS", "slurm" or "slurm:OPTION=VALUE,...".

    Raises:
      OSError: If no scheduler of Dask answers.
    """
    with tempfile.TemporaryDirectory() as folder, opened(name, Path(folder)):
        pass


@contextlib.contextmanager
def opened(name: str, folder: Path) -> Iterator[Executor]:
    """An executor, whose tasks are cancelled at the end.

    Args:
      name: As `check` takes it.
      folder: Where SLURM jobs keep their files.

    Yields:
      The executor.
    """
    kind, _, rest = name.partition(":")
    if kind in NEEDED and not find_spec(NEEDED[kind]):
        raise ValueError(
            f"the executor {kind} needs {NEEDED[kind]}: {install_command(NEEDED[kind])}"
        )
    with contextlib.ExitStack() as stack:
        if kind == "processes" and rest.isdigit():
            executor: Executor = Processes(int(rest))
        elif kind == "dask" and rest:
            executor = stack.enter_context(_dask(rest))
        elif kind == "slurm":
            executor = Jobs(_cluster(rest, folder))
        else:
            raise ValueError(f"an executor is {KINDS}; got {name!r}")
        try:
            yield executor
        finally:
            if kind == "dask":  # its executor cancels tasks unless it waits for them
                executor.shutdown(wait=False)
            else:
                executor.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Executor]:
    from distributed import Client

    # The scheduler's end is reported once, by the tasks that it cancels.
    for name in [*logging.root.manager.loggerDict]:
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=SECONDS_TO_CONNECT, set_as_default=False)
    except ValueError as error:
        raise ValueError(f"dask:{address} is no address: {error}") from error
    with client:
        yield client.get_executor()


def _submitit() -> Any:
    """Imports submitit without its configuration, which closes all loggers' streams."""
    name = "SUBMITIT_LOG_LEVEL"
    level = os.environ.get(name)
    os.environ[name] = "NOCONFIG"
    try:
        return importlib.import_module("submitit")
    finally:
        del os.environ[name]  # jobs have loggers of their own
        if level is not None:
            os.environ[name] = level


def _cluster(options: str, folder: Path) -> Any:
    """An executor of submitit, with its own options."""
    submitit = _submitit()
    given: dict[str, Any] = {"name": "fedjax-muon"}
    for option in filter(None, options.split(",")):
        name, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"an executor is {KINDS}; got slurm:{options}")
        given[name] = int(value) if value.isdigit() else value
    try:
        found = submitit.AutoExecutor(folder, cluster=given.pop("cluster", "slurm"))
        found.update_parameters(**given)
    except (RuntimeError, NameError, AssertionError, ValueError) as error:
        what = " ".join(str(error).split("\n")[0].split())
        raise ValueError(f"slurm: {what}") from error
    return found

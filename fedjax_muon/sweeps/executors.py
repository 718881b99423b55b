"""Executors of `concurrent.futures` for sweeps: processes, workers of Dask, SLURM jobs.

with executor_named("processes:2", Path("jobs")) as executor: ...
"""

import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedjax_muon.core import check_count
from fedjax_muon.versions import check_installed

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_CONNECT = 10
PACKAGES = {"dask": "distributed", "slurm": "submitit"}
KINDS = "processes:N, dask:ADDRESS, slurm or slurm:OPTION=VALUE,..."


def check_name(name: str) -> None:
    """Opens and closes an executor, before anything starts."""
    with tempfile.TemporaryDirectory() as folder, executor_named(name, Path(folder)):
        pass


@contextlib.contextmanager
def executor_named(name: str, folder: Path) -> Iterator[Executor]:
    """Opens an executor, whose tasks are cancelled at the end."""
    kind, _, rest = name.partition(":")
    if kind in PACKAGES:
        check_installed(PACKAGES[kind], f"the executor {kind}")
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
    values: dict[str, Any] = {"name": "fedjax-muon"}
    for option in filter(None, options.split(",")):
        name, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"an executor is {KINDS}; got slurm:{options}")
        values[name] = int(value) if value.isdigit() else value
    try:
        cluster = submitit.AutoExecutor(folder, cluster=values.pop("cluster", "slurm"))
        cluster.update_parameters(**values)
    except (RuntimeError, NameError, AssertionError, ValueError) as error:
        what = " ".join(str(error).split("\n")[0].split())
        raise ValueError(f"slurm: {what}") from error
    return cluster


class WorkerEndedError(BrokenExecutor):
    """The worker of a task ended before the task did; others go on."""


class Processes(Executor):
    """Processes of this host. One that ends is replaced, and only its task fails.

    They are for CPUs: on an accelerator every process would reserve most of its memory.
    Workers end with the process that started them.
    """

    def __init__(self, count: int):
        """Starts no process yet."""
        check_count("processes", count)
        self._threads = ThreadPoolExecutor(count)  # one for every process
        self._local, self._lock = threading.local(), threading.Lock()
        self._running: set[Any] = set()
        self._closed = False

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Runs a function that can be pickled; see `concurrent.futures.Executor`."""
        return self._threads.submit(self._run, (fn, args, kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the processes; with `cancel_futures`, at once, tasks included."""
        if cancel_futures:
            with self._lock:
                self._closed = True
                for process in self._running:
                    process.kill()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            for process in self._running:
                process.kill()
            for process in self._running:
                process.join()

    def _run(self, task: Any) -> Any:
        if not hasattr(self._local, "worker"):
            self._local.worker = self._start()
        process, connection = self._local.worker
        try:
            connection.send(task)
            done, value = connection.recv()
        except (EOFError, OSError):
            process.join()
            with self._lock:
                self._running.discard(process)
            del self._local.worker
            code = process.exitcode
            raise WorkerEndedError(f"a worker process ended by {code}") from None
        if not done:
            raise value
        return value

    def _start(self) -> tuple[Any, Connection]:
        spawning = multiprocessing.get_context("spawn")  # threads of JAX do not fork
        ours, theirs = spawning.Pipe()
        process = spawning.Process(target=_serve, args=(theirs,), daemon=True)
        with self._lock:
            if self._closed:
                raise WorkerEndedError("the executor is shut down")
            process.start()
            self._running.add(process)
        theirs.close()  # else the end of the process would not be noticed
        return process, ours


def _serve(connection: Connection) -> None:
    """Runs tasks until the other process closes the connection, or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            fn, args, kwargs = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[bool, Any] = (True, fn(*args, **kwargs))
        except Exception as error:
            answer = (False, error)
        try:
            connection.send(answer)
        except BrokenPipeError:
            return


def _end_with_parent() -> None:
    """Ends this process as soon as the one that started it has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Jobs(Executor):
    """Jobs of submitit, which submits them to SLURM, as tasks of an executor.

    Example:
      >>> cluster = submitit.AutoExecutor("jobs", cluster="slurm")
      >>> cluster.update_parameters(timeout_min=60, cpus_per_task=8)
      >>> with Jobs(cluster) as executor:
      ...     groups = list(fm.sweep(make, cells, rounds=10, executor=executor))
    """

    def __init__(self, cluster: Any):
        """Submits nothing yet; `cluster` is an executor of submitit."""
        self._cluster = cluster
        self._jobs: dict[Future[Any], Any] = {}
        self._lock, self._over = threading.Lock(), threading.Event()
        self._watch = threading.Thread(target=self._settle_all, daemon=True)
        self._watch.start()

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Submits a job; see `concurrent.futures.Executor`."""
        future: Future[Any] = Future()
        job = self._cluster.submit(fn, *args, **kwargs)
        with self._lock:
            self._jobs[future] = job
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more notice of jobs, which end by then or are cancelled."""
        with self._lock:
            jobs = dict(self._jobs)
        if cancel_futures:
            for future in jobs:
                future.cancel()
        elif wait:
            for future in jobs:
                future.exception()
        self._over.set()
        self._watch.join()
        self._settle(jobs)

    def _settle_all(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_LOOKS):
            with self._lock:
                jobs = dict(self._jobs)
            self._settle(jobs)

    def _settle(self, jobs: dict[Future[Any], Any]) -> None:
        for future, job in jobs.items():
            if future.cancelled():
                job.cancel(check=False)
            elif job.done():
                _settle(future, job)
            else:
                continue
            with self._lock:
                self._jobs.pop(future, None)


def _settle(future: Future[Any], job: Any) -> None:
    from submitit.core.utils import FailedJobError, UncompletedJobError

    if future.done() or not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(job.result())
    except FailedJobError as error:  # its function raised an error
        future.set_exception(error)
    except UncompletedJobError as error:
        reason = str(error).split("\n")[0]
        future.set_exception(WorkerEndedError(reason))
    except Exception as error:
        future.set_exception(error)

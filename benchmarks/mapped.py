"""Training on examples that stay on disk: python -m benchmarks.mapped

A folder gets 6.1 GB of random images, 20 of 32 x 32 x 3 for each of 100,000 clients,
in uint8. Processes of their own train on them from disk, and on those of the first
2,000 clients in memory, whose rounds have the same shapes. Each prints one line of
Markdown: seconds of a round, and the most memory that was its own. That is the largest
RssAnon of /proc/self/status, every 10 ms: pages of the mapped file, RssFile, are the
page cache's, which the system takes back when it needs memory. They are printed too.
With --turns, rounds from memory and from disk take turns in one process, so that other
programs slow both alike.
"""

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedjax_muon as fm

SHAPE, EACH, CLASSES = (32, 32, 3), 20, 10
SIZES: Any = {"local_steps": 2, "batch_size": 20}
METHODS = {
    "FedAvg": lambda: fm.fedavg(lr=0.03),
    "FedMuon": lambda: fm.fedmuon(lr=0.01),
    "SCAFFOLD": lambda: fm.scaffold(lr=0.03),  # clients keep states
}
WARM, LEAST = 5, 20.0  # rounds before the clock, and seconds that are measured


def write(folder: Path, clients: int) -> None:
    """Writes a dataset in blocks of 1,000 clients."""
    count, rng = clients * EACH, np.random.default_rng(0)
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, *SHAPE)}
    with (folder / "x.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, clients, 1000):
            some = min(1000, clients - first)
            file.write(rng.bytes(some * EACH * math.prod(SHAPE)))
    x = np.load(folder / "x.npy", mmap_mode="r")
    few = np.arange(1000)
    arrays = {"y": np.arange(count) % CLASSES, "owner": np.arange(count) // EACH}
    arrays |= {"x_test": x[:1000], "y_test": few % CLASSES}
    arrays |= {"mean": np.full(3, 127.5), "std": np.full(3, 73.9)}  # of random bytes
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def in_memory(folder: Path, clients: int) -> fm.data.Dataset:
    """The examples of the first clients, read whole."""
    some = slice(clients * EACH)
    names = ("x", "y", "owner", "x_test", "y_test")
    x, y, owner, *test = (np.load(folder / f"{n}.npy", mmap_mode="r") for n in names)
    x, y, owner = (np.array(array[some]) for array in (x, y, owner))
    return fm.data.from_arrays(x, y, owners=owner, test=tuple(test))


class Peaks(threading.Thread):
    """The largest values of this process's memory, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = {"RssAnon": 0, "RssFile": 0, "VmHWM": 0}

    def run(self) -> None:
        while True:
            lines = Path("/proc/self/status").read_text().splitlines()
            now = dict(line.split(":") for line in lines if ":" in line)
            for name, most in self.most.items():
                self.most[name] = max(most, 1000 * int(now[name].split()[0]))
            time.sleep(0.01)


def prepared(dataset: fm.data.Dataset, method: str, cohort: int) -> Any:
    """A simulation whose prologue asks as many clients as a round."""
    task = fm.tasks.classification(fm.models.LeNet(CLASSES), dataset)
    owners: Any = dataset.owners
    parts = fm.partition.by_owner(owners)
    who = fm.sampled(cohort, prologue=cohort)
    return fm.federate(METHODS[method](), task, dataset, parts, cohort=who, **SIZES)


def in_turns(folder: Path, method: str, cohort: int, few: int, turns: int = 15) -> str:
    """Median seconds of rounds from memory and from disk, which take turns."""
    both = in_memory(folder, few), fm.data.mapped(folder)
    simulations = [prepared(dataset, method, cohort) for dataset in both]
    states = [each.init(jax.random.key(0)) for each in simulations]
    times: list[list[float]] = [[], []]
    for _ in range(WARM + turns):
        for i, simulation in enumerate(simulations):
            began = time.perf_counter()
            states[i], metrics = simulation.train_round(states[i])
            jax.block_until_ready(metrics)
            times[i].append(time.perf_counter() - began)
    memory, disk = (float(np.median(each[WARM:])) for each in times)
    ratio = f"{memory / disk:.2f} of the speed"
    return f"{method}: {memory:.3f} s from memory, {disk:.3f} s from disk, {ratio}"


def measured(folder: Path, method: str, on_disk: bool, cohort: int, few: int) -> str:
    """Trains one method; the line of this process."""
    peaks = Peaks()
    peaks.start()
    began = time.perf_counter()
    dataset = fm.data.mapped(folder) if on_disk else in_memory(folder, few)
    opened = time.perf_counter() - began
    simulation = prepared(dataset, method, cohort)
    state = simulation.init(jax.random.key(0))
    simulation.evaluate(state)
    state, metrics = simulation.train_rounds(state, WARM)
    jax.block_until_ready(metrics)
    began, first = time.perf_counter(), state.round
    while (took := time.perf_counter() - began) < LEAST:
        state, metrics = simulation.train_round(state)
        jax.block_until_ready(metrics)
    seconds = took / (state.round - first)
    gigabytes = [f"{peaks.most[name] / 1e9:.2f}" for name in peaks.most]
    where, number = "disk" if on_disk else "memory", len(simulation.clients.size)
    cells = method, where, f"{number}", f"{opened:.0f}", f"{seconds:.3f}", *gigabytes
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--in-memory", type=int, default=2000, help="clients of these")
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--folder", type=Path, help="for the examples; removed again")
    parser.add_argument(
        "--turns", action="store_true", help="rounds of both in one process, in turns"
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        method, where = given.one
        sizes = given.cohort, given.in_memory
        if where == "turns":
            print(in_turns(given.folder, method, *sizes), flush=True)
            return
        print(measured(given.folder, method, where == "disk", *sizes), flush=True)
        return
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        began = time.perf_counter()
        write(folder, given.clients)
        print(f"written in {time.perf_counter() - began:.0f} s", flush=True)
        if not given.turns:
            print("| method | examples | clients | s to open | s a round | ", end="")
            print("RssAnon, GB | RssFile, GB | VmHWM, GB |\n|---|---|" + 6 * "---:|")
        for method in given.methods:
            for where in ("turns",) if given.turns else ("memory", "disk"):
                words = [sys.executable, "-m", "benchmarks.mapped", "--one", method]
                words += [where, "--folder", str(folder), "--cohort"]
                words += [str(given.cohort), "--in-memory", str(given.in_memory)]
                subprocess.run(words, check=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

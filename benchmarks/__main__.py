"""Seconds per round of federated learning, compared with other implementations.

    python -m benchmarks                          # all workloads and peers
    python -m benchmarks w1 w2 --repeats 25 --output w.jsonl --figure w.png
    python -m benchmarks cifar10 --devices 2      # each cohort on two devices
    python -m benchmarks --list
    python -m benchmarks plot w.jsonl --output w.png
    python -m benchmarks table w.jsonl

Prints JSON lines: the machine, then a row for every contender and algorithm. A
contender is a process of its own; contenders run one round each in turns. They are the
library with FedAvg, FedMuon (also in blocks, `transforms.orthogonalize_blocks`) and
Local AdamW, and with FedAvg those that are installed of hand-written JAX, a PyTorch
loop, Flower, pfl and FedJAX; with `--peers torch_vmap` also PyTorch that runs clients
in parallel. With `--also PYTHON`, FedAvg of the library and of hand-written JAX takes
turns in that environment too, which has another version of JAX. On a CPU everything is
bound to one core and one thread, or to as many as `--devices` says, with one device per
core. Large models then run fewer steps with fewer clients, unless `--full` is given.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from benchmarks import figure, race, table
from benchmarks.peers import PEERS
from benchmarks.workloads import SIZES, WORKLOADS, check_sizes

DEFAULT_PEERS = tuple(name for name, peer in PEERS.items() if peer.by_default)
ALGORITHMS = ("fedavg", "fedmuon", "fedmuon_blocks", "local_adamw")
MEASURES = {  # further workloads: modules with `rows`
    "newton_schulz": "five Newton-Schulz steps compared with optax, and with the "
    "machine's matrix-product rate",
    "convolutions": "the forms of a convolution, and which one is chosen",
    "local_step": "a local step of ResNet-18 inside a round, and the same step alone",
    "gpt_step": "a local step of a small GPT inside a round, and in a PyTorch loop",
}
SHOWN = {"plot": figure.main, "table": table.main}


def _names(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(text.split(","))


def arguments() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description=about,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("workloads", nargs="*", metavar="WORKLOAD", help="all by default; see --list")
    add("--list", action="store_true", help="print the workloads and peers, and stop")
    add("--repeats", type=int, default=5, help="rounds after the first")
    add("--devices", type=int, default=1, help="that the library divides a cohort over")
    add("--algorithms", type=_names, default=ALGORITHMS, metavar="A,B")
    add("--peers", type=_names, default=DEFAULT_PEERS, metavar="A,B", help="or none")
    add("--also", metavar="PYTHON", help="an interpreter with another JAX, for FedAvg")
    add("--full", action="store_true", help="full-size large models on a CPU too")
    for size in SIZES:
        add(f"--{size}", type=int, help=f"another number of {size}")
    add("--output", type=Path, help="also append the lines to this file")
    add("--figure", type=Path, help="draw the rows")
    return parser


def _known(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"no {kind} {name!r}; there are {', '.join(known)}")


def check(options: argparse.Namespace) -> None:
    """Raises `ValueError` for options that cannot be measured."""
    _known("workload", options.workloads, (*WORKLOADS, *MEASURES))
    _known("peer", options.peers, tuple(PEERS))
    _known("algorithm", options.algorithms, ALGORITHMS)
    for name in ("repeats", "devices", *SIZES):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    if options.figure:
        figure.check_format(options.figure)
        if "fedavg" not in options.algorithms:
            raise ValueError(
                "--figure shows times relative to FedAvg: --algorithms needs fedavg"
            )


def sizes_of(options: argparse.Namespace, name: str, on_cpu: bool) -> race.Row:
    """Returns the sizes that differ from the workload's own."""
    small = dict(WORKLOADS[name].small) if on_cpu and not options.full else {}
    given = {size: getattr(options, size) for size in SIZES}
    return small | {size: n for size, n in given.items() if n is not None}


def keep_to(cores: int) -> None:
    """Binds this process, and those that it starts, to a number of cores."""
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    if cores > len(allowed):
        raise ValueError(
            f"--devices {cores} needs as many cores, there are {len(allowed)}"
        )
    os.sched_setaffinity(0, set(allowed[:cores]))


def measured(options: argparse.Namespace) -> Iterator[race.Row]:
    """Yields a line about the machine, then the rows.

    Raises:
      ValueError: If there are fewer devices, or if no round can have these sizes.
    """
    names = options.workloads or [*WORKLOADS, *MEASURES]
    workloads = [name for name in names if name in WORKLOADS]
    with tempfile.TemporaryDirectory() as folder:
        request = {"do": "prepare", "workloads": workloads, "weights": folder}
        head, *about = race.answers(request | {"module": "benchmarks"}, options.devices)
        head["command"] = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
        also = options.also and (options.also, race.jax_of(options.also))
        head |= {"also_jax": also[1]} if also else {}
        head |= {"peers": race.versions(options.peers), "load": os.getloadavg()[0]}
        on_cpu = head["backend"] == "cpu"
        if (available := head.pop("local_devices")) < options.devices:
            raise ValueError(f"--devices {options.devices}, but there are {available}")
        if on_cpu:
            keep_to(options.devices)
        sizes = {name: sizes_of(options, name, on_cpu) for name in workloads}
        for name in workloads:
            check_sizes(WORKLOADS[name]._replace(**sizes[name]))
        parameters = {one["workload"]: one["parameters"] for one in about}
        yield head
        for name in names:
            if name in MEASURES:
                yield from _measure(name, options)
                continue
            rows = race.race(
                name,
                sizes[name],
                algorithms=options.algorithms,
                peers=options.peers,
                weights=Path(folder),
                limits=race.Limits(options.devices, options.repeats, also),
            )
            yield from (row | {"parameters": parameters[name]} for row in rows)


def _measure(name: str, options: argparse.Namespace) -> Iterator[race.Row]:
    request = {"do": "measure", "module": name, "repeats": options.repeats}
    try:
        for row in race.answers(request, options.devices):
            yield {"workload": name} | row
    except race.ContenderError as error:
        yield {"workload": name, "error": str(error)}


def write(row: race.Row, streams: Sequence[IO[str]]) -> None:
    """Writes one line of JSON to each stream."""
    for stream in streams:
        print(json.dumps(row), file=stream, flush=True)


def main(given: Sequence[str]) -> None:
    """Measures, or shows stored measurements."""
    if given and given[0] in SHOWN:
        SHOWN[given[0]](given[1:])
        return
    options = arguments().parse_args(given)
    check(options)
    if options.list:
        for name, about in (
            {n: w.about for n, w in WORKLOADS.items()} | MEASURES
        ).items():
            print(f"{name:20}{about}")
        return
    rows, streams = [], [sys.stdout]
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        streams.append(options.output.open("a"))
    for row in measured(options):
        rows.append(row)
        write(row, streams)
    if options.figure:
        figure.draw(rows, options.figure)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as error:
        sys.exit(f"python -m benchmarks: {error}")

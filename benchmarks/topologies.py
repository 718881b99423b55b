"""Rounds compiled for TPUs without a TPU: seconds, memory and communication.

    python -m benchmarks.topologies                   # all groups: up to an hour
    python -m benchmarks.topologies methods plans
    python -m benchmarks.topologies --list

Appends a line of JSON for every case to DIR/matrix.jsonl, and writes all of them as
tables to DIR/matrix.md. A case that is already there is not compiled again. The
compiler is that of the extra `tpu-aot`; it runs in a process of its own, which is ended
after `--minutes`.
"""

import argparse
import collections
import json
import multiprocessing
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# before JAX is imported; only several devices can divide examples
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")

from benchmarks.machine import machine
from benchmarks.topology_cases import GROUPS, Case, prepare
from fedjax_muon.ahead_of_time import (
    CHIPS,
    compile_for,
    memory_of,
)

Row = dict[str, Any]
ENDED = "the compiler's process ended"
LATE = "not compiled within the limit"
COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
    r"(?:-start)?\("
)


def row_of(case: Case) -> Row:
    """Compiles a case; what the compiler says of it, or why it refuses."""
    simulation = prepare(case)
    began = time.perf_counter()
    try:
        compiled = compile_for(simulation, case.topology, plan=case.plan)
    except ValueError as error:  # it does not fit, for one
        return {"error": str(error)}
    text = compiled.as_text() or ""
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "memory": memory_of(compiled),
        "chip_memory": CHIPS[case.topology.partition(":")[0]],
        "collectives": dict(collections.Counter(COLLECTIVE.findall(text))),
    }


class Worker:
    """A process that compiles one case after another, until it is late."""

    def __init__(self) -> None:
        """Starts the process."""
        spawning = multiprocessing.get_context("spawn")
        self.connection, theirs = spawning.Pipe()
        self.process = spawning.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def compile(self, case: Case, seconds: float) -> Row:
        """Compiles a case within a limit; the process can't be used after an error."""
        try:
            self.connection.send(case)
            if not self.connection.poll(seconds):
                return {"error": f"{LATE} of {seconds / 60:g} minutes"}
            return self.connection.recv()
        except (EOFError, OSError):
            return {"error": ENDED}

    def end(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.join()


def _serve(connection: Connection) -> None:
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        connection.send(row_of(case))


def compiled(cases: Sequence[Case], seconds: float) -> Iterator[Row]:
    """Yields the rows of cases, in order."""
    worker = Worker()
    try:
        for case in cases:
            began = time.perf_counter()
            found = worker.compile(case, seconds)
            if found.get("error", "").startswith((LATE, ENDED)):
                worker.end()
                worker = Worker()
            setting = case.setting
            yield {
                "case": case.name,
                "group": case.group,
                "algorithm": case.algorithm,
                "model": setting.model,
                "cohort": setting.cohort,
                "plan": setting.plan,
                "dtype": setting.dtype,
                "topology": case.topology,
                "total_seconds": round(time.perf_counter() - began, 1),
            } | found
    finally:
        worker.end()


def read(path: Path) -> list[Row]:
    """Returns the finished rows of a file; the last one of a case counts."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return list({line["case"]: line for line in lines if "case" in line}.values())


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the tables of all groups."""
    parts = []
    for group in dict.fromkeys(row["group"] for row in rows):
        lines = [
            f"## {group}",
            "",
            "| method | model, clients, plan | chips | compilation, s | memory of a "
            "chip | communication |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_line(row) for row in rows if row["group"] == group]
        parts.append("\n".join(lines))
    return "\n\n".join(["# Rounds compiled for TPUs", *parts]) + "\n"


def _line(row: Mapping[str, Any]) -> str:
    half = ", bfloat16" if row["dtype"] == "bfloat16" else ""
    what = f"{row['model']}, {row['cohort']:,}, {row['plan']}{half}"
    first = f"| {row['algorithm']} | {what} | {row['topology']} |"
    if "error" in row:
        return f"{first} - | {row['error']} | - |"
    total, chip = row["memory"], row["chip_memory"]
    over = "" if total <= chip else ": **does not fit**"
    memory = f"{total / 1e9:.3g} of {chip / 1e9:.3g} GB{over}"
    said = ", ".join(f"{n} {kind}" for kind, n in row["collectives"].items())
    return f"{first} {row['seconds']:.3g} | {memory} | {said or 'none'} |"


def arguments() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "python -m benchmarks.topologies",
        description=about,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    add("--list", action="store_true", help="print the cases, and stop")
    add("--minutes", type=float, default=3.0, help="limit of a case")
    add("--again", action="store_true", help="compile cases that were refused again")
    add("--output", type=Path, default=Path("runs/topologies"), metavar="DIR")
    return parser


def main(given: Sequence[str] | None = None) -> None:
    """Compiles the cases of groups that are not in the output yet."""
    parser = arguments()
    options = parser.parse_args(given)
    for group in options.groups:
        if group not in GROUPS:
            parser.error(f"no group {group!r}; there are {', '.join(GROUPS)}")
    cases = [case for name in options.groups or GROUPS for case in GROUPS[name]()]
    if options.list:
        print("\n".join(case.name for case in cases))
        return
    path = options.output / "matrix.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = read(path)
    done = {r["case"] for r in known if not (options.again and "error" in r)}
    missing = [case for case in cases if case.name not in done]
    with path.open("a") as file:
        if missing:
            file.write(json.dumps(machine("benchmarks.topologies")) + "\n")
        for row in compiled(missing, 60 * options.minutes):
            line = json.dumps(row)
            print(line, flush=True)
            file.write(line + "\n")
            file.flush()
    path.with_suffix(".md").write_text(markdown(read(path)))


if __name__ == "__main__":
    main()

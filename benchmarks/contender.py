"""One process of a benchmark, started by `benchmarks.race` and not by users.

python -m benchmarks.contender '{"do": "round", ...}'
"""

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.turns import Turns, on_standard_streams
from benchmarks.workloads import WORKLOADS, Workload


def workload_of(name: str, sizes: dict[str, Any]) -> Workload:
    """Returns the workload of that name with some sizes changed."""
    return WORKLOADS[name]._replace(**sizes)


def _prepare(turns: Turns, *, workloads: list[str], weights: str, module: str) -> None:
    """Sends a description of the machine, and writes all initial parameters."""
    import jax

    from benchmarks import library
    from benchmarks.machine import machine

    turns.send(**machine(module), local_devices=len(jax.devices()))
    for name in workloads:
        first: dict[str, Any] = library.first_weights(WORKLOADS[name])
        np.savez(f"{weights}/{name}.npz", **first)
        turns.send(workload=name, parameters=sum(w.size for w in first.values()))


def _round(
    turns: Turns, *, contender: str, workload: str, sizes, weights: str, **how
) -> None:
    with np.load(f"{weights}/{workload}.npz") as stored:
        first = dict(stored)
    module = importlib.import_module(f"benchmarks.{contender}")
    module.run(workload_of(workload, sizes), first, turns, **how)


def _measure(turns: Turns, *, module: str, **how) -> None:
    for row in importlib.import_module(f"benchmarks.{module}").rows(**how):
        turns.send(**row)


DO: dict[str, Callable[..., None]] = {
    "prepare": _prepare,
    "round": _round,
    "measure": _measure,
}


def main() -> None:
    """Handles the request in the first argument; errors are answers as well."""
    turns = on_standard_streams()
    request: dict[str, Any] = json.loads(sys.argv[1])
    try:
        DO[request.pop("do")](turns, **request)
    except Exception as error:
        first, *_ = str(error).splitlines() or [""]
        turns.send(error=f"{type(error).__name__}: {first}"[:300])
        raise


if __name__ == "__main__":
    main()

"""One process of a benchmark, started by `benchmarks.race`; not meant for the shell.

python -m benchmarks.contender '{"do": "round", ...}'
"""

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.turns import Turns, on_standard_streams
from benchmarks.works import WORKS, Work


def work_of(name: str, sizes: dict[str, Any]) -> Work:
    """The work of that name with some sizes changed."""
    return WORKS[name]._replace(**sizes)


def _opening(turns: Turns, *, works: list[str], weights: str, module: str) -> None:
    """Says where this runs, and writes every work's initial parameters."""
    import jax

    from benchmarks import library
    from benchmarks.machine import machine

    turns.say(**machine(module), local_devices=len(jax.devices()))
    for name in works:
        first: dict[str, Any] = library.first_weights(WORKS[name])
        np.savez(f"{weights}/{name}.npz", **first)
        turns.say(work=name, parameters=sum(w.size for w in first.values()))


def _round(
    turns: Turns, *, contender: str, work: str, sizes, weights: str, **how
) -> None:
    with np.load(f"{weights}/{work}.npz") as stored:
        first = dict(stored)
    module = importlib.import_module(f"benchmarks.{contender}")
    module.play(work_of(work, sizes), first, turns, **how)


def _measure(turns: Turns, *, module: str, **how) -> None:
    for row in importlib.import_module(f"benchmarks.{module}").rows(**how):
        turns.say(**row)


DO: dict[str, Callable[..., None]] = {
    "opening": _opening,
    "round": _round,
    "measure": _measure,
}


def main() -> None:
    """Does what it was started for; what goes wrong is an answer as well."""
    turns = on_standard_streams()
    told: dict[str, Any] = json.loads(sys.argv[1])
    try:
        DO[told.pop("do")](turns, **told)
    except Exception as error:
        first, *_ = str(error).splitlines() or [""]
        turns.say(error=f"{type(error).__name__}: {first}"[:300])
        raise


if __name__ == "__main__":
    main()

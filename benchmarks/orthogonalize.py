"""CPU time of five Newton-Schulz steps: ours against optax 0.2.8's.

    python -m benchmarks.orthogonalize [--repeats 9]

One JSON line a shape. Both run jitted in float32 with Jordan's coefficients, in one
process and in turns, and the figure is the least process CPU time of all turns: unlike
wall time it hardly depends on what else the machine does, and threads do not hide work.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

# Not exported by optax; what `optax.contrib.scale_by_muon` calls for every matrix.
from optax.contrib._muon import orthogonalize_via_newton_schulz

from benchmarks.machine import machine
from fedjax_muon.orthogonalize import JORDAN, orthogonalize

SHAPES = ((512, 4608), (4096, 300), (512, 512), (1024, 1024))
STEPS = 5


def least_cpu_seconds(
    functions: Sequence[Callable[[jax.Array], jax.Array]], x: jax.Array, repeats: int
) -> list[float]:
    """The least process CPU time of one call of each function, compiled beforehand."""
    least = [float("inf")] * len(functions)
    for turn in range(repeats + 1):
        for index, function in enumerate(functions):
            start = time.process_time()
            jax.block_until_ready(function(x))
            if turn > 0:  # turn 0 compiles
                least[index] = min(least[index], time.process_time() - start)
    return least


def compare(shape: tuple[int, int], repeats: int) -> dict[str, object]:
    coefficients = jnp.asarray(JORDAN[0])
    ours = jax.jit(lambda x: orthogonalize(x, coefficients=JORDAN, steps=STEPS))
    theirs = jax.jit(lambda x: orthogonalize_via_newton_schulz(x, coefficients, STEPS))
    x = jax.random.normal(jax.random.key(0), shape)
    own, other = least_cpu_seconds((ours, theirs), x, repeats)
    return {
        "shape": shape,
        "cpu_ms": round(own * 1e3, 2),
        "optax_cpu_ms": round(other * 1e3, 2),
        "speedup": round(other / own, 2),
        "largest_difference": float(jnp.max(jnp.abs(ours(x) - theirs(x)))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=9, help="turns each")
    repeats = parser.parse_args().repeats
    context = machine("benchmarks.orthogonalize")
    for shape in SHAPES:
        print(json.dumps(compare(shape, repeats) | context), flush=True)


if __name__ == "__main__":
    main()

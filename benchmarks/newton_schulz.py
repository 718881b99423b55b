"""Five Newton-Schulz steps, compared with optax and with the machine's product rate.

Single matrices are orthogonalized in float32 with Jordan's coefficients, and with
products in bfloat16, in one process and in turns. Then all matrices of a large model
are; their time is compared with that of as many operations at the rate of large matrix
products on this machine.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# optax does not export it; `optax.contrib.scale_by_muon` calls it for every matrix
from optax.contrib._muon import orthogonalize_via_newton_schulz

from benchmarks.library import first_weights, nested
from benchmarks.race import summary
from benchmarks.turns import busy_seconds
from benchmarks.workloads import WORKLOADS
from fedjax_muon import transforms
from fedjax_muon.linalg.newton_schulz import JORDAN, gram, orthogonalize, plain

SHAPES = ((784, 200), (512, 4608), (4096, 300), (512, 512), (1024, 1024))
HALF = "fedjax_muon, bfloat16"
STEPS = 5
MODELS = ("cifar100_resnet18", "cifar100_vit_tiny")


def flops(rows: int, columns: int, steps: int = STEPS) -> int:
    """Returns the additions and multiplications of all products, 2 m n k for one.

    They are those of the form that `orthogonalize` chooses on CPUs for the shape: n x n
    products, and products with the n x m matrix at both ends of every stage. Symmetry
    is not exploited.
    """
    n, m = sorted((rows, columns))
    form = gram if m > 1.5 * n else plain
    stages = form(JORDAN * steps, np.dtype(np.float32))
    large = 2 * len(stages)  # X X^T and Q X
    # A^2 for every step; between two steps W A W, and W onto Q
    small = sum(len(stage) + 3 * (len(stage) - 1) for stage in stages)
    return 2 * n * n * (large * m + small * n)


def matrices(weights: Mapping[str, np.ndarray]) -> list[tuple[int, int]]:
    """Returns rows and columns of the matrices of a model in Muon's default layout."""
    shapes = [w.shape for w in weights.values() if w.ndim >= 2]
    return [(math.prod(shape[:-1]), shape[-1]) for shape in shapes]


def in_turns(
    functions: Mapping[str, Callable[[], Any]], repeats: int
) -> dict[str, dict[str, Any]]:
    """Returns the times of a call of each function; the first call compiles."""
    times: dict[str, list[dict[str, float]]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            wall, cpu, busy = time.perf_counter(), time.process_time(), busy_seconds()
            jax.block_until_ready(function())
            spent = {
                "wall": time.perf_counter() - wall,
                "cpu": time.process_time() - cpu,
                "busy": busy_seconds() - busy,
            }
            times[name].append(spent)
    return {name: summary(rounds) for name, rounds in times.items()}


def _shapes(repeats: int) -> Iterator[dict[str, Any]]:
    coefficients = jnp.asarray(JORDAN[0])
    given = functools.partial(orthogonalize, coefficients=JORDAN, steps=STEPS)
    single, half = (
        jax.jit(functools.partial(given, dtype=dtype))
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    theirs = jax.jit(lambda x: orthogonalize_via_newton_schulz(x, coefficients, STEPS))
    for shape in SHAPES:
        x = jax.random.normal(jax.random.key(0), shape)
        every = {"fedjax_muon": single, HALF: half, "optax": theirs}
        calls = {name: functools.partial(call, x) for name, call in every.items()}
        times = in_turns(calls, repeats)
        difference = float(jnp.max(jnp.abs(single(x) - theirs(x))))
        for name, spent in times.items():
            about = {"case": "{} x {}".format(*shape), "contender": name}
            yield about | spent | {"largest_difference": difference}


def _models(repeats: int) -> Iterator[dict[str, Any]]:
    on_cpu = jax.default_backend() == "cpu"
    side = 2048 if on_cpu else 8192
    # on a CPU, the time of its one thread: other load does not count
    kind = f"{'cpu' if on_cpu else 'wall'}_seconds_min"
    large = jax.random.normal(jax.random.key(0), (side, side))
    product = functools.partial(jax.jit(jnp.matmul), large, large)
    single = functools.partial(orthogonalize, dtype=jnp.float32)
    rule = transforms.by_rank(transforms.orthogonalize(single))
    update = jax.jit(lambda x, state: rule.update(x, state)[0])
    for name in MODELS:
        weights = first_weights(WORKLOADS[name])
        params = nested(weights)
        call = functools.partial(update, params, rule.init(params))
        spent = in_turns({"update": call, "product": product}, repeats)
        rate = 2 * side**3 / spent["product"][kind]
        count = sum(flops(*shape) for shape in matrices(weights))
        yield {
            "case": f"all matrices of {WORKLOADS[name].model}",
            "contender": "fedjax_muon",
            **spent["update"],
            "gflop": round(count / 1e9, 2),
            "gflops_per_second": round(rate / 1e9, 1),
            "seconds_at_that_rate": round(count / rate, 4),
            "times_that": round(spent["update"][kind] * rate / count, 3),
        }


def rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yields a row for every shape and contender, and one for every model."""
    yield from _shapes(repeats)
    yield from _models(repeats)

"""Checks and rates of an accelerator, as lines of JSON.

    python -m benchmarks.gpu_checks methods --output checks.jsonl
    python -m benchmarks.gpu_checks plans repeats tune newton_schulz

- `methods`: parameters of every method of the registries after three rounds, compared
  with those of the CPU, with products in float32 and in the accelerator's default;
- `plans`: the same for every plan, compared with `mapped` on the same device;
- `repeats`: whether a run that is repeated, or resumed, has the same bits;
- `tune`: seconds of a round by plan, for several models;
- `newton_schulz`: operations per second in bfloat16, beside those of a large product;
- `language`: tokens per second of a GPT of 32 million parameters in bfloat16, which
  four workers train with 30 local steps per round.

A line that is in the output already is not measured again. With `--part` of `--parts`,
several processes divide the lines of checks that are not timed. `benchmarks/gpu.sh`
calls it; `--small` rehearses it on a CPU.
"""

import argparse
import dataclasses
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cuda,cpu")  # before JAX is imported

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_muon as fm
from benchmarks.machine import machine
from benchmarks.newton_schulz import flops
from benchmarks.topology_cases import (
    MODELS,
    Case,
    Setting,
    dataset_of,
    methods,
    with_data,
)
from fedjax_muon.data import load
from fedjax_muon.linalg.newton_schulz import orthogonalize
from fedjax_muon.runs import simulate
from fedjax_muon.simulation import Simulation
from fedjax_muon.simulation.checkpoint import open_checkpoints, restore, save
from fedjax_muon.simulation.tuning import tune

Row = dict[str, Any]
Checks = Iterator[tuple[str, Callable[[], Row]]]  # names, and what measures them
# Published rates of dense products in bfloat16, in operations per second.
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L4": 121e12}
SMALL: Row = {"clients": 8, "cohort": 8, "local_steps": 2, "plan": "mapped"}
ROUNDS = 3
PLANS: dict[str, dict[str, Any]] = {
    "mapped": {"plan": "mapped"},
    "vmapped": {"plan": "vmapped"},
    "chunked": {"plan": "chunked", "chunk_size": 3},
    "loop": {"plan": "loop"},
}
STATEFUL = ("fedmuon", "scaffold", "fedmuon_svd")


def of_method(algorithm: str, device: jax.Device, **changes: Any) -> Simulation:
    """Returns a small simulation of a method on a device."""
    known = {case.algorithm: case.setting for case in methods()}
    how = {"hidden": (32,), **SMALL, **changes}
    setting = dataclasses.replace(known[algorithm], **how)
    name = "breast_cancer" if setting.auc else "digits"
    with jax.default_device(device):
        return with_data(Case("checks", algorithm, setting, ""), load(name))


def parameters(simulation: Simulation, device: jax.Device, precision: str) -> Any:
    """Returns the parameters after some rounds, on the host."""
    with jax.default_device(device), jax.default_matmul_precision(precision):
        state = simulation.init(jax.random.key(0))
        state, _ = simulation.train_rounds(state, ROUNDS)
        return jax.device_get(state.params)


def distance(one: Any, other: Any) -> float:
    """Returns the norm of the difference over the norm of `other`."""
    flat = lambda tree: np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
    a, b = flat(one).astype(np.float64), flat(other).astype(np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def check_methods() -> Checks:
    """Yields a check of every method."""
    accelerator, cpu = jax.devices()[0], jax.devices("cpu")[0]

    def compare(algorithm: str) -> Row:
        exact = parameters(of_method(algorithm, cpu), cpu, "highest")
        return {
            precision: distance(
                parameters(of_method(algorithm, accelerator), accelerator, precision),
                exact,
            )
            for precision in ("highest", "default")
        }

    for algorithm in dict.fromkeys(case.algorithm for case in methods()):
        yield algorithm, partial(compare, algorithm)


def check_plans() -> Checks:
    """Yields a check of every plan with three methods."""
    device = jax.devices()[0]

    def compare(algorithm: str, plan: str) -> Row:
        one = of_method(algorithm, device)
        other = parameters(
            of_method(algorithm, device, **PLANS[plan]), device, "highest"
        )
        return {"distance": distance(other, parameters(one, device, "highest"))}

    for algorithm, plan in itertools.product(STATEFUL, ("vmapped", "chunked", "loop")):
        yield f"{algorithm} {plan}", partial(compare, algorithm, plan)


def check_repeats() -> Checks:
    """Yields whether repeated and resumed runs have the same bits."""
    device = jax.devices()[0]

    def run(algorithm: str, plan: str) -> Row:
        one = of_method(algorithm, device, **PLANS[plan])
        first, again = (
            one.train_rounds(one.init(jax.random.key(0)), 4)[0] for _ in range(2)
        )
        state, _ = one.train_rounds(one.init(jax.random.key(0)), 2)
        with (
            tempfile.TemporaryDirectory() as folder,
            open_checkpoints(Path(folder)) as checkpoints,
        ):
            save(checkpoints, 2, state, "check")
            found = restore(checkpoints, one.init(jax.random.key(1)), "check")
        assert found is not None
        resumed, _ = one.train_rounds(found[0], 2)
        same = lambda a, b: all(
            np.array_equal(x, y)
            for x, y in zip(
                jax.tree.leaves(jax.device_get(a.params)),
                jax.tree.leaves(jax.device_get(b.params)),
                strict=True,
            )
        )
        return {"repeated": same(first, again), "resumed": same(first, resumed)}

    for algorithm, plan in itertools.product(STATEFUL, ("mapped", "vmapped")):
        yield f"{algorithm} {plan}", partial(run, algorithm, plan)


def check_tune() -> Checks:
    """Yields seconds of a round by plan."""

    def measure(setting: Setting) -> Row:
        case = Case("tune", "fedmuon", setting, "")
        tuned = tune(with_data(case, dataset_of(setting)))
        return {"plan": tuned.plan, "seconds": dict(tuned.seconds)}

    several = {"mlp": Setting(clients=100, cohort=10)}
    for name, setting in (several | MODELS).items():
        yield name, partial(measure, setting)


def check_newton_schulz() -> Checks:
    """Yields rates of five steps in bfloat16, of batches that fill the device."""

    def seconds(function: Callable[..., Any], *given: Any) -> float:
        jax.block_until_ready(function(*given))
        times = []
        for _ in range(10):
            began = time.perf_counter()
            jax.block_until_ready(function(*given))
            times.append(time.perf_counter() - began)
        return min(times)

    def measure(side: int) -> Row:
        kind = jax.devices()[0].device_kind
        on_cpu = jax.default_backend() == "cpu"
        large = 512 if on_cpu else 8192
        a = jax.random.normal(jax.random.key(0), (large, large), jnp.bfloat16)
        product = 2 * large**3 / seconds(jax.jit(jnp.matmul), a, a)
        batch = max(1, (1 if on_cpu else 256) * 512**2 // side**2)
        x = jax.random.normal(jax.random.key(1), (batch, side, side), jnp.bfloat16)
        steps = jax.jit(lambda x: orthogonalize(x, dtype=jnp.bfloat16))
        rate = batch * flops(side, side) / seconds(steps, x)
        peak = next((rate for name, rate in PEAKS.items() if name in kind), None)
        return {
            "batch": batch,
            "tflops": rate / 1e12,
            "product_tflops": product / 1e12,
            "of_product": rate / product,
            "of_peak": None if peak is None else rate / peak,
        }

    for side in (256, 512, 1024, 2048, 4096):
        yield str(side), partial(measure, side)


def check_language() -> Checks:
    """Yields tokens per second of a GPT, which several workers train."""
    on_cpu = jax.default_backend() == "cpu"
    window, width, depth, heads = (16, 16, 1, 2) if on_cpu else (512, 512, 10, 8)

    def measure(method: fm.Algorithm) -> Row:
        text = {"text": "to be or not to be, " * 40 * window}
        sizes: dict[str, Any] = {"width": width, "depth": depth, "heads": heads}
        model = partial(fm.problems.gpt, dtype=jnp.bfloat16, **sizes)
        problem = fm.problems.text(text, window=window, model=model)
        how: Any = {"cohort": 4, "local_steps": 2 if on_cpu else 30, "batch_size": 8}
        simulation = simulate(method, problem, 0, **how)
        state = simulation.init(jax.random.key(0))
        size = sum(x.size for x in jax.tree.leaves(state.params))
        state, _ = simulation.train_round(state)
        jax.block_until_ready(state)
        began = time.perf_counter()
        state, _ = simulation.train_rounds(state, 2)
        jax.block_until_ready(state)
        seconds = (time.perf_counter() - began) / 2
        tokens = simulation.meter.tokens_after(1)
        assert tokens is not None
        return {"parameters": size, "tokens_per_second": tokens / seconds}

    hidden = fm.transforms.hidden_matrices
    for name, method in {
        "muloco": fm.muloco(layout=hidden),
        "diloco": fm.diloco(),
        "fedmuon": fm.fedmuon(),
    }.items():
        yield name, partial(measure, method)


CHECKS: dict[str, Callable[[], Checks]] = {
    "methods": check_methods,
    "plans": check_plans,
    "repeats": check_repeats,
    "tune": check_tune,
    "newton_schulz": check_newton_schulz,
    "language": check_language,
}


def main(given: Sequence[str] | None = None) -> None:
    """Measures what is not in the output yet."""
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu_checks",
        description=about,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=", ".join(CHECKS))
    parser.add_argument("--output", type=Path, default=Path("runs/gpu/checks.jsonl"))
    parser.add_argument("--small", action="store_true", help="one line of each check")
    parser.add_argument("--part", type=int, default=0, help="that this process runs")
    parser.add_argument("--parts", type=int, default=1, help="processes side by side")
    options = parser.parse_args(given)
    for name in options.checks:
        if name not in CHECKS:
            parser.error(f"no check {name!r}; there are {', '.join(CHECKS)}")
    done = set()
    if options.output.exists():
        rows = map(json.loads, options.output.read_text().splitlines())
        done = {(row["check"], row["name"]) for row in rows if "check" in row}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with options.output.open("a") as file:
        file.write(json.dumps(machine("benchmarks.gpu_checks")) + "\n")
        for name in options.checks or CHECKS:
            lines = CHECKS[name]()
            end = 1 if options.small else None
            for line, measure in itertools.islice(
                lines, options.part, end, options.parts
            ):
                if (name, line) not in done:
                    row = {"check": name, "name": line} | measure()
                    print(json.dumps(row), flush=True)
                    file.write(json.dumps(row) + "\n")
                    file.flush()


if __name__ == "__main__":
    main()

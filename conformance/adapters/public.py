"""Public packages of other people: their optimizers and rules of servers.

Every entry names the package that it needs, and is left out where that is missing.
"""

import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

Arrays = dict[str, np.ndarray]
RULE = ("muon", "muon_decay", "muon_kernel")


class Entry(NamedTuple):
    """What is judged, and by which vectors."""

    package: str  # as on the package index
    module: str
    what: str
    run: Callable[..., Any]
    vectors: tuple[str, ...]
    note: str = ""  # departures that its documents state


# --------------------------------------------------------------------------- optimizers
def torch_optimizer(build: Callable) -> Callable:
    """`build(module, parameters, settings)` is an optimizer of PyTorch."""

    def run(task: Any, module: Any) -> Iterator[Arrays]:
        import torch

        tensor = lambda v: torch.tensor(v, dtype=torch.float32)
        params = {k: torch.nn.Parameter(tensor(v)) for k, v in task.x0.items()}
        optimizer = build(module, list(params.values()), task.hyper)
        # Newton-Schulz steps without their rounding, which hides the rule
        with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
            for g in task.gradients:
                for k, p in params.items():
                    p.grad = tensor(g[k])
                optimizer.step()
                yield {k: p.detach().numpy().copy() for k, p in params.items()}

    return run


def usual(h: dict[str, float]) -> dict[str, float]:
    return {k: h[k] for k in ("lr", "momentum", "weight_decay")}


def grouped(params: list, h: dict, momentum: dict) -> list[dict]:
    """All parameters in the group of matrices."""
    rest = {k: h[k] for k in ("lr", "weight_decay")}
    return [{"params": params, "use_muon": True, **rest, **momentum}]


def optax_muon(task: Any, module: Any) -> Iterator[Arrays]:
    import jax
    import jax.numpy as jnp

    h, optax = task.hyper, module
    here = lambda tree: {k: jnp.asarray(np.moveaxis(v, 0, -1)) for k, v in tree.items()}
    decay = h["weight_decay"]
    rule = optax.contrib.muon(h["lr"], beta=h["momentum"], weight_decay=decay)
    with jax.enable_x64(True):
        x = here(task.x0)
        state = rule.init(x)
        for g in task.gradients:
            step, state = rule.update(here(g), state, x)
            x = optax.apply_updates(x, step)
            yield {k: np.moveaxis(np.asarray(v), -1, 0) for k, v in x.items()}


# -------------------------------------------------------------------- rules of servers
def byzfl(name: str, *names: str, **more: Any) -> Callable:
    def run(task: Any, module: Any) -> Arrays:
        rows = [np.concatenate([v.ravel() for v in m.values()]) for m in task.messages]
        given = {k: int(task.hyper[k]) for k in names}
        row = np.asarray(getattr(module, name)(**given, **more)(np.stack(rows)))
        first = task.messages[0]
        ends = itertools.accumulate(v.size for v in first.values())
        pieces = np.split(row, [*ends][:-1])
        return {
            k: v.reshape(first[k].shape) for k, v in zip(first, pieces, strict=True)
        }

    return run


def entries() -> list[Entry]:
    torch = torch_optimizer
    muon = lambda **more: torch(lambda m, p, h: m.optim.Muon(p, **usual(h), **more))
    timm = lambda **more: torch(lambda m, p, h: m.Muon(p, **usual(h), **more))
    grouped_muon = lambda m, p, h: m.Muon(grouped(p, h, {"momentum": h["momentum"]}))
    heavy = lambda **more: torch(
        lambda m, p, h: m.Muon(
            p,
            lr=h["lr"],
            betas=(h["momentum"], 0.99),
            weight_decay=h["weight_decay"],
            compile_step=False,
            **more,
        )
    )
    heavyball, server = {"heavyball_momentum": True}, "byzfl"
    rms = {"adjust_lr_fn": "match_rms_adamw"}
    return [
        Entry("torch", "torch", "optim.Muon", muon(), RULE[:2]),
        Entry(
            "torch",
            "torch",
            "optim.Muon, match_rms_adamw",
            muon(**rms),
            RULE[:2],
            "the scale is an option",
        ),
        Entry("optax", "optax", "contrib.muon", optax_muon, RULE[:2]),
        Entry(
            "timm", "timm.optim.muon", "Muon", timm(), RULE, "defaults are documented"
        ),
        Entry("timm", "timm.optim.muon", "Muon, nesterov", timm(nesterov=True), RULE),
        Entry("heavyball", "heavyball", "Muon", heavy(), RULE),
        Entry(
            "heavyball",
            "heavyball",
            "Muon, heavyball_momentum",
            heavy(**heavyball),
            RULE,
        ),
        Entry(
            "pytorch-optimizer", "pytorch_optimizer", "Muon", torch(grouped_muon), RULE
        ),
        Entry(
            "muon-optimizer",
            "muon",
            "SingleDeviceMuon",
            torch(lambda m, p, h: m.SingleDeviceMuon(p, **usual(h))),
            RULE,
        ),
        Entry("byzfl", server, "Median", byzfl("Median"), ("coordinate_median",)),
        Entry("byzfl", server, "TrMean", byzfl("TrMean", "f"), ("trimmed_mean",)),
        Entry(
            "byzfl",
            server,
            "Krum",
            byzfl("Krum", "f"),
            ("krum",),
            "the number of neighbors is documented",
        ),
        Entry(
            "byzfl",
            server,
            "MultiKrum",
            byzfl("MultiKrum", "f"),
            ("multi_krum",),
            "the number of neighbors is documented",
        ),
        Entry(
            "byzfl",
            server,
            "GeometricMedian",
            byzfl("GeometricMedian"),
            ("geometric_median",),
            "the number of iterations is an option",
        ),
        Entry(
            "byzfl",
            server,
            "GeometricMedian, T=2000",
            byzfl("GeometricMedian", nu=1e-9, T=2000),
            ("geometric_median",),
        ),
    ]


def found(entry: Entry) -> Any:
    """The module of an entry; None where its package is missing."""
    try:
        return importlib.import_module(entry.module)
    except ImportError:
        return None

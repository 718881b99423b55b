"""Public optimizers with a rule called Muon."""

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

from conformance.adapters.entry import FIND, Arrays, Entry, package

MATRIX, ALL = "muon muon_decay", "muon muon_decay muon_kernel"


def float32() -> Any:
    """PyTorch without rounding to half precision, which hides the rule."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            half = torch.bfloat16, torch.float16
            wide = lambda v: torch.float32 if v in half else v
            dtype = {k: wide(v) for k, v in (kwargs or {}).items() if k == "dtype"}
            return function(*args, **(kwargs or {}) | dtype)

    return Mode()


def torch_optimizer(build: Callable, dtype: str = "float32") -> Callable:
    """`build(module, parameters, settings)` is an optimizer of PyTorch."""

    def run(task: Any, module: Any) -> Iterator[Arrays]:
        import torch

        tensor = lambda v: torch.tensor(v, dtype=getattr(torch, dtype))
        params = {k: torch.nn.Parameter(tensor(v)) for k, v in task.x0.items()}
        optimizer = build(module, list(params.values()), task.hyper)
        with float32(), torch.compiler.set_stance("force_eager"):
            for g in task.gradients:
                for k, p in params.items():
                    p.grad = tensor(g[k])
                optimizer.step()
                yield {k: p.detach().numpy().copy() for k, p in params.items()}

    return run


def usual(h: dict, **other: str) -> dict[str, float]:
    """The settings, where a package has other names for them."""
    return {other.get(k, k): h[k] for k in ("lr", "momentum", "weight_decay")}


def plain(name: str = "Muon", names: dict | None = None, **more: Any) -> Callable:
    """An optimizer with arguments of these names."""
    given = lambda h: usual(h, **(names or {})) | more
    return torch_optimizer(lambda m, p, h: getattr(m, name)(p, **given(h)))


def grouped(
    name: str = "Muon", names: dict | None = None, group: dict | None = None, **more
) -> Callable:
    """An optimizer whose settings are those of a group of matrices."""

    def build(module, params, h):
        one = {"params": params, **usual(h, **(names or {})), **(group or {})}
        return getattr(module, name)([one], **more)

    return torch_optimizer(build)


def second_moments(name: str) -> Callable:
    """NorMuon, or AdaMuon, of pytorch-optimizer."""

    def build(module, params, h):
        b = h["momentum"]
        own = {"momentum": b, "beta2": h["b2"]} if "b2" in h else {"betas": (b, b)}
        one = {"params": params, "use_muon": True, "lr": h["lr"], **own}
        return getattr(module, name)([one])

    return torch_optimizer(build)


def heavyball(**more: Any) -> Callable:
    def build(module, params, h):
        rest = {k: h[k] for k in ("lr", "weight_decay")}
        betas = h["momentum"], 0.99
        return module.Muon(params, betas=betas, compile_step=False, **rest, **more)

    return torch_optimizer(build, "float64")  # else it rounds at random


# ------------------------------------------------------------------- other than PyTorch
def last(tree: Arrays) -> Arrays:
    """Kernels with their outputs last."""
    return {k: np.moveaxis(v, 0, -1) for k, v in tree.items()}


def first(tree: dict) -> Arrays:
    return {k: np.moveaxis(np.asarray(v), -1, 0) for k, v in tree.items()}


def optax_muon(task: Any, module: Any, **more: Any) -> Iterator[Arrays]:
    import jax
    import jax.numpy as jnp

    h, optax = task.hyper, module
    given = {"beta": h["momentum"], "weight_decay": h["weight_decay"], **more}
    rule = optax.contrib.muon(h["lr"], **given)
    with jax.enable_x64(True):
        here = lambda tree: {k: jnp.asarray(v) for k, v in last(tree).items()}
        x = here(task.x0)
        state = rule.init(x)
        for g in task.gradients:
            step, state = rule.update(here(g), state, x)
            x = optax.apply_updates(x, step)
            yield first(x)


def keras_muon(task: Any, module: Any, **more: Any) -> Iterator[Arrays]:
    keras, h = module, usual(task.hyper, lr="learning_rate")
    decay = h["weight_decay"] or None
    rule = keras.optimizers.Muon(**h | more | {"weight_decay": decay})
    x = {k: keras.Variable(v.astype("float32")) for k, v in last(task.x0).items()}
    rule.build([*x.values()])
    tensor = lambda v: keras.ops.convert_to_tensor(v.astype("float32"))
    for g in task.gradients:
        rule.apply([*map(tensor, last(g).values())], [*x.values()])
        yield first({k: keras.ops.convert_to_numpy(v).copy() for k, v in x.items()})


def without_triton(inside: str, build: Callable) -> Callable:
    """Takes the package's own plain loop; its kernel needs a GPU."""

    def run(task: Any, module: Any) -> Iterator[Arrays]:
        where = importlib.import_module(inside)
        pick = where._get_orthogonalization_fn
        plain_loop = lambda strategy, use_triton: pick(strategy, False)
        with mock.patch.object(where, "_get_orthogonalization_fn", plain_loop):
            yield from build(task, module)

    return run


# ------------------------------------------------------------------------- the packages
def of(attribute: str, **more: Any) -> Callable:
    """`plain`, for a class of a module of the package."""
    find = lambda module: getattr(module, attribute).Muon
    return torch_optimizer(lambda m, p, h: find(m)(p, **usual(h), **more))


def with_rate_of_matrices(name: str, **more: Any) -> Callable:
    return torch_optimizer(
        lambda m, p, h: getattr(m, name)(p, matrix_lr=h["lr"], **usual(h), **more)
    )


def two_loops(package: str, **more: Any) -> Callable:
    inside = f"{package}.orthogonalize.orthogonalize"
    return without_triton(inside, plain(names={"weight_decay": "wd"}, **more))


PLAIN: dict[str, Any] = {
    "orthogonalization_strategy": "newton_schulz",
    "use_cautious_wd": False,
}
JORDAN: dict[str, Any] = {
    "ns_coefficients": (3.4445, -4.775, 2.0315),
    "ns_norm_scale": 1.0,
}
AS_JORDAN: dict[str, Any] = {
    "coefficient_type": "simple",
    "scale_mode": "shape_scaling",
}
EXPRESS = "documented: Polar Express is the default"
CAUTIOUS = (
    "two departures at once: the default decay is cautious (documented) and scaled ({})"
)
SCALED = FIND.format("decay_times_scale.md", "{}")
BATCHED = "documented: kernels are batches of matrices unless `flatten=True`"

PACKAGES = (
    package(
        "torch",
        "torch",
        "2.13.0",
        Entry("optim.Muon", MATRIX, of("optim")),
        Entry(
            "optim.Muon, match_rms_adamw",
            MATRIX,
            of("optim", adjust_lr_fn="match_rms_adamw"),
            "the scale is an option",
        ),
    ),
    package(
        "optax",
        "optax",
        "0.2.8",
        Entry(
            "contrib.muon",
            MATRIX,
            optax_muon,
            "the bias is corrected as in NAdam, `contrib/_muon.py:488-497`",
        ),
        Entry(
            "contrib.muon, nesterov=False",
            MATRIX,
            functools.partial(optax_muon, nesterov=False),
            "momentum is an option",
        ),
        Entry(
            "contrib.muon, consistent_rms=0.2",
            MATRIX,
            functools.partial(optax_muon, consistent_rms=0.2),
            "the scale is an option; the bias is corrected as in NAdam",
        ),
    ),
    package(
        "keras",
        "keras",
        "3.15.1",
        Entry(
            "optimizers.Muon",
            MATRIX,
            keras_muon,
            "documented: the scale of Liu et al. 2025, `src/optimizers/muon.py:258`",
        ),
        Entry(
            "optimizers.Muon, rms_rate=None",
            MATRIX,
            functools.partial(keras_muon, rms_rate=None),
            "documented: this turns the scale off, `src/optimizers/muon.py:255`",
        ),
    ),
    package(
        "timm",
        "timm.optim.muon",
        "1.0.31",
        Entry("Muon", ALL, plain(), "momentum, coefficients and scale are options"),
        Entry(
            "Muon, nesterov",
            ALL,
            plain(nesterov=True),
            "coefficients and scale are options",
        ),
    ),
    package(
        "heavyball",
        "heavyball",
        "3.2.1",
        Entry(
            "Muon",
            ALL,
            heavyball(),
            "the average is added to the whole gradient, `utils.py:797-799`; a "
            "comment calls this equivalent to Grokfast, `chainable.py:1181`",
        ),
        Entry(
            "Muon, heavyball_momentum",
            ALL,
            heavyball(heavyball_momentum=True),
            "coefficients differ in each step, `utils.py:591-597`",
        ),
    ),
    package(
        "muon-optimizer",
        "muon",
        "0.1.0",
        Entry("SingleDeviceMuon", MATRIX, plain("SingleDeviceMuon")),
        Entry(
            "SingleDeviceMuon",
            "muon_kernel",
            plain("SingleDeviceMuon"),
            FIND.format("muon_optimizer_kernels.md", "`muon.py:105`"),
        ),
    ),
    package(
        "pytorch-optimizer",
        "pytorch_optimizer",
        "4.1.0",
        Entry("Muon", ALL, grouped(group={"use_muon": True})),
        Entry(
            "MuonClip, use_adjusted_lr=False",
            ALL,
            grouped("MuonClip", group={"use_muon": True, "use_adjusted_lr": False}),
            "as in the report of Kimi K2 that it cites, `muon/muon_clip.py:74`",
        ),
        Entry("NorMuon", "normuon", second_moments("NorMuon")),
        Entry(
            "AdaMuon",
            "adamuon",
            second_moments("AdaMuon"),
            "orthogonalizes M, without signs and without a look-ahead, "
            "`muon/adamuon.py:237-246`",
        ),
    ),
    package(
        "deepspeed",
        "deepspeed.runtime.zero.muon.muon_optimizer",
        "0.19.8",
        Entry(
            "MuonWithAuxAdam",
            ALL,
            grouped("MuonWithAuxAdam", group={"use_muon": True}),
            FIND.format(
                "deepspeed_kernels.md", "`runtime/zero/muon/original_muon.py:235`"
            ),
        ),
    ),
    package(
        "muonium",
        "muonium",
        "0.2.0",
        Entry("Muon", "muon", two_loops("muonium"), EXPRESS),
        Entry(
            "Muon",
            "muon_decay",
            two_loops("muonium"),
            CAUTIOUS.format("`optim/algorithms/muon.py:70-77`"),
        ),
        Entry(
            "Muon, plain decay and Newton-Schulz",
            "muon muon_decay",
            two_loops("muonium", **PLAIN),
            SCALED.format("`optim/algorithms/muon.py:73-77`"),
        ),
        Entry(
            "Muon, plain decay and Newton-Schulz",
            "muon_kernel",
            two_loops("muonium", **PLAIN),
            BATCHED,
        ),
    ),
    package(
        "dtensor-muon",
        "dtensor_muon",
        "0.1.0",
        Entry("Muon", "muon muon_kernel", two_loops("dtensor_muon"), EXPRESS),
        Entry(
            "Muon",
            "muon_decay",
            two_loops("dtensor_muon"),
            CAUTIOUS.format("`optim/optim.py:365-373`"),
        ),
        Entry(
            "Muon, plain decay and Newton-Schulz",
            ALL,
            two_loops("dtensor_muon", **PLAIN),
            SCALED.format("`optim/optim.py:369-373`"),
        ),
    ),
    package(
        "muon-fsdp2",
        "muon_fsdp2",
        "0.3.0",
        Entry(
            "Muon, one device",
            "muon",
            grouped(group={"use_muon": True, "rms_scale": False}),
            FIND.format("muon_fsdp2_one_device.md", "`muon_fsdp2.py:199`"),
        ),
    ),
    package(
        "optimuon",
        "optimuon",
        "0.1.1",
        Entry(
            "Muon, normuon=False",
            ALL,
            plain(normuon=False),
            "documented: Polar Express and cautious decay are defaults",
        ),
        Entry(
            "Muon, normuon=False, plain decay, Jordan's coefficients",
            ALL,
            plain(normuon=False, gram_ns=False, cautious_wd=False, **JORDAN),
        ),
    ),
    package(
        "omnimuon",
        "omnimuon",
        "0.1.2",
        Entry(
            "Muon",
            MATRIX,
            with_rate_of_matrices("Muon"),
            "the fresh gradient has weight 1, the average (1 - b), `muon.py:162`; "
            "no scale, `muon.py:169`",
        ),
        Entry(
            "OmniMuon, rms_scaling=False, spectral_blend=1",
            ALL,
            with_rate_of_matrices("OmniMuon", rms_scaling=False, spectral_blend=1),
            "the fresh gradient has weight 1, the average (1 - b), `omni_muon.py:168`",
        ),
    ),
    package(
        "adv-optm",
        "adv_optm",
        "2.5.16",
        Entry(
            "Muon_adv",
            "muon",
            plain("Muon_adv", names={"momentum": "beta1"}, use_muon=True),
            "documented: each step gets a root mean square of 0.2, which that "
            "scale gives to exact factors, `util/Muon_util.py:378-382`",
        ),
        Entry(
            "Muon_adv, rms_rescaling=False",
            ALL,
            plain(
                "Muon_adv",
                names={"momentum": "beta1"},
                use_muon=True,
                rms_rescaling=False,
            ),
        ),
    ),
    package(
        "emerging-optimizers",
        "emerging_optimizers.orthogonalized_optimizers",
        "0.3.0",
        Entry("Muon", MATRIX, plain(), "momentum, coefficients and scale are options"),
        Entry(
            "Muon, nesterov, simple, shape_scaling",
            MATRIX,
            plain(nesterov=True, **AS_JORDAN),
        ),
    ),
)

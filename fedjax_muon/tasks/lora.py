"""Low-rank adaptation: frozen weights, and small matrices trained beside them.

"LoRA: Low-Rank Adaptation of Large Language Models" (Hu et al., arXiv:2106.09685). To a
frozen kernel W [in, out] belong A [in, r] and B [r, out], B = 0 at first, and its layer
computes

    y = x W + bias + (alpha / r) (x A) B

in this order: W + (alpha / r) A B would be a matrix of the size of W for every client.

    model = models.RoBERTa(classes=2)
    frozen = models.load_roberta("roberta-base", model)
    task = lora_classification(model, frozen, (128,), rank=16, alpha=32)
    simulation = federate(ALL["fedmuon_align"], task, ...)

Only A, B and the head are parameters, so that they alone are sent, are in the state of
optimizers, and count in bytes; programs are given the frozen weights as an argument.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.tree_util import Partial

from fedjax_muon.core import check_range
from fedjax_muon.tasks.classification import Task, check_model, from_logits, logits_of

# uniform within 1 / sqrt(in), as in the authors' code; their paper has it normal
_down = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def lora_classification(
    model: nn.Module,
    frozen: Mapping[str, Any],
    example_shape: tuple[int, ...],
    *,
    rank: int = 16,
    alpha: float | None = None,
    layers: Sequence[str] = ("query", "value"),
    head: str = "head",
) -> Task:
    """`tasks.classification`, of which adapters and the head are trained.

    Args:
      model: maps [B, *example_shape] to logits [B, classes].
      frozen: its parameters. The head among them is where training starts; without one
        it starts as the model's does, from the key.
      example_shape: of one example.
      rank: r.
      alpha: the adapters' part is scaled by alpha / r; 2 r by default.
      layers: names of the `nn.Dense` that get adapters, wherever they are.
      head: name of the layer, at the top of the model, that is trained as it is.

    The parameters are {"adapters": {..., layer: {"a", "b"}}, "head": ...}, the adapters
    at their layers' places. Muon's default layout takes every A and B for a matrix, and
    the head's kernels unless `exclude` names "head".

    Raises `ValueError` as `classification` does, for a model without a layer of these
    names or where it is none of `nn.Dense`, a model without this head, frozen
    parameters whose names or shapes are not the model's, and numbers out of range;
    `TypeError` if `layers` is one string.
    """
    alpha = 2.0 * rank if alpha is None else alpha
    check_model(model, example_shape)
    _check_numbers(rank, alpha, layers)
    whole = partial(_whole, model, example_shape)
    shapes = jax.eval_shape(whole, jax.random.key(0))
    _check_frozen(frozen, shapes, head)
    places = _places(shapes, layers, head)
    held: dict[str, Any] = jax.tree.map(jnp.asarray, dict(frozen))
    start = held.pop(head, None)
    # compiled, so that only the head is drawn of all the parameters
    fresh = jax.jit(lambda key: whole(key)[head])

    def init(start, key):
        key, head_key = jax.random.split(key)
        keys = jax.random.split(key, len(places))
        adapters = {
            place: {"a": _down(k, (fan_in, rank)), "b": jnp.zeros((rank, fan_out))}
            for k, (place, (fan_in, fan_out)) in zip(keys, places.items(), strict=True)
        }
        trained = fresh(head_key) if start is None else start
        return {"adapters": unflatten_dict(adapters), "head": trained}

    def logits(frozen, params, x, key=None):
        with nn.intercept_methods(adapt(params["adapters"], alpha / rank)):
            return logits_of(model, {**frozen, head: params["head"]}, x, key)

    return from_logits(Partial(init, start), Partial(logits, held))


def adapt(adapters: Mapping[str, Any], scale: float):
    """An interceptor, for `nn.intercept_methods`, that adds to the layers at the places
    of `adapters` what these say: scale (x a) b."""

    def intercept(call, args, options, context):
        y = call(*args, **options)
        if context.method_name != "__call__":
            return y
        mine: Any = adapters
        for name in context.module.path:
            mine = mine.get(name, {})
        if not {"a", "b"} <= mine.keys():
            return y
        return y + scale * jnp.dot(jnp.dot(args[0], mine["a"]), mine["b"])

    return intercept


def _whole(model, example_shape, key):
    return model.init(key, jnp.zeros((1, *example_shape)))["params"]


def _places(shapes, layers, head):
    """{path of a layer: shape of its kernel} of those that get adapters."""
    found = {
        path[:-1]: leaf.shape
        for path, leaf in flatten_dict(shapes).items()
        if path[0] != head and path[-1] == "kernel" and path[-2] in layers
    }
    absent = set(layers) - {path[-1] for path in found}
    if absent:
        raise ValueError(
            f"the model has no layers {sorted(absent)} with a kernel outside its head "
            f"{head!r}; its parameters are in {sorted(shapes)}"
        )
    for path, shape in found.items():
        if len(shape) != 2:
            raise ValueError(
                f"adapters are for kernels [in, out], {'/'.join(path)} has shape "
                f"{shape}; choose other layers"
            )
    return found


def _check_numbers(rank, alpha, layers):
    if isinstance(layers, str) or not layers:
        raise TypeError(f"layers must be a sequence of names, got {layers!r}")
    if rank < 1:
        raise ValueError(f"rank must be at least 1, got {rank}")
    check_range("alpha", alpha, open_low=True, schedules=False)


def _check_frozen(frozen, shapes, head):
    if head not in shapes:
        raise ValueError(
            f"the model has no layer {head!r} to be its head; it has {sorted(shapes)}"
        )
    given, wanted = (
        {"/".join(path): jnp.shape(leaf) for path, leaf in flatten_dict(tree).items()}
        for tree in (frozen, shapes)
    )
    if head not in frozen:
        wanted = {p: s for p, s in wanted.items() if not p.startswith(f"{head}/")}
    differing = sorted(
        path
        for path in given.keys() | wanted.keys()
        if given.get(path) != wanted.get(path)
    )
    if differing:
        path = differing[0]
        raise ValueError(
            f"frozen parameters must be the model's: {path} has shape "
            f"{wanted.get(path, 'none')} there, got {given.get(path, 'none')}, and "
            f"{len(differing) - 1} more differ"
        )

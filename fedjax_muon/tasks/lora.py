"""Low-rank adaptation (LoRA) of frozen weights.

"LoRA: Low-Rank Adaptation of Large Language Models" (Hu et al., arXiv:2106.09685). A
frozen kernel W [in, out] gets adapters A [in, r] and B [r, out], where B starts at 0,
and its layer computes

    y = x W + bias + (alpha / r) (x A) B

in this order, since W + (alpha / r) A B would be a matrix as large as W per client.

    model = models.vit_tiny(classes=100)
    frozen = models.load_params("vit_tiny.safetensors", like)
    task = lora_classification(model, frozen, (32, 32, 3), rank=16, alpha=32)
    simulation = federate(fedmuon_align(), task, ...)

Only A, B and the head are parameters, so only these are sent and are part of optimizer
states. Compiled programs take the frozen weights as an argument. After training,
`merged(task, state.params)` returns the weights of the model itself.

Averages of A and of B have a product that is not the average of the products. What
methods do about it is in `algorithms.lora`. Some move W at the server: `folded` makes
it a parameter, for which no client has a gradient.
"""

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.tree_util import Partial

from fedjax_muon.core import Params, check_count, check_range
from fedjax_muon.core.training_flags import flags_of
from fedjax_muon.core.variables import refuse_statistics
from fedjax_muon.data import Dataset
from fedjax_muon.tasks.classification import check_model, from_logits, logits_of
from fedjax_muon.tasks.language import from_logits as language_of, parts_of
from fedjax_muon.tasks.task import Task

# Uniform within 1 / sqrt(in), as in the authors' code; in the paper it is normal.
draw_a = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def lora_classification(
    model: nn.Module,
    frozen: Mapping[str, Any],
    example_shape: tuple[int, ...],
    *,
    rank: int = 16,
    alpha: float | None = None,
    layers: Sequence[str] = ("query", "value"),
    head: str = "head",
    folded: bool = False,
) -> Task:
    """Classification that trains low-rank adapters and the head of a model.

    Muon's default layout treats every A and B as a matrix, and also the kernels of the
    head unless `exclude` has "head".

    Args:
      frozen: Parameters of the model. Training starts at the head that they contain;
        without one, the head starts as in the model.
      alpha: Outputs of the adapters are scaled by alpha / r; 2 r by default.
      layers: Names of the `nn.Dense` layers that get adapters, at any depth.
      head: Name of the layer, at the top level of the model, that is trained fully.
      folded: Whether kernels of layers with adapters are parameters that no gradient
        moves, for `fedex_lora` and `flora`.

    Returns:
      A task whose parameters are {"adapters": {..., layer: {"a", "b"}}, "head": ...},
      with the adapters at the paths of their layers: {"a", "b", "kernel"} if `folded`.

    Example:
      >>> model = models.MLP(10)
      >>> frozen = tasks.classification(model, digits).init(jax.random.key(0))
      >>> shape = digits.x_train.shape[1:]
      >>> task = lora_classification(
      ...     model, frozen, shape, rank=2, layers=("Dense_0",), head="head"
      ... )
    """
    refuse_statistics(check_model(model, example_shape), "low-rank adapters")
    x, flags = jnp.zeros((1, *example_shape)), flags_of(model, training=False)
    parameters: Callable[..., Any] = model.init
    whole = lambda key: parameters(key, x, **flags)["params"]
    options: dict[str, Any] = {"rank": rank, "alpha": alpha}
    options |= {"layers": layers, "folded": folded}
    return from_logits(*_adapted(model, whole, frozen, head=head, **options))


def lora_language(
    model: nn.Module,
    frozen: Mapping[str, Any],
    dataset: Dataset,
    *,
    rank: int = 16,
    alpha: float | None = None,
    layers: Sequence[str] = ("query", "value"),
    folded: bool = False,
) -> Task:
    """Language modeling that trains low-rank adapters of a model, and nothing else.

    Args:
      frozen: Parameters of the model, such as from `models.from_hugging_face`.
      dataset: Windows of tokens, such as from `data.from_text`.

    The other arguments are those of `lora_classification`.

    Example:
      >>> dataset = fm.data.from_text({"a": 9 * "to be or not to be "}, window=16)
      >>> model = fm.models.GPT(256, 16, 8, 1, 2)
      >>> frozen = fm.tasks.language(model, dataset).init(jax.random.key(0))
      >>> task = lora_language(model, frozen, dataset, rank=2)
    """
    whole, nbytes, window = parts_of(model, dataset)
    options: dict[str, Any] = {"rank": rank, "alpha": alpha}
    options |= {"layers": layers, "folded": folded}
    begin, logits = _adapted(model, whole, frozen, head=None, **options)
    return language_of(begin, logits, nbytes, window)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Form:
    """What adapters are scaled by, and the layer that is trained fully."""

    scale: float
    head: str | None


def merged(task: Task, params: Mapping[str, Any]) -> Any:
    """The weights of the model with its adapters, W + (alpha / r) A B, and its head.

    They are those of the model itself, as for `models.generate`, `models.save_params`
    and `models.to_hugging_face`.

    Args:
      task: What `lora_language` or `lora_classification` returned.
      params: Parameters of the task, such as `trained.state.params`.
    """
    held = getattr(task.evaluate, "args", None) or [None]
    frozen, form = (*getattr(held[0], "args", ()), None, None)[:2]
    if not isinstance(form, _Form) or "adapters" not in params:
        raise ValueError(
            "merged takes a task of lora_language or lora_classification, and its "
            "parameters"
        )
    adapters = flatten_dict(params["adapters"])
    flat = flatten_dict(frozen) | adapters
    for *place, leaf in adapters:
        if leaf == "a":
            product = flat.pop((*place, "a")) @ flat.pop((*place, "b"))
            flat[*place, "kernel"] = flat[*place, "kernel"] + form.scale * product
    head = {} if form.head is None else {form.head: params["head"]}
    return unflatten_dict(flat) | head


def _adapted(
    model: nn.Module,
    whole: Callable[[jax.Array], Any],
    frozen: Mapping[str, Any],
    *,
    head: str | None,
    rank: int,
    alpha: float | None,
    layers: Sequence[str],
    folded: bool,
) -> tuple[Partial, Partial]:
    """The initial parameters of adapters, and the logits with them.

    Args:
      whole: Draws all parameters of the model.
      head: Layer that is trained fully; None if there is none.
    """
    alpha = 2.0 * rank if alpha is None else alpha
    if isinstance(layers, str) or not layers:
        raise TypeError(f"layers must be a sequence of names, got {layers!r}")
    check_count("rank", rank)
    check_range("alpha", alpha, open_low=True, schedules=False)
    shapes = jax.eval_shape(whole, jax.random.key(0))
    _check_frozen(frozen, shapes, head)
    places = _places(shapes, layers, head)
    held: dict[str, Any] = jax.tree.map(jnp.asarray, dict(frozen))
    start = None if head is None else held.pop(head, None)
    flat, kernels = flatten_dict(held), {}
    if folded:
        kernels = {(*place, "kernel"): flat.pop((*place, "kernel")) for place in places}
    # Compiled, so that only the head is drawn.
    draw_head = jax.jit(lambda key: whole(key)[head])

    def downs(key: jax.Array) -> dict[tuple[str, ...], jax.Array]:
        keys = jax.random.split(key, len(places))
        shapes = {(*place, "a"): (shape[0], rank) for place, shape in places.items()}
        rows = zip(keys, shapes.items(), strict=True)
        return {path: draw_a(k, shape) for k, (path, shape) in rows}

    def init(start: Params, kernels: Any, key: jax.Array) -> dict[str, Any]:
        key, head_key = jax.random.split(key)
        adapters = dict(kernels) | downs(key)
        for place, (_, fan_out) in places.items():
            adapters[*place, "b"] = jnp.zeros((rank, fan_out))
        params = {"adapters": unflatten_dict(adapters)}
        if head is not None:
            params["head"] = draw_head(head_key) if start is None else start
        return params

    def logits(
        frozen: dict[str, Any],
        form: _Form,
        params: dict[str, Any],
        x: jax.Array,
        key: jax.Array | None = None,
    ) -> jax.Array:
        weights, pairs = _weights(frozen, params["adapters"], list(places))
        with nn.intercept_methods(adapt(pairs, form.scale)):
            if head is not None:
                weights = {**weights, head: params["head"]}
            return logits_of(model, weights, x, key)

    begin = Partial(init, start, kernels)
    return begin, Partial(logits, unflatten_dict(flat), _Form(alpha / rank, head))


def _weights(
    frozen: Any, adapters: Any, places: Sequence[tuple[str, ...]]
) -> tuple[Any, Any]:
    """The weights of the model, and the pairs {"a", "b"} at the paths of their layers.

    Of either, some may be frozen and some parameters.
    """
    flat = flatten_dict(frozen) | flatten_dict(adapters)
    pairs = {(*p, name): flat.pop((*p, name)) for p in places for name in "ab"}
    for place in places:  # the gradient would be as large as the kernel
        kernel = *place, "kernel"
        flat[kernel] = jax.lax.stop_gradient(flat[kernel])
    return unflatten_dict(flat), unflatten_dict(pairs)


def adapt(adapters: Mapping[str, Any], scale: float) -> Callable[..., Any]:
    """Returns an interceptor that adds scale (x a) b to the outputs of layers.

    Args:
      adapters: Nested dictionaries with {"a", "b"} at the paths of the layers.
    """

    def intercept(call: Any, args: Any, options: Any, context: Any) -> Any:
        y = call(*args, **options)
        if context.method_name != "__call__":
            return y
        pair: Any = adapters
        for name in context.module.path:
            pair = pair.get(name, {})
        if not {"a", "b"} <= pair.keys():
            return y
        return y + scale * jnp.dot(jnp.dot(args[0], pair["a"]), pair["b"])

    return intercept


def _places(
    shapes: Any, layers: Sequence[str], head: str | None
) -> dict[tuple[str, ...], tuple[int, ...]]:
    """{path: shape of the kernel} of the layers that get adapters."""
    kernels = {
        path[:-1]: leaf.shape
        for path, leaf in flatten_dict(shapes).items()
        if path[0] != head and path[-1] == "kernel" and path[-2] in layers
    }
    absent = sorted(set(layers) - {path[-1] for path in kernels})
    if absent:
        flat = flatten_dict({k: v for k, v in shapes.items() if k != head}).items()
        known = {p[-2] for p, x in flat if p[-1] == "kernel" and len(x.shape) == 2}
        near = difflib.get_close_matches(absent[0].lower(), known, 1)
        raise ValueError(
            f"the model has no layers {absent} with a kernel"
            f"{'' if head is None else f' outside its head {head!r}'}"
            f"{f'; did you mean {near[0]!r}?' if near else ';'} layers that can have "
            f"adapters are {', '.join(sorted(known))}"
        )
    for path, shape in kernels.items():
        if len(shape) != 2:
            raise ValueError(
                f"adapters need kernels [in, out], but {'/'.join(path)} has shape "
                f"{shape}; choose other layers"
            )
    return kernels


def _check_frozen(frozen: Mapping[str, Any], shapes: Any, head: str | None) -> None:
    if head is not None and head not in shapes:
        raise ValueError(
            f"the model has no layer {head!r} to be its head; it has {sorted(shapes)}"
        )
    actual, wanted = (
        {"/".join(path): jnp.shape(leaf) for path, leaf in flatten_dict(tree).items()}
        for tree in (frozen, shapes)
    )
    if head is not None and head not in frozen:
        wanted = {p: s for p, s in wanted.items() if not p.startswith(f"{head}/")}
    differing = sorted(
        path
        for path in actual.keys() | wanted.keys()
        if actual.get(path) != wanted.get(path)
    )
    if differing:
        path = differing[0]
        raise ValueError(
            f"frozen parameters must match the model's: {path} has shape "
            f"{wanted.get(path, 'none')} there, got {actual.get(path, 'none')}, and "
            f"{len(differing) - 1} more differ"
        )

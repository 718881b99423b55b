"""LoRA-Muon: steps of low-rank factors that are steps of Muon for their product.

The kernel of a layer is W + scale a b, with a [in, r] and b [r, out]. With the momenta
m_a and m_b of both gradients, R_a = (a^T a)^(-1/2) and R_b = (b b^T)^(-1/2),

    u_a = polar(m_a R_b) R_b / (2 scale),    u_b = R_a polar(R_a m_b) / (2 scale).

To first order, a step of the rate lr changes scale a b by at most lr in the spectral
norm, and a T and T^-1 b in place of a and b change it alike.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import Hyper, Number, check_range, tree
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.transforms.muon import Polar


def is_pair(node: Any) -> bool:
    """Whether a part of a tree is {"a": [..., in, r], "b": [..., r, out]}."""
    return isinstance(node, Mapping) and node.keys() == {"a", "b"}


def is_adapter(node: Any) -> bool:
    """Whether a part of a tree is {"a", "b"}, or {"a", "b", "kernel"}."""
    return isinstance(node, Mapping) and node.keys() - {"kernel"} == {"a", "b"}


def map_adapters(
    function: Callable[..., Any], *trees: Any, rest: Any = lambda *x: x[-1]
) -> Any:
    """`function` of the adapters of trees, and `rest` of the other leaves."""
    one = lambda *nodes: (function if is_adapter(nodes[0]) else rest)(*nodes)
    return jax.tree.map(one, *trees, is_leaf=is_adapter)


def check_adapters(params: Any, what: str = "this method trains") -> None:
    """Raises `ValueError` for parameters without low-rank adapters."""
    if not any(map(is_adapter, jax.tree.leaves(params, is_leaf=is_adapter))):
        raise ValueError(
            f"{what} low-rank adapters, but the model has none; make the task with "
            "fm.tasks.lora.lora_classification or fm.tasks.lora.lora_language"
        )


def check_kernel(node: Any) -> None:
    """Raises `ValueError` for an adapter whose kernel the server cannot move."""
    if "kernel" not in node:
        raise ValueError(
            "the server moves the kernels of layers with adapters, which are missing: "
            "give lora_classification(..., folded=True)"
        )


def folded(params: Any, scale: Number) -> Any:
    """Moves the product of every adapter into its kernel: the same model with b = 0."""

    def one(node: Any) -> Any:
        kernel = tree.add_scaled(node["kernel"], scale, node["a"] @ node["b"])
        return {**node, "b": jnp.zeros_like(node["b"]), "kernel": kernel}

    return map_adapters(one, params)


def _inverse_root(gram: jax.Array, eps: float) -> jax.Array:
    """(gram + eps ||gram||)^(-1/2), and 0 for 0."""
    norm = jnp.sqrt(jnp.sum(gram**2, axis=(-2, -1), keepdims=True))
    safe = jnp.where(norm > 0, norm, 1)
    sizes, basis = jnp.linalg.eigh(gram / safe)
    roots = jnp.maximum(sizes, 0) + eps
    roots = jnp.where(roots > 0, jax.lax.rsqrt(jnp.where(roots > 0, roots, 1)), 0)
    root = (basis * roots[..., None, :]) @ basis.mT
    return jnp.where(norm > 0, root * jax.lax.rsqrt(safe), 0)


def lora_muon(
    scale: Number = 2.0,
    momentum: Hyper = 0.9,
    *,
    rest: optax.GradientTransformation | None = None,
    polar: Polar = kernel.orthogonalize,
    eps: float = 1e-5,
) -> optax.GradientTransformation:
    """Applies LoRA-Muon to pairs {"a", "b"} of factors, and another rule to the rest.

    A factor that is 0, as every b at the start of LoRA, has the root 0: the other one
    does not move until the first has. `optax.add_decayed_weights(decay / 2)` after this
    rule shrinks a b by the rate times `decay`, to first order. The paper's rule shrinks
    it exactly so, and may rescale a and b to the same norm; this one does not.

    Source: Cesista et al. 2026, arXiv:2606.12921. Checked against two independent
    codes, which agree on the update; the paper was not read.

    Args:
      scale: Factor of a b, alpha / rank of `tasks.lora.lora_classification`.
      momentum: Weight of the past in [0, 1).
      rest: Rule of other leaves, such as a head; by default Adam, as in `muon`.
      polar: Polar factor. Both independent codes take eight Newton-Schulz steps, with
        their own coefficients.
      eps: Added to a^T a and b b^T, relative to their Frobenius norms, as in both.
    """
    check_range("scale", scale, open_low=True, schedules=False)
    check_range("momentum", momentum, 0.0, 1.0, open_high=True, schedules=False)

    def step(grads: Any, pair: Any) -> Any:
        if not is_pair(pair):
            return grads
        wide = lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32))
        a, b, of_a, of_b = map(wide, (pair["a"], pair["b"], grads["a"], grads["b"]))
        root_a, root_b = (_inverse_root(x, eps) for x in (a.mT @ a, b @ b.mT))
        u = {
            "a": polar(of_a @ root_b) @ root_b / (2 * scale),
            "b": root_a @ polar(root_a @ of_b) / (2 * scale),
        }
        return {name: u[name].astype(grads[name].dtype) for name in u}

    def steps(updates: optax.Updates, params: optax.Params | None = None) -> Any:
        if params is None:
            raise ValueError("LoRA-Muon needs the parameters in update")
        return jax.tree.map(step, updates, params, is_leaf=is_pair)

    def labels(params: optax.Params) -> Any:
        mark = lambda node: "pair" if is_pair(node) else "rest"
        below = lambda node: jax.tree.map(lambda _: mark(node), node)
        return jax.tree.map(below, params, is_leaf=is_pair)

    def init(params: optax.Params) -> Any:
        check_adapters(params, "LoRA-Muon is for")
        return rule.init(params)

    pairs = optax.chain(optax.trace(momentum), optax.stateless(steps))
    rest = optax.scale_by_adam(0.9, 0.95, 1e-10) if rest is None else rest
    rule = optax.partition({"pair": pairs, "rest": rest}, labels)
    return optax.GradientTransformationExtraArgs(init, rule.update)

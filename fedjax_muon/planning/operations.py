"""Operations and bytes of matrix products and convolutions in a traced program.

A compiler's own count takes the body of every loop once. Here the body of a scan counts
as often as it runs; that of a loop whose length is unknown, such as the one over
rounds, counts once.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from fedjax_muon.planning.memory import programs_in


class Products(NamedTuple):
    """Totals over all products of a program."""

    flops: float = 0.0  # two for each multiplication
    # Of operands and results, each read or written once for every product. Element-wise
    # operations are not counted: compilers fuse most of them with products.
    nbytes: float = 0.0


def products_of(program: ClosedJaxpr, platform: str) -> Products:
    """Counts the floating-point operations of products, and the bytes they need.

    Inside `jax.shard_map` they are those of one device.

    Example:
      >>> a = jnp.ones((2, 3))
      >>> products_of(jax.make_jaxpr(jnp.dot)(a, a.T), "tpu")
      Products(flops=24.0, nbytes=64.0)
    """
    return _products(program.jaxpr, platform)


def _products(jaxpr: Jaxpr, platform: str) -> Products:
    return _total(_of_operation(eqn, platform) for eqn in jaxpr.eqns)


def _total(several: Iterable[Products]) -> Products:
    return Products(*map(sum, zip(Products(), *several, strict=True)))


def _of_operation(eqn: JaxprEqn, platform: str) -> Products:
    name = eqn.primitive.name
    if name == "dot_general":
        return Products(_dot_flops(eqn), _nbytes(eqn))
    if name == "conv_general_dilated":
        return Products(_convolution_flops(eqn), _nbytes(eqn))
    inner = [_products(program, platform) for program in programs_in(eqn.params)]
    if name == "cond":
        return _of_branches(inner, eqn.params.get("branches_platforms"), platform)
    times = eqn.params["length"] if name == "scan" else 1
    flops, nbytes = _total(inner)
    return Products(times * flops, times * nbytes)


def _of_branches(
    inner: Sequence[Products],
    platforms: Sequence[Sequence[str] | None] | None,
    platform: str,
) -> Products:
    """The branch of a platform, or the longest one where values choose it."""
    if platforms is None:
        return max(inner)
    pairs = zip(platforms, inner, strict=True)
    return next(one for names, one in pairs if names is None or platform in names)


def _dot_flops(eqn: JaxprEqn) -> float:
    (left, _), _ = eqn.params["dimension_numbers"]
    shape = _shape(eqn.invars[0])
    summed = math.prod(shape[axis] for axis in left)
    return 2.0 * summed * math.prod(_shape(eqn.outvars[0]))


def _convolution_flops(eqn: JaxprEqn) -> float:
    numbers = eqn.params["dimension_numbers"]
    kernel = _shape(eqn.invars[1])
    out_channels = kernel[numbers.rhs_spec[0]]
    per_output = math.prod(kernel) // out_channels
    return 2.0 * per_output * math.prod(_shape(eqn.outvars[0]))


def _nbytes(eqn: JaxprEqn) -> float:
    avals: list[Any] = [value.aval for value in (*eqn.invars, *eqn.outvars)]
    return float(sum(aval.size * aval.dtype.itemsize for aval in avals))


def _shape(value: Any) -> tuple[int, ...]:
    return value.aval.shape

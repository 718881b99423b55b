"""Operations of matrix products and convolutions in a traced program.

A compiler's own count takes the body of every loop once. Here the body of a scan counts
as often as it runs; that of a loop whose length is unknown, such as the one over
rounds, counts once.
"""

import math
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn


def product_flops(program: ClosedJaxpr) -> float:
    """Counts floating-point operations of products: two for each multiplication.

    Args:
      program: A traced program.

    Returns:
      The number of operations; inside `jax.shard_map`, those of one device.

    Example:
      >>> a = jnp.ones((2, 3))
      >>> product_flops(jax.make_jaxpr(jnp.dot)(a, a.T))
      24.0
    """
    return _flops(program.jaxpr)


def _flops(jaxpr: Jaxpr) -> float:
    return sum(map(_of_operation, jaxpr.eqns), 0.0)


def _of_operation(eqn: JaxprEqn) -> float:
    name = eqn.primitive.name
    if name == "dot_general":
        return _dot(eqn)
    if name == "conv_general_dilated":
        return _convolution(eqn)
    inner = [_flops(program) for program in _programs(eqn.params)]
    if name == "cond":
        return max(inner, default=0.0)
    times = eqn.params["length"] if name == "scan" else 1
    return times * sum(inner)


def _dot(eqn: JaxprEqn) -> float:
    (left, _), _ = eqn.params["dimension_numbers"]
    shape = _shape(eqn.invars[0])
    summed = math.prod(shape[axis] for axis in left)
    return 2.0 * summed * math.prod(_shape(eqn.outvars[0]))


def _convolution(eqn: JaxprEqn) -> float:
    numbers = eqn.params["dimension_numbers"]
    kernel = _shape(eqn.invars[1])
    out_channels = kernel[numbers.rhs_spec[0]]
    per_output = math.prod(kernel) // out_channels
    return 2.0 * per_output * math.prod(_shape(eqn.outvars[0]))


def _shape(value: Any) -> tuple[int, ...]:
    return value.aval.shape


def _programs(value: Any) -> list[Jaxpr]:
    """The programs in the parameters of an operation."""
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, Jaxpr):
        return [value]
    if isinstance(value, dict):
        return [program for one in value.values() for program in _programs(one)]
    if isinstance(value, tuple | list):
        return [program for one in value for program in _programs(one)]
    return []

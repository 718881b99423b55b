"""Estimates of the memory of traced programs, before they are compiled.

Every value takes memory from the operation that computes it to the last one that reads
it. The estimate is the peak of their sum. XLA frees values after their last use and
overwrites them where it can, and so does the estimate. Other optimizations of XLA are
unknown before compilation: fusion takes less memory, and another order of independent
operations can take more.

Traced programs have an internal format of JAX, which changes between versions. The
estimate of a program that this module cannot read is unknown (`UnknownMemoryError`).
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

# The programs of these operations run once, as if they were inlined.
INLINED = frozenset(
    """jit pjit closed_call remat remat2 checkpoint custom_jvp_call
    custom_vjp_call shard_map""".split()  # noqa: SIM905 - a list of words
)
# These copy their operands into the layout of their kernels.
PACKED = frozenset({"conv_general_dilated", "dot_general"})
# Their results may overwrite an operand that is not read again.
IN_PLACE = frozenset(
    """abs add add_any and atan2 bitcast_convert_type cbrt ceil clamp
    convert_element_type copy cos div dynamic_update_slice eq erf erf_inv exp exp2
    expand_dims expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min
    mul ne neg not or pow psum reduce_precision rem reshape round rsqrt scatter
    scatter-add select_n shift_left shift_right_arithmetic shift_right_logical sign sin
    sqrt square squeeze stop_gradient sub tan tanh xor""".split()  # noqa: SIM905 - a list of words
)
# The programs of these operations combine scalars, which take no memory.
SCALAR = frozenset(
    """reduce reduce_window scatter scatter-add scatter-mul scatter-sub scatter_max
    scatter_min select_and_scatter""".split()  # noqa: SIM905 - a list of words
)


class UnknownMemoryError(Exception):
    """The memory of a program is unknown; the message states the reason."""


def peak_bytes(program: ClosedJaxpr, donated: Iterable[bool] = ()) -> int:
    """Estimates the peak memory of a program, without its arguments.

    Inside `jax.shard_map` it is that of one device.

    Args:
      donated: Whether each of the first arguments is donated. Donated arguments are
        included in the estimate, and their memory may be reused.

    Raises:
      UnknownMemoryError: If the program has operations that are unknown to this module,
        or the format of another version of JAX.
    """
    try:
        return _peak(program.jaxpr, donated)
    except UnknownMemoryError:
        raise
    except Exception as error:  # the internal format of programs has no guarantees
        raise UnknownMemoryError(
            f"jax {jax.__version__} describes programs in an unknown form "
            f"({type(error).__name__}: {error})"
        ) from error


@dataclasses.dataclass(eq=False)
class _Value:
    nbytes: int


Values = Set[_Value | None]


class _Step(NamedTuple):
    """One operation of a program with inlined calls; literals are None."""

    eqn: JaxprEqn
    operands: list[_Value | None]
    results: list[_Value]

    @property
    def name(self) -> str:
        return self.eqn.primitive.name


def _nbytes(aval: Any) -> int:
    dtype = getattr(aval, "dtype", None)  # tokens have none
    return 0 if dtype is None else aval.size * dtype.itemsize


def _value(var: Any) -> _Value:
    return _Value(_nbytes(var.aval))


def programs_in(value: Any) -> list[Jaxpr]:
    """Lists the programs in the parameters of an operation."""
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, Jaxpr):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return [program for one in value for program in programs_in(one)]
    return []


def _inlined(
    jaxpr: Jaxpr, arguments: Sequence[_Value | None]
) -> tuple[list[_Step], list[_Value | None]]:
    """Lists the steps of a program in order, and the values that it returns."""
    values_of: dict[Any, _Value | None] = dict(
        zip(jaxpr.invars, arguments, strict=True)
    )
    values_of |= {var: _value(var) for var in jaxpr.constvars}
    read = lambda x: None if isinstance(x, Literal) else values_of[x]
    steps: list[_Step] = []
    for eqn in jaxpr.eqns:
        values = [read(x) for x in eqn.invars]
        if eqn.primitive.name in INLINED:
            (program,) = programs_in(eqn.params)
            for value, part in zip(values, program.invars, strict=True):
                if value is not None:  # inside shard_map, a device's part of it
                    value.nbytes = _nbytes(part.aval)
            more, returned = _inlined(program, values)
            steps += more
            values_of |= dict(zip(eqn.outvars, returned, strict=True))
        else:
            results = [_value(var) for var in eqn.outvars]
            steps.append(_Step(eqn, values, results))
            values_of |= dict(zip(eqn.outvars, results, strict=True))
    return steps, [read(x) for x in jaxpr.outvars]


def _total(values: Iterable[_Value | None]) -> int:
    return sum(value.nbytes for value in values if value is not None)


def _peak(jaxpr: Jaxpr, owned: Iterable[bool]) -> int:
    """Computes the peak memory of a program's values and of the arguments it owns."""
    arguments = [_value(var) for var in jaxpr.invars]
    steps, returned = _inlined(jaxpr, arguments)
    last = {x: i for i, step in enumerate(steps) for x in step.operands}
    last |= dict.fromkeys(returned, len(steps))
    ending: defaultdict[int, list[_Value | None]] = defaultdict(list)
    for value, number in last.items():
        ending[number].append(value)
    freed = {x for x, is_owned in zip(arguments, owned, strict=False) if is_owned}
    live = peak = _total(freed)
    for number, step in enumerate(steps):
        freed |= set(step.results)
        dying = {x for x in ending[number] if x in freed}
        dying |= {x for x in step.results if x not in last}
        peak = max(peak, live + _during(step, dying))
        live += _total(step.results) - _total(dying)
    # Returned values that the program does not own have to be copied.
    return max(peak, live + _total({x for x in returned if x} - freed))


def _during(step: _Step, dying: Values) -> int:
    """Computes the memory that a step adds while it runs.

    Dying values are not read again; they are freed after the step.
    """
    results, eqn = _total(step.results), step.eqn
    if step.name == "scan":
        (body,) = programs_in(eqn.params)
        constants, carried = _constants_and_carry(eqn, body)
        stacked = _total(step.results[carried:])
        return stacked + _loop(body, step.operands, constants, carried, dying)
    if step.name == "while":
        constants, body = eqn.params["body_nconsts"], eqn.params["body_jaxpr"].jaxpr
        operands = step.operands[eqn.params["cond_nconsts"] :]
        return _loop(body, operands, constants, len(operands) - constants, dying)
    if step.name == "cond":
        return max(
            _branch(program, step.operands, dying)
            for program in programs_in(eqn.params)
        )
    if step.name not in SCALAR and programs_in(eqn.params):
        raise UnknownMemoryError(f"the operation {step.name} is unknown")
    if step.name in PACKED:
        return results + _total(step.operands)
    if step.name in IN_PLACE:
        return max(0, results - _total(dying))
    return results


def _constants_and_carry(eqn: JaxprEqn, body: Jaxpr) -> tuple[int, int]:
    """Counts the arguments of a scan that are constants, and those that are its carry.

    The parameters that count them differ between versions of JAX, but shapes identify
    them: arrays that are scanned or stacked have one more axis outside the body.
    """
    alike = lambda outer, inner: sum(
        x.aval.ndim == y.aval.ndim for x, y in zip(outer, inner, strict=True)
    )
    carried = alike(eqn.outvars, body.outvars)
    return alike(eqn.invars, body.invars) - carried, carried


def _loop(
    body: Jaxpr,
    operands: Sequence[_Value | None],
    constants: int,
    carried: int,
    dying: Values,
) -> int:
    """Computes the memory of a loop, which owns its carry.

    The carry is copied unless it dies.
    """
    owned = [i >= constants for i in range(len(body.invars))]
    carry = {x for x in operands[constants : constants + carried] if x in dying}
    return _peak(body, owned) - _total(carry)


def _branch(program: Jaxpr, operands: Sequence[_Value | None], dying: Values) -> int:
    """Computes the memory of a branch, which owns operands that are not read again."""
    passed = operands[len(operands) - len(program.invars) :]
    owned = [x in dying and x not in passed[:i] for i, x in enumerate(passed)]
    dies = {x for x, is_owned in zip(passed, owned, strict=True) if is_owned}
    return _peak(program, owned) - _total(dies)

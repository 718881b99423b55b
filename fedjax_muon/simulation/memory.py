"""How much memory a traced program needs, before it is compiled.

Values are followed from where they are made to where they are last read; what lies in
memory at the worst moment is the estimate. XLA frees what nobody reads any more and
writes over it where it can, as is done here. What else it does is not known beforehand:
it fuses, which takes less memory, and it runs what is independent in an order of its
own, which can take more.

The form of traced programs is JAX's own and changes between its versions. A program
that this file cannot read has an unknown estimate (`UnknownMemoryError`).
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

# Programs of these operations run once, as if they stood where they are called.
INLINED = frozenset(
    """jit pjit closed_call remat remat2 checkpoint custom_jvp_call
    custom_vjp_call shard_map""".split()  # noqa: SIM905 - a list of words
)
# These copy what they are given into the order that their kernels read.
PACKED = frozenset({"conv_general_dilated", "dot_general"})
# Their results may lie where an operand did that nobody reads any more.
IN_PLACE = frozenset(
    """abs add add_any and atan2 bitcast_convert_type cbrt ceil clamp
    convert_element_type copy cos div dynamic_update_slice eq erf erf_inv exp exp2
    expand_dims expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min
    mul ne neg not or pow psum reduce_precision rem reshape round rsqrt scatter
    scatter-add select_n shift_left shift_right_arithmetic shift_right_logical sign sin
    sqrt square squeeze stop_gradient sub tan tanh xor""".split()  # noqa: SIM905 - a list of words
)
# Their programs combine single numbers, which take no memory.
SCALAR = frozenset(
    """reduce reduce_window scatter scatter-add scatter-mul scatter-sub scatter_max
    scatter_min select_and_scatter""".split()  # noqa: SIM905 - a list of words
)


class UnknownMemoryError(Exception):
    """The memory that a program needs is not known; the message says why."""


def peak_bytes(program: ClosedJaxpr, donated: Iterable[bool] = ()) -> int:
    """Bytes that lie in memory at a program's worst moment, arguments left out.

    Args:
      program: A traced program.
      donated: Of the first arguments, whether they count nevertheless, and whether
        their memory may be reused.

    Returns:
      The estimate in bytes. Where a program runs on several devices, inside
      `jax.shard_map`, those of one device.

    Raises:
      UnknownMemoryError: If the program has operations that this file does not know, or
        that another version of JAX describes differently.
    """
    try:
        return _peak(program.jaxpr, donated)
    except UnknownMemoryError:
        raise
    except Exception as error:  # JAX promises nothing about a program's insides
        raise UnknownMemoryError(
            f"jax {jax.__version__} describes programs in an unknown form "
            f"({type(error).__name__}: {error})"
        ) from error


@dataclasses.dataclass(eq=False)
class _Value:
    nbytes: int


class _Step(NamedTuple):
    """One operation of a program, its calls inlined; literals are no values."""

    eqn: JaxprEqn
    given: list[_Value | None]
    made: list[_Value]

    @property
    def name(self) -> str:
        return self.eqn.primitive.name


def _nbytes(aval: Any) -> int:
    dtype = getattr(aval, "dtype", None)  # tokens have none
    return 0 if dtype is None else aval.size * dtype.itemsize


def _value(var) -> _Value:
    return _Value(_nbytes(var.aval))


def _programs(eqn: JaxprEqn) -> list[Jaxpr]:
    """What an operation runs."""
    found: list[Any] = []
    for parameter in eqn.params.values():
        found += parameter if isinstance(parameter, tuple | list) else [parameter]
    found = [x.jaxpr if isinstance(x, ClosedJaxpr) else x for x in found]
    return [x for x in found if isinstance(x, Jaxpr)]


def _inlined(jaxpr: Jaxpr, given: Sequence[_Value | None]):
    """The steps of a program in their order, and the values that it returns."""
    here = dict(zip(jaxpr.invars, given, strict=True))
    here |= {var: _value(var) for var in jaxpr.constvars}
    read = lambda x: None if isinstance(x, Literal) else here[x]
    steps: list[_Step] = []
    for eqn in jaxpr.eqns:
        values = [read(x) for x in eqn.invars]
        if eqn.primitive.name in INLINED:
            (program,) = _programs(eqn)
            for value, part in zip(values, program.invars, strict=True):
                if value is not None:  # inside of shard_map, a device's part of it
                    value.nbytes = _nbytes(part.aval)
            more, made = _inlined(program, values)
            steps += more
        else:
            made = [_value(var) for var in eqn.outvars]
            steps.append(_Step(eqn, values, made))
        here |= dict(zip(eqn.outvars, made, strict=True))
    return steps, [read(x) for x in jaxpr.outvars]


def _total(values: Iterable[_Value]) -> int:
    return sum(value.nbytes for value in values)


def _peak(jaxpr: Jaxpr, owned: Iterable[bool]) -> int:
    """The most that lies in memory of what a program makes, and of what it owns."""
    arguments = [_value(var) for var in jaxpr.invars]
    steps, returned = _inlined(jaxpr, arguments)
    last = {x: i for i, step in enumerate(steps) for x in step.given}
    last |= dict.fromkeys(returned, len(steps))
    ending: defaultdict[int, list[_Value]] = defaultdict(list)
    for value, place in last.items():
        ending[place].append(value)
    own = {value for value, mine in zip(arguments, owned, strict=False) if mine}
    live = peak = _total(own)
    for place, step in enumerate(steps):
        own |= set(step.made)
        dying = {x for x in ending[place] if x in own}
        dying |= {x for x in step.made if x not in last}
        peak = max(peak, live + _during(step, dying))
        live += _total(step.made) - _total(dying)
    # what was only lent has to be copied, to be returned
    return max(peak, live + _total({x for x in returned if x} - own))


def _during(step: _Step, dying: set[_Value]) -> int:
    """What a step adds to the memory in use while it runs, before values die."""
    made, eqn = _total(step.made), step.eqn
    if step.name == "scan":
        (body,) = _programs(eqn)
        lent, carried = _lent_and_carried(eqn, body)
        stacked = _total(step.made[carried:])
        return stacked + _repeated(body, step.given, lent, carried, dying)
    if step.name == "while":
        tested = eqn.params["cond_nconsts"]
        lent, body = eqn.params["body_nconsts"], eqn.params["body_jaxpr"].jaxpr
        given = step.given[tested:]
        return _repeated(body, given, lent, len(given) - lent, dying)
    if step.name == "cond":
        return max(_handed(program, step.given, dying) for program in _programs(eqn))
    if step.name not in SCALAR and _programs(eqn):
        raise UnknownMemoryError(f"the operation {step.name} is unknown")
    if step.name in PACKED:
        return made + _total(filter(None, step.given))
    if step.name in IN_PLACE:
        return max(0, made - _total(dying))
    return made


def _lent_and_carried(eqn: JaxprEqn, body: Jaxpr) -> tuple[int, int]:
    """How many arguments of a scan are constants, and how many are its carry.

    Told by their shapes, since parameters that count them differ between versions of
    JAX: what is scanned over, or stacked, has one axis more than the body sees.
    """
    alike = lambda outer, inner: sum(
        x.aval.ndim == y.aval.ndim for x, y in zip(outer, inner, strict=True)
    )
    carried = alike(eqn.outvars, body.outvars)
    return alike(eqn.invars, body.invars) - carried, carried


def _repeated(body: Jaxpr, given, lent: int, carried: int, dying: set[_Value]) -> int:
    """A loop owns what it carries: taken over from outside, or else copied."""
    owned = [i >= lent for i in range(len(body.invars))]
    carry = {x for x in given[lent : lent + carried] if x in dying}
    return _peak(body, owned) - _total(carry)


def _handed(program: Jaxpr, given, dying: set[_Value]) -> int:
    """A branch owns what nobody else reads any more."""
    passed = given[len(given) - len(program.invars) :]
    owned = [x in dying and x not in passed[:i] for i, x in enumerate(passed)]
    handed = {x for x, mine in zip(passed, owned, strict=True) if mine}
    return _peak(program, owned) - _total(handed)

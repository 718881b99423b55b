"""Initial parameters, drawn by programs that equal layers share."""

import dataclasses
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from fedjax_muon.core import Params


def draw_params(init: Callable[[jax.Array], Params], key: jax.Array) -> Params:
    """The initial parameters; compiled, since single operations take seconds.

    They are drawn once. So on a CPU, they are compiled with fewer optimizations, which
    takes a quarter of the time, and those of equal layers by one program, which takes a
    third of the rest for a transformer. Values stay as they are. JAX allows that
    outside of other compiled functions only. A level in `XLA_FLAGS` stays.
    """
    alone = not isinstance(key, jax.core.Tracer)
    if not alone or {device.platform for device in key.devices()} != {"cpu"}:
        return _call(init, key)
    (option,) = _QUICKLY
    quickly = option not in os.environ.get("XLA_FLAGS", "")
    traced = _call.trace(init, key)
    keys, parts = _divided(traced.jaxpr.jaxpr)
    if not _repeat(parts):
        return (_call_quickly if quickly else _call)(init, key)
    leaves = _run(traced.jaxpr, jax.tree.leaves((init, key)), keys, parts, quickly)
    return jax.tree.unflatten(jax.tree.structure(traced.out_info), leaves)


@dataclasses.dataclass(frozen=True)
class _Program:
    """Some equations of `init`, equal to others that read the same but for names."""

    text: Hashable
    equations: ClosedJaxpr = dataclasses.field(compare=False)


class _Part(NamedTuple):
    """Equations that no others need, and whose results nobody else has."""

    program: _Program
    reads: list[Var]
    makes: list[Var]


def _divided(jaxpr: Jaxpr) -> tuple[list[JaxprEqn], list[_Part]]:
    """Equations that make keys, one by one, and parts that make parameters of keys.

    There are none if parameters are not all made, or not each of them once.
    """
    made = {x for eqn in jaxpr.eqns for x in eqn.outvars}
    leaves = [x for x in jaxpr.outvars if isinstance(x, Var) and x in made]
    if jaxpr.effects or len(set(leaves)) < len(jaxpr.outvars):
        return [], []
    known = {*jaxpr.invars, *jaxpr.constvars}
    keys, of = [], dict[Var, list[JaxprEqn]]()  # of a variable: all that lead to it
    for eqn in _needed(jaxpr):
        if known.issuperset(_reads(eqn)) and all(map(_for_keys, eqn.outvars)):
            keys.append(eqn)
            known.update(eqn.outvars)
        else:
            before = _different(of[x] for x in _reads(eqn) if x not in known)
            group = [e for group in before for e in group] + [eqn]
            of |= {x: group for e in group for x in e.outvars}
    return keys, [_part(jaxpr, group, known) for group in _different(of.values())]


def _different(groups: Iterable[list[JaxprEqn]]) -> list[list[JaxprEqn]]:
    return list({id(group): group for group in groups}.values())


def _needed(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """The equations that lead to parameters, which the layers' outputs do not."""
    needed, eqns = set(jaxpr.outvars), []
    for eqn in reversed(jaxpr.eqns):
        if not needed.isdisjoint(eqn.outvars):
            needed.update(_reads(eqn))
            eqns.append(eqn)
    return eqns[::-1]


def _reads(eqn: JaxprEqn) -> list[Var]:
    return [x for x in eqn.invars if isinstance(x, Var)]


def _for_keys(x: Var) -> bool:
    """Whether it is a key, or a whole number, as they are folded into keys."""
    dtype, shape = x.aval.dtype, x.aval.shape  # type: ignore[attr-defined]  # as arrays have
    is_a = partial(jax.dtypes.issubdtype, dtype)
    return is_a(jax.dtypes.prng_key) or (is_a(np.integer) and shape == ())


def _part(jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], known: set[Var]) -> _Part:
    reads = list(dict.fromkeys(x for e in eqns for x in _reads(e) if x in known))
    made = {x for eqn in eqns for x in eqn.outvars}
    makes = [x for x in jaxpr.outvars if x in made]
    number = {x: i for i, x in enumerate(reads)}
    lines = []
    for eqn in eqns:
        names = [
            (repr(x.val), str(x.aval)) if isinstance(x, Literal) else number[x]
            for x in eqn.invars
        ]
        options = ((k, _compared(v)) for k, v in eqn.params.items())
        lines.append((eqn.primitive, tuple(options), tuple(names)))
        number |= {x: len(number) + i for i, x in enumerate(eqn.outvars)}
    types = tuple(str(x.aval) for x in reads)
    text = types, tuple(lines), tuple(number[x] for x in makes)
    alone = jaxpr.replace(constvars=(), invars=reads, outvars=makes, eqns=eqns)
    return _Part(_Program(text, ClosedJaxpr(alone, ())), reads, makes)


def _compared(option: Any) -> Hashable:
    """What an option of an equation is compared by.

    JAX traces an inner function once, so that equal ones are the same object.
    """
    try:
        hash(option)
    except TypeError:
        return id(option)
    return option


def _repeat(parts: Sequence[_Part]) -> bool:
    """Whether most programs that draw are those of others: a single one is as fast."""
    drawing = [part.program for part in parts if part.reads]
    return 2 * len(set(drawing)) < len(drawing)


def _run(
    closed: ClosedJaxpr,
    given: Sequence[Any],
    keys: Sequence[JaxprEqn],
    parts: Sequence[_Part],
    quickly: bool,
) -> list[jax.Array]:
    jaxpr = closed.jaxpr
    values: dict[Any, Any] = dict(zip(jaxpr.invars, given, strict=True))
    values |= zip(jaxpr.constvars, closed.consts, strict=True)
    for eqn in keys:
        inputs = [x.val if isinstance(x, Literal) else values[x] for x in eqn.invars]
        made = eqn.primitive.bind(*inputs, **eqn.params)
        made = made if eqn.primitive.multiple_results else [made]
        values |= zip(eqn.outvars, made, strict=True)
    run = _evaluate_quickly if quickly else _evaluate
    for part in parts:
        made = run(part.program, [values[x] for x in part.reads])
        values |= zip(part.makes, made, strict=True)
    return [values[x] for x in jaxpr.outvars]


def _called(init: Callable[[jax.Array], Params], key: jax.Array) -> Params:
    return init(key)


def _evaluated(program: _Program, inputs: Sequence[Any]) -> list[jax.Array]:
    return jaxpr_as_fun(program.equations)(*inputs)


_QUICKLY = {"xla_backend_optimization_level": 1}
_call = jax.jit(_called)
_call_quickly = jax.jit(_called, compiler_options=_QUICKLY)
_evaluate = jax.jit(_evaluated, static_argnums=0)
_evaluate_quickly = jax.jit(_evaluated, static_argnums=0, compiler_options=_QUICKLY)

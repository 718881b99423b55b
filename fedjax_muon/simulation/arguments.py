"""Checks of the arguments of simulations, before anything is compiled."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_muon import data
from fedjax_muon.core import Exchange, tree
from fedjax_muon.core.recipe import Recipe, recipe_of
from fedjax_muon.data import Dataset
from fedjax_muon.data.dataset import OnDisk, as_inputs
from fedjax_muon.tasks.task import Task

Parts = Iterable[Any] | Mapping[Any, Any]  # ids of examples for every client
LARGEST_AXIS = 4  # of the arrays that update rules are tested on
SMALL_UPDATE = 0.02  # relative to the gradient; probably scaled by a learning rate


def check_functions(functions: Mapping[str, Any]) -> None:
    """Raises `TypeError` unless all values, by the names of arguments, are functions.

    Names of functions belong to the command line.
    """
    for name, value in functions.items():
        if not callable(value):
            raise TypeError(
                f"{name} must be a function, got {value!r}; see the examples in "
                "help(fedjax_muon.federate)"
            )


def check_algorithm(algorithm: Any, kind: type | UnionType, other: str) -> None:
    """Raises `TypeError` unless an algorithm is of a kind; others are for `other`."""
    if isinstance(algorithm, kind):
        for name in ("exchanges", "prologue"):
            if isinstance(getattr(algorithm, name, None), Exchange):
                raise TypeError(
                    f"{name} must be a tuple of exchanges, got one; write (main,) with "
                    "a comma"
                )
        return
    if isinstance(algorithm, tuple) and hasattr(algorithm, "recipe"):
        advice = f"simulate it with {other}"
    elif callable(algorithm):
        name = getattr(algorithm, "__name__", "the function")
        advice = f"call it first: {name}(...)"
    else:
        advice = "the algorithm comes first, then the task"
    raise TypeError(
        f"algorithm must be made by a function such as fedjax_muon.fedavg(lr=0.1), got "
        f"{type(algorithm).__name__}; {advice}"
    )


def check_task(task: Any) -> None:
    """Raises `TypeError` unless this is a task."""
    if not isinstance(task, Task):
        model = isinstance(task, (nn.Module, type))
        make = "make one of the model with tasks.classification(model, dataset)"
        advice = make if model else "see fedjax_muon.tasks"
        raise TypeError(f"task must be a Task, got {type(task).__name__}; {advice}")


def check_dataset(dataset: Any) -> Dataset:
    """Validates a dataset; floating-point examples become float32."""
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"dataset must be a data.Dataset, got {type(dataset).__name__}; arrays "
            "become one with data.Dataset(x_train, y_train, x_test, y_test, classes)"
        )
    x_train, x_test = as_inputs(dataset.x_train), as_inputs(dataset.x_test)
    kinds = {x_train.dtype.kind, x_test.dtype.kind}
    if kinds == {"f"} and not isinstance(x_train, OnDisk):  # which is float32
        x_train = x_train.astype(np.float32, copy=False)
        x_test = x_test.astype(np.float32, copy=False)
    checked = data.check(dataset._replace(x_train=x_train, x_test=x_test))
    # what is on the device is not copied to it again
    kept: dict[str, Any] = {
        name: x
        for name, x in (("x_train", dataset.x_train), ("x_test", dataset.x_test))
        if isinstance(x, jax.Array) and x.dtype == getattr(checked, name).dtype
    }
    return checked._replace(**kept)


def on_device(x: Any) -> jax.Array:
    """Puts an array on the device, unless it is there already.

    It makes one copy of an array of NumPy, where `jnp.asarray` makes two for a while.
    """
    if isinstance(x, jax.Array):
        return x
    return jax.device_put(np.asarray(x), may_alias=False)


def check_parts(parts: Any) -> list[np.ndarray]:
    """Converts a partition to an array of ids for every client.

    It may be a dictionary {client: ids}, whose clients are in the order of their
    numbers if these are 0, 1, ..., and otherwise in its own.

    Raises:
      TypeError: If this is not a partition.
      ValueError: If a client has an example twice.
    """
    if isinstance(parts, Mapping):
        numbered = parts.keys() == set(range(len(parts)))
        parts = [parts[i] for i in (sorted(parts) if numbered else parts)]
    elif isinstance(parts, np.ndarray | jax.Array):
        if parts.ndim < 2 and parts.dtype != object:
            raise TypeError(
                "parts must be a list with an array of ids for every client, got one "
                "array; if it names the owner of every example, use "
                "[np.flatnonzero(owner == i) for i in np.unique(owner)]"
            )
        parts = np.asarray(parts)
    elif isinstance(parts, str) or not isinstance(parts, Iterable):
        raise TypeError(
            "parts must be a list with an array of ids for every client, or a "
            f"dictionary of them, got {parts!r:.60}"
        )
    return [_ids(client, ids) for client, ids in enumerate(parts)]


def _ids(client: int, ids: Any) -> np.ndarray:
    """The ids of a client's examples, which may be any collection of them."""
    if isinstance(ids, set | frozenset):
        ids = sorted(ids)
    try:
        array = np.asarray(ids)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.ndim == 1 and not array.size:
        return array.astype(np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        mask = array.ndim == 1 and array.dtype == bool
        advice = "; of a mask, give np.flatnonzero(mask)" if mask else ""
        raise TypeError(
            f"parts must have a list of ids of examples, whole numbers, for every "
            f"client, got {ids!r:.60} for client {client}{advice}"
        )
    return array


def check_distinct(parts: Sequence[np.ndarray]) -> None:
    """Raises `ValueError` if an example is twice in a part, or in two.

    Where privacy protects an example, its copies would count together.
    """
    ids = np.concatenate([np.zeros(0, int), *parts])
    unique, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        example = unique[counts.argmax()]
        owners = [i for i, part in enumerate(parts) if (part == example).any()]
        where = f"part {owners[0]}" if len(owners) == 1 else f"{len(owners)} parts"
        raise ValueError(
            f"example {example} is {counts.max()} times in {where}, but privacy "
            "protects an example that one agent has once; remove the copies"
        )


def check_key(key: Any) -> None:
    """Raises `TypeError` unless this is a typed key."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        raise TypeError(
            f"key must be a typed key, such as jax.random.key(0), got {key}"
        )


def check_untraced(state: Any) -> None:
    """Raises `TypeError` within transformations, where private noise is drawn once."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(state)):
        raise TypeError(
            "a simulation is compiled already, and a private one draws new noise in "
            "every call; call it outside of jax.jit and other transformations"
        )


def check_not_donated(state: Any) -> None:
    """Raises `ValueError` if a state was given to an earlier call."""
    leaves = jax.tree.leaves(state)
    if any(isinstance(x, jax.Array) and x.is_deleted() for x in leaves):
        raise ValueError(
            "this state was donated to an earlier call; continue with the state that "
            "the call returned"
        )


def check_state(state: Any, like: Any) -> None:
    """Raises `ValueError` unless a state has the structure, shapes and dtypes of a
    simulation's; it names the first difference.

    A program would be compiled anew for other shapes, and read client states past the
    end.
    """
    if difference := _difference(state, like):
        raise ValueError(
            "this state is from another simulation, or has another number of clients: "
            f"state{difference}; use a state of this simulation, or start from its "
            "parameters with init(key, params=...)"
        )


def check_params(params: Any, like: Any) -> Any:
    """Converts parameters to arrays; raises `ValueError` unless they have the
    structure, shapes and dtypes of the task's."""
    params = jax.tree.map(jnp.asarray, params)
    if difference := _difference(params, like):
        raise ValueError(
            f"params must be as the task makes them, but params{difference}; use "
            "parameters of the same model"
        )
    return params


def _difference(pytree: Any, like: Any) -> str:
    """Where two pytrees differ, and how; empty if they do not."""
    if _form(pytree) == _form(like):
        return ""
    return tree.difference(tree.shapes(pytree), tree.shapes(like))


def _form(pytree: Any) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(pytree)
    return structure, [(x.shape, x.dtype) for x in leaves]


def check_rules(algorithm: Any, params: Any) -> None:
    """Tests the sign and the scale of every update rule in an algorithm's recipe once.

    Rules are optax transformations of an ascent direction without a learning rate. Most
    optimizers of optax, such as `optax.adam(1e-3)`, flip the sign and scale. With them
    training would increase the loss, without any other symptom. It warns if the scale
    of a rule looks like a learning rate.
    """
    for name, rule in _rules(recipe_of(algorithm)):
        _check_rule(name, rule, params)


def check_rule_kinds(algorithm: Any) -> None:
    """Raises `TypeError` for rules of an algorithm's recipe that are none."""
    for name, rule in _rules(recipe_of(algorithm)):
        if isinstance(rule, optax.GradientTransformation):
            continue
        called = f"; call it first: {getattr(rule, '__name__', '')}(...)"
        raise TypeError(
            f"{name} must be an optax transformation, such as transforms.muon(), got "
            f"{rule!r:.60}{called if callable(rule) else ''}"
        )


def _rules(recipe: Recipe | None) -> Iterator[tuple[str, Any]]:
    if recipe is None:
        return
    for name, value in recipe.arguments.items():
        if name in ("rule", "server_rule") and value is not None:
            yield name, value
        if isinstance(getattr(value, "recipe", None), Recipe):
            yield from _rules(recipe_of(value))


def _check_rule(name: str, rule: optax.GradientTransformation, params: Any) -> None:
    small = lambda x: jnp.zeros([min(n, LARGEST_AXIS) for n in x.shape], x.dtype)
    params = jax.tree.map(small, params)
    gradient = jax.tree.map(_alternating, params)
    gradient = optax.tree.scale(1 / optax.tree.norm(gradient), gradient)
    try:
        state = rule.init(params)
        updates, _ = rule.update(gradient, state, params)
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(rule, optax.GradientTransformationExtraArgs):
            raise ValueError(
                f"{name} needs more than gradients and parameters, but a local step "
                f"has nothing else ({error}); give a rule without extra arguments"
            ) from error
        if not isinstance(error, ValueError):  # optax.lookahead, of other parameters
            raise ValueError(
                f"{name} can't be applied to parameters: {error}"
            ) from error
        # optax.contrib.scale_by_muon, without its partition
        raise ValueError(
            f"{name} can't be applied to parameters of shapes "
            f"{', '.join(str(x.shape) for x in jax.tree.leaves(params))}; for Muon use "
            "transforms.muon(), whose vectors have a rule of their own"
        ) from error
    is_sam = lambda node: isinstance(node, optax.contrib.SAMState)
    if any(map(is_sam, jax.tree.leaves(state, is_leaf=is_sam))):
        raise ValueError(
            f"{name} is SAM, which needs a second gradient at a point that it chooses, "
            "but a local step has one; write an algorithm whose client takes both"
        )
    along = float(optax.tree.vdot(updates, gradient))
    if along < 0:
        raise ValueError(
            f"{name} flips the sign of the gradient, as optax.adam(1e-3) and other "
            "optimizers do; give a transformation without a learning rate, such as "
            "optax.scale_by_adam(), and the learning rate as lr"
        )
    if 0 < float(optax.tree.norm(updates)) < SMALL_UPDATE:
        warnings.warn(
            f"{name} shrinks a gradient of norm 1 to {optax.tree.norm(updates):.2g}, "
            "as if it had a learning rate; that belongs to lr",
            stacklevel=4,
        )


def _alternating(x: jax.Array) -> jax.Array:
    """Makes entries of both signs and of several sizes."""
    count = jnp.arange(1, x.size + 1, dtype=jnp.float32)
    return (jnp.cos(2 * count) + 0.1).reshape(x.shape).astype(x.dtype)

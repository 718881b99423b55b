"""Names of the command line, and the values that texts stand for.

    0.03    1,5    ring    none                  numbers, lists, words
    fedmuon    lenet    top_k:0.1                functions, and their arguments
    fedmuon:lr=0.03,momentum=0.9    'fedmuon(lr=cosine(0.03))'
    my_code:hospital:ward=3                      your own, MODULE:FUNCTION

What a text may be is what the annotation of the argument says. A name is looked up in
the table of its argument, and nothing is evaluated.
"""

import contextlib
import difflib
import functools
import importlib
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_muon import algorithms, decentralized, problems, simulation, transforms
from fedjax_muon.algorithms import minimax
from fedjax_muon.algorithms.registry import Method
from fedjax_muon.core.recipe import hyper_parameters
from fedjax_muon.core.schedules import cosine_decay
from fedjax_muon.data import partition
from fedjax_muon.decentralized import mixing, topology
from fedjax_muon.engine import plans
from fedjax_muon.linalg import newton_schulz
from fedjax_muon.models.convolution import by_patches, convolution
from fedjax_muon.tasks.augmentation import crop_and_flip
from fedjax_muon.wrappers import aggregators, attacks, compression, personalization

MOST_SHOWN = 30  # names in an error
DEEPEST = 30  # functions and arguments in one text
EMPTY = inspect.Parameter.empty
METHODS: dict[str, Method] = {
    **algorithms.ALL,
    **minimax.ALL,
    **decentralized.ALL,
    **decentralized.PRIVATE_METHODS,
}
Table = Mapping[str, Any]


def _named(*functions: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {problems.function_name(each): each for each in functions}


def _public(module: types.ModuleType, *others: str) -> dict[str, Callable[..., Any]]:
    """The public functions that a module defines, but for some."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and name[0] != "_"
        and name not in others
    }


_MODELS = _named(
    problems.mlp,
    problems.lenet,
    problems.emnist_cnn,
    problems.resnet18,
    problems.vit,
    problems.vit_tiny,
    problems.rnn,
    problems.gpt,
    problems.llama,
)
WRAPPERS = ("compress", "compress_broadcasts")
_RULES = {
    name: function
    for module in (optax, transforms)
    for name, function in vars(module).items()
    if inspect.isfunction(function) and name[0] != "_"
}
# by the names of arguments; those of others are in any of them
TABLES: dict[str, Table] = {
    "method": {name: method.function for name, method in METHODS.items()},
    "problem": _named(problems.classification, problems.auc, problems.text),
    "model": {**_MODELS, "lstm": problems.lstm, "gru": problems.gru},
    "divide": _named(
        partition.dirichlet,
        partition.dirichlet_per_client,
        partition.labels_per_client,
        partition.shards,
        partition.quantity,
        partition.iid,
        partition.contiguous,
        partition.by_owner,
        problems.ratios,
    ),
    "graph": {"erdos_renyi": topology.random_graph},
    "augment": _named(crop_and_flip),
    "convolution": {"direct": convolution, "patches": by_patches},
    "cohort": _named(
        simulation.cohorts.sampled,
        simulation.cohorts.poisson,
        simulation.cohorts.timed,
        simulation.arrivals.buffered,
        simulation.arrivals.fedasync,
        simulation.arrivals.replayed,
    ),
    "arrivals": _named(simulation.arrivals.buffered, simulation.arrivals.fedasync),
    "clock": _public(simulation.clocks, "absent", "measured"),
    "staleness": _public(simulation.staleness),
    "damping": _public(simulation.staleness),
    "plan": _named(plans.loop, plans.mapped, plans.vmapped, plans.chunked),
    "sampler": _named(
        simulation.batching.shuffled_epochs,
        simulation.batching.with_replacement,
        simulation.batching.full_batch,
    ),
    "weighting": {
        "uniform": simulation.participation.uniform,
        "examples": simulation.participation.by_examples,
    },
    "mixer": _named(mixing.dense, mixing.sparse, mixing.shifted),
    "polar": {
        "newton_schulz": newton_schulz.orthogonalize,
        "exact": newton_schulz.polar,
    },
    "normalization": _named(newton_schulz.frobenius, newton_schulz.schatten8),
    "coefficients": {"jordan": newton_schulz.JORDAN, "quintic": newton_schulz.QUINTIC},
    "shape_scale": _named(
        transforms.unscaled,
        transforms.jordan,
        transforms.moonlight,
        transforms.spectral,
    ),
    "layout": _named(transforms.muon_dimension_numbers, transforms.hidden_matrices),
    "lr": {"cosine": cosine_decay},
    "compressor": _public(compression, *WRAPPERS, "memory_share", "rank_share"),
    "rank": _named(compression.memory_share, compression.rank_share),
    "aggregator": _public(aggregators, "robust", "with_all_messages"),
    "attack": _public(attacks, "attack", "flip_labels"),
    "with": _named(
        aggregators.robust,
        attacks.attack,
        compression.compress,
        compression.compress_broadcasts,
        personalization.ditto,
        personalization.keep_own,
    ),
    "rule": _RULES,
}
# arguments that the library gives, so that no text does
SUPPLIED = {
    *("algorithm", "dataset", "labels", "num_clients", "agents", "key", "x", "rounds"),
    *("fan_in", "fan_out", "owners", "lhs", "rhs", "window_strides", "padding"),
}


# --------------------------------------------------------------------- texts to values
class Call:
    """A function, and those of its arguments that are known."""

    def __init__(self, function: Callable[..., Any], name: str, own: bool = False):
        self.function, self.name, self.own = function, name, own
        self.keywords: dict[str, Any] = {}

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The arguments that a text can give."""
        try:
            known = inspect.signature(self.function).parameters
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.name} has no signature to read") from error
        several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        return {
            name: each
            for name, each in known.items()
            if name not in SUPPLIED and each.kind not in several
        }

    def give(self, text: str) -> None:
        """Takes the arguments of a text, such as `lr=0.1,momentum=0.9`."""
        order = iter(self.parameters)
        for word in split(text):
            match = re.match(r"([A-Za-z_]\w*)=", word)
            name = match[1] if match else next(order, word)
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "nothing"
                raise ValueError(
                    f"{self.name} has no {name!r}; {near(name, self.parameters)}"
                    f"it takes {known}"
                )
            if name in self.keywords:
                raise ValueError(f"{self.name} names {name} twice; name it once")
            rest, what = word[match.end() :] if match else word, f"{self.name}: {name}"
            if name in hyper_parameters(self.function) and (grid := _grid(rest)):
                self.keywords[name] = grid
                continue
            self.keywords[name] = value_of(name, rest, self.parameters[name], what, "+")

    def given(self, keywords: Mapping[str, Any]) -> "Call":
        """The same function with other arguments."""
        other = Call(self.function, self.name, self.own)
        other.keywords = dict(keywords)
        return other

    def made(self, rounds: int | None = None, *values: Any) -> Any:
        """Calls the function; where it waits for what the library gives, it is left.

        Args:
          rounds: Of the run, for schedules.
          values: Arguments that come first.
        """
        keywords = {name: made(each, rounds) for name, each in self.keywords.items()}
        signature = inspect.signature(self.function)
        if rounds is not None and "rounds" in signature.parameters:
            keywords["rounds"] = rounds
        try:
            signature.bind(*values, **keywords)
        except TypeError as error:
            if "missing" not in str(error):
                raise ValueError(f"{self.name}: {error}") from None
            self.check(bool(values))
            return (
                functools.partial(self.function, **keywords)
                if keywords
                else self.function
            )
        return self.function(*values, **keywords)

    def check(self, now: bool = True) -> None:
        """Raises `ValueError` for arguments that are missing, and only texts can give.

        Args:
          now: Whether nothing else is given later.
        """
        for name, parameter in self.parameters.items():
            needed = parameter.default is EMPTY and name not in self.keywords
            plain = parameter.annotation is not EMPTY and any(
                _rank(kind) not in (0, FUNCTION) for kind in kinds_of(parameter)
            )
            if needed and (now or plain):
                option = name.replace("_", "-")
                raise ValueError(
                    f"{self.name} needs {name}; give it by --{option}, or as "
                    f"{self.name}:{name}=..."
                )


class Grid(tuple[float, ...]):
    """Several values of a hyperparameter."""


def _grid(text: str) -> Grid | None:
    """The numbers of a text such as 0.1+0.3; None for anything else."""
    try:
        numbers = Grid(map(float, text.split("+")))
    except ValueError:  # also of 1e+5, a single number
        return None
    return numbers if len(numbers) > 1 else None


def made(value: Any, rounds: int | None = None) -> Any:
    """The value of what a text has named."""
    return value.made(rounds) if isinstance(value, Call) else value


def split(text: str, mark: str = ",") -> list[str]:
    """The parts of a text between marks that are not in brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == mark and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    if depth:
        raise ValueError(f"a bracket is missing in {text!r}")
    return [part.strip() for part in parts if part.strip()]


def near(name: Any, known: typing.Iterable[str]) -> str:
    """Advice about a name that does not exist, for the middle of a sentence."""
    close = difflib.get_close_matches(str(name), [*known], 1, 0.5)
    return f"did you mean {close[0]}? " if close else ""


def called(table: str, text: str, what: str) -> Any:
    """What a text names in a table, or among users' own functions.

    Args:
      what: What the text is, for errors.
    """
    known = TABLES.get(table) or _anything()
    split(text)  # may raise
    if len(re.findall(r"[(:]", text)) > DEEPEST:
        raise ValueError(f"{what} names more than {DEEPEST} functions in one another")
    if match := re.fullmatch(r"([A-Za-z_][\w.]*(?::[A-Za-z_]\w*)?)\((.*)\)", text):
        head, args = match[1], match[2]
    else:
        words = text.split(":")
        own = words[0] not in known and len(words) > 1 and words[1].isidentifier()
        head, args = ":".join(words[: 1 + own]), ":".join(words[1 + own :])
    if head in known:
        value = known[head]
        if not callable(value):
            return value
        call = Call(value, head)
    elif ":" in head:
        call = Call(imported(head), head, own=True)
    else:
        raise ValueError(f"unknown {what} {head!r}; {advice(head, known)}")
    call.give(args)
    return call


def _anything() -> dict[str, Any]:
    """All names but those of schedules, which `lr` alone takes."""
    tables = [table for name, table in TABLES.items() if name != "lr"]
    return {name: each for table in tables for name, each in table.items()}


def advice(name: str, known: typing.Collection[str]) -> str:
    """What is said of a name that does not exist."""
    if len(known) > MOST_SHOWN:
        return f"{near(name, known)}`fedjax-muon list` shows all"
    names = ", ".join(dict.fromkeys(known))
    return f"{near(name, known)}choose one of {names}, or your own as MODULE:FUNCTION"


class UntrustedError(ValueError):
    """A function is of a module that must not be imported."""

    def __init__(self, name: str, module: str):
        self.name, self.module = name, module
        super().__init__(
            f"{name} is somebody's own code; if you trust it, add --trust {module}"
        )


# modules of users that may be imported while words of others are read; None for all
_trusted: ContextVar[Collection[str] | None] = ContextVar("_trusted", default=None)


@contextlib.contextmanager
def importing_only(modules: Collection[str] | None) -> Iterator[None]:
    """Lets names that someone else has written import no other modules of users."""
    before = _trusted.set(modules)
    try:
        yield
    finally:
        _trusted.reset(before)


def imported(name: str) -> Callable[..., Any]:
    """Imports MODULE:FUNCTION of a user, from here or an installed package."""
    module_name, _, attribute = name.partition(":")
    if not all(map(str.isidentifier, (*module_name.split("."), attribute))):
        raise ValueError(
            f"{name!r} must be MODULE:FUNCTION, such as my_algorithm:fedfoo for the "
            "function fedfoo in my_algorithm.py"
        )
    trusted = _trusted.get()
    if trusted is not None and module_name not in trusted:
        raise UntrustedError(name, module_name)
    here = os.getcwd()
    if here not in sys.path:  # as for `python -m`
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if not f"{module_name}.".startswith(f"{missing}."):
            raise  # the module imports another one that is missing
        raise ValueError(
            f"there is no module {missing!r}, of {name}, in {here}, on PYTHONPATH, or "
            "among the installed packages"
        ) from error
    except SystemExit as error:
        raise ValueError(
            f"{module_name} ends the program when it is imported; put what it runs "
            'below if __name__ == "__main__"'
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        functions = [k for k, v in vars(module).items() if callable(v)]
        place = getattr(module, "__file__", None) or module_name
        advice = near(attribute, functions)
        raise ValueError(
            f"{place} has no function {attribute!r}; {advice}".rstrip("; ")
        )
    return function


class _UnfitError(Exception):
    """A text is no value of a kind."""


def value_of(
    name: str, text: str, parameter: inspect.Parameter, what: str, mark: str = ","
) -> Any:
    """The value of an argument that a text stands for.

    Args:
      name: Of the argument, whose table is searched.
      what: What the text is, for errors.
      mark: What separates several values.
    """
    kinds, table = kinds_of(parameter), TABLES.get(name, {})
    if not text:
        if bool in kinds:
            return True
        raise ValueError(f"{what} needs a value: {words_of(kinds)}")
    if text in table and not callable(table[text]):
        return table[text]
    for kind in kinds:
        try:
            return _of_kind(name, text, kind, what, mark)
        except _UnfitError:
            continue
    words = [each for kind in kinds for each in choices_of(kind)]
    if any(_rank(kind) == FUNCTION for kind in kinds) and table:
        raise ValueError(f"unknown {what} {text!r}; {advice(text, [*words, *table])}")
    raise ValueError(
        f"{what} must be {words_of(kinds)}, got {text!r}; {near(text, words)}".rstrip(
            "; "
        )
    )


def choices_of(kind: Any) -> tuple[Any, ...]:
    """The words of a `Literal`; none of anything else."""
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def kinds_of(parameter: inspect.Parameter) -> list[Any]:
    """What an argument may be, the most special first."""
    kind, usual = parameter.annotation, parameter.default
    if kind is EMPTY:
        plain = isinstance(usual, bool | int | float | str)
        return [type(usual)] if plain else [int, float, str]
    several = sorted(_flat(kind), key=_rank)
    if np.dtype in several:
        return [each for each in several if each in (type(None), np.dtype)]
    return several


def _flat(kind: Any) -> list[Any]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [each for part in typing.get_args(kind) for each in _flat(part)]
    return [] if kind is jax.Array else [kind]  # no text stands for one


SEVERAL, FUNCTION = (tuple, list, Sequence), 6


def _rank(kind: Any) -> int:
    ranks: dict[Any, int] = {type(None): 0, Literal: 1, bool: 2, int: 3, float: 4}
    kind = typing.get_origin(kind) or kind
    is_text = kind in (str, Path, os.PathLike)
    return ranks.get(kind, 5 if kind in SEVERAL else 7 if is_text else FUNCTION)


PLAIN = {int: "a whole number", float: "a number", bool: "true or false"}


def _of_kind(name: str, text: str, kind: Any, what: str, mark: str) -> Any:
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if kind is type(None) and text.lower() == "none":
        return None
    if origin is Literal and text in inner:
        return text
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise _UnfitError from None
    if (
        origin in SEVERAL
        and inner
        and not isinstance(inner[0], str | typing.ForwardRef)
    ):
        texts = split(text.strip("()[]"), "," if text[:1] in ("(", "[") else mark)
        each = [one for one in inner if one is not ...]
        if len(each) > 1 and len(each) != len(texts):
            raise _UnfitError
        kinds = each if len(each) > 1 else each * len(texts)
        read = lambda one, kind: value_of(
            name,
            one,
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind),
            what,
        )
        return tuple(read(one, kind) for one, kind in zip(texts, kinds, strict=True))
    if kind is str or kind is os.PathLike or origin is os.PathLike:
        return text
    if kind is Path:
        return Path(text)
    if kind is np.dtype:
        try:
            return jnp.dtype(text)
        except TypeError:
            raise _UnfitError from None
    known = TABLES.get(name) or _anything()
    is_known = re.split(r"[:(]", text)[0] in known or ":" in text
    if _rank(kind) == FUNCTION and name not in TEXTS and is_known:
        return called(name, text, what)
    raise _UnfitError


# arguments whose texts are names and paths
TEXTS = {"dataset", "data_dir", "path", "tokenizer"}


def words_of(kinds: Sequence[Any]) -> str:
    """What a text may be, in words."""
    words: list[str] = []
    for kind in kinds:
        origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
        if kind is type(None):
            continue
        if origin is Literal:
            words += map(str, inner)
        elif kind in PLAIN:
            words.append(PLAIN[kind])
        elif origin in SEVERAL and inner and not isinstance(inner[0], str):
            if not isinstance(inner[0], typing.ForwardRef):
                words.append("several values, such as 1,5")
        elif kind is np.dtype:
            words.append("a type of numbers, such as bfloat16")
        elif _rank(kind) == FUNCTION:
            words.append("a name")
    return " or ".join(dict.fromkeys(words)) or "text"

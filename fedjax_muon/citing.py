"""BibTeX of an algorithm's papers, from the `Source:` paragraphs of docstrings.

Such a paragraph names papers by their arXiv ids, or by their titles where there is no
id. `papers.bib` contains the entries.
"""

import contextlib
import dataclasses
import functools
import inspect
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedjax_muon.core.recipe import short

SOFTWARE = "fedjax_muon"  # the key of this library


def cite(algorithm: Any) -> str:
    """Returns BibTeX of the papers that an algorithm comes from, and of this library.

    These are the papers of the method, of a preset's base method, of rules, and of
    wrappers, such as a robust aggregator or a compressor. Papers of optax's rules are
    not among them.

    Args:
      algorithm: What a function such as `fm.fedmuon`, `fm.compress` or
        `fm.decentralized.demuon` returns.

    Example:
      >>> normuon = fm.transforms.by_rank(fm.transforms.scale_by_normuon())
      >>> scaffold = fm.scaffold(lr=0.03, rule=normuon)
      >>> text = fm.cite(fm.robust(scaffold, fm.aggregators.krum(0.2)))
      >>> [line for line in text.splitlines() if line.startswith("@inproceedings")]
      ['@inproceedings{karimireddy2020scaffold,']
    """
    if "recipe" not in getattr(algorithm, "_fields", ()):
        advice = "; call it" if inspect.isfunction(algorithm) else ""
        raise TypeError(
            f"cite needs an algorithm, such as fm.fedmuon(), got {short(algorithm)}"
            f"{advice}"
        )
    keys = [key for text in _docstrings(algorithm) for key in keys_of(text)]
    return "\n\n".join(papers()[key] for key in dict.fromkeys([*keys, SOFTWARE]))


@functools.cache
def papers() -> dict[str, str]:
    """The entries of `papers.bib` by their keys."""
    text = Path(__file__).with_name("papers.bib").read_text("utf-8")
    entries = text.strip().split("\n\n")
    return {entry.partition("{")[2].partition(",")[0]: entry for entry in entries}


@functools.cache
def marks() -> dict[str, str]:
    """What names the papers in a docstring: the arXiv id or the title, by keys."""
    found = {}
    for key, entry in papers().items():
        fields = dict(re.findall(r"^  (\w+) = \{(.*)\},$", entry, re.MULTILINE))
        if key != SOFTWARE:
            given = fields.get("eprint")
            found[key] = f"arXiv:{given}" if given else fields["title"].strip("{}")
    return found


def source_of(text: str | None) -> str:
    """The `Source:` paragraph of a docstring on one line; empty if there is none."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    found = [part for part in paragraphs if part.startswith("Source: ")]
    return " ".join(" ".join(found).split())


def keys_of(text: str | None) -> list[str]:
    """The keys of the papers that a docstring names as its source, in its order."""
    source = source_of(text)
    named = {key: source.find(mark) for key, mark in marks().items()}
    return sorted((key for key in named if named[key] >= 0), key=named.__getitem__)


def _docstrings(algorithm: Any) -> Iterator[str | None]:
    """Those of all functions and classes that made an algorithm, the nearest first.

    A function inside another one stands for the outer one, in whose docstring the
    source is. What it closes over made the algorithm too.
    """
    # values by their ids, which are kept so that nothing else gets the id
    seen: dict[int, Any] = {}
    next_ones = deque([algorithm.recipe, algorithm])
    while next_ones:
        value = next_ones.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if inspect.isfunction(value):
            yield _maker(value).__doc__
            next_ones += _closed_over(value)
        elif isinstance(value, functools.partial):
            next_ones += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, tuple | list):
            next_ones += value
        elif isinstance(value, Mapping):
            next_ones += value.values()
        elif inspect.ismethod(value):
            next_ones += [value.__func__, value.__self__]
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield type(value).__doc__
            next_ones += [getattr(value, f.name) for f in dataclasses.fields(value)]


def _closed_over(function: Any) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # of a cell without a value
            yield cell.cell_contents


def _maker(function: Any) -> Any:
    """The outermost function that a function is defined in, which may be itself."""
    outer, inside, _ = function.__qualname__.partition(".<locals>")
    module = sys.modules.get(function.__module__)
    return getattr(module, outer, function) if inside else function

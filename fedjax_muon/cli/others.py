"""The commands that read what is there, or make files of it."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from fedjax_muon import algorithms, data, decentralized
from fedjax_muon.algorithms import minimax
from fedjax_muon.algorithms.registry import Method
from fedjax_muon.cli.commands import only
from fedjax_muon.cli.errors import refusing
from fedjax_muon.cli.jobs import Taken, Words, dashed
from fedjax_muon.cli.names import METHODS, TABLES, called
from fedjax_muon.core.recipe import hyper_parameters
from fedjax_muon.data.catalog import NAMES, PREPARED
from fedjax_muon.data.loading import TFDS, place_of, source_of
from fedjax_muon.data.partition import label_counts
from fedjax_muon.data.source import Source
from fedjax_muon.runs import metrics_csv, plots, summary
from fedjax_muon.runs.cells import read_points
from fedjax_muon.runs.directory import METRICS
from fedjax_muon.runs.identity import ARRAYS, CODE, IDENTITY, words_of
from fedjax_muon.terminal import plain_console
from fedjax_muon.versions import install_command

FORMATS = (".png", ".pdf", ".svg")  # of figures
REGISTRIES = {
    "federated": algorithms.ALL,
    "minimax, with --problem auc": minimax.ALL,
    "agents on a graph, without a server": decentralized.ALL,
    "private agents on a graph": decentralized.PRIVATE_METHODS,
}
PAPERS = "papers: docs/algorithms/methods.md, or fedjax-muon train NAME --help"
NAMED = ("model", "divide", "cohort", "clock", "compressor", "with", "lr")
LEAST = 80  # characters that the tables need
# words of a run that do not tell it from others on one figure
SAME = ("seed", "task", "evaluate_every", "drop_nonfinite", *ARRAYS)


def _figure(text: str) -> Path:
    path = Path(text).expanduser()
    if path.suffix.lower() not in FORMATS:
        raise ValueError(
            f"a figure's name must end in {', '.join(FORMATS)}, got {str(path)!r}"
        )
    return path


def plot(argv: Sequence[str]) -> None:
    """Plots several runs, comparisons and sweeps in one figure."""
    with refusing():
        words = Words(argv)
        output = _figure(only(words, "output").get("output", "curves.png"))
        if not words.first:
            raise ValueError("plot needs at least one directory, such as: plot runs/a")
        runs: dict[str, list[Any]] = {}
        singles: list[tuple[dict[str, str], Any]] = []
        shown: dict[tuple[str, ...], Path] = {}
        for directory in map(Path, words.first):
            found = 0
            for path in sorted(directory.rglob(IDENTITY)):
                known, place = words_of(path.parent), path.parent
                if "tuning" in place.relative_to(directory).parts:
                    continue
                if "grid" not in known and not (place / METRICS).exists():
                    continue
                found += 1
                shown[tuple(known.get(f"problem.{n}", "") for n in SHOWN)] = place
                if "grid" not in known:
                    singles.append((known, metrics_csv.read(place / METRICS)))
                elif (best := summary.best(read_points(place))) is not None:
                    runs.setdefault(label_of(known), []).extend(best.runs)
            if not found:
                raise ValueError(
                    f"{directory} has no finished run; name directories of train, "
                    "compare or sweep"
                )
        if len(shown) > 1:
            (first, one), (second, other), *_ = shown.items()
            raise ValueError(
                f"{one} is of {' '.join(first)} and {other} of {' '.join(second)}, "
                "which one figure cannot compare; draw them separately"
            )
        labels = distinct_labels([known for known, _ in singles])
        for label, (_, columns) in zip(labels, singles, strict=True):
            runs.setdefault(label, []).append(columns)
        summary.check_rounds(runs)
        plots.curves(runs, output)
    print(output)


SHOWN = ("problem", "dataset")  # that the runs of a figure share


def label_of(words: Mapping[str, str]) -> str:
    """What figures call the method of a run, by the run's words."""
    names = [
        text.partition("[")[0].rpartition(".")[2]
        for name, text in words.items()
        if re.fullmatch(r"method\.([\w.]*\.)?algorithm", name)
    ]
    known = [METHODS[name].label for name in names if name in METHODS]
    return (*known, *reversed(names), "method")[0]


def distinct_labels(runs: Sequence[Mapping[str, str]]) -> list[str]:
    """The label of every run; runs with the same label differ in their seeds alone.

    Where runs of one method differ in options, these are in the label.
    """
    labels = [label_of(words) for words in runs]
    short, whole = list[str](), list[str]()
    for label, words in zip(labels, runs, strict=True):
        others = [
            each for name, each in zip(labels, runs, strict=True) if name == label
        ]
        differ = {
            name.rpartition(".")[2]: text
            for name, text in words.items()
            if name not in SAME
            and not name.startswith(CODE)
            and any(each.get(name) != text for each in others)
        }
        whole.append(", ".join([label, *(f"{k}={v}" for k, v in differ.items())]))
        short.append(", ".join([label, *(in_short(k, v) for k, v in differ.items())]))
    pairs = {*zip(short, whole, strict=True)}
    clear = {words: sum(words == each for each, _ in pairs) == 1 for words, _ in pairs}
    return [a if clear[a] else b for a, b in zip(short, whole, strict=True)]


def in_short(name: str, text: str) -> str:
    """An option of a run in a label, such as `lr=0.1`, or `buffered 30/10`."""
    known = dict(re.findall(r"(\w+)=([\d.]+)", text)) if name == "cohort" else {}
    if "concurrency" in known:
        return f"buffered {known['concurrency']}/{known['buffer']}"
    if "deadline" in known:
        return f"deadline {float(known['deadline']):g}"
    return f"{known['size']} clients" if "size" in known else f"{name}={text}"


def partition(argv: Sequence[str]) -> None:
    """Divides a dataset among clients, and shows which labels each one gets."""
    with refusing():
        words = Words(argv)
        if words.first:
            raise ValueError(f"partition takes options alone, got {words.first[0]!r}")
        output = _figure(words.options.pop("output", "partition.png"))
        seed = words.options.pop("seed", "0")
        if not seed.isdigit():
            raise ValueError(f"--seed must be a whole number, got {seed!r}")
        taken = Taken(words)
        text = taken.options.pop("problem", "classification")
        call = called("problem", text, "problem")
        call.keywords |= taken.take("Problem", call.function)
        taken.check()
        problem = call.made()
        parts, dataset = problem.parts(int(seed)), problem.dataset
        counts = label_counts(dataset.y_train, parts, len(dataset.classes))
        plots.label_counts(counts, dataset.classes, output)
    sizes, classes = counts.sum(1), (counts > 0).sum(1)
    print(
        f"{len(parts)} clients with {sizes.min()} to {sizes.max()} examples (median "
        f"{np.median(sizes):g}) and {classes.min()} to {classes.max()} classes; "
        f"drawn in {output}"
    )


def prepare(argv: Sequence[str]) -> None:
    """Downloads and converts a dataset of tensorflow-datasets, once."""
    with refusing():
        words = Words(argv)
        if len(words.first) != 1:
            raise ValueError("prepare takes the name of one dataset")
        place = only(words, "data_dir").get("data_dir")
        print(data.prepare(words.first[0], None if place is None else Path(place)))


# ------------------------------------------------------------------------------- list
def show(argv: Sequence[str]) -> None:
    """Shows every method with its options, every dataset, and other names."""
    with refusing():
        words = Words(argv)
        place = only(words, "data_dir").get("data_dir")
        if words.first:
            raise ValueError(
                f"list takes no names; see fedjax-muon train {words.first[0]} --help"
            )
    console = plain_console(highlight=False)
    console.width = max(console.width, LEAST)
    for title, registry in REGISTRIES.items():
        console.print(title, style="bold")
        console.print(_methods_table(registry), "")
    console.print(PAPERS, "\n")
    _datasets(console, None if place is None else Path(place))
    for name in NAMED:
        console.print(f"{dashed(name)}: {', '.join(TABLES[name])}", soft_wrap=True)


def plain_options(method: Method) -> dict[str, Any]:
    """The options of a method that are numbers and flags, with their defaults."""
    numbers = hyper_parameters(method.function)
    parameters = inspect.signature(method.function).parameters
    usual = {name: p.default for name, p in parameters.items()}
    plain = {k: v for k, v in usual.items() if isinstance(v, bool | int | float)}
    return {name: float(v) if name in numbers else v for name, v in plain.items()}


def _methods_table(registry: Mapping[str, Method]) -> Table:
    """All tables have the same columns, in which `LEAST` characters break no word."""
    padding = (0, 1, 0, 0)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding)
    rows = {}
    for each, method in METHODS.items():
        words = [f"{k}={v}" for k, v in plain_options(method).items()]
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

"""The command line, tables and figures that all modules of papers share.

    python -m experiments.papers.fedmuon_004 table_2 --scale cpu --data-dir DATA
    python -m experiments.papers.fedmuon_004 table_2 --panels resnet18_dir0.1

An item is a table or a figure of a paper and consists of panels. A panel is a problem,
and methods with their grids, each of which is swept in a directory PANEL/METHOD. The
same command resumes an interrupted item. `--panels` splits an item over several calls.
Every call writes result.md, .csv, .json and .png of all finished panels.
"""

import functools
import inspect
import itertools
import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import fedjax_muon as fm
from experiments.arguments import call
from experiments.machine import machine
from experiments.papers import paper_report
from experiments.papers.repeat import keep, narrow, read
from fedjax_muon import algorithms, minimax, problems
from fedjax_muon.algorithms.registry import Method
from fedjax_muon.cli.main import ending, show_line
from fedjax_muon.core import Algorithm, numbers_of
from fedjax_muon.core.schedules import cosine_decay
from fedjax_muon.runs import Swept, metrics_csv
from fedjax_muon.runs.directory import versions

Scale = Literal["smoke", "cpu", "full"]
Grid = Mapping[str, tuple[float, ...]]
METHODS = {**algorithms.ALL, **minimax.ALL}


class Panel(NamedTuple):
    """Methods on a problem, and how they are shown."""

    setting: str  # model, data, partition; panels of one setting share a figure
    make: Callable[..., problems.Problem]
    settings: Mapping[str, Any]  # arguments of `make`, and of `fm.sweep`
    methods: Mapping[str, tuple[Algorithm, Grid]]
    label: str = ""  # replaces the method's label, for a sweep of one method
    every_point: bool = False  # show the whole grid, not the best on validation
    printed_for: str = ""  # the paper's setting, if this one only resembles it

    def label_of(self, name: str) -> str:
        """What the table calls a method."""
        return self.label or METHODS[name].label


class Item(NamedTuple):
    """A table or a figure."""

    about: str  # one line
    panels: Callable[[Scale], Mapping[str, Panel]]
    reduced: str  # how `--scale cpu` differs from the paper


def sized(settings: Mapping[str, Any], scale: Scale, **cpu: Any) -> Mapping[str, Any]:
    """Returns the settings of a panel at a scale.

    They are unchanged (full), have the sizes `cpu` (cpu), or are a smoke test on the
    data that come with scikit-learn (smoke).
    """
    if scale == "full":
        return settings
    if scale == "cpu":
        return {**settings, "cells_at_once": 1, **cpu}  # each is kept when it is done
    clients = min(settings["clients"], 8)
    large = ("train_share", "augment")
    return {name: v for name, v in settings.items() if name not in large} | {
        "dataset": "breast_cancer" if "positives" in settings else "digits",
        "model": functools.partial(problems.mlp, hidden=(8,)),
        "clients": clients,
        "cohort": min(settings["cohort"], clients),
        "local_steps": 2,
        "batch_size": 8,
        "rounds": 2,
        "evaluate_every": 1,
        "seeds": settings["seeds"][:1],
    }


def chosen(
    grids: Mapping[str, Grid], scale: Scale, make: Callable[[Method], Algorithm]
) -> dict[str, tuple[Algorithm, Grid]]:
    """Returns the methods of a panel, by name, with their grids.

    A smoke test has the first grid point of the last method only.
    """
    if scale == "smoke":
        *_, (name, grid) = grids.items()
        grids = {name: {option: values[:1] for option, values in grid.items()}}
    return {name: (make(METHODS[name]), grid) for name, grid in grids.items()}


def with_options(method: Method, **options: Any) -> Algorithm:
    """Makes a method with those of some options that it takes."""
    known = inspect.signature(method.function).parameters
    taken = {name: value for name, value in options.items() if name in known}
    return method.function(**taken)


def decayed(method: Algorithm, rounds: int) -> Algorithm:
    """Returns a method whose learning rate falls to 0 along a cosine."""
    return cosine_decay(method, lr=numbers_of(method)["lr"], rounds=rounds)


def command(paper: str, about: str | None, items: Mapping[str, Item]) -> None:
    """Runs the command line of a paper's module."""
    listed = "\n".join(f"  {name:12}{item.about}" for name, item in items.items())
    call(functools.partial(run, paper, items), f"{about}\n\nitems:\n{listed}")


def run(
    paper: str,
    items: Mapping[str, Item],
    item: str,
    scale: Scale = "cpu",
    data_dir: Path | None = None,
    panels: tuple[str, ...] = (),
    repeat: Path | None = None,
    output: Path | None = None,
) -> None:
    """Runs or resumes a table or a figure of a paper, and reports it.

    Args:
      item: Name of the table or figure.
      scale: As in the paper (full), scaled down for a 2-core CPU (cpu), or a smoke test
        (smoke).
      data_dir: Directory of the datasets' files; by default the environment variable
        FEDJAX_MUON_DATA.
      panels: Panels to run; by default all.
      repeat: A kept table, such as results/papers/fedmuon_004/table_2.csv: only its
        points are trained again and compared, and the curves are kept next to it.
      output: Directory, new or of the same command; by default runs/PAPER/ITEM-SCALE.
    """
    with ending():
        every = checked(items, item, scale, panels, repeat, data_dir)
        kind = f"{item}-{scale}" + ("-repeated" if repeat else "")
        item_dir = output or Path("runs") / paper / kind
        done = {}
        for name, panel in every.items():
            if not panels or name in panels or is_finished(panel, item_dir / name):
                done[name] = panel, trained(paper, panel, item_dir / name, data_dir)
        missing = [name for name in every if name not in done]
        reduced = {"full": "", "cpu": items[item].reduced, "smoke": "a smoke test"}
        title = f"{paper}, {item}: {items[item].about}"
        report = paper_report.Report(title, reduced[scale], done, missing)
        published = paper_report.read_published(paper, item)
        paper_report.write(report, item_dir, published)
        print(f"result.md, .csv, .json and .png in {item_dir}")
        if missing:
            print(f"not included, because they have not run yet: {', '.join(missing)}")
        elif repeat:
            keep(repeat, item_dir)
            print(f"all rows of {repeat} are the same; its curves are next to it")


def checked(
    items: Mapping[str, Item],
    item: str,
    scale: Scale,
    wanted: Sequence[str],
    table: Path | None,
    data_dir: Path | None,
) -> dict[str, Panel]:
    """Returns the panels of an item, or only what a kept table has of them.

    Raises:
      ValueError: If there is no such item or panel, or a file is missing.
    """
    if item not in items:
        raise ValueError(f"no item {item!r}; there are {', '.join(items)}")
    panels = dict(items[item].panels(scale))
    if table is not None:
        lines = read(table)
        panels = {name: narrow(panel, lines) for name, panel in panels.items()}
    for name in wanted or panels:
        if name not in panels:
            raise ValueError(f"no panel {name!r}; there are {', '.join(panels)}")
        problem_of(panels[name], data_dir)  # before the first panel is trained
    return panels


def _known(panel: Panel) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(panel.make).parameters


def problem_of(panel: Panel, data_dir: Path | None) -> problems.Problem:
    """Makes the problem of a panel."""
    given = {k: v for k, v in panel.settings.items() if k in _known(panel)}
    return panel.make(**{**given, "dataset": fm.data.load(given["dataset"], data_dir)})


def trained(
    paper: str, panel: Panel, place: Path, data_dir: Path | None
) -> dict[str, Swept]:
    """Runs what is not finished of a panel, and returns all of it, by method."""
    if not (finished := is_finished(panel, place)):
        print(f"{place.name}: {panel.setting}", flush=True)
    since = time.perf_counter()
    problem, known = problem_of(panel, data_dir), _known(panel)
    how = {name: v for name, v in panel.settings.items() if name not in known}
    interrupted, done = False, {}
    try:
        for name, (method, grid) in panel.methods.items():
            how["directory"] = place
            made = fm.sweep({name: method}, problem, grid, extend=False, **how)
            done[name] = made[name]
    except KeyboardInterrupt:
        interrupted = True
    if not finished:
        record_call(paper, place, time.perf_counter() - since)
    if interrupted:
        again = resume_command(paper)
        show_line(f"error: interrupted; continue with: {again}", "red")
        sys.exit(130)
    return done


def is_finished(panel: Panel, place: Path) -> bool:
    """Returns whether all cells of a panel are on disk."""
    for name, (_, grid) in panel.methods.items():
        path = place / name / "cells.csv"
        if not path.exists():
            return False
        columns, keys = metrics_csv.read(path), (*grid, "seed")
        found = {*zip(*(columns[key].tolist() for key in keys), strict=True)}
        if not found >= {*itertools.product(*grid.values(), panel.settings["seeds"])}:
            return False
    return True


def record_call(paper: str, place: Path, seconds: float) -> None:
    """Appends a line about a panel to the record of calls: machine, command, time."""
    line = machine(f"experiments.papers.{paper}") | {
        "panel": place.name,
        "seconds": round(seconds),
        "source": versions()["git_revision"][:10],
        "command": public_command(f"papers.{paper}", sys.argv[1:]),
    }
    with (place.parent / paper_report.CALLS).open("a") as file:
        file.write(json.dumps(line) + "\n")


def resume_command(paper: str) -> str:
    """Returns the command of this call, which also resumes it."""
    return shlex.join(["python", "-m", f"experiments.papers.{paper}", *sys.argv[1:]])


def public_command(program: str, given: Sequence[str]) -> str:
    """Returns a command without the directories of this machine."""
    words = list(given)
    if "--data-dir" in words:
        words[words.index("--data-dir") + 1] = "DATA"
    if "--output" in words:
        del words[words.index("--output") : words.index("--output") + 2]
    return shlex.join(["python", "-m", f"experiments.{program}", *words])

"""What the modules named after papers share: their commands, their tables and figures.

    python -m experiments.papers.fedmuon_004 table_2 --scale cpu --data-dir DATA
    python -m experiments.papers.fedmuon_004 table_2 --panels resnet18_dir0.1

An item, a table or a figure of a paper, consists of panels; a panel is a sweep in a
directory of its own. The same command goes on where it was stopped, `--panels` splits
an item over several calls and machines, and every call writes result.md, result.csv and
result.png of the panels that are finished by then. Runs that items beside it have
already are taken over.
"""

import dataclasses
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tyro

from benchmarks.machine import machine
from experiments.papers import paper_report
from fedjax_muon.runs import directory
from fedjax_muon.runs import sweep as sweeps
from fedjax_muon.runs.config import METHODS, Config, Sweep, from_json, to_json
from fedjax_muon.runs.errors import refusing
from fedjax_muon.runs.lists import Names

Scale = Literal["smoke", "cpu", "full"]


class Panel(NamedTuple):
    """One sweep, and what of it is shown."""

    setting: str  # the model, the data, the partition: panels of one are drawn together
    sweep: Sweep
    label: str = ""  # in place of the method's, for a sweep of one method
    every_point: bool = False  # show the whole grid, not the best on validation
    printed_for: str = ""  # the paper's setting, where this one only resembles it
    pretrained: bool = False  # whether it starts at --checkpoint


class Item(NamedTuple):
    """A table or a figure."""

    about: str  # a line
    panels: Callable[[Scale], Mapping[str, Panel]]
    reduced: str  # where `--scale cpu` differs from the paper


def sized(config: Config, scale: Scale, **cpu: Any) -> Config:
    """The config at a scale: as it is, with what a CPU bears, or to see that it runs,
    on the data that come with scikit-learn."""
    if scale == "full":
        return config
    if scale == "cpu":
        return dataclasses.replace(config, **cpu)
    clients = min(config.num_clients, 8)
    return dataclasses.replace(
        config,
        dataset="breast_cancer" if config.problem == "auc" else "digits",
        train_share=1.0,
        model="mlp",
        hidden=(8,),
        num_clients=clients,
        cohort_size=min(config.cohort_size, clients),
        min_client_size=1,
        augmentation="none",
        local_steps=2,
        batch_size=8,
        rounds=2,
        evaluate_every=1,
    )


def swept(
    config: Config,
    grids: Mapping[str, Mapping[str, tuple[float, ...]]],
    scale: Scale,
    seeds: tuple[int, ...],
) -> Sweep:
    """Methods on their grids; to see that it runs, the last one at its first point. A
    tenth of the training examples chooses the points. On a CPU every cell is on disk as
    soon as it has run."""
    if scale == "smoke":
        *_, (name, grid) = grids.items()
        grids = {name: {option: values[:1] for option, values in grid.items()}}
        seeds = seeds[:1]
    one = None if scale == "full" else 1
    return Sweep(tuple(grids), grids, seeds, 0.1, one, config)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Plays a table or a figure of a paper, or goes on with it, and reports."""

    item: tyro.conf.Positional[str]
    """Its name."""
    scale: Scale = "cpu"
    """As in the paper (full), at a size that two cores bear (cpu), or to see that it
    runs (smoke)."""
    data_dir: Path | None = None
    """Where the data sets' files are; by default the environment variable
    FEDJAX_MUON_DATA."""
    checkpoint: Path | None = None
    """Pretrained weights, for items that start at some, as `fedjax-muon train` takes
    them."""
    panels: Names = ()
    """Only these; by default all."""
    output: Path | None = None
    """Directory, new or one of the same command; by default
    runs/PAPER/ITEM-SCALE."""


def command(paper: str, about: str, items: Mapping[str, Item]) -> None:
    """The command line of a paper's module."""
    listed = "\n".join(f"  {name:12}{item.about}" for name, item in items.items())
    description = f"{about}\n\nitems:\n{listed}"
    prog = f"python -m experiments.papers.{paper}"
    given = tyro.cli(Arguments, description=description, prog=prog)
    with refusing():
        if given.item not in items:
            raise ValueError(f"no item {given.item!r}; there are {', '.join(items)}")
    place = given.output or Path("runs") / paper / f"{given.item}-{given.scale}"
    play(paper, given, items, place)


def play(paper: str, given: Arguments, items: Mapping[str, Item], place: Path) -> None:
    """Plays what is not finished of an item's chosen panels, and reports."""
    item = items[given.item]
    beside = [place.parent / f"{name}-{given.scale}" for name in items]
    with refusing():
        panels = {
            name: with_files(panel, given)
            for name, panel in item.panels(given.scale).items()
        }
        for name in given.panels:
            if name not in panels:
                raise ValueError(f"no panel {name!r}; there are {', '.join(panels)}")
        chosen = given.panels or tuple(panels)
        for name in chosen:
            sweeps.check(panels[name].sweep)
        for name in chosen:
            begin(place / name, panels[name].sweep)
    for name in chosen:
        if not finished(place / name, panels[name]):
            since = time.perf_counter()
            print(f"{name}: {panels[name].setting}", flush=True)
            with refusing():
                taken = take_over(place / name, panels[name].sweep, beside)
            try:
                sweeps.train(panels[name].sweep, place / name, again(paper))
            finally:  # also of a call that is interrupted
                note(paper, place, name, time.perf_counter() - since, taken)
    with refusing():
        done = {n: p for n, p in panels.items() if finished(place / n, p)}
        missing = [name for name in panels if name not in done]
        scaled = {"full": "", "cpu": item.reduced, "smoke": "only to see that it runs"}
        report = paper_report.Report(
            f"{paper}, {given.item}: {item.about}", scaled[given.scale], done, missing
        )
        published = paper_report.read_published(paper, given.item)
        paper_report.write(report, place, published)
    print(f"result.md, result.csv and result.png in {place}")
    if missing:
        print(f"without what has not run yet: {', '.join(missing)}")


def take_over(place: Path, sweep: Sweep, items: Sequence[Path]) -> list[str]:
    """Copies the cells that other items have of the same methods in the same setting,
    on the same grids; returns what, and of which items."""
    taken = []
    for name in sweep.algorithms:
        cells = place / "cells" / f"{name}.csv"
        found = [p for item in items for p in item.glob(f"*/cells/{cells.name}")]
        for path in sorted(found):
            other = directory.read(path.parent.parent)
            if cells.exists() or not same(alone(other, name), alone(sweep, name)):
                continue
            if all_played(alone(sweep, name), path.parent.parent):
                cells.parent.mkdir(exist_ok=True)
                shutil.copy(path, cells)
                taken.append(f"{METHODS[name].label} of {path.parents[2].name}")
    return taken


def alone(what: Any, name: str) -> Any:
    """A sweep's part that is about one method; of anything else, all."""
    if not isinstance(what, Sweep) or name not in what.grids:
        return what
    grids = {name: what.grids[name]}
    return dataclasses.replace(what, algorithms=(name,), grids=grids)


def note(
    paper: str, place: Path, panel: str, seconds: float, taken: Sequence[str] = ()
) -> None:
    """Adds a line to the record of what ran, and of which runs were reused."""
    line = machine(f"experiments.papers.{paper}") | {
        "panel": panel,
        "seconds": round(seconds),
        "taken": list(taken),
        "source": directory.versions()["git_revision"][:10],
        "command": shown(f"papers.{paper}", sys.argv[1:]),
    }
    with (place / paper_report.PLAYED).open("a") as file:
        file.write(json.dumps(line) + "\n")


def again(paper: str) -> str:
    """The command of this call."""
    return shlex.join(["python", "-m", f"experiments.papers.{paper}", *sys.argv[1:]])


def shown(program: str, given: Sequence[str]) -> str:
    """A command as others can give it: without this machine's directories."""
    words = list(given)
    for option, name in (("--data-dir", "DATA"), ("--checkpoint", "CHECKPOINT")):
        if option in words:
            words[words.index(option) + 1] = name
    if "--output" in words:
        del words[words.index("--output") : words.index("--output") + 2]
    return shlex.join(["python", "-m", f"experiments.{program}", *words])


def with_files(panel: Panel, given: Arguments) -> Panel:
    """The panel with its data and its checkpoint there.

    Raises `ValueError` if it needs one and there is none.
    """
    files: dict[str, Path | None] = {"data_dir": given.data_dir}
    if panel.pretrained and given.scale != "smoke":
        if given.checkpoint is None:
            raise ValueError(
                f"{given.item} starts at pretrained weights; give --checkpoint"
            )
        files["checkpoint"] = given.checkpoint
    config = dataclasses.replace(panel.sweep.config, **files)
    return panel._replace(sweep=dataclasses.replace(panel.sweep, config=config))


def begin(place: Path, sweep: Sweep) -> None:
    """Makes the directory of a sweep, or finds that it is of the same one.

    Raises `ValueError` if it is of another.
    """
    if not (place / directory.CONFIG).exists():
        directory.create(place, sweep)
        return
    if not same(directory.read(place), sweep):
        raise ValueError(
            f"{place} holds another sweep than this command's, as {directory.CONFIG} "
            "there says; choose another --output"
        )


def same(one: Any, other: Sweep) -> bool:
    """Whether two sweeps give the same numbers, wherever their data are."""

    def numbers(sweep: Any) -> Sweep:
        config = dataclasses.replace(sweep.config, data_dir=None, checkpoint=None)
        return dataclasses.replace(sweep, config=config, cells_at_once=None)

    as_read = from_json(to_json(other))
    return isinstance(one, Sweep) and numbers(one) == numbers(as_read)


def finished(place: Path, panel: Panel) -> bool:
    """Whether all cells of a panel are on disk."""
    return all_played(panel.sweep, place) and (place / directory.CONFIG).exists()


def all_played(sweep: Sweep, place: Path) -> bool:
    """Whether a directory has all cells of a sweep, whatever else it has."""
    try:
        for name in sweep.algorithms:
            sweeps.points(sweep, name, place)
    except ValueError:
        return False
    return True

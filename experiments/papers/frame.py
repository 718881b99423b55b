"""The command line, tables and figures that all modules of papers share.

    python -m experiments.papers.fedmuon_004 table_2 --scale cpu --data-dir DATA
    python -m experiments.papers.fedmuon_004 table_2 --panels resnet18_dir0.1

An item is a table or a figure of a paper and consists of panels. A panel is a sweep in
a run directory of its own. The same command resumes an interrupted item; existing runs
of other items are reused. `--panels` splits an item over several calls and machines.
Every call writes result.md, .csv, .json and .png of all finished panels.
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
from experiments.papers import paper_report, repeat
from fedjax_muon.runs import directory, sweep as sweeps
from fedjax_muon.runs.config import METHODS, Config, Job, Sweep
from fedjax_muon.runs.directory import from_json, to_json
from fedjax_muon.runs.errors import refusing
from fedjax_muon.runs.extend import extend
from fedjax_muon.runs.lists import Names

Scale = Literal["smoke", "cpu", "full"]


class Panel(NamedTuple):
    """One sweep, and how it is shown."""

    setting: str  # model, data, partition; panels of one setting share a figure
    sweep: Sweep
    label: str = ""  # replaces the method's label, for a sweep of one method
    every_point: bool = False  # show the whole grid, not the best on validation
    printed_for: str = ""  # the paper's setting, if this one only resembles it
    pretrained: bool = False  # whether it starts at --checkpoint


class Item(NamedTuple):
    """A table or a figure."""

    about: str  # one line
    panels: Callable[[Scale], Mapping[str, Panel]]
    reduced: str  # how `--scale cpu` differs from the paper


def sized(config: Config, scale: Scale, **cpu: Any) -> Config:
    """Returns the config at a scale.

    It is unchanged (full), has the sizes `cpu` (cpu), or is a smoke test on the data
    that come with scikit-learn (smoke).
    """
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
    """Returns the sweep of methods over their grids.

    A tenth of the training examples is held out for the choice of grid points. On a CPU
    every cell is written to disk as soon as it is finished. A smoke test has the first
    grid point of the last method only.
    """
    if scale == "smoke":
        *_, (name, grid) = grids.items()
        grids = {name: {option: values[:1] for option, values in grid.items()}}
        seeds = seeds[:1]
    one = None if scale == "full" else 1
    return Sweep(tuple(grids), grids, seeds, 0.1, one, config)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Runs or resumes a table or a figure of a paper, and reports it."""

    item: tyro.conf.Positional[str]
    """Name of the table or figure."""
    scale: Scale = "cpu"
    """As in the paper (full), scaled down for a 2-core CPU (cpu), or a smoke test
    (smoke)."""
    data_dir: Path | None = None
    """Directory of the data sets' files; by default the environment variable
    FEDJAX_MUON_DATA."""
    checkpoint: Path | None = None
    """Pretrained weights for items that start at them, as for `fedjax-muon train`."""
    panels: Names = ()
    """Panels to run; by default all."""
    repeat: Path | None = None
    """A kept table, such as results/papers/fedmuon_004/table_2.csv: only its points are
    trained again and compared, and the curves are kept next to it."""
    output: Path | None = None
    """Directory, new or of the same command; by default runs/PAPER/ITEM-SCALE."""


def command(paper: str, about: str, items: Mapping[str, Item]) -> None:
    """Runs the command line of a paper's module."""
    listed = "\n".join(f"  {name:12}{item.about}" for name, item in items.items())
    description = f"{about}\n\nitems:\n{listed}"
    prog = f"python -m experiments.papers.{paper}"
    given = tyro.cli(Arguments, description=description, prog=prog)
    with refusing():
        if given.item not in items:
            raise ValueError(f"no item {given.item!r}; there are {', '.join(items)}")
    name = f"{given.item}-{given.scale}" + ("-repeated" if given.repeat else "")
    item_dir = given.output or Path("runs") / paper / name
    run(paper, given, items, item_dir)


def run(
    paper: str, given: Arguments, items: Mapping[str, Item], item_dir: Path
) -> None:
    """Runs the chosen panels that are not finished, and writes the report.

    Args:
      paper: Name of the paper's module.
      given: Arguments of the command.
      items: All items of the paper.
      item_dir: Directory of the item; its panels have run directories inside.
    """
    item = items[given.item]
    item_dirs = [item_dir.parent / f"{name}-{given.scale}" for name in items]
    with refusing():
        panels = {
            name: with_files(panel, given)
            for name, panel in item.panels(given.scale).items()
        }
        if given.repeat:
            lines = repeat.read(given.repeat)
            panels = {n: repeat.narrow(panel, lines) for n, panel in panels.items()}
        for name in given.panels:
            if name not in panels:
                raise ValueError(f"no panel {name!r}; there are {', '.join(panels)}")
        chosen = given.panels or tuple(panels)
        for name in chosen:
            sweeps.check(panels[name].sweep)
        for name in chosen:
            prepare(item_dir / name, panels[name].sweep)
    for name in chosen:
        run_dir = item_dir / name
        if not finished(run_dir, panels[name]):
            since = time.perf_counter()
            print(f"{name}: {panels[name].setting}", flush=True)
            with refusing():
                reused = reuse(run_dir, panels[name].sweep, item_dirs)
            try:
                sweeps.train(panels[name].sweep, run_dir, resume_command(paper))
            finally:  # also of an interrupted call
                seconds = time.perf_counter() - since
                record_call(paper, item_dir, name, seconds, reused)
    with refusing():
        done = {n: p for n, p in panels.items() if finished(item_dir / n, p)}
        missing = [name for name in panels if name not in done]
        scaled = {"full": "", "cpu": item.reduced, "smoke": "a smoke test"}
        report = paper_report.Report(
            f"{paper}, {given.item}: {item.about}", scaled[given.scale], done, missing
        )
        published = paper_report.read_published(paper, given.item)
        paper_report.write(report, item_dir, published)
    print(f"result.md, .csv, .json and .png in {item_dir}")
    if missing:
        print(f"not included, because they have not run yet: {', '.join(missing)}")
    elif given.repeat:
        with refusing():
            repeat.keep(given.repeat, item_dir)
        print(f"all rows of {given.repeat} are the same; its curves are next to it")


def reuse(run_dir: Path, sweep: Sweep, item_dirs: Sequence[Path]) -> list[str]:
    """Copies finished cells of the same methods, settings and grids from other items.

    Args:
      run_dir: Run directory that cells are copied to.
      sweep: The sweep of that directory.
      item_dirs: Directories of items that may have the cells.

    Returns:
      The labels of the copied methods, each with its item.
    """
    reused = []
    for name in sweep.algorithms:
        cells = run_dir / "cells" / f"{name}.csv"
        found = [p for item in item_dirs for p in item.glob(f"*/cells/{cells.name}")]
        for path in sorted(found):
            other = directory.read(path.parent.parent)
            if cells.exists() or not same(part(other, name), part(sweep, name)):
                continue
            if all_finished(part(sweep, name), path.parent.parent):
                cells.parent.mkdir(exist_ok=True)
                for suffix in (
                    ".json",
                    ".csv",
                ):  # rows without their record are an error
                    shutil.copy(path.with_suffix(suffix), cells.with_suffix(suffix))
                reused.append(f"{METHODS[name].label} of {path.parents[2].name}")
    return reused


def part(job: Job, name: str) -> Job:
    """Returns the part of a sweep for one method; other jobs are returned unchanged."""
    if not isinstance(job, Sweep) or name not in job.grids:
        return job
    grids = {name: job.grids[name]}
    return dataclasses.replace(job, algorithms=(name,), grids=grids)


def record_call(
    paper: str, item_dir: Path, panel: str, seconds: float, reused: Sequence[str] = ()
) -> None:
    """Appends a line to the record of calls: machine, command, time, reused runs."""
    line = machine(f"experiments.papers.{paper}") | {
        "panel": panel,
        "seconds": round(seconds),
        "reused": list(reused),
        "source": directory.versions()["git_revision"][:10],
        "command": public_command(f"papers.{paper}", sys.argv[1:]),
    }
    with (item_dir / paper_report.CALLS).open("a") as file:
        file.write(json.dumps(line) + "\n")


def resume_command(paper: str) -> str:
    """Returns the command of this call, which also resumes it."""
    return shlex.join(["python", "-m", f"experiments.papers.{paper}", *sys.argv[1:]])


def public_command(program: str, given: Sequence[str]) -> str:
    """Returns a command without the directories of this machine."""
    words = list(given)
    for option, name in (("--data-dir", "DATA"), ("--checkpoint", "CHECKPOINT")):
        if option in words:
            words[words.index(option) + 1] = name
    if "--output" in words:
        del words[words.index("--output") : words.index("--output") + 2]
    return shlex.join(["python", "-m", f"experiments.{program}", *words])


def with_files(panel: Panel, given: Arguments) -> Panel:
    """Returns the panel with the directory of its data, and its checkpoint.

    Raises:
      ValueError: If the panel needs a checkpoint and none is given.
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


def prepare(run_dir: Path, sweep: Sweep) -> None:
    """Creates the run directory of a sweep, or extends that of a smaller one.

    Raises:
      ValueError: If the directory is of another sweep.
    """
    if (run_dir / directory.CONFIG).exists():
        extend(run_dir, sweep)
    else:
        directory.create(run_dir, sweep)


def same(one: Job, other: Job) -> bool:
    """Returns whether two sweeps give the same numbers, wherever their data are."""

    def numbers(sweep: Any) -> Sweep:
        config = dataclasses.replace(sweep.config, data_dir=None, checkpoint=None)
        return dataclasses.replace(sweep, config=config, cells_at_once=None)

    as_read = from_json(to_json(other))
    return isinstance(one, Sweep) and numbers(one) == numbers(as_read)


def finished(run_dir: Path, panel: Panel) -> bool:
    """Returns whether all cells of a panel are on disk."""
    return all_finished(panel.sweep, run_dir) and (run_dir / directory.CONFIG).exists()


def all_finished(sweep: Any, run_dir: Path) -> bool:
    """Returns whether a directory has all cells of a sweep; it may have others."""
    try:
        for name in sweep.algorithms:
            sweeps.points(sweep, name, run_dir)
    except ValueError:
        return False
    return True

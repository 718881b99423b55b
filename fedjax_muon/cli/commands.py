"""What the commands do, once their arguments are known to make sense."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from fedjax_muon import data, models
from fedjax_muon.cli import arguments, private, sweeping, tables
from fedjax_muon.cli.refusals import refusing
from fedjax_muon.cli.session import new_directory, progress_bar, resumable
from fedjax_muon.data.partition import label_counts
from fedjax_muon.engine.processes import is_first
from fedjax_muon.reporting import comparison, metrics_csv, plots
from fedjax_muon.reporting.comparison import score_column
from fedjax_muon.runs import directory, launch
from fedjax_muon.runs.build import parts_of, simulation_of, start_key
from fedjax_muon.runs.config import (
    METHODS,
    Comparison,
    Private,
    Run,
    Sweep,
    hyper_parameters,
)
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.simulation.gradient_noise import noise_norms
from fedjax_muon.simulation.memory_check import check_memory
from fedjax_muon.simulation.simulation import NonFiniteError
from fedjax_muon.tasks.metrics import hill

# The best on two seeds that the main jobs do not use, by test score averaged over their
# rounds: experiments/studies/learning_rates.py.
TUNED_LR: Mapping[str, Mapping[str, float]] = {
    "classification": {
        "fedavg": 0.3,
        "fedavg_adam": 0.03,
        "scaffold": 0.1,
        "local_muon": 0.3,
        "fedmuon": 0.03,
        "fedmuon_align": 0.03,
        "fedmuon_correct": 0.1,
    },
    "auc": {
        "fed_nsgda_m": 0.03,
        "fedmuon_da": 0.03,
        "fedsgda_clip": 0.3,
        "local_sgda": 3.0,
        "local_sgdam": 1.0,
        "fedsgda_m": 1.0,
        "sagda": 3.0,
        "fsgda": 3.0,
        "fess_gda": 3.0,
    },
}


def train(args) -> None:
    """`fedjax-muon train`."""
    hyper = dataclasses.asdict(args.hyper)
    run = Run(args.algorithm, hyper, args.seed, args.config)
    with refusing():
        launch.begin(args.launch, run.config.devices)
        place = new_directory(args.output, run.algorithm)
        if jax.process_count() > 1 and args.output is None:
            raise ValueError("several processes need one directory; name it by output")
        dataset = dataset_of(run.config)
        simulation = simulation_of(run, dataset)
        check_memory(simulation)
        directory.create(place, run)
    _train(run, simulation, place)


def _train(run, simulation, place) -> None:
    console = Console(quiet=not is_first())
    again = launch.together(f"fedjax-muon resume {place}")
    with resumable(place) as pause, progress_bar(console) as bar, refusing(), again:
        task = bar.add_task(METHODS[run.algorithm].label, total=run.config.rounds)

        def tick(rounds: int) -> None:
            bar.advance(task, rounds)
            pause()

        try:
            first = directory.play(run, simulation, place, tick)
        except NonFiniteError as error:
            bar.stop()
            console.print(str(error), style="red")
            sys.exit(1)
    if not is_first():
        return
    columns = metrics_csv.read(place / directory.METRICS)
    plots.curves({METHODS[run.algorithm].label: [columns]}, place / "curves.png")
    console.print(
        f"test {run.config.score} {columns[score_column(columns)][-1]:.4f} after "
        f"{columns['round'][-1]} rounds; metrics and figure in {place}"
    )
    if first is not None:
        console.print(f"the first round took {first:.1f} s, compilation included")


def compare(args: arguments.Compare) -> None:
    """`fedjax-muon compare`."""
    for name in args.lr:
        if name not in args.algorithms:
            with refusing():
                raise ValueError(
                    f"--lr names {name!r}, which is not compared; the algorithms are "
                    f"{', '.join(args.algorithms)}"
                )
    tuned = TUNED_LR[args.config.problem]
    tuned = {name: lr for name, lr in tuned.items() if name in args.algorithms}
    what = Comparison(args.algorithms, tuned | args.lr, args.seeds, args.config)
    place = new_directory(args.output, "compare")
    with refusing():
        launch.begin(launch.Launch(), what.config.devices)
        dataset = _check_cells(what)
        directory.create(place, what)
    _compare(what, dataset, place)


def _check_cells(what: Comparison) -> data.Dataset:
    for name, values in (("algorithms", what.algorithms), ("seeds", what.seeds)):
        if not values or len(set(values)) != len(values):
            raise ValueError(f"{name} must be one or more, each once, got {values}")
    dataset = dataset_of(what.config)
    for algorithm in what.algorithms:
        simulation_of(what.cell(algorithm, what.seeds[0]), dataset)
    for seed in what.seeds[1:]:
        parts_of(what.config, dataset, seed)
    return dataset


def _compare(what: Comparison, dataset, place: Path) -> None:
    console = Console()
    cells = directory.cells(place, what)
    diverged: dict[str, str] = {}
    with resumable(place) as pause, progress_bar(console) as bar, refusing():
        total = len(cells) * what.config.rounds
        everything = bar.add_task("all", total=total)

        def tick(rounds: int) -> None:
            bar.advance(everything, rounds)
            pause()

        for algorithm in what.algorithms:
            simulation = None
            for seed in what.seeds:
                cell = place / algorithm / f"seed{seed}"
                run = cells[cell]
                label = METHODS[algorithm].label
                bar.update(everything, description=f"{label}, seed {seed}")
                if not (cell / directory.CONFIG).exists():
                    directory.create(cell, run)
                directory.check_same(cell, run)
                if directory.is_complete(cell, run):
                    bar.advance(everything, what.config.rounds)
                    continue
                if simulation is None:
                    simulation = simulation_of(run, dataset)
                    check_memory(simulation)
                parts = parts_of(what.config, dataset, seed)
                try:
                    directory.play(
                        run,
                        simulation.vary(parts=parts),
                        cell,
                        tick,
                    )
                except NonFiniteError as error:
                    diverged[algorithm] = f"seed {seed}, {error}"
        bar.update(everything, description="done")
    _report(what, place, diverged, console)


def _report(what: Comparison, place: Path, diverged, console: Console) -> None:
    runs = {
        METHODS[name].label: [
            metrics_csv.read(place / name / f"seed{seed}" / directory.METRICS)
            for seed in what.seeds
        ]
        for name in what.algorithms
        if name not in diverged
    }
    for name, why in diverged.items():
        console.print(f"{METHODS[name].label} diverged: {why}", style="red")
    if not runs:
        sys.exit(1)
    target = comparison.target_score(runs)
    summaries = comparison.summarize(runs, target)
    comparison.write(summaries, place / "summary.csv")
    title = tables.title(what.config)
    figure = place / "comparison.png"
    plots.curves(runs, figure, title=title, target=target)
    seeds, score = len(what.seeds), what.config.score
    table = tables.compared(summaries, target, title, seeds, score)
    console.print(tables.for_terminal(table))
    console.print(f"metrics, checkpoints and {figure.name} in {place}")


def resume(args: arguments.Resume) -> None:
    """`fedjax-muon resume`."""
    place = args.directory
    with refusing():
        what = directory.read(place)
        devices = 1 if isinstance(what, Private) else what.config.devices
        launch.begin(args.launch, devices)
        if jax.process_count() > 1 and not isinstance(what, Run):
            raise ValueError(f"several processes resume single runs; {place} has many")
        if isinstance(what, Run):
            dataset = dataset_of(what.config)
            simulation = simulation_of(what, dataset)
            check_memory(simulation)
        elif isinstance(what, Comparison):
            dataset = _check_cells(what)
        elif isinstance(what, Private):
            plan = private.prepare(what)
        else:
            sweeping.check(what)
    if isinstance(what, Run):
        _train(what, simulation, place)
    elif isinstance(what, Comparison):
        _compare(what, dataset, place)
    elif isinstance(what, Private):
        private.play(plan, place)
    else:
        sweeping.play(what, place)


def show(args: arguments.List) -> None:
    """`fedjax-muon list`."""
    del args
    console = Console()
    table = Table()
    for column in ("name", "algorithm", "options", "paper"):
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for name, method in METHODS.items():
        options = [f"{k}={v}" for k, v in hyper_parameters(method).items()]
        table.add_row(name, method.label, " ".join(options), method.paper)
    console.print(table)
    console.print(f"data sets: {', '.join(data.NAMES)}, tfds:NAME", highlight=False)
    console.print(f"models: {', '.join(models.ALL)}, roberta", highlight=False)


def plot(args: arguments.Plot) -> None:
    """`fedjax-muon plot`."""
    with refusing():
        if not args.directories:
            raise ValueError("plot needs at least one run directory")
        runs: dict[str, list] = {}
        for place in args.directories:
            what = directory.read(place)
            if isinstance(what, Private):
                raise ValueError(
                    f"{place} is of `private`, which has drawn its figure: utility.png"
                )
            if isinstance(what, Sweep):
                for method, point in sweeping.best(what, place).items():
                    if point is not None:
                        runs.setdefault(method, []).extend(point.runs)
                continue
            cells = (
                {place: what} if isinstance(what, Run) else directory.cells(place, what)
            )
            for cell, run in cells.items():
                label = METHODS[run.algorithm].label
                columns = metrics_csv.read(cell / directory.METRICS)
                runs.setdefault(label, []).append(columns)
        comparison.check_rounds(runs)
        plots.curves(runs, args.output)
    print(args.output)


def partition(args: arguments.Partition) -> None:
    """`fedjax-muon partition`."""
    with refusing():
        dataset = dataset_of(args.config)
        parts = parts_of(args.config, dataset, args.seed)
        counts = label_counts(dataset.y_train, parts, len(dataset.classes))
        plots.label_counts(counts, dataset.classes, args.output)
    sizes = counts.sum(1)
    classes = (counts > 0).sum(1)
    print(
        f"{len(parts)} clients with {sizes.min()} to {sizes.max()} examples (median "
        f"{np.median(sizes):g}) and {classes.min()} to {classes.max()} classes; "
        f"drawn in {args.output}"
    )


def noise(args: arguments.Noise) -> None:
    """`fedjax-muon noise`."""
    with refusing():
        if not 0 < args.tail < 1:
            raise ValueError(f"tail must lie in (0, 1), got {args.tail}")
        run = directory.read(args.directory)
        if not isinstance(run, Run):
            raise ValueError(
                f"{args.directory} holds several runs; name the directory of one of a "
                "comparison's, as DIRECTORY/ALGORITHM/seed0"
            )
        if run.config.sampler == "full_batch":
            raise ValueError(
                f"the batches of {args.directory} are all of a client's examples, and "
                "have no noise"
            )
        launch.begin(launch.Launch(), run.config.devices)
        dataset = dataset_of(run.config)
        simulation = simulation_of(run, dataset)
        params = directory.last_params(run, simulation, args.directory)
        key = start_key(args.seed)
        norms = noise_norms(simulation, params, key, batches=args.batches)
        tail = max(1, round(args.tail * norms.size))
        index = float(hill(norms, tail))
        label = METHODS[run.algorithm].label
        title = f"{tables.title(run.config)}, {label}"
        plots.tail(np.ravel(norms), tail, index, args.output, title=title)
    print(
        f"tail index {index:.2f} ± {index / tail**0.5:.2f} of the gradient noise, from "
        f"the {tail} largest of {norms.size} norms; drawn in {args.output}"
    )


def prepare(args: arguments.Prepare) -> None:
    """`fedjax-muon prepare`."""
    with refusing():
        print(data.prepare(args.name, args.data_dir))

"""The commands, once their arguments are known to make sense."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_muon import data
from fedjax_muon.ahead_of_time import compile_for, report
from fedjax_muon.cli import arguments
from fedjax_muon.data.dataset import digest
from fedjax_muon.data.partition import label_counts
from fedjax_muon.engine.processes import is_first
from fedjax_muon.experiments import logs
from fedjax_muon.reporting import comparison, metrics_csv, plots, tables
from fedjax_muon.reporting.comparison import score_column
from fedjax_muon.runs import (
    compare as comparisons,
    directory,
    launch,
    plans,
    privacy,
    sweep as sweeps,
    train as training,
)
from fedjax_muon.runs.build import (
    is_of_agents,
    parts_of,
    plan_of,
    simulation_of,
    summary_of,
)
from fedjax_muon.runs.config import (
    Comparison,
    Config,
    Run,
    Sweep,
    method_of,
    methods_for,
)
from fedjax_muon.runs.directory import resumable
from fedjax_muon.runs.errors import refusing
from fedjax_muon.runs.extend import extend, is_sweep, lengthen, with_rounds
from fedjax_muon.runs.load import columns_of
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.runs.tuned import TUNED, is_default_problem, rates_to_try
from fedjax_muon.simulation.memory import check_memory
from fedjax_muon.simulation.simulation import NonFiniteError, Simulation
from fedjax_muon.terminal import Progress, plain_console, shown

FORMATS = (".png", ".pdf", ".svg")  # of figures
A_GRID = "--grid takes the word paper, or NAME=NUMBER,NUMBER,..."
FEWEST = 5  # norms from which a tail index is estimated


def train(args) -> None:
    """`fedjax-muon train`."""
    hyper = dataclasses.asdict(args.hyper)
    run = Run(args.algorithm, hyper, args.seed, args.config)
    with refusing():
        logs.check(args.log)
        launch.begin(args.launch, run.config.devices)
        if jax.process_count() > 1 and args.output is None:
            raise ValueError(
                "several processes need a shared run directory; name it with --output"
            )
        if len(run.config.epsilon) > 1:
            raise ValueError("train takes one --epsilon; for several, use compare")
        dataset = dataset_of(run.config)
        _announce_accounting(run.config)
        simulation = simulation_of(run, dataset)
        _say(summary_of(run, simulation, dataset))
        if args.compile_for is not None:
            default = run.config.plan == "default"
            plan = None if default else plan_of(run.config)
            compiled = compile_for(simulation, args.compile_for, plan=plan)
            print(report(compiled, args.compile_for))
            return
        if simulation.guarantee is not None:
            if jax.process_count() > 1:
                raise ValueError(
                    "private runs cannot span several processes; leave out --epsilon"
                )
            private = privacy.Private(run, simulation.guarantee)
            privacy.check_budget([private], dataset)
        if not is_of_agents(run) and plans.is_tuned(run.config, args.tune):
            forms = plans.forms_of(run, simulation, dataset)
            config, simulation = plans.fastest(forms)
            run = dataclasses.replace(run, config=config)
        else:
            check_memory(simulation)
        run_dir = directory.create(args.output, run, run.algorithm)
        log = logs.begin(run_dir, args.log)
    _train(run, simulation, dataset, run_dir, log)


def _say(words: str) -> None:
    """Prints a line, in the first process."""
    if is_first():
        print(words, flush=True)


def _announce_accounting(config: Config) -> None:
    if config.private:
        print("computing the noise for epsilon; this can take a minute", flush=True)


def _train(
    run: Run,
    simulation: Simulation,
    dataset: data.Dataset,
    run_dir: Path,
    log: logs.Log,
) -> None:
    console = plain_console(quiet=not is_first())
    again = launch.together(directory.resume_command(run_dir))
    progress = Progress(run.config.rounds, run.label)
    console.print(f"on {launch.device_words(run.config.devices)}", highlight=False)
    with resumable(run_dir) as stop, refusing(), again:
        if simulation.guarantee is not None:
            private = {run_dir: privacy.Private(run, simulation.guarantee)}
            for statement in privacy.state(private, dataset, run_dir):
                console.print(statement, highlight=False, soft_wrap=True)
        place = privacy.place_of_secrets(run, run_dir)
        directory.hold_to(place, digest(dataset), run.config.dataset)
        try:
            trackers = log.of_run(run_dir)
            with shown(console, progress):
                training.train(run, simulation, run_dir, progress, stop, trackers)
        except NonFiniteError as error:
            console.print(str(error), style="red")
            sys.exit(1)
    if not is_first():
        return
    with refusing():
        columns = metrics_csv.read(run_dir / directory.METRICS)
        plots.curves({run.label: [columns]}, run_dir / "curves.png")
        words = comparison.risen_loss(columns)
    if words:
        console.print(words, style="yellow")
    virtual = ""
    if "virtual_seconds" in columns:
        virtual = f" and {columns['virtual_seconds'][-1]:.1f} virtual seconds"
    console.print(
        f"test {run.config.score} {columns[score_column(columns)][-1]:.4f} after "
        f"{columns['round'][-1]} rounds{virtual}; metrics and figure in {run_dir}"
    )
    if "own_accuracy_mean" in columns:
        mean = columns["own_accuracy_mean"][-1]
        console.print(f"mean accuracy of clients with their own parameters {mean:.4f}")


def compare(args: arguments.Compare) -> None:
    """`fedjax-muon compare`."""
    with refusing():
        logs.check(args.log)
        for option, named in (("lr", args.lr), ("lr-schedules", args.lr_schedules)):
            unknown = [name for name in named if name not in args.algorithms]
            if unknown:
                raise ValueError(
                    f"--{option} names {unknown[0]!r}, which is not compared; the "
                    f"algorithms are {', '.join(args.algorithms)}"
                )
        tuned, at_home = TUNED[args.config.problem], is_default_problem(args.config)
        tuned = {name: tuned[name] for name in args.algorithms if name in tuned}
        lr = {name: best.lr for name, best in tuned.items()} | args.lr
        for_all = args.config.lr_schedule is not None
        home = at_home and not for_all
        schedules = {n: best.schedule for n, best in tuned.items() if home}
        schedules |= args.lr_schedules
        job = Comparison(args.algorithms, lr, schedules, args.seeds, args.config)
        given = [name for name in args.algorithms if name not in args.lr]
        words = ""
        if job.config.private and given:
            words = (
                f"the learning rates of {', '.join(given)} were not tuned with this "
                "clip norm and noise; set them with --lr"
            )
        elif not (at_home or args.quick):
            job, words = _with_grids(job, args.lr)
        launch.begin(launch.Launch(), job.config.devices)
        _announce_accounting(job.config)
        checked = comparisons.check(job)
        _say(f"{checked.summary}\n{words}".rstrip())
        run_dir = directory.create(args.output, job, "compare")
        log = logs.begin(run_dir, args.log)
    _compare(job, checked, run_dir, log)


def _with_grids(job: Comparison, fixed: Mapping[str, float]) -> tuple[Comparison, str]:
    """The comparison with grids of the rates that are not given, and what they cost."""
    config = job.config
    grids = {
        name: rates
        for name in job.algorithms
        if name not in fixed and (rates := rates_to_try(name, config.problem))
    }
    words = ""
    if grids:
        tuning = dataclasses.replace(job, grids=grids).tuning
        runs = sum(map(len, grids.values())) * len(tuning.seeds)
        words = (
            f"tuning learning rates first: {runs} runs of {config.rounds} rounds, more "
            "where the best rate is at the edge, then "
            f"{len(job.rows) * len(job.seeds)} of the comparison; --quick skips this, "
            "--lr sets a rate"
        )
    return dataclasses.replace(job, grids=grids), words


def _compare(
    job: Comparison, checked: comparisons.Checked, run_dir: Path, log: logs.Log
) -> None:
    diverged = comparisons.run(comparisons.tuned(job, run_dir), checked, run_dir, log)
    with refusing():
        shown = comparisons.report(job, run_dir, diverged)
        advice = comparisons.advice(job, run_dir)
    console = plain_console()
    for table in shown:
        console.print(tables.for_terminal(table))
    if advice:
        console.print(advice, style="yellow", highlight=False, soft_wrap=True)
    console.print(f"metrics, checkpoints and figures in {run_dir}")
    if diverged:
        sys.exit(1)


def sweep(args: arguments.Sweep) -> None:
    """`fedjax-muon sweep`."""
    with refusing():
        names = args.algorithms
        if names == ("all",):
            names = tuple(methods_for(args.config))
        grids = _grids(names, args.grid)
        config = sweeps.with_owners_counted(args.config)
        job = Sweep(
            names, grids, args.seeds, args.validation, args.cells_at_once, config
        )
        launch.begin(launch.Launch(), job.config.devices)
        if job.config.private:
            raise ValueError(
                "a sweep chooses among the results of all its cells, but the privacy "
                "guarantee covers only one; use compare, which takes several --epsilon"
            )
        part = sweeps.part_of(args.part)
        if part != sweeps.EVERYTHING and args.output is None:
            raise ValueError("--part needs a common run directory; name it by --output")
        _say(sweeps.check(job))
        if part != sweeps.EVERYTHING and args.output is not None:
            run_dir = args.output
            sweeps.begin_part(run_dir, job)
        elif args.output is not None and is_sweep(args.output):
            run_dir = args.output
            extend(run_dir, job)
        else:
            run_dir = directory.create(args.output, job, "sweep")
    _sweep(job, run_dir, part)


def _sweep(job: Sweep, run_dir: Path, part: sweeps.Part) -> None:
    sweeps.train(job, run_dir, part=part)
    if part != sweeps.EVERYTHING:
        print(
            f"this part is finished; when all are, merge them with: "
            f"{directory.resume_command(run_dir)}"
        )
        return
    with refusing():
        table = sweeps.report(job, run_dir)
    console = plain_console()
    console.print(tables.for_terminal(table))
    console.print(f"all cells, summary and figures in {run_dir}")
    if not any(point for point in sweeps.best(job, run_dir).values()):
        sys.exit(1)


def _grids(
    names: Sequence[str], texts: Sequence[str]
) -> dict[str, dict[str, tuple[float, ...]]]:
    """The grid of each algorithm. Raises `ValueError` for what is no grid."""
    if not texts:
        raise ValueError(f"{A_GRID}; got nothing")
    paper = "paper" in texts
    grids = {name: dict(method_of(name).grid if paper else {}) for name in names}
    parts = [words.partition("=") for words in texts if words != "paper"]
    entries = [entry for entry, _, _ in parts]
    for entry, equals, numbers in sorted(parts, key=lambda words: "." in words[0]):
        if entries.count(entry) > 1:
            raise ValueError(f"--grid names {entry!r} twice")
        name, _, option = entry.rpartition(".")
        if name and name not in grids:
            raise ValueError(
                f"--grid names {name!r}, which is not in the sweep; the algorithms are "
                f"{', '.join(names)}"
            )
        try:
            values = tuple(map(float, numbers.split(",")))
        except ValueError as error:
            raise ValueError(f"{A_GRID}; got {entry + equals + numbers!r}") from error
        for each in [name] if name else names:
            grids[each][option] = values
    return grids


def resume(args: arguments.Resume) -> None:
    """`fedjax-muon resume`."""
    run_dir = args.directory
    with refusing():
        job = directory.read(run_dir)
        directory.check_own_code(run_dir, job, args.named)
        part = sweeps.part_of(args.part)
        if part != sweeps.EVERYTHING and not isinstance(job, Sweep):
            raise ValueError(
                f"{run_dir} is not a sweep; leave out --part, which is only for sweeps"
            )
        if args.grid and not isinstance(job, Sweep):
            raise ValueError(
                f"{run_dir} is not a sweep; leave out --grid, which is only for sweeps"
            )
        if args.log is not None and not isinstance(job, Run | Comparison):
            raise ValueError(
                f"{run_dir} was made by `{type(job).__name__.lower()}`; leave out "
                "--log, which is only for train and compare"
            )
        if args.rounds is not None:
            job = with_rounds(run_dir, args.rounds)
        log = logs.again(run_dir, args.log)
        launch.begin(args.launch, job.config.devices)
        if jax.process_count() > 1 and args.rounds is not None:
            raise ValueError(
                "several processes can't change the number of rounds; leave out "
                "--rounds"
            )
        if jax.process_count() > 1 and not isinstance(job, Run):
            raise ValueError(
                f"several processes can resume only a single run; {run_dir} has many"
            )
        _announce_accounting(job.config)
        if isinstance(job, Run):
            dataset = dataset_of(job.config)
            simulation = simulation_of(job, dataset)
            _say(summary_of(job, simulation, dataset))
            check_memory(simulation)
        elif isinstance(job, Comparison):
            checked = comparisons.check(job, run_dir)
            _say(checked.summary)
        else:
            grids = _grids(job.algorithms, args.grid) if args.grid else {}
            larger = {
                name: {**old, **grids.get(name, {})} for name, old in job.grids.items()
            }
            job = dataclasses.replace(job, grids=larger)
            _say(sweeps.check(job))
            if args.grid:
                extend(run_dir, job)
        if args.rounds is not None:
            lengthen(run_dir, args.rounds)
    if isinstance(job, Run):
        _train(job, simulation, dataset, run_dir, log)
    elif isinstance(job, Comparison):
        _compare(job, checked, run_dir, log)
    else:
        _sweep(job, run_dir, part)


def distinct_labels(runs: Sequence[Run]) -> list[str]:
    """The label of every run; runs with the same label differ in their seeds alone.

    Where runs of one method differ in options, these are in the label.

    Example:
      >>> runs = [Run("fedavg", {"lr": lr}, 0, Config()) for lr in (0.1, 0.3)]
      >>> distinct_labels(runs)
      ['FedAvg, lr=0.1', 'FedAvg, lr=0.3']
    """
    options: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        options.setdefault(run.label, []).append(run.options)
    labels = []
    for run in runs:
        others, options_of_run = options[run.label], run.options
        differ = [
            k
            for k in options_of_run
            if any(each.get(k) != options_of_run[k] for each in others)
        ]
        labels.append(
            ", ".join([run.label, *(f"{k}={options_of_run[k]}" for k in differ)])
        )
    return labels


def plot(args: arguments.Plot) -> None:
    """`fedjax-muon plot`."""
    with refusing():
        _check_figure(args.output)
        if not args.directories:
            raise ValueError("plot needs at least one run directory")
        runs: dict[str, list] = {}
        cells: list[tuple[Run, Any]] = []
        shown: dict[tuple[str, str], Path] = {}
        for run_dir in args.directories:
            job = directory.read(run_dir)
            shown[job.config.problem, job.config.dataset] = run_dir
            if isinstance(job, Sweep):
                for method, point in sweeps.best(job, run_dir).items():
                    if point is not None:
                        runs.setdefault(method, []).extend(point.runs)
                continue
            places = [run_dir]
            if isinstance(job, Comparison):
                places = [*directory.cells(run_dir, job)]
            for place in places:
                run = directory.read(place)
                assert isinstance(run, Run)
                cells.append((run, columns_of(place)))
        if len(shown) > 1:
            (first, one), (second, other), *_ = shown.items()
            raise ValueError(
                f"{one} is of {first[1]} ({first[0]}) and {other} of {second[1]} "
                f"({second[0]}), which one figure cannot compare; draw them separately"
            )
        labels = distinct_labels([run for run, _ in cells])
        for label, (_, columns) in zip(labels, cells, strict=True):
            runs.setdefault(label, []).append(columns)
        comparison.check_rounds(runs)
        plots.curves(runs, args.output)
    print(args.output)


def partition(args: arguments.Partition) -> None:
    """`fedjax-muon partition`."""
    with refusing():
        _check_figure(args.output)
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


def _check_figure(path: Path) -> None:
    """Raises `ValueError` unless a figure can have this name."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(
            f"a figure's name must end in {', '.join(FORMATS)}, got {str(path)!r}"
        )


def prepare(args: arguments.Prepare) -> None:
    """`fedjax-muon prepare`."""
    with refusing():
        print(data.prepare(args.name, args.data_dir))


def export(args: arguments.Export) -> None:
    """`fedjax-muon export`."""
    from fedjax_muon.runs import load

    with refusing():
        run = load.load_run(args.directory)
        directory.check_own_code(args.directory, run.run, args.named)
        launch.begin(launch.Launch(), run.config.devices)
        run = load.export(args.directory, args.path, overwrite=args.overwrite)
    print(f"the parameters of round {run.state.round} are in {args.path}")

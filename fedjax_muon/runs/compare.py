"""Comparisons: several methods on one problem, each on several seeds.

    methods = [fm.fedavg(lr=0.3), fm.fedmuon(lr=0.03)]
    result = compare(methods, problem, seeds=(0, 1, 2), directory="runs/b")
    print(result)

The same call with the same directory continues where it was interrupted.

METHOD/seed0/    the directory of each run; METHOD/epsilon1/seed0 of private ones
privacy.txt      the statements of private runs, and what all cost together
tuning/METHOD/   the sweep that chose the numbers of a method
versions.json    of everything that computes
comparison.json  what `load_run` needs beside the runs
summary.csv      and .tex: the scores after the last round
*.png            curves, and for some problems fairness, utility and the graph
"""

import dataclasses
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import jax
import networkx as nx
import numpy as np

from fedjax_muon.core import Algorithm
from fedjax_muon.core.hyperparameters import plain_numbers, several
from fedjax_muon.core.recipe import recipe_of
from fedjax_muon.data.dataset import digest
from fedjax_muon.files import named
from fedjax_muon.problems import Problem
from fedjax_muon.runs import metrics_csv, summary
from fedjax_muon.runs.directory import METRICS
from fedjax_muon.runs.hints import hints
from fedjax_muon.runs.identity import words_of
from fedjax_muon.runs.methods import (
    METHODS,
    Grid,
    Methods,
    Rated,
    Setting,
    axes_of,
    check_suited,
    folder_of,
    grid_of,
    kind_of,
    labeled,
    rated,
    settings_along,
    usual,
)
from fedjax_muon.runs.rates import RATES
from fedjax_muon.runs.results import TUNING, Comparison, Swept, columns_of
from fedjax_muon.runs.search import around
from fedjax_muon.runs.simulate import (
    Method,
    Settings,
    check_seeds,
    needs_all,
    of_seed,
    promised,
    score_of,
    shared,
    simulate,
    title_of,
)
from fedjax_muon.runs.sweep import Prepared, Search, prepared_for, searched
from fedjax_muon.runs.trackers import NOT_FOLLOWED, Followed
from fedjax_muon.runs.train import (
    Job,
    begin,
    check_directory,
    check_one_process,
    data_words,
    followed,
    job_of,
    resumable,
    run,
    say,
)
from fedjax_muon.simulation.memory import check_memory
from fedjax_muon.simulation.meter import NonFiniteError
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.training import Record
from fedjax_muon.terminal import Progress

SHARE = 0.1  # of the training examples, by which numbers are chosen


class Row(NamedTuple):
    """One row of the table: a method, and how it is trained."""

    name: str  # of the method
    method: Method
    problem: Problem
    how: dict[str, Any]
    along: dict[str, Any]  # its values on the axes that the table shows
    grid: dict[str, tuple[Any, ...]]  # values of numbers to choose from first
    start: float | None  # where the search of its rate begins; None without one


@plain_numbers
def compare(
    methods: Methods | None = None,
    problem: Problem | None = None,
    *,
    rounds: int = 100,
    seeds: Sequence[int] = (0, 1, 2),
    evaluate_every: int = 5,
    drop_nonfinite: bool = False,
    grid: Grid | Literal["paper"] | None = None,
    search: bool = True,
    directory: str | Path | None = None,
    ledger: str | Path | None = None,
    budget: float | None = None,
    log: Sequence[str] = (),
    progress: bool | Progress = True,
    **how: Unpack[Settings],
) -> Comparison:
    """Trains several methods on several seeds.

    Args:
      methods: Algorithms, or functions that make them. Rates of functions are those
        tuned for the default data; on other data, a search chooses them. The keys of
        a dictionary are names in tables. By default, a few methods of each kind.
      problem: What they are compared on; by default, the one that suits the methods.
      rounds: Number of rounds. More rounds extend the runs in a directory.
      seeds: Each has its own clients and initial parameters.
      evaluate_every: Rounds between evaluations. Each evaluation is a record.
      drop_nonfinite: Whether messages with NaN or infinity are left out of the mean,
        instead of ending a run as diverged.
      grid: Values to try, such as `{"lr": (0.1, 0.3)}` for all methods with an `lr`,
        and `{"fedavg.lr": (0.1, 0.3)}` for one; or "paper", the published values. The
        best are chosen by validation on two more seeds, as in `sweep`. Values of other
        arguments, such as `{"local_steps": (1, 5)}`, and of the problem, such as
        `{"problem.alpha": (0.1, 1.0)}`, are compared in rows and a figure.
      search: Whether to search the rates of functions if the data are not the default:
        from the default rates by factors of 3, and then in finer steps.
      directory: Where runs, tables and figures are kept. By default, Python keeps
        none, and the command makes a new directory in `runs/`.
      ledger: File that records what private runs on the data cost together. By default,
        one file for all datasets in your user data directory.
      budget: Largest total epsilon of all runs in the ledger.
      log: Trackers that get the records: tensorboard, wandb or mlflow.
      progress: Whether to show the rounds on standard error; or what counts them.
      how: Arguments of `federate` or `decentralize`, in place of the problem's sizes.
        `privacy` may be a list: every method is then trained with each of them, and all
        runs are charged together before the first one starts.

    Returns:
      The results, with `table()` and `plot(path)`.

    Example:
      >>> result = compare([fm.fedavg(lr=0.3)], problem, rounds=20)
    """
    place = None if directory is None else Path(directory).expanduser()
    seeds = several(seeds)
    check_directory(place, ledger, budget, log)
    check_one_process()
    check_seeds(seeds)
    options: dict[str, Any] = {"rounds": rounds, "evaluate_every": evaluate_every}
    options["drop_nonfinite"] = drop_nonfinite
    if place is not None and words_of(place):
        raise ValueError(f"{place} has a single run or a sweep; choose another one")
    rows = _rows(methods, problem, grid, rounds, search=search, how={**how})
    problem = next(iter(rows.values())).problem
    # whatever cannot be made is refused before anything is trained
    firsts: dict[str, Simulation] = {}
    for label, row in rows.items():
        for seed in seeds:
            row.problem.parts(seed)
        with named(label):
            firsts[label] = simulate(row.method, row.problem, seeds[0], **row.how)
    searches = _searches(rows, seeds, place, options)
    for first in firsts.values():  # last, since it may compile
        check_memory(first)
    told = data_words(next(iter(firsts.values())), problem)
    for hint in dict.fromkeys(
        hint for first in firsts.values() for hint in hints(first)
    ):
        say(hint, progress)
    say(told if searches else "", progress)
    sweeps = _searched(searches, len(rows) * len(seeds), rounds, place, progress)
    for label, swept in sweeps.items():
        rows[label] = rows[label]._replace(method=swept.best_method)
        firsts[label] = firsts[label].at(swept.chosen)
    jobs = _jobs(rows, firsts, seeds, place, options)
    if place is not None:
        book = None if ledger is None else Path(ledger).expanduser().resolve()
        for statement in begin(jobs, problem.dataset, place, book, budget):
            say(statement, progress)
    say("" if searches else told, progress)
    result = Comparison(
        _title(rows),
        {},
        {},
        {label: _told(row, sweeps.get(label)) for label, row in rows.items()},
        sweeps,
        {label: (row.name, row.along) for label, row in rows.items()},
        score_of(problem),
        len(seeds),
        graph_of(problem, firsts.values(), seeds[0]),
        place,
    )
    if place is not None:
        result.note(place)
    records, diverged = _run(jobs, place, log, progress)
    result = dataclasses.replace(result, records=records, diverged=diverged)
    if place is not None:
        result.write(place)
    return result


def _title(rows: Mapping[str, Row]) -> str:
    """The first row's problem and who takes part, and in what the rows differ."""
    first = next(iter(rows.values()))
    axes = ", ".join(axis for axis in first.along if axis != "epsilon")
    title = title_of(first.method, first.problem, first.how)
    return f"{title}; others in {axes}" if axes else title


def _rows(
    methods: Methods | None,
    problem: Problem | None,
    grid: Any,
    rounds: int,
    *,
    search: bool,
    how: dict[str, Any],
) -> dict[str, Row]:
    """The rows of the table by their labels."""
    if methods is None:
        kind = "classification" if problem is None else kind_of(problem)
        usual_names = RATES.get(kind, RATES["classification"])
        methods = [METHODS[name].function for name in usual_names]
    made = labeled(methods)
    if not made:
        raise ValueError("name the methods to compare, such as [fm.fedavg], got none")
    problem = usual(made, problem)
    axes = axes_of(grid, made, [*Settings.__annotations__])
    privacies = how.get("privacy")
    private = privacies is not None
    values = {label: grid_of(label, each, axes, grid) for label, each in made.items()}
    if private and any(len(x) > 1 for each in values.values() for x in each.values()):
        raise ValueError(
            "grids choose among the results of many runs, which privacy does not "
            "cover; leave out one of them"
        )
    search = search and not private
    rows: dict[str, Row] = {}
    for given in settings_along(axes.shown, problem, how):
        setting = given._replace(how=promised(given.how, given.problem, rounds))
        one = setting._replace(problem=shared(setting.problem, setting.how))
        chosen = {
            label: rated(each, one.problem, values[label], rounds, search=search)
            for label, each in made.items()
        }
        check_suited({k: each.method for k, each in chosen.items()}, one.problem)
        rows |= _rows_of(chosen, one)
    folders = {folder_of(name): name for name in rows}
    if len(folders) < len(rows) or {"", TUNING} & folders.keys():
        raise ValueError(
            "names of methods must differ in letters and numbers, since they are "
            f"directories, got {', '.join(rows)}"
        )
    return rows


def _rows_of(methods: Mapping[str, Rated], setting: Setting) -> dict[str, Row]:
    """The rows at a point of the axes: several of each method, if promises are."""
    several = setting.how.get("privacy")
    rows, problem = {}, setting.problem
    if not isinstance(several, list | tuple):
        for name, each in methods.items():
            label, along = (
                ", ".join(filter(None, (name, setting.words))),
                setting.values,
            )
            rows[label] = Row(name, each.method, problem, setting.how, along, *each[1:])
        return rows
    kinds = {isinstance(each.method, Algorithm): name for name, each in methods.items()}
    if len(kinds) > 1:
        raise ValueError(
            f"{kinds[False]} protects single examples and {kinds[True]} protects whole "
            "clients, so their epsilons cannot be compared; compare them separately"
        )
    for (name, each), privacy in itertools.product(methods.items(), several):
        how = {**setting.how, "privacy": privacy}
        words = filter(None, (name, setting.words, f"epsilon {privacy.epsilon:g}"))
        along = {**setting.values, "epsilon": privacy.epsilon}
        rows[", ".join(words)] = Row(name, each.method, problem, how, along, *each[1:])
    if len(rows) < len(methods) * len(several) or not several:
        raise ValueError(
            f"epsilons must differ, got {[privacy.epsilon for privacy in several]}"
        )
    return rows


def _searches(
    rows: Mapping[str, Row],
    seeds: Sequence[int],
    place: Path | None,
    options: Mapping[str, Any],
) -> dict[str, Search]:
    """What chooses numbers of methods, on two seeds that are not compared.

    With more rounds than it had, a comparison keeps what it has chosen.
    """
    others = max(seeds) + 1, max(seeds) + 2
    found: dict[str, Search] = {}
    prepared: dict[tuple[int, int], Prepared] = {}  # rows share copies of the examples
    for label, row in rows.items():
        grid = dict(row.grid)
        if row.start is not None:
            grid["lr"] = around(row.start)
        if not grid:
            continue
        folder = place and place / TUNING / folder_of(label)
        known = {} if folder is None else words_of(folder)
        how = {**options, "rounds": int(known.get("rounds", options["rounds"]))}
        # the runs of a rate are a group, so that all share one program
        how["cells_at_once"] = 2 if jax.default_backend() == "cpu" else None
        plain = {
            k: v for k, v in row.how.items() if k not in ("devices", "split_examples")
        }
        same = id(row.problem), id(row.how)
        if same not in prepared:
            prepared[same] = prepared_for(row.problem, plain, others, SHARE)
        one = prepared[same]
        finer = row.start is not None
        how |= {"validation": SHARE, "finer": finer}
        given = label, row.method, one, grid, others, folder
        found[label] = searched(*given, **how)
    return found


def _searched(
    searches: Mapping[str, Search],
    compared: int,
    rounds: int,
    place: Path | None,
    progress: bool | Progress,
) -> dict[str, Swept]:
    """Runs searches, and says before and after the first trial what they take."""
    if not searches:
        return {}
    least = sum(each.size for each in searches.values())
    most = sum(each.most for each in searches.values())
    names = ", ".join(searches)
    say(
        f"{least} to {most} runs of {rounds} rounds choose numbers of {names}; then "
        f"{compared} runs are compared",
        progress,
    )
    for each in searches.values():
        each.begin()
    began, told = time.monotonic(), list[bool]()

    def pace(cells: int) -> None:
        if not told:
            minutes = (time.monotonic() - began) / 60 / cells
            low, high = minutes * (least + compared), minutes * (most + compared)
            say(f"this takes about {low:.1f} to {high:.1f} minutes", progress)
            told.append(True)

    found = {}
    with (
        resumable(place) as stop,
        followed(progress, least * rounds, "search") as course,
    ):
        for label, each in searches.items():
            course.title = label
            found[label] = each.run(course, stop, pace=pace)
    return found


def _jobs(
    rows: Mapping[str, Row],
    firsts: Mapping[str, Simulation],
    seeds: Sequence[int],
    place: Path | None,
    options: Mapping[str, Any],
) -> list[Job]:
    """The runs of all rows and seeds, whose simulations are variations of the first."""
    jobs, digests = [], dict[int, str]()
    for (label, row), seed in itertools.product(rows.items(), seeds):
        one, dataset = firsts[label], row.problem.dataset
        if seed != seeds[0]:
            one = of_seed(one, row.method, row.problem, seed, row.how)
        if place is not None and id(dataset) not in digests:
            digests[id(dataset)] = digest(dataset)
        jobs.append(
            job_of(
                label,
                row.method,
                row.problem,
                seed,
                row.how,
                one,
                digests.get(id(dataset), ""),
                place and place / folder_of(label) / f"seed{seed}",
                **options,
            )
        )
    return jobs


def _run(
    jobs: Sequence[Job],
    place: Path | None,
    log: Sequence[str],
    progress: bool | Progress,
) -> tuple[dict[str, dict[int, list[Record]]], dict[str, str]]:
    """The records of all runs by method and seed, and where methods diverged."""
    records: dict[str, dict[int, list[Record]]] = {}
    diverged: dict[str, str] = {}
    total = sum(job.rounds for job in jobs)
    with resumable(place) as stop, followed(progress, total, "all") as course:
        for job in jobs:
            course.title = f"{job.name}, seed {job.seed}"
            logs = NOT_FOLLOWED
            if place is not None and job.directory is not None:
                run_name = "-".join(job.directory.relative_to(place).parts)
                logs = Followed(log, job.directory, run_name, place.name)
            try:
                _, rows = run(job, course, stop, logs)
            except NonFiniteError as error:
                say(f"{job.name}, seed {job.seed}: {error}", progress)
                diverged.setdefault(job.name, f"round {error.round}")
                if job.directory is not None and (job.directory / METRICS).exists():
                    until = metrics_csv.rows_of(job.directory / METRICS)
                    records.setdefault(job.name, {})[job.seed] = until
                continue
            records.setdefault(job.name, {})[job.seed] = rows
            column = summary.score_column(columns_of(rows))
            lost = [row["round"] for row in rows if np.isnan(row[column])]
            if lost:  # of a private run, which does not stop
                diverged.setdefault(job.name, f"round {lost[0]}")
            elif words := summary.risen_loss(columns_of(rows)):
                say(f"{job.name}, seed {job.seed}: {words}", progress)
    return records, diverged


def _told(row: Row, swept: Swept | None) -> str:
    """A learning rate, what speaks against it, and whether all clients take part."""
    words = [rate_of(row.method)]
    if swept is not None and swept.doubts:
        words.append(swept.doubts)
    if needs_all(row.method, row.problem, row.how):
        words.append("(all clients)")
    return " ".join(words)


def rate_of(method: Any) -> str:
    """The learning rate of a method in words, such as `0.1` or `0.1 cosine`."""
    recipe = None if method is None else recipe_of(method)
    if recipe is None:
        return "-"
    lr, inner = recipe.arguments.get("lr"), recipe.arguments.get("algorithm")
    if lr is None:
        return rate_of(inner)
    if isinstance(lr, int | float):
        rate = f"{lr:g}"
        if inner is not None:  # this is a schedule of its rate, such as cosine_decay
            rate += f" {recipe.function.__name__.partition('_')[0]}"
        return rate
    made, _, kind = getattr(lr, "__qualname__", "").partition("_")
    # a schedule of optax, such as cosine_decay_schedule.<locals>.schedule
    return f"{float(lr(0)):.3g} {made}" if "_schedule." in kind else "schedule"


def graph_of(
    problem: Problem, simulations: Iterable[Simulation], seed: int
) -> nx.Graph | None:
    """Who exchanges messages with whom, if there are agents."""
    sizes = [len(each.clients.size) for each in simulations if each.program.mix]
    if not sizes:
        return None
    weights = np.atleast_3d(problem.mixing(seed, sizes[0]).T)
    linked = np.asarray(weights.any(-1), int)
    return nx.from_numpy_array(linked * (1 - np.eye(len(linked), dtype=int)))

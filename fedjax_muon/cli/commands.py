"""The commands of the command line that train."""

import contextlib
import datetime
import itertools
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_muon import runs
from fedjax_muon.ahead_of_time import compile_for, report
from fedjax_muon.cli import jobs, launch as launching
from fedjax_muon.cli.errors import logged, refusing
from fedjax_muon.cli.jobs import Job, Words
from fedjax_muon.cli.names import Grid, importing_only, near
from fedjax_muon.core import Algorithm
from fedjax_muon.data.dataset import summary as summary_of
from fedjax_muon.engine.plans import Plan
from fedjax_muon.engine.processes import is_first, run_on_first
from fedjax_muon.files import claim, read_text, reading
from fedjax_muon.models.convolution import by_patches
from fedjax_muon.problems import Problem
from fedjax_muon.runs import plots, summary, tables
from fedjax_muon.runs.rates import RATES
from fedjax_muon.runs.search import around
from fedjax_muon.runs.simulate import score_of
from fedjax_muon.runs.sweep import Swept, check_sweep
from fedjax_muon.simulation.memory import check_memory
from fedjax_muon.simulation.meter import NonFiniteError
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.tuning import tune
from fedjax_muon.terminal import plain_console

COMMAND = "command.json"  # the words that a directory was made by
# options that only the words of whoever resumes decide: other machines; and what writes
# outside of the directory, with the word for none
HOSTS = ("distributed", "coordinator", "num_processes", "process_id")
ELSEWHERE = {"log": ", or --log none", "ledger": ""}
CHUNKED = "chunked with chunk_size "  # a plan of `tune`, before a number


class Place:
    """The directory of a command, which remembers its words."""

    def __init__(self, name: str, argv: Sequence[str], job: Job):
        self.argv, self.job = [*argv], job
        given = job.given.get("directory")
        self.directory = Path(given).expanduser() if given else _new(name)
        if jax.process_count() > 1 and not given:
            raise ValueError(
                "several processes need a shared directory; name it with --directory"
            )

    @property
    def resume(self) -> str:
        """The command that goes on."""
        modules = self.job.modules
        more = ["--trust", ",".join(modules)] if modules else []
        options = Words(self.argv[1:]).options
        for name in (*HOSTS, *ELSEWHERE):
            if name in options:
                more.append(f"{jobs.dashed(name)}={options[name]}".removesuffix("="))
        return shlex.join(["fedjax-muon", "resume", str(self.directory), *more])

    def begun(self) -> None:
        """Notes the words of the command, unless the directory has some."""
        about = {
            "argv": self.argv,
            "directory": os.getcwd(),
            "modules": self.job.modules,
        }

        def write() -> None:
            self.directory.mkdir(parents=True, exist_ok=True)
            claim(self.directory / COMMAND, json.dumps(about, indent=1) + "\n")

        run_on_first(write)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Ends with the command to go on, if that is interrupted."""
        try:
            with refusing(), self._logged(), launching.together(self.resume):
                yield
        except KeyboardInterrupt:
            if not (self.directory / COMMAND).exists():
                raise
            print(f"\ninterrupted; continue with: {self.resume}")
            sys.exit(130)

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        """Writes the traceback of a fault into the directory, but not of a refusal."""
        try:
            yield
        except (ValueError, ImportError, OSError, NonFiniteError):
            raise
        except Exception:
            with logged(self.directory):
                raise


def _new(name: str) -> Path:
    """A directory that nobody uses, named after the time."""
    stem = f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{name.replace(':', '-')}"
    for number in itertools.count(1):
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        if not path.exists():
            return path
    raise AssertionError("unreachable")


def say(words: str, *, style: str | None = None) -> None:
    """Prints a line, in the first process."""
    if is_first() and words:
        console = plain_console()
        console.print(words, style=style, highlight=False, soft_wrap=True)


def _announced(job: Job) -> None:
    if job.promise.get("epsilon"):
        say("computing the noise for epsilon; this can take a minute")


def checked(members: str, dataset: Any, job: Job) -> Any:
    """Checks the memory of simulations; says once what is trained, and on what."""
    told: list[bool] = []

    def check(simulation: Simulation) -> None:
        check_memory(simulation)
        if not told:
            sizes = np.asarray(simulation.clients.size).tolist()
            say(summary_of(dataset, sizes, members=members))
            say(f"on {launching.device_words(job.devices)}")
            told.append(True)

    return check


def parsed_train(argv: Sequence[str]) -> Job:
    """The job of `train`."""
    words = Words(argv)
    if len(words.first) > 1:
        raise ValueError("train takes one method; for several, use compare")
    return Job(words, runs.train, jobs.training, [usual_method(words)])


def usual_method(words: Words) -> str:
    """The method that is trained if none is named."""
    return "fed_nsgda_m" if words.options.get("problem") == "auc" else "fedmuon"


def train(argv: Sequence[str]) -> None:
    """Trains one method on one seed."""
    with refusing():
        job = parsed_train(argv)
        problem, [(label, method)] = job.problem(), job.methods().items()
        how = job.settings(problem)
        for name in job.grids["0"]:
            raise ValueError(f"train takes one {name}; for several, use sweep")
        if isinstance(how.get("privacy"), list):
            raise ValueError("train takes one --epsilon; for several, use compare")
        _announced(job)
        seed = job.given.get("seed", 0)
        if "compile_for" in job.extra:
            simulation = runs.simulate(method, problem, seed, **how)
            compiled = compile_for(
                simulation, job.extra["compile_for"], plan=how.get("plan")
            )
            print(report(compiled, job.extra["compile_for"]))
            return
        if isinstance(method, Algorithm) and _is_tuned(job):
            words = Words(argv)
            words.options.pop("tune", None)
            options, problem, how["plan"] = _fastest(job, method, problem, how)
            argv = [*words.texts(), *options]
        place = Place(job.calls[0].name, ["train", *argv], job)
    given = {**job.given, **how, "directory": place.directory}
    with place.running():
        try:
            done = runs.train(method, problem, begun=place.begun, **given)
        except NonFiniteError as error:
            say(str(error), style="red")
            sys.exit(1)
    if is_first():
        _tell(label, done.records, score_of(problem), place.directory)


def _tell(
    label: str, records: Sequence[Mapping[str, Any]], score: str, directory: Path
) -> None:
    """Draws the curves of a run, and says what it came to."""
    with refusing():
        columns = {k: np.array([row[k] for row in records]) for k in records[0]}
        plots.curves({label: [columns]}, directory / "curves.png")
        say(summary.risen_loss(columns), style="yellow")
    virtual = ""
    if "virtual_seconds" in columns:
        virtual = f" and {columns['virtual_seconds'][-1]:.1f} virtual seconds"
    say(
        f"test {score} {columns[summary.score_column(columns)][-1]:.4f} after "
        f"{columns['round'][-1]} rounds{virtual}; metrics and figure in {directory}"
    )
    if "personal_accuracy_mean" in columns:
        mean = columns["personal_accuracy_mean"][-1]
        say(f"mean accuracy of clients with their own parameters {mean:.4f}")


def _is_tuned(job: Job) -> bool:
    """Whether the plan of a run is measured; on accelerators nobody has to ask."""
    asked = job.extra.get("tune", False)
    if "plan" not in job.how:
        return asked or jax.default_backend() != "cpu"
    if asked:
        raise ValueError("tune chooses the plan; leave out --plan")
    return False


def _fastest(
    job: Job, method: Any, problem: Problem, how: Mapping[str, Any]
) -> tuple[list[str], Problem, Plan]:
    """The fastest plan and form of convolutions by measurement, and their options."""
    seed, forms = job.given.get("seed", 0), {"": problem}
    model = job.problem_call.keywords.get("model")
    open_to = {} if model is None else model.parameters.keys() - model.keywords
    if "convolution" in open_to:
        patches = model.given({**model.keywords, "convolution": by_patches})
        others = {**job.problem_call.keywords, "model": patches}
        forms["patches"] = job.problem_call.given(others).made(job.rounds)
    tuned = tune(
        {name: runs.simulate(method, each, seed, **how) for name, each in forms.items()}
    )
    times = ", ".join(f"{n} {1e3 * s:.3g} ms" for n, s in tuned.seconds.items())
    say(f"fastest plan: {tuned.plan} (a round by plan: {times})")
    form, _, plan = tuned.plan.rpartition(", ")
    options = [f"--plan={plan.replace(CHUNKED, 'chunked:')}"]
    options += [f"--convolution={form}"] if form else []
    return options, forms[form], tuned.simulation.settings.plan


def parsed_compare(argv: Sequence[str]) -> Job:
    """The job of `compare`."""
    words = Words(argv)
    problem = words.options.get("problem", "classification").partition(":")[0]
    usual = [*RATES.get(problem, RATES["classification"])]
    return Job(words, runs.compare, jobs.comparing, usual)


def compare(argv: Sequence[str]) -> None:
    """Trains several methods on several seeds; shows a table and draws curves."""
    with refusing():
        job = parsed_compare(argv)
        words = take_rates(job)
        problem, methods = job.problem(), job.methods()
        how = job.settings(problem)
        for grid in job.grids.values():
            if grid and grid.keys() != {"lr"}:
                raise ValueError(
                    "compare tries several learning rates only; for grids of other "
                    "numbers, use sweep"
                )
        grids = {
            label: job.grids[str(number)]
            for number, label in enumerate(methods)
            if job.grids[str(number)]
        }
        if grids:
            seeds = len(job.given.get("seeds", (0, 1, 2)))
            trials = 2 * sum(len(grid["lr"]) for grid in grids.values())
            words = (
                f"tuning learning rates first: {trials} runs of {job.rounds} rounds, "
                "more where the best rate is at the edge, then "
                f"{len(methods) * seeds} of the comparison; --quick skips this, "
                "NAME:lr=RATE sets a rate"
            )
        _announced(job)
        place = Place("compare", ["compare", *argv], job)
    say(words)
    given = {**job.given, **how, "directory": place.directory}
    with place.running():
        named_grid = {f"{k}.{n}": v for k, g in grids.items() for n, v in g.items()}
        result = runs.compare(
            methods, problem, grid=named_grid, begun=place.begun, **given
        )
    if is_first():
        for table in result.all_tables():
            plain_console().print(tables.for_terminal(table))
        say(_advice(result.sweeps), style="yellow")
        say(f"metrics, checkpoints and figures in {place.directory}")
    if result.diverged:
        sys.exit(1)


def _advice(sweeps: Mapping[str, Swept]) -> str:
    """Says which learning rates should be looked for further."""
    doubtful = [f"{name} {each.doubts}" for name, each in sweeps.items() if each.doubts]
    if not doubtful:
        return ""
    return (
        f"learning rates that were not settled: {', '.join(doubtful)}; look further "
        "with sweep, and compare again with the best ones as NAME:lr=RATE"
    )


def take_rates(job: Job) -> str:
    """Gives methods without a rate the one that was tuned for the default problem, or
    with another problem a grid around it. Returns what should be said of it."""
    problem = job.problem_call
    known = RATES.get(problem.name, {})
    at_home = bool(known) and job.has_usual_data
    private = bool(job.promise.get("epsilon"))
    untuned = []
    for number, call in enumerate(job.calls):
        if "lr" in job.fixed[str(number)] or "lr" not in call.parameters:
            continue
        best = known.get(call.name)
        usual = call.parameters["lr"].default if best is None else best.lr
        if at_home and not private:
            if best is not None:
                text = "cosine:" * (best.schedule == "cosine") + str(best.lr)
                call.give(f"lr={text}")
            continue
        untuned.append(call.name)
        if best is not None:
            call.keywords["lr"] = best.lr
        if not (private or job.extra.get("quick")) and isinstance(usual, int | float):
            job.grids[str(number)] = {"lr": Grid(around(usual))}
    if private and untuned:
        return (
            f"the learning rates of {', '.join(untuned)} were not tuned with this clip "
            "norm and noise; set them with NAME:lr=RATE"
        )
    return ""


def parsed_sweep(argv: Sequence[str]) -> Job:
    """The job of `sweep`."""
    words = Words(argv)
    if not words.first:
        raise ValueError(
            "name the methods of the sweep, or all, such as: sweep fedavg fedmuon "
            "--lr 0.01,0.03,0.1"
        )
    return Job(words, runs.sweep, jobs.sweeping)


def sweep(argv: Sequence[str]) -> None:
    """Trains methods on grids of hyperparameters; reports the best of each."""
    with refusing():
        job = parsed_sweep(argv)
        problem, methods = job.problem(), job.methods()
        how = job.settings(problem)
        if how.get("privacy") is not None:
            raise ValueError(
                "a sweep chooses among the results of all its cells, but the privacy "
                "guarantee covers only one; use compare, which takes several --epsilon"
            )
        grids = {}
        for number, (label, call) in enumerate(zip(methods, job.calls, strict=True)):
            grid = dict(job.grids[str(number)])
            if job.extra.get("grid") and call.name in jobs.METHODS:
                published = jobs.METHODS[call.name].grid
                grid = {k: Grid(v) for k, v in published.items()} | grid
            if not grid:
                raise ValueError(
                    f"{call.name} has no grid; give several values, such as --lr "
                    "0.01,0.03,0.1, or --grid paper for published ones"
                )
            grids[label] = grid
        place = Place("sweep", ["sweep", *argv], job)
        for label, grid in grids.items():
            seeds = job.given.get("seeds", (0,))
            check_sweep(methods[label], grid, seeds, how)
    members = "client" if job.federated else "agent"
    points = [math.prod(map(len, grid.values())) for grid in grids.values()]
    more = ", more where the best rate is at the edge" * job.given.get("extend", True)
    number = sum(points) * len(job.given.get("seeds", (0,)))
    say(f"{number} runs of {job.rounds} rounds{more}")
    say(summary_of(problem.dataset, list(map(len, problem.parts(0))), members=members))
    named_grid = {f"{k}.{n}": v for k, g in grids.items() for n, v in g.items()}
    with place.running():
        given = {**job.given, **how, "begun": place.begun}
        given["directory"] = place.directory
        done = runs.sweep(methods, problem, named_grid, **given)
    table = done.table()
    plain_console().print(tables.for_terminal(table))
    say(f"all cells, summary and figures in {place.directory}")
    if all(each.best is None for each in done.values()):
        sys.exit(1)


COMMANDS = {"train": train, "compare": compare, "sweep": sweep}
PARSERS: Mapping[str, Callable[[Sequence[str]], Job]] = {
    "train": parsed_train,
    "compare": parsed_compare,
    "sweep": parsed_sweep,
}


def resume(argv: Sequence[str]) -> None:
    """Continues what a command has begun in a directory."""
    with refusing():
        words = Words(argv)
        if len(words.first) != 1:
            raise ValueError("resume takes one directory, such as: resume runs/a")
        directory = Path(words.first[0]).expanduser().absolute()
        trusted = words.options.pop("trust", "").split(",")
        about = command_of(directory)
        name, *given = about["argv"]
        if name == "deploy":
            raise ValueError(
                f"{directory} was made by deploy; to resume it, use flwr run again"
            )
        check_trusted(directory, about, trusted)
        if Path(about["directory"]).is_dir():  # where relative paths are of
            os.chdir(about["directory"])
        if name not in COMMANDS:
            raise ValueError(f"{directory} was made by {name}, which does not resume")
        begun = Words(given)
        _drop_reaching(directory, begun, words)
        begun.options |= words.options | {"directory": str(directory)}
        begun.wrappers += words.wrappers
    with importing_only(trusted):  # whatever the directory says of its modules
        COMMANDS[name](begun.texts())


def _drop_reaching(directory: Path, begun: Words, given: Words) -> None:
    """Drops other machines from the words of a directory; raises `ValueError` for
    trackers and ledgers that the one who resumes has not named too.

    Who reads a directory may not have written it.
    """
    for option in (*HOSTS, *ELSEWHERE):
        text = begun.options.pop(option, None)
        if text is not None and option in ELSEWHERE.keys() - given.options.keys():
            raise ValueError(
                f"{directory} was begun with {jobs.dashed(option)} {text}, which "
                "resume takes from your words alone; say it again, or another one"
                f"{ELSEWHERE[option]}"
            )


def check_trusted(
    directory: Path, about: Mapping[str, Any], trusted: Collection[str]
) -> None:
    """Raises `ValueError` unless all modules that a command imports are named.

    Who reads a directory may not have written it.
    """
    if unnamed := sorted({*about["modules"]} - {*trusted}):
        raise ValueError(
            f"{directory} runs your own code, {', '.join(unnamed)}; if you trust it, "
            f"add --trust {','.join(about['modules'])}"
        )


def only(words: Words, *names: str) -> dict[str, str]:
    """The options of a command that has only these."""
    for name in words.options:
        if name not in names:
            known = list(map(jobs.dashed, names))
            raise ValueError(
                f"unknown option {jobs.dashed(name)}; "
                f"{near(jobs.dashed(name), known)}it has {', '.join(known) or 'none'}"
            )
    return words.options


def at_home(about: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Where the relative paths of a command are of, if that is still there."""
    there = Path(about["directory"])
    return contextlib.chdir(there if there.is_dir() else ".")


def command_of(directory: Path) -> dict[str, Any]:
    """What a directory says of the command that made it."""
    path = directory / COMMAND
    if not path.is_file():
        raise ValueError(
            f"{directory} is not the directory of a command: it has no {COMMAND}"
        )
    with reading(path, "the words of a command", "run the command itself again"):
        about = json.loads(read_text(path))
        name, *argv = map(str, about["argv"])
        modules = map(str, about["modules"])
        return {
            "argv": [name, *argv],
            "modules": [*modules],
            "directory": str(about["directory"]),
        }

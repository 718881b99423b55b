"""A run directory in Python, and its parameters in a file for other programs."""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon import runs
from fedjax_muon.cli import commands
from fedjax_muon.cli.errors import refusing
from fedjax_muon.cli.jobs import Job, Words, launch
from fedjax_muon.cli.names import importing_only
from fedjax_muon.core.recipe import numbers_of, with_numbers
from fedjax_muon.data.dataset import digest
from fedjax_muon.files import reading
from fedjax_muon.models.weights import check_target, save_params
from fedjax_muon.problems import Problem
from fedjax_muon.runs import metrics_csv
from fedjax_muon.runs.compare import folder_of
from fedjax_muon.runs.directory import CHECKPOINTS, METRICS
from fedjax_muon.runs.identity import IDENTITY, check_same, words_of
from fedjax_muon.runs.record import last_state
from fedjax_muon.runs.simulate import Method, name_of
from fedjax_muon.runs.train import Job as Run, job_of
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.training import Record
from fedjax_muon.versions import PACKAGE_VERSION, check_installed

MOST_NAMED = 3  # runs of a comparison in an error
# options of where a run was trained: it is read on this machine alone
LAUNCH = [*inspect.signature(launch).parameters]
OF_FLAX = ("parent", "name")  # fields of all modules


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """What a run directory has. Properties are read when they are first used.

    `words`, `records` and `history` need no dataset. The others make the run again,
    from the words of the command; `state`, `params` and `evaluate` need a checkpoint.
    """

    directory: Path
    trust: Collection[str] = ()

    @functools.cached_property
    def words(self) -> dict[str, str]:
        """What the run computes, in words."""
        return words_of(self.directory)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        with self._reading():
            return int(self.words["seed"])

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        path = self.directory / IDENTITY
        return reading(path, "the words of a run", "start again in another directory")

    @functools.cached_property
    def records(self) -> list[Record]:
        """The rows of metrics.csv as dictionaries, as `train` returns them."""
        path = self.directory / METRICS
        if not path.exists():
            raise ValueError(f"{path} does not exist yet; train first")
        return metrics_csv.rows_of(path)

    @functools.cached_property
    def history(self) -> Any:
        """The rows of metrics.csv as a `pandas.DataFrame`; requires pandas."""
        check_installed("pandas", "history")
        import pandas  # in the extra `pandas`

        return pandas.DataFrame(self.records)

    @functools.cached_property
    def _job(self) -> tuple[Job, Path]:
        """What the command was about, and its directory."""
        place = self.directory.absolute()
        roots = [p for p in (place, *place.parents) if (p / commands.COMMAND).exists()]
        if not roots:
            raise ValueError(
                f"{self.directory} was made in Python; the same call of fm.train, with "
                "this directory, returns its state"
            )
        about = commands.command_of(roots[0])
        commands.check_trusted(roots[0], about, self.trust)
        name, *words = about["argv"]
        if name not in commands.PARSERS:
            raise ValueError(f"{roots[0]} was made by {name}, which trains nothing")
        given = Words(words)
        for option in LAUNCH:
            given.options.pop(option, None)
        with importing_only(self.trust), commands.at_home(about):
            return commands.PARSERS[name](given.texts()), roots[0]

    @functools.cached_property
    def problem(self) -> Problem:
        """The problem, with the data."""
        job, root = self._job
        with commands.at_home(commands.command_of(root)):
            return job.problem()

    @functools.cached_property
    def method(self) -> Method:
        """The method, with the numbers that the run has."""
        job, root = self._job
        if job.compares:
            commands.take_rates(job)
        methods = job.methods()
        method = next(iter(methods.values()))
        with self._reading():
            if (place := self.directory.absolute()) != root:
                folders = {str(folder_of(name)): each for name, each in methods.items()}
                method = folders[place.relative_to(root).parts[0]]
            words, chosen = self.words, {}
            for name in numbers_of(method):
                texts = [t for k, t in words.items() if _is_option(k, name)]
                chosen[name] = float(texts[0])
            return with_numbers(method, chosen)

    @functools.cached_property
    def _run(self) -> Run:
        job, problem = self._job[0], self.problem
        how = job.settings(problem)
        if isinstance(several := how.get("privacy"), list):
            epsilon = self.directory.absolute().parent.name
            with self._reading():
                how["privacy"] = {f"epsilon{p.epsilon:g}": p for p in several}[epsilon]
        rounds = [p.name for p in (self.directory / CHECKPOINTS).glob("[0-9]*")]
        run = job_of(
            name_of(self.method),
            self.method,
            problem,
            self.seed,
            how,
            runs.simulate(self.method, problem, self.seed, **how),
            digest(problem.dataset),
            self.directory,
            rounds=max([job.rounds, *map(int, rounds)]),
            evaluate_every=job.given.get("evaluate_every", 5),
            drop_nonfinite=job.given.get("drop_nonfinite", False),
        )
        check_same(self.directory, run.public)
        return run

    @property
    def simulation(self) -> Simulation:
        """The simulation, with the clients of the run."""
        return self._run.simulation

    @functools.cached_property
    def state(self) -> Any:
        """The state in the newest checkpoint; `simulation.train_round` donates it."""
        state = last_state(self.simulation, self._run.course, self.directory)
        if state is None:
            raise ValueError(f"{self.directory} has no checkpoint yet; train first")
        return state

    @property
    def params(self) -> Any:
        """The parameters in the newest checkpoint."""
        return self.state.params

    def evaluate(self) -> dict[str, float]:
        """Evaluates the newest checkpoint again, on test and training examples."""
        scores = self.simulation.evaluate(self.state)
        return {name: float(score) for name, score in scores.items()}


def _is_option(words: str, name: str) -> bool:
    """Whether the name of a word is that of a method's number, also inside of it."""
    return words.startswith("method.") and words.rpartition(".")[2] == name


def load_run(directory: str | Path, *, trust: Collection[str] = ()) -> LoadedRun:
    """Loads a run of `fedjax-muon train`, or one run of a comparison.

    Args:
      trust: Your own modules, which may be imported to make the run again.

    Returns:
      The run, whose `history` is a table of metrics, and whose `params` are from the
      newest checkpoint. Its properties raise `ValueError` for what is missing or
      damaged. Of a run that was made in Python, there are `records` and `history`.

    Example:
      >>> run = load_run("runs/20261121-101500-fedmuon")  # doctest: +SKIP
      >>> run.history.plot("round", "test_accuracy")  # doctest: +SKIP
      >>> logits = model.apply({"params": run.params}, x)  # doctest: +SKIP
    """
    place = Path(directory).expanduser()
    if "seed" in words_of(place):
        return LoadedRun(place, trust)
    found = sorted(place.glob(f"**/seed*/{METRICS}")) if place.is_dir() else []
    if not found:
        raise ValueError(f"{directory} is not the directory of a run")
    cells = [str(path.parent) for path in found]
    more = ", ..." if len(cells) > MOST_NAMED else ""
    raise ValueError(
        f"{directory} has {len(cells)} runs; load one of them: "
        f"{', '.join(cells[:MOST_NAMED])}{more}"
    )


def export(argv: Sequence[str]) -> None:
    """Writes the parameters of a run to a file for other programs."""
    with refusing():
        words = Words(argv)
        given = commands.only(words, "trust", "overwrite")
        if len(words.first) != 2:
            raise ValueError(
                "export takes a directory and a file, such as: export runs/a "
                "model.safetensors"
            )
        path, overwrite = (
            Path(words.first[1]),
            given.get("overwrite", "false") in ("", "true"),
        )
        check_target(path, overwrite=overwrite)
        run = load_run(words.first[0], trust=given.get("trust", "").split(","))
        save_params(path, run.params, metadata=metadata_of(run), overwrite=overwrite)
    print(f"the parameters of round {run.state.round} are in {path}")


def metadata_of(run: LoadedRun) -> dict[str, Any]:
    """What a program needs to use the parameters: values that JSON can represent."""
    dataset, module = run.problem.dataset, run.problem.model
    scales = dataset.standardization
    fields = [] if module is None else dataclasses.fields(module)
    values = {
        "version": PACKAGE_VERSION,
        "algorithm": name_of(run.method),
        "round": run.state.round,
        "dataset": run.words.get("problem.dataset", "").strip("'"),
        "model": {
            "name": type(module).__name__,
            **{
                f.name: getattr(module, f.name) for f in fields if f.name not in OF_FLAX
            },
        },
        "input_shape": dataset.x_train.shape[1:],
        "input_dtype": str(dataset.x_train.dtype),
        "classes": dataset.classes,
        "standardization": None if scales is None else scales._asdict(),
    }
    if dataset.tokenizer is not None:  # whose classes are documents
        window = dataset.x_train.shape[1] - 1
        values |= {"tokenizer": _about_tokens(run), "window": window}
        values |= {"dataset": run.problem.call.get("path"), "input_shape": [window]}
        del values["classes"]
    return json.loads(json.dumps(values, default=_json_of))


def _about_tokens(run: LoadedRun) -> dict[str, Any]:
    """The name of a tokenizer, with its letters or its file."""
    tokenizer, place = run.problem.dataset.tokenizer, run.problem.call.get("tokenizer")
    about: dict[str, Any] = {"name": tokenizer.name}
    if tokenizer.name == "characters":
        about["letters"] = [tokenizer.decode([i]) for i in range(tokenizer.vocabulary)]
    elif isinstance(place, str) and place != "bytes":
        with commands.at_home(commands.command_of(run._job[1])):
            content = Path(place).expanduser().read_bytes()
        about |= {"path": place, "sha256": hashlib.sha256(content).hexdigest()}
    return about


def _json_of(value: Any) -> Any:
    """The numbers of an array, or the name of a type of numbers or of a function."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    try:
        return np.dtype(value).name
    except TypeError:
        return getattr(value, "__qualname__", str(value))

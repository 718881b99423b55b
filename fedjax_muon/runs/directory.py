"""Run directories: what a run leaves behind, and how it goes on from there.

config.json      what was asked for
versions.json    of everything that computes, and the git revision
data.sha256      digest of the data, which must not change; not of private runs
metrics.csv      one row an evaluation
clients.csv      one row a client, if they have test examples: their last scores
checkpoints/     the last two states
*.png            figures, drawn from metrics.csv alone
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from fedjax_muon import files
from fedjax_muon.engine.processes import run_on_first
from fedjax_muon.experiments.directory import (
    CHECKPOINTS as CHECKPOINTS,
    CLIENTS as CLIENTS,
    DATA as DATA,
    LOCK as LOCK,
    METRICS as METRICS,
    VERSIONS as VERSIONS,
    check_held as check_held,
    held as held,
    hold_to as hold_to,
    interruptible as interruptible,
    versions as versions,
)
from fedjax_muon.files import named
from fedjax_muon.runs.config import Comparison, Config, Job, Run, Sweep
from fedjax_muon.runs.errors import logged, refusing
from fedjax_muon.runs.own_code import file_name, is_own
from fedjax_muon.simulation import checkpoint

CONFIG = "config.json"
KINDS = {"run": Run, "comparison": Comparison, "sweep": Sweep}


def to_json(job: Job) -> str:
    """The text of config.json."""
    kind = {"kind": type(job).__name__.lower()}
    return json.dumps(kind | dataclasses.asdict(job), indent=2, default=str) + "\n"


def from_json(text: str) -> Job:
    """Reads what `to_json` wrote; raises `ValueError` for anything else."""
    try:
        fields = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"not the config of a run, but {type(fields).__name__}")
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    config = fields.get("config")
    if not isinstance(config, dict):
        raise ValueError(f"config must be an object, got {config!r}")
    _check_names(KINDS[kind], fields)
    _check_names(Config, config)
    adapter: pydantic.TypeAdapter[Job] = pydantic.TypeAdapter(KINDS[kind])
    try:
        return adapter.validate_json(json.dumps(fields), strict=True)
    except pydantic.ValidationError as error:
        raise ValueError(one_line(error)) from error


def _check_names(kind: Any, values: dict[str, Any]) -> None:
    names = {field.name for field in dataclasses.fields(kind)}
    for name in sorted(names ^ values.keys()):
        problem = "unknown" if name in values else "missing"
        raise ValueError(
            f"{name!r} is {problem} in its {kind.__name__.lower()}: it was written by "
            "another version of fedjax_muon; train again, or install that version"
        )


def one_line(error: pydantic.ValidationError, *place: str) -> str:
    """The first mistake that pydantic has found, with its place in the values."""
    first = error.errors()[0]
    if first["type"] == "value_error":  # of a class of this project
        return str(first["ctx"]["error"])
    where = ".".join(map(str, (*place, *first["loc"])))
    message = first["msg"][:1].lower() + first["msg"][1:]
    return f"{where}: {message}, got {str(first['input'])[:60]!r}"


def create(output: Path | None, job: Job, name: str = "run") -> Path:
    """Makes a new run directory; of several processes, the first does it."""
    if output is not None:
        checkpoint.check_path(output)
        run_on_first(functools.partial(_create, output, job))
        return output
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{file_name(name)}"
    for number in itertools.count(1):
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        checkpoint.check_path(path)
        if not path.exists():
            try:
                _create(path, job)
            except UsedError:  # by a process that began at the same time
                continue
            return path
    raise AssertionError("unreachable")


def resume_command(directory: Path) -> str:
    """The command that continues what runs in a directory, for a shell."""
    words = ["fedjax-muon", "resume", str(directory)]
    with contextlib.suppress(ValueError, OSError):  # it has no readable config
        words += _naming(own_code_of(read(directory)))
    return shlex.join(words)


def own_code_of(job: Job) -> dict[str, list[str]]:
    """The users' own code that a job imports, by the option that names it."""
    algorithms = [job.algorithm] if isinstance(job, Run) else job.algorithms
    names = {"algorithm": algorithms, "model": [job.config.model]}
    names["partition"] = [job.config.partition]
    code = {option: [*filter(is_own, several)] for option, several in names.items()}
    return {option: imported for option, imported in code.items() if imported}


def _naming(code: Mapping[str, Sequence[str]]) -> list[str]:
    return [word for k, v in code.items() for word in (f"--{k}", ",".join(v))]


def check_own_code(directory: Path, job: Job, named: Collection[str]) -> None:
    """Raises `ValueError` unless all code that a directory's job imports is named.

    Who runs a command may not have written the directory.
    """
    code = own_code_of(job)
    if unnamed := sorted({name for v in code.values() for name in v} - set(named)):
        raise ValueError(
            f"{directory} runs custom code, {', '.join(unnamed)}; if you trust it, add "
            f"{shlex.join(_naming(code))}"
        )


class UsedError(ValueError):
    """A directory that is used already."""


def _create(directory: Path, job: Job) -> None:
    used = UsedError(
        f"{directory} is already used; choose another --output, or continue it with: "
        f"{resume_command(directory)}"
    )
    # a process that was killed while it claimed the directory leaves temporary files
    if directory.exists() and (
        not directory.is_dir() or not all(map(files.is_temporary, directory.iterdir()))
    ):
        raise used
    about = json.dumps(versions(), indent=2) + "\n"
    # what is not made here is not removed
    new = [path for path in (directory, *directory.parents) if not path.exists()]
    claimed = False
    try:
        directory.mkdir(parents=True, exist_ok=True)
        claimed = files.claim(directory / CONFIG, to_json(job))
        if not claimed:
            raise used
        files.write(directory / VERSIONS, about)
    except OSError:
        if claimed:  # else these files are another process's
            for path in (directory / VERSIONS, directory / CONFIG):
                path.unlink(missing_ok=True)
        for path in new:
            with contextlib.suppress(OSError):  # another process works there
                path.rmdir()
        raise


def read(directory: Path) -> Job:
    """What a run directory was made for. Raises `ValueError` if it is none."""
    path = directory / CONFIG
    if not path.is_file():
        raise ValueError(f"{directory} is not a run directory: it has no {CONFIG}")
    with named(path):
        return from_json(path.read_text())


def cell_of(directory: Path, run: Run) -> Path:
    """Where a run of a comparison lies."""
    epsilons = [f"epsilon{value:g}" for value in run.config.epsilon]
    return Path(directory, file_name(run.algorithm), *epsilons, f"seed{run.seed}")


def cells(directory: Path, comparison: Comparison) -> dict[Path, Run]:
    """Where each run of a comparison lies."""
    runs = [run for row in comparison.rows for run in row]
    return {cell_of(directory, run): run for run in runs}


def check_same(directory: Path, run: Run) -> None:
    """Raises `ValueError` if a directory holds another run than `run`."""
    if dataclasses.asdict(read(directory)) != dataclasses.asdict(run):
        raise ValueError(
            f"{directory / CONFIG} does not match the config of the comparison; start "
            "again in another directory"
        )


@contextlib.contextmanager
def resumable(run_dir: Path, again: str = "") -> Iterator[Callable[[], bool]]:
    """Holds a run directory, and ends with the command to resume if it is interrupted.

    Args:
      again: The command to continue with; by default `fedjax-muon resume`.

    Yields:
      A function that tells whether an interrupt has come, see `interruptible`.
    """
    holding = contextlib.ExitStack()
    with refusing():
        holding.enter_context(held(run_dir))
    try:
        with interruptible() as pressed, holding, logged(run_dir):
            yield pressed
    except KeyboardInterrupt:
        again = again or resume_command(run_dir)
        print(f"\ninterrupted; continue with: {again}")
        sys.exit(130)

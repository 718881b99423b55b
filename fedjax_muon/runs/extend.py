"""More than a run directory was made for: larger grids of a sweep, or more rounds.

Only what is missing is trained.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedjax_muon import files
from fedjax_muon.runs import directory
from fedjax_muon.runs.compare import chosen
from fedjax_muon.runs.config import Comparison, Config, Run, Sweep
from fedjax_muon.runs.directory import from_json, to_json

ELSEWHERE = ("data_dir",)  # files may lie elsewhere


def is_sweep(run_dir: Path) -> bool:
    """Whether a directory holds a sweep, finished or not."""
    if not (run_dir / directory.CONFIG).exists():
        return False
    return isinstance(directory.read(run_dir), Sweep)


def extend(run_dir: Path, job: Sweep) -> None:
    """Makes the directory of a sweep that of a larger one, `job`, which includes it."""
    with directory.held(run_dir):
        old, new = directory.read(run_dir), from_json(to_json(job))
        if not isinstance(old, Sweep) or not isinstance(new, Sweep):
            raise ValueError(
                f"{run_dir} is not the directory of a sweep; choose another --output"
            )
        differs = list(differences(old, new))
        if differs:
            raise ValueError(
                f"{run_dir} holds a sweep that can't be extended to this one: "
                f"{'; '.join(differs)}. Choose another --output"
            )
        files.write(run_dir / directory.CONFIG, to_json(job))


def differences(old: Sweep, new: Sweep) -> Iterator[str]:
    """Yields the entries that do not let one sweep be extended to another."""
    for field in dataclasses.fields(Config):
        values = [getattr(job.config, field.name) for job in (old, new)]
        if values[0] != values[1] and field.name not in ELSEWHERE:
            yield f"{field.name} was {values[0]} and is {values[1]}"
    if old.validation != new.validation:
        yield f"validation was {old.validation} and is {new.validation}"
    yield from _missing("algorithms", old.algorithms, new.algorithms)
    yield from _missing("seeds", old.seeds, new.seeds)
    for name in (name for name in old.algorithms if name in new.grids):
        before, after = old.grids[name], new.grids[name]
        if list(before) != list(after):
            options = [", ".join(grid) for grid in (before, after)]
            yield f"the grid of {name} was over {options[0]} and is over {options[1]}"
            continue
        for option, points in before.items():
            yield from _missing(f"{option} of {name}", points, after[option])


def _missing(entry: str, before: Sequence, after: Sequence) -> Iterator[str]:
    left_out = [str(value) for value in before if value not in after]
    if left_out:
        yield f"{entry} had {', '.join(left_out)}"


def lengthen(run_dir: Path, rounds: int) -> None:
    """Writes the job that `with_rounds` returns into config.json.

    The runs of a comparison take over its rounds when they are trained.
    """
    with directory.held(run_dir):
        files.write(run_dir / directory.CONFIG, to_json(with_rounds(run_dir, rounds)))


def with_rounds(run_dir: Path, rounds: int) -> Run | Comparison:
    """The run or comparison of a directory with another number of rounds.

    A comparison keeps the learning rates that it has chosen. Raises `ValueError` if
    rounds that are done would be others, or left out.
    """
    job = directory.read(run_dir)
    if isinstance(job, Sweep):
        raise ValueError(
            f"{run_dir} is a sweep, which cannot be trained further; start a new one "
            f"with --rounds {rounds}"
        )
    if rounds == job.config.rounds:
        return job
    anew = f"would differ from its first round on; start a new run with {rounds}"
    runs = {run_dir: job} if isinstance(job, Run) else directory.cells(run_dir, job)
    for run in runs.values():
        if run.config.private:
            raise ValueError(
                f"{run_dir} is private: its noise is for {run.config.rounds} rounds, "
                f"and with {rounds} it {anew}"
            )
        if run.config.fixes_rounds:
            raise ValueError(
                f"{run.algorithm} has a cosine schedule over {run.config.rounds} "
                f"rounds, and with {rounds} it {anew}"
            )
    if (whole := _comparison_of(run_dir)) is not None:
        raise ValueError(
            f"{run_dir} is a run of the comparison in {whole}; train the comparison "
            f"further with: {directory.resume_command(whole)} --rounds {rounds}"
        )
    done = max(map(_rounds_done, runs))
    if rounds <= done:
        raise ValueError(
            f"{run_dir} has {done} rounds already; --rounds must be larger, got "
            f"{rounds}"
        )
    if isinstance(job, Comparison):
        job = chosen(job, run_dir)
    return dataclasses.replace(
        job, config=dataclasses.replace(job.config, rounds=rounds)
    )


def _comparison_of(run_dir: Path) -> Path | None:
    above = run_dir.absolute().parent.parent
    try:
        job = directory.read(above)
    except ValueError:  # it is no run directory
        return None
    is_cell = isinstance(job, Comparison) and run_dir.absolute() in directory.cells(
        above, job
    )
    return above if is_cell else None


def _rounds_done(run_dir: Path) -> int:
    """The round of the newest checkpoint; -1 if there is none."""
    names = [path.name for path in (run_dir / directory.CHECKPOINTS).glob("*")]
    return max((int(name) for name in names if name.isdecimal()), default=-1)

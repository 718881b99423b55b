"""Larger grids in the run directory of a sweep: only what is missing is trained."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedjax_muon.runs import directory, files
from fedjax_muon.runs.config import Config, Sweep
from fedjax_muon.runs.config_json import from_json, to_json

ELSEWHERE = ("data_dir", "checkpoint")  # files may lie elsewhere


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
            raise ValueError(f"{run_dir} holds no sweep; choose another --output")
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

"""The report of run directories: what is there is shown, what is missing is named."""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_muon.core.atomic_files import write
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.reporting.colors import another, line_of
from fedjax_muon.reporting.comparison import History
from fedjax_muon.reporting.report import Entry, page
from fedjax_muon.runs import directory as directories, sweep as sweeps
from fedjax_muon.runs.config import Comparison, Config, Run, Sweep, label_of
from fedjax_muon.tracking.tracker import flat
from fedjax_muon.versions import check_installed

NEEDED = ("bytes_down", "bytes_up", "seconds", "train_loss")  # columns


class Found(NamedTuple):
    """A run with metrics."""

    place: Path  # the directory that was given
    label: str
    seed: int
    options: Mapping[str, Any]  # without the seed
    history: History
    versions: Mapping[str, Any]


def save_report(
    runs: Sequence[str | Path], path: str | Path, *, overwrite: bool = False
) -> list[str]:
    """Writes an interactive report of runs, one HTML file that needs no network.

    Runs of one method whose options differ in the seed alone are one curve, with 95 %
    intervals. Requires the extra `report`.

    Args:
      runs: Directories of runs, comparisons and sweeps. Of a sweep, the best point of
        every method is shown.
      path: File to write, whose name ends in .html.
      overwrite: Whether an existing file is replaced.

    Returns:
      Sentences that say what is not shown, and why; the report has them too.

    Raises:
      OSError: If the file can't be written.
    """
    path = Path(path)
    if path.suffix.lower() != ".html":
        raise ValueError(f"a report's name must end in .html, got {str(path)!r}")
    if path.exists() and (path.is_dir() or not overwrite):
        raise ValueError(
            f"{path} exists already; choose another name, or replace it (overwrite)"
        )
    if not runs:
        raise ValueError("a report needs at least one run directory")
    check_installed("plotly", "the report")
    found: list[Found] = []
    missing: list[str] = []
    titles: dict[str, None] = {}
    for place in dict.fromkeys(map(Path, runs)):
        try:
            job = directories.read(place)
            found += _found(place, job, missing)
            if isinstance(job, Run | Comparison | Sweep):
                titles[job.config.title] = None
        except (ValueError, OSError) as error:
            missing.append(str(error))
    if not found:
        raise ValueError("; ".join(missing))
    write(path, page("; ".join(titles), _entries(found), missing))
    return missing


def _found(place: Path, job: Any, missing: list[str]) -> list[Found]:
    """The runs in a directory; those without metrics are added to `missing`."""
    if isinstance(job, Sweep):
        return _best(place, job, missing)
    alone = {place: job} if isinstance(job, Run) else directories.cells(place, job)
    found = []
    for cell, run in alone.items():
        try:
            history = metrics_csv.read(cell / directories.METRICS)
            _check(history, cell / directories.METRICS)
        except FileNotFoundError:
            missing.append(f"{cell} has no metrics; {_resumed(place)}")
            continue
        except (ValueError, OSError) as error:
            missing.append(str(error))
            continue
        last, rounds = int(history["round"][-1]), run.config.rounds
        if last < rounds:
            missing.append(f"{cell} has {last} of {rounds} rounds; {_resumed(place)}")
        versions = _versions(place, missing)
        options = _options(run.algorithm, run.hyper, run.config)
        found.append(Found(place, run.label, run.seed, options, history, versions))
    return found


def _best(place: Path, job: Sweep, missing: list[str]) -> list[Found]:
    """The best point of every method in a sweep."""
    found, versions = [], _versions(place, missing)
    for name in job.algorithms:
        label = sweeps.label(job, name)
        try:
            point = sweeps.best_of(job, name, place)
        except ValueError as error:
            missing.append(f"{label}: {error}")
            continue
        if point is None:
            missing.append(f"{label} of {place} diverged at every point of its grid")
            continue
        options = _options(name, point.hyper, job.config_of(name))
        for seed, run in zip(job.seeds, point.runs, strict=True):
            found.append(Found(place, label_of(name), seed, options, run, versions))
    return found


def _check(history: History, path: Path) -> None:
    absent = [name for name in NEEDED if name not in history]
    if absent:
        raise ValueError(f"{path} has no column {absent[0]!r}; repair it or delete it")
    if not len(history["round"]):
        raise ValueError(f"{path} has no rounds")


def _resumed(place: Path) -> str:
    return f"continue it with: {directories.resume_command(place)}"


def _options(name: str, hyper: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """All options of a run but its seed, as JSON has them."""
    options = {"algorithm": name, **hyper, **flat(dataclasses.asdict(config))}
    return json.loads(json.dumps(options, default=str))


def _versions(place: Path, missing: list[str]) -> Mapping[str, Any]:
    path = place / directories.VERSIONS
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        found = None
    if isinstance(found, dict):
        return found
    words = f"{path} is missing or damaged: versions are unknown"
    if words not in missing:
        missing.append(words)
    return {}


def _entries(found: Sequence[Found]) -> list[Entry]:
    """One entry for the runs that differ in their seeds alone."""
    groups: dict[str, dict[int, Found]] = {}
    for one in found:
        what = json.dumps([one.label, one.options, one.versions], sort_keys=True)
        keys = (f"{what} {number}" for number in itertools.count())
        key = next(k for k in keys if one.seed not in groups.get(k, {}))
        groups.setdefault(key, {})[one.seed] = one
    firsts = [next(iter(group.values())) for group in groups.values()]
    entries: list[Entry] = []
    for first, group in zip(firsts, groups.values(), strict=True):
        others = [entry for entry in entries if entry.label == first.label]
        name = first.label
        if [one.label for one in firsts].count(name) > 1:
            name = f"{name}, {first.place}"
        if any(entry.name == name for entry in others):
            name = f"{name} ({len(others) + 1})"
        runs = [one.history for one in group.values()]
        line = another(line_of(first.label), len(others))
        shown = Entry(name, first.label, runs, line, first.options, first.versions)
        entries.append(shown)
    return entries

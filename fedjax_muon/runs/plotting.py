"""Figures of run directories, and of the clients of a problem."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon import problems
from fedjax_muon.data.partition import label_counts
from fedjax_muon.problems import Problem
from fedjax_muon.runs import metrics_csv, plots, summary
from fedjax_muon.runs.cells import read_points
from fedjax_muon.runs.directory import METRICS
from fedjax_muon.runs.identity import ARRAYS, CODE, IDENTITY, words_of
from fedjax_muon.runs.methods import METHODS
from fedjax_muon.runs.style import Looks

MOST_SHOWN = 24  # letters of an option in a label
FORMATS = (".png", ".pdf", ".svg")  # of figures
SHOWN = ("problem", "dataset")  # that the runs of a figure share
# words of a run that do not tell it from others on one figure
SAME = ("seed", "task", "evaluate_every", "drop_nonfinite", *ARRAYS)


def plot(
    directories: Sequence[Path],
    *,
    output: Path = Path("curves.png"),
    looks: Looks | None = None,
) -> Path:
    """Draws the curves of runs, comparisons and sweeps in one figure.

    Args:
      directories: Directories that train, compare or sweep wrote. Runs that differ only
        in their seeds are averaged.
      output: The figure, a .png, .pdf or .svg.
      looks: For labels of methods, new labels, or pairs of a new label and a color,
        such as `{"FedAvg": "baseline", "mine": ("Ours", "black")}`.
    """
    output = _figure(output)
    runs: dict[str, list[Any]] = {}
    singles: list[tuple[dict[str, str], Any]] = []
    shown: dict[tuple[str, ...], Path] = {}
    for place, words in _finished(directories):
        shown[tuple(words.get(f"problem.{name}", "") for name in SHOWN)] = place
        if "grid" not in words:
            singles.append((words, metrics_csv.read(place / METRICS)))
        elif (best := summary.best(read_points(place))) is not None:
            runs.setdefault(label_of(words), []).extend(best.runs)
    if len(shown) > 1:
        (first, one), (second, other), *_ = shown.items()
        raise ValueError(
            f"{one} has runs on {' '.join(first)} and {other} has runs on "
            f"{' '.join(second)}, which one figure cannot compare; draw them separately"
        )
    labels = distinct_labels([words for words, _ in singles])
    for label, (_, columns) in zip(labels, singles, strict=True):
        runs.setdefault(label, []).append(columns)
    summary.check_rounds(runs)
    plots.curves(runs, output, looks=looks)
    return output


def _figure(path: Path) -> Path:
    if path.suffix.lower() not in FORMATS:
        raise ValueError(
            f"a figure's name must end in {', '.join(FORMATS)}, got {str(path)!r}"
        )
    return path.expanduser()


def _finished(directories: Sequence[Path]) -> Iterator[tuple[Path, dict[str, str]]]:
    """The finished runs in directories, with their words."""
    for directory in map(Path, directories):
        found = False
        for path in sorted(directory.rglob(IDENTITY)):
            words, place = words_of(path.parent), path.parent
            is_tuning = "tuning" in place.relative_to(directory).parts
            if is_tuning or not ("grid" in words or (place / METRICS).exists()):
                continue
            found = True
            yield place, words
        if not found:
            raise ValueError(
                f"{directory} has no finished run; name directories of train, compare "
                "or sweep"
            )


def label_of(words: Mapping[str, str]) -> str:
    """What figures call the method of a run, by the run's words."""
    names = [
        text.partition("[")[0].rpartition(".")[2]
        for name, text in words.items()
        if re.fullmatch(r"method\.([\w.]*\.)?algorithm", name)
    ]
    known = [METHODS[name].label for name in names if name in METHODS]
    return (*known, *reversed(names), "method")[0]


def distinct_labels(runs: Sequence[Mapping[str, str]]) -> list[str]:
    """The label of every run; runs with the same label differ in their seeds alone.

    Where runs of one method differ in options, these are in the label.
    """
    labels = [label_of(words) for words in runs]
    whole: dict[str, list[Any]] = {}  # by what is short, and may be the same
    found = list[tuple[str, Any]]()
    for label, words in zip(labels, runs, strict=True):
        others = [
            each for name, each in zip(labels, runs, strict=True) if name == label
        ]
        differ = {
            name.rpartition(".")[2]: text
            for name, text in words.items()
            if name not in SAME
            and not name.startswith(CODE)
            and any(each.get(name) != text for each in others)
        }
        brief = ", ".join([label, *(in_short(k, v) for k, v in differ.items())])
        found.append((brief, differ))
        if differ not in whole.setdefault(brief, []):
            whole[brief].append(differ)
    number = lambda brief, differ: f" ({whole[brief].index(differ) + 1})"
    return [b + number(b, differ) * (len(whole[b]) > 1) for b, differ in found]


def in_short(name: str, text: str) -> str:
    """An option of a run in a label, such as `lr=0.1`, or `buffered 30/10`."""
    known = dict(re.findall(r"(\w+)=([\d.]+)", text)) if name == "cohort" else {}
    if "concurrency" in known:
        return f"buffered {known['concurrency']}/{known['buffer']}"
    if "deadline" in known:
        return f"deadline {float(known['deadline']):g}"
    if "size" in known:
        return f"{known['size']} clients"
    brief = re.sub(r"<function (\S+) at \w+>", r"\1", text).replace("'", "")
    brief = re.sub(r"[\w<>]+\.(?=[a-zA-Z_<])", "", brief)
    brief = brief.replace("<lambda>", "function")
    if len(brief) > MOST_SHOWN:
        brief = re.sub(r"[\[(].*", "", brief.strip("(["))[:MOST_SHOWN]
    return f"{name}={brief}"


def partition(
    problem: Problem | None = None,
    *,
    seed: int = 0,
    output: Path = Path("partition.png"),
) -> str:
    """Draws the labels of each client.

    Args:
      problem: The problem with the clients; by default, classification of digits.
      seed: Decides how examples are divided among clients.
      output: The figure, a .png, .pdf or .svg.
    """
    output, problem = _figure(output), problem or problems.classification()
    if not isinstance(problem, Problem):
        kind = type(problem).__name__
        raise TypeError(f"problem must be a Problem, such as digits, got {kind}")
    parts, dataset = problem.parts(seed), problem.dataset
    if not dataset.classes:
        raise ValueError(f"{problem.name} has targets, and no labels that can be drawn")
    counts = label_counts(dataset.y_train, parts, len(dataset.classes))
    plots.label_counts(counts, dataset.classes, output)
    sizes, classes = counts.sum(1), (counts > 0).sum(1)
    return (
        f"{len(parts)} clients with {sizes.min()} to {sizes.max()} examples (median "
        f"{np.median(sizes):g}) and {classes.min()} to {classes.max()} classes; drawn "
        f"in {output}"
    )

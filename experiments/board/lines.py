"""Files of finished runs: results/board/TRACK.jsonl, and a submission.

A line is about a row (its label, versions and processor), or a run of it.
"""

import csv
import datetime
import hashlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.board import protocol
from experiments.board.protocol import Line, Runs
from experiments.board.row import Row
from experiments.board.tracks import Track, score_of
from experiments.machine import cpu_model
from experiments.studies.tuned import read
from fedjax_muon.core.recipe import in_words
from fedjax_muon.problems import Problem
from fedjax_muon.versions import of_computing

RULES = Path(__file__).parent / "RULES.md"
CHECKED = "## A new row"  # the section on how files are checked, which runs no row
# the digest of version 2.1 of the rules -> the mark of its rows, which is the digest of
# the whole file as it was
MARKS = {"f85c183df5fb3ed2": "99ba86ca280d8917"}
HISTORY = "history.csv"
ABOUT, SUBMISSION = "about", "submission"  # stages; a submission has its file


def rules() -> str:
    """The mark of the rules that all rows have in common: how they are run."""
    text = RULES.read_text(encoding="utf-8").partition(CHECKED)[0]
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return MARKS.get(digest, digest)


def about(name: str, row: Row, track: Track, problem: Problem) -> Line:
    """What the first line of a row says."""
    return {
        "row": name,
        "stage": ABOUT,
        "label": row.label,
        "space": track.space(row),
        "rounds": track.rounds_of(row, problem),
        **(
            {"sizes": {k: in_words(v) for k, v in row.sizes.items()}}
            if row.sizes
            else {}
        ),
        "rules": rules(),
        "processor": cpu_model(),
        "versions": of_computing(),
    }


def lines_of(path: Path, row: str) -> list[Line]:
    """The lines of a row in a file; none if there is no file."""
    return [line for line in read(path) if line["row"] == row] if path.exists() else []


def finish(
    path: Path, name: str, row: Row, track: Track, problem: Problem
) -> Iterator[Line]:
    """Appends what a file lacks of a row; yields the lines as they are finished.

    Raises:
      ValueError: If the file has the row by other rules or from another space.
    """
    first = about(name, row, track, problem)
    lines = [x for x in lines_of(path, name) if x["stage"] != SUBMISSION]
    if not lines:
        lines.append(append(path, first))
    for key in ("space", "rounds", "rules"):
        if lines[0][key] != first[key]:
            raise ValueError(
                f"{path} has {name} with {key} {lines[0][key]}, now {first[key]}; "
                "delete its lines"
            )
    sign, runs = score_of(problem).sign, None
    while todo := protocol.asked(lines, row, track, sign):
        runs = runs or Runs(name, row, track, problem)
        for stage, values, seed in todo:
            train = runs.trial if stage == protocol.TRIAL else runs.final
            line = train(values, seed)
            lines.append(line)
            yield append_once(path, line)


def append(path: Path, line: Line) -> Line:
    with path.open("a") as file:
        file.write(f"{json.dumps(line)}\n")
    return line


def append_once(path: Path, line: Line) -> Line:
    """Appends a run, unless another process was faster."""
    others = map(protocol.key_of, lines_of(path, line["row"]))
    return line if protocol.key_of(line) in others else append(path, line)


def finals(lines: Sequence[Line]) -> list[Line]:
    """The final runs of a row, by seed."""
    runs = [line for line in lines if line["stage"] == protocol.FINAL]
    return sorted(runs, key=lambda line: line["seed"])


def remember(place: Path, row: str, track: str) -> None:
    """Adds the score of a finished row to the history of the board."""
    path = place / HISTORY
    runs = finals(lines_of(place / f"{track}.jsonl", row))
    score = float(np.mean([line["score"] for line in runs]))
    lines: list[list[Any]] = [] if path.exists() else [[*COLUMNS]]
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    line = [date, commit(), row, track, f"{score:.4f}"]
    if path.exists() and ",".join(line) in path.read_text().splitlines():
        return  # another process has added it
    lines.append(line)
    with path.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


COLUMNS = ("date", "commit", "method", "track", "score")


def commit() -> str:
    """The commit of this checkout; empty outside of one."""
    asked = ["git", "-C", str(RULES.parent), "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # without git
        return ""
    return found.stdout.strip()

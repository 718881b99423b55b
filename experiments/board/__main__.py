"""The board: which method reaches a target, by rounds, bytes and seconds.

    python -m experiments.board check FILE.py            # where your method stands
    python -m experiments.board check FILE.py --against fedmuon
    python -m experiments.board accept SUBMISSION.jsonl  # runs it again, adds the row
    python -m experiments.board run digits               # all that is missing
    python -m experiments.board run fashion --data-dir DATA --part 0 --parts 2
    python -m experiments.board untuned digits           # all rows, without a search
    python -m experiments.board seconds digits           # of a round, when idle
    python -m experiments.board page                     # tables, figures, page

RULES.md has the rules. Every finished run is appended to results/board/TRACK.jsonl, and
left out the next time.
"""

from pathlib import Path
from typing import Literal

from experiments.arguments import call
from experiments.board import lines as kept, page, protocol, submissions, untuned
from experiments.board.rows import ROWS
from experiments.board.tracks import TRACKS
from fedjax_muon.cli.main import ending
from fedjax_muon.core import check_choice

PLACE = Path("results/board")
What = Literal["check", "accept", "run", "untuned", "seconds", "page"]


def main(
    what: What,
    of: str = "",
    /,
    row: str | None = None,
    track: str = "digits",
    data_dir: Path | None = None,
    part: int = 0,
    parts: int = 1,
    output: Path | None = None,
    against: str | None = None,
) -> None:
    """Runs rows of the board, checks or accepts one, or writes the page.

    Args:
      what: What to do.
      of: A track to run, or a file to check or accept.
      row: One row; by default all of the track, or of the file.
      track: The track that a file is checked on.
      data_dir: Directory of the datasets.
      part: The part of the rows that this process runs.
      parts: The number of processes.
      output: Directory of the results, by default results/board; of `check` that of
        the submission, by default the directory of the file.
      against: A row of the board that `check` compares a file with too.
    """
    board = output or PLACE
    with ending():
        if what == "page":
            page.write(board)
        elif what == "check":
            there = (board / f"{track}.jsonl").exists()
            where = board if there else PLACE, against, output
            submissions.check(Path(of), row, track, data_dir, *where)
        elif what == "accept":
            submissions.accept(Path(of), data_dir, board)
        else:
            check_choice("track", of, TRACKS)
            names = [name for name, each in ROWS.items() if of in each.tracks]
            if what == "untuned":
                names = untuned.runnable(of, board)
            mine = [check_choice("row", row, names)] if row else names[part::parts]
            run(of, mine, what, data_dir, board)


def run(
    name: str, rows: list[str], what: str, data_dir: Path | None, output: Path
) -> None:
    """Runs what is missing of rows on a track."""
    track = TRACKS[name]
    problem = track.problem(data_dir)
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{name}.jsonl"
    for each in rows:
        row = untuned.EVERY[each]
        if what == protocol.SECONDS:
            known = [line["stage"] for line in kept.lines_of(path, each)]
            if protocol.SECONDS not in known:
                line = protocol.Runs(each, row, track, problem).seconds()
                print(*kept.append(path, line).values(), flush=True)
            continue
        if what == "untuned":
            for line in untuned.runs_of(output, each, row, name, problem):
                shown = {k: v for k, v in line.items() if not isinstance(v, list)}
                print(*shown.values(), flush=True)
            continue
        last = None
        for last in kept.finish(path, each, row, track, problem):
            shown = {k: v for k, v in last.items() if not isinstance(v, list)}
            print(*shown.values(), flush=True)
        if last is not None:
            kept.remember(output, each, name)


if __name__ == "__main__":
    call(main, __doc__)

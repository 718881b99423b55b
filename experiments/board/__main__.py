"""The board: which method reaches a target, by rounds, bytes and seconds.

    python -m experiments.board digits                      # all that is missing
    python -m experiments.board digits --method fedmuon     # one row
    python -m experiments.board fashion --data-dir DATA --part 0 --parts 2
    python -m experiments.board private                     # or ring --data-dir DATA
    python -m experiments.board digits --seconds            # of a round, when idle
    python -m experiments.board page                        # tables, figures, page

RULES.md has the rules. Finished pieces of a method are appended to
results/board/TRACK.jsonl, and left out the next time.
"""

import json
from pathlib import Path
from typing import Literal

from experiments.arguments import call
from experiments.board import page, protocol
from experiments.board.entries import entries_of, entry_of
from experiments.board.tracks import TRACKS
from experiments.studies import tuned
from fedjax_muon.cli.errors import refusing

PLACE = Path("results/board")
What = Literal[
    "digits",
    "fashion",
    "fashion_classes",
    "heart",
    "plays",
    "private",
    "ring",
    "page",
]


def main(
    what: What,
    method: str | None = None,
    data_dir: Path | None = None,
    seconds: bool = False,
    part: int = 0,
    parts: int = 1,
    output: Path = PLACE,
) -> None:
    """Runs what is missing of a track, or writes the page.

    Args:
      what: A track, or the page.
      method: One method; by default all of the track.
      data_dir: Directory of the datasets.
      seconds: Instead, measure the seconds of a round; nothing else should run.
      part: The part of the methods that this process runs.
      parts: The number of processes.
      output: Directory of the results.
    """
    with refusing():
        if what == "page":
            page.write(output)
            return
        track = TRACKS[what]
        names = [method] if method else [*entries_of(track)][part::parts]
        entries = {name: entry_of(name, track) for name in names}
        problem = track.problem(data_dir)
        output.mkdir(parents=True, exist_ok=True)
        path = output / f"{what}.jsonl"
        path.touch()
        for name, entry in entries.items():
            todo = protocol.pieces(name, entry.trials(track))
            for piece in [protocol.Piece(name, protocol.SECONDS)] if seconds else todo:
                known = [row for row in tuned.read(path) if row["method"] == name]
                if any(row["stage"] == piece.stage for row in known):
                    continue
                rows = protocol.run(piece, entry, track, problem, known)
                if any(
                    tuple(piece) == (r["method"], r["stage"]) for r in tuned.read(path)
                ):
                    continue  # another process has finished it
                with path.open("a") as file:
                    file.write("".join(f"{json.dumps(row)}\n" for row in rows))
                best = max(row.get("score", row.get("seconds")) for row in rows)
                print(*piece, f"{best:.3f}", flush=True)


if __name__ == "__main__":
    call(main, __doc__)

"""Records in a file of JSON lines."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_muon.tracking.tracker import Record, Status, Tracker


def json_lines(path: str | Path, *, resume: bool = False) -> Tracker:
    """Writes every record as one line of JSON.

    `pandas.read_json(path, lines=True)` reads the file. A number that is not finite is
    null, since JSON has none. A round that is in the file is not written again.

    Args:
      resume: Whether an existing file is continued. A last line that was cut off is
        removed.
    """
    path = Path(path)
    if path.exists() and not resume:
        raise ValueError(
            f"{path} exists already; choose another file, or continue it with "
            "resume=True"
        )
    rounds: set[int] = set()

    def on_start(config: Mapping[str, Any]) -> None:
        del config
        path.parent.mkdir(parents=True, exist_ok=True)
        rounds.clear()
        if path.exists():
            rounds.update(_rounds_of(path))

    def on_record(record: Record) -> None:
        if record["round"] in rounds:
            return
        line = json.dumps({name: _value(v) for name, v in record.items()})
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        rounds.add(record["round"])

    def on_end(status: Status) -> None:
        del status

    return Tracker(str(path), on_start, on_record, on_end)


def _value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rounds_of(path: Path) -> set[int]:
    """The rounds in a file, from which a last line without an end is removed."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        with path.open("r+b") as file:
            file.truncate(len(whole))
    rounds = set()
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            rounds.add(int(json.loads(line)["round"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} of {path} is not a record") from error
    return rounds

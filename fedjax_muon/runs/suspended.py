"""The part of a job that an interrupt left unfinished: a group of cells, or a run.

It is a checkpoint in a directory of its own, and is deleted when the job is done. A
killed process leaves none: its part begins anew.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_muon.simulation import checkpoint


class Suspended:
    """What an interrupt left unfinished, which only its owner can read."""

    def __init__(self, path: Path):
        self.path = path

    def save(self, part: Any, state: Any, notes: Mapping[str, Any]) -> None:
        """Keeps the state and notes of a part, in place of another one.

        Args:
          part: What identifies it: values that JSON can represent, as `notes`.
        """
        self.clear()
        mark = checkpoint.fingerprint({"part": part}, state)
        self.path.mkdir(mode=0o700, parents=True)  # private runs have secret noise
        with checkpoint.open_checkpoints(self.path / mark[:16]) as checkpoints:
            checkpoint.save(checkpoints, 0, state, mark, notes)

    def restore(self, part: Any, template: Any) -> tuple[Any, dict[str, Any]] | None:
        """Reads the state and notes of a part; None if another was kept, or none."""
        mark = checkpoint.fingerprint({"part": part}, template)
        path = self.path / mark[:16]
        if not path.is_dir():
            return None
        with checkpoint.open_checkpoints(path) as checkpoints:
            return checkpoint.restore(checkpoints, template, mark)

    def clear(self) -> None:
        """Deletes what is kept."""
        if self.path.exists():
            shutil.rmtree(self.path)

"""The group of a sweep's cells that an interrupt left unfinished."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from fedjax_muon.simulation import checkpoint
from fedjax_muon.simulation.sweeps import Cell


class Suspended:
    """The group of cells that an interrupt left unfinished, a `Pause` of `run_cells`.

    It is a checkpoint in a directory of its own, which only its owner reads, and is
    deleted when the sweep is done. A killed process leaves none: its group begins anew.
    """

    def __init__(self, path: Path, asked: Callable[[], bool], settings: Any):
        self.path, self.asked, self.settings = path, asked, settings

    def save(self, cells: Sequence[Cell], state: Any, notes: dict[str, Any]) -> None:
        """Keeps the state and notes of a group, in place of another one."""
        clear(self.path)
        mark = self._mark(cells, state)
        self.path.mkdir(mode=0o700, parents=True)  # private runs have secret noise
        with checkpoint.open_checkpoints(self.path / mark[:16]) as checkpoints:
            checkpoint.save(checkpoints, 0, state, mark, notes)

    def restore(
        self, cells: Sequence[Cell], state: Any
    ) -> tuple[Any, dict[str, Any]] | None:
        """Reads the state and notes of a group; None if another was kept, or none."""
        mark = self._mark(cells, state)
        path = self.path / mark[:16]
        if not path.is_dir():
            return None
        with checkpoint.open_checkpoints(path) as checkpoints:
            return checkpoint.restore(checkpoints, state, mark)

    def _mark(self, cells: Sequence[Cell], state: Any) -> str:
        seeds = [jax.random.key_data(cell.key).tolist() for cell in cells]
        part = [self.settings, [dict(cell.hyper) for cell in cells], seeds]
        return checkpoint.fingerprint({"part": part}, state)


def clear(path: Path) -> None:
    """Deletes a directory, if it is there."""
    if path.exists():
        shutil.rmtree(path)

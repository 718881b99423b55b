"""Results of the cells of a sweep, collected while a group of them runs."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_muon.simulation.rounds import Metrics
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.training import Record


class Outcome(NamedTuple):
    """Results of a cell: records of `training.train`, with validation metrics.

    `seconds` of a record are the cell's share of the time of its group.
    """

    rows: list[Record]
    diverged: int | None  # the round in which a message was not finite


class GroupRecord:
    """Records of a group's cells, and which of the cells have diverged."""

    def __init__(self, simulation: Simulation, cells: int, drop_nonfinite: bool):
        self.bytes_after = simulation.bytes_after
        self.drop_nonfinite = drop_nonfinite
        self.began = time.perf_counter()
        self.rows: list[list[Record]] = [[] for _ in range(cells)]
        self.dropped = [0] * cells
        self.diverged: list[int | None] = [None] * cells
        self.round = 0

    def notes(self) -> dict[str, Any]:
        """All that JSON can represent."""
        seconds = time.perf_counter() - self.began
        return {
            "rows": self.rows,
            "dropped": self.dropped,
            "diverged": self.diverged,
            "round": self.round,
            "seconds": seconds,
        }

    def load(self, notes: Mapping[str, Any]) -> None:
        """Becomes what the notes say."""
        self.rows, self.dropped = notes["rows"], notes["dropped"]
        self.diverged, self.round = notes["diverged"], notes["round"]
        self.began = time.perf_counter() - notes["seconds"]

    def add_prologue(self, received: jax.Array) -> None:
        if self.drop_nonfinite:
            return
        for cell in np.flatnonzero(~np.asarray(received)[: len(self.rows)].all(axis=1)):
            self.diverged[cell] = 0

    def add_metrics(self, metrics: Metrics, index: int) -> None:
        self.round = index
        lost, first = np.asarray(metrics.lost), np.asarray(metrics.lost_round)
        for cell in np.flatnonzero(lost[: len(self.rows)].any(axis=1)):
            self.dropped[cell] += int(lost[cell].sum())
            if self.diverged[cell] is None and not self.drop_nonfinite:
                self.diverged[cell] = int(first[cell][first[cell] >= 0].min())

    def is_over(self) -> bool:
        return None not in self.diverged

    def add_rows(self, index: int, scores: Mapping[str, jax.Array]) -> None:
        down, up = self.bytes_after(index)
        seconds = (time.perf_counter() - self.began) / len(self.rows)
        columns = {name: np.asarray(values) for name, values in scores.items()}
        for cell, rows in enumerate(self.rows):
            if index == 0 or self.diverged[cell] is None:
                row: Record = {"round": index, "bytes_down": down, "bytes_up": up}
                row |= {name: float(values[cell]) for name, values in columns.items()}
                row |= {"dropped": self.dropped[cell], "seconds": seconds}
                rows.append(row)

    def outcomes(self) -> list[Outcome]:
        return list(map(Outcome, self.rows, self.diverged))

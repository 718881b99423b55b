"""A ledger of what private runs on one dataset have cost together.

    ledger = Ledger("a9a.ledger.json", fingerprint(dataset))
    entry = Entry.now("runs/1/seed0", "DP-SGDA, epsilon 1, seed 0", cost_of(spec))
    epsilon = ledger.charge([entry], delta=1e-5, budget=8.0)

A run is charged before it starts, and once however often it is resumed. The ledger is a
JSON file, which is replaced as a whole, and locked meanwhile.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from fedjax_muon.core import atomic_files
from fedjax_muon.data import Dataset
from fedjax_muon.privacy.accounting import check_epsilon
from fedjax_muon.privacy.composition import Cost, composed_epsilon

FORMAT = "fedjax_muon privacy ledger"
VERSION = 1  # of the format
PATIENCE = 600  # seconds to wait for another process; an accountant takes a few


@dataclasses.dataclass(frozen=True)
class Entry:
    """One run in a ledger."""

    run: str  # identifies the run, in this ledger
    label: str  # what ran, in words
    cost: Cost
    time: str  # when it was charged, in UTC, ISO 8601
    void: str = ""  # why the run has no guarantee, if it has none

    def __post_init__(self) -> None:
        for name in ("run", "label", "time", "void"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a string, got {getattr(self, name)!r}")

    @classmethod
    def now(cls, run: str, label: str, cost: Cost, void: str = "") -> "Entry":
        """Makes an entry with the present time."""
        now = datetime.datetime.now(datetime.UTC)
        return cls(run, label, cost, now.isoformat(timespec="seconds"), void)


def fingerprint(dataset: Dataset) -> str:
    """Identifies the training examples of a dataset.

    The same examples in another order, number or scale are another dataset to it.

    Returns:
      SHA-256 of the shapes, types and bytes of `x_train` and `y_train`, in hexadecimal.
    """
    digest = hashlib.sha256()
    for name in ("x_train", "y_train"):
        array = np.ascontiguousarray(getattr(dataset, name))
        if array.dtype.hasobject:
            raise TypeError(f"{name} must be an array of numbers, got {array.dtype}")
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


class Ledger:
    """What private runs on one dataset have cost, in a file.

    Processes may charge at the same moment. The file is readable by its owner alone,
    and made when something is first charged.
    """

    def __init__(self, path: str | os.PathLike[str], data: str):
        # a link would be replaced by a file, and its target locked by another name
        self.path = Path(path).expanduser().resolve()
        self.data = data

    def entries(self) -> tuple[Entry, ...]:
        """Reads what was charged, oldest first; nothing if there is no file."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return ()
        return tuple(self._checked(content))

    def check(
        self, entries: Sequence[Entry], delta: float, budget: float | None = None
    ) -> float:
        """Does what `charge` does, but adds nothing."""
        return self._added(entries, delta, budget)[1]

    def charge(
        self, entries: Sequence[Entry], delta: float, budget: float | None = None
    ) -> float:
        """Adds the runs that the ledger does not have yet, all or none.

        Args:
          entries: The runs. One that is there already is not paid again.
          budget: Largest epsilon of all runs in the ledger together; by default
            unlimited. Runs that are all there already are never refused.

        Returns:
          Epsilon of all runs in the ledger together, infinite if one has no guarantee.
        """
        with self._locked():  # which makes the folders
            new, epsilon = self._added(entries, delta, budget)
            if new:
                self._write((*self.entries(), *new))
        return epsilon

    def _added(
        self, entries: Sequence[Entry], delta: float, budget: float | None
    ) -> tuple[tuple[Entry, ...], float]:
        """The entries that are not there, and epsilon with them."""
        if budget is not None:
            check_epsilon(budget)
        found = self.entries()
        new = self._new(found, entries)
        epsilon = _composed((*found, *new), delta)
        if new and budget is not None and epsilon > budget:
            if math.isinf(epsilon):
                raise ValueError(
                    f"{self.path} has, or would have, runs without a guarantee, so "
                    "that no budget holds; leave out the budget, or keep a ledger of "
                    "other data"
                )
            raise ValueError(
                f"the privacy budget of {self.path} would be exceeded: "
                f"{len(found)} runs have spent epsilon {_composed(found, delta):.4g}, "
                f"with {len(new)} more it would be {epsilon:.4g}, and {budget:g} is "
                f"allowed, at delta {delta:g}; run less, or with smaller epsilons"
            )
        return new, epsilon

    def _new(
        self, found: Sequence[Entry], entries: Sequence[Entry]
    ) -> tuple[Entry, ...]:
        """The entries that are not there, each once."""
        known = {entry.run: entry for entry in found}
        new: dict[str, Entry] = {}
        for entry in entries:
            other = known.get(entry.run) or new.get(entry.run)
            if other is None:
                new[entry.run] = entry
            elif (other.cost, other.void) != (entry.cost, entry.void):
                raise ValueError(
                    f"{self.path} has the run {entry.run!r} with another cost, "
                    f"{other.cost}, than {entry.cost}; another run needs another name"
                )
        return tuple(new.values())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = filelock.FileLock(f"{self.path}.lock", timeout=PATIENCE, mode=0o600)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise ValueError(
                f"another process has kept {self.path} locked for {PATIENCE} seconds; "
                "wait until it ends"
            ) from error
        try:
            yield
        finally:
            lock.release()  # the file stays: others may wait for it

    def _checked(self, content: bytes) -> Iterator[Entry]:
        try:
            record = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self._damaged("it is not JSON") from error
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(
                f"{self.path} is not a privacy ledger; choose another path for it"
            )
        if record.get("version") != VERSION:
            raise ValueError(
                f"{self.path} has version {record.get('version')!r} of the ledger's "
                f"format, and this fedjax_muon reads version {VERSION}; update it"
            )
        if record.get("sha256") != _digest(record):
            raise self._damaged("its content does not match its SHA-256")
        if record["data"] != self.data:
            raise ValueError(
                f"{self.path} is the ledger of another dataset, with the fingerprint "
                f"{record['data'][:12]}... and not {self.data[:12]}...; keep one for "
                "each"
            )
        for fields in record["entries"]:
            try:
                cost = Cost.from_record(fields["cost"])
                yield Entry(**(fields | {"cost": cost}))
            except (TypeError, ValueError, KeyError) as error:
                raise self._damaged(f"an entry is unknown: {error}") from error

    def _damaged(self, reason: str) -> ValueError:
        return ValueError(
            f"{self.path} is damaged, {reason}; restore it from a backup: it alone "
            "says what was spent"
        )

    def _write(self, entries: Sequence[Entry]) -> None:
        """Replaces the file; it is on disk when this returns."""
        record: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "data": self.data,
            "entries": [vars(e) | {"cost": e.cost.to_record()} for e in entries],
        }
        record["sha256"] = _digest(record)
        text = json.dumps(record, indent=1) + "\n"
        atomic_files.write(self.path, text, mode=0o600)


def _composed(entries: Sequence[Entry], delta: float) -> float:
    if any(entry.void for entry in entries):
        return math.inf
    return composed_epsilon((entry.cost for entry in entries), delta)


def _digest(record: Mapping[str, Any]) -> str:
    """Of all but itself."""
    rest = {name: value for name, value in record.items() if name != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

"""Rows of finished runs, whose settings and values are checked."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_muon import files
from fedjax_muon.runs import metrics_csv


class CheckedRows:
    """Rows of finished runs in a CSV file, beside what they were computed with.

    NAME.json has the settings, which later runs must share, and a digest of NAME.csv,
    which tells damage. It names the digests before and after an addition while one is
    under way, so that a process may be killed at any moment.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]):
        """Raises `ValueError` if the rows that are there are damaged, or were computed
        with other settings."""
        self.path, self.record = path, path.with_suffix(".json")
        self.settings = json.loads(json.dumps(settings, default=str))
        if self.record.exists():
            stored = self._read()
            self._compare(stored["settings"])
            if path.exists() and self._digest() not in stored["digests"]:
                raise self._damaged()
        elif path.exists():
            raise self._damaged()

    def extend(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows, all or none; on disk when it returns."""
        old = self.path.read_bytes().decode() if self.path.exists() else ""
        self._replace(old + metrics_csv.text_of(rows, header=not old))

    def _replace(self, text: str) -> None:
        new = hashlib.sha256(text.encode()).hexdigest()
        self._write([self._digest(), new])
        files.write(self.path, text)
        self._write([new])

    def _write(self, digests: Sequence[str]) -> None:
        record = {"settings": self.settings, "digests": list(digests)}
        files.write(self.record, json.dumps(record, indent=1) + "\n")

    def _digest(self) -> str:
        content = self.path.read_bytes() if self.path.exists() else b""
        return hashlib.sha256(content).hexdigest()

    def _read(self) -> dict[str, Any]:
        try:
            stored = json.loads(self.record.read_bytes())
            return {"settings": dict(stored["settings"]), "digests": stored["digests"]}
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged() from error

    def _compare(self, stored: Mapping[str, Any]) -> None:
        for name in sorted(stored.keys() | self.settings.keys()):
            old, new = stored.get(name, "absent"), self.settings.get(name, "absent")
            if old != new:
                raise ValueError(
                    f"the rows of {self.path} were computed with {name} {old}, not "
                    f"with {new}; start again in another directory"
                )

    def _damaged(self) -> ValueError:
        return ValueError(
            f"{self.path} is not what {self.record.name} says of it; delete both to "
            "compute its rows again"
        )

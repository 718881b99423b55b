"""Files of runs: whole at any moment, claimed once, and checked when they are read."""

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fedjax_muon import files
from fedjax_muon.runs import metrics_csv
from fedjax_muon.runs.identity import IDENTITY, claimed

FIRST = {"lr": 0.1, "seed": 3, "diverged": -1}
ROWS = [FIRST | {"round": r, "loss": np.sqrt(2) / (r + 1)} for r in range(5)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cells.csv"


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_a_file_is_the_old_or_the_new_one(tmp_path, monkeypatch):
    path, synced = tmp_path / "a", []
    files.write(path, "old")

    def crash(self, target):
        assert target == path
        assert synced == [self.stat().st_size]  # durable before it takes the place
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", lambda n: synced.append(os.fstat(n).st_size))
    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(OSError, match="no space left"):
        files.write(path, "newer")
    assert (path.read_text(), names(tmp_path)) == ("old", ["a"])


def test_a_claim_succeeds_once(tmp_path):
    path = tmp_path / "a"
    assert files.claim(path, "first")
    assert not files.claim(path, "second")
    assert (path.read_text(), names(tmp_path)) == ("first", ["a"])


def test_simultaneous_claims_of_a_directory_have_one_winner(tmp_path):
    barrier, won = threading.Barrier(8), []

    def claim(seed):
        barrier.wait()
        with contextlib.suppress(ValueError):
            claimed(tmp_path / "run", {"seed": str(seed)})
            won.append(seed)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(claim, range(8)))
    (seed,) = won
    assert str(seed) in (tmp_path / "run" / IDENTITY).read_text()


def test_rows_are_as_appended_one_by_one(path):
    for row in ROWS:
        metrics_csv.append(path, row)
    text = metrics_csv.text_of(ROWS[:2], header=True)
    text += metrics_csv.text_of(ROWS[2:], header=False)
    assert path.read_bytes().decode() == text
    columns = metrics_csv.read(path)
    for name, column in columns.items():
        assert column.dtype == (np.float64 if name in ("lr", "loss") else np.int64)
        assert column.tolist() == [row[name] for row in ROWS]

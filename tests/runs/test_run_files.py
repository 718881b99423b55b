"""Files of runs: whole at any moment, claimed once, and checked when they are read."""

import contextlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fedjax_muon import files
from fedjax_muon.runs import metrics_csv
from fedjax_muon.runs.checked_rows import CheckedRows
from fedjax_muon.runs.identity import IDENTITY, claimed

FIRST = {"lr": 0.1, "seed": 3, "diverged": -1}
ROWS = [FIRST | {"round": r, "loss": np.sqrt(2) / (r + 1)} for r in range(5)]
SETTINGS = {"rounds": 5, "alpha": 0.1, "hidden": (8,)}


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


def test_rows_are_as_appended_one_by_one(path, tmp_path):
    rows = CheckedRows(path, SETTINGS)
    rows.extend(ROWS[:2])
    CheckedRows(path, SETTINGS).extend(ROWS[2:])
    for row in ROWS:
        metrics_csv.append(tmp_path / "others.csv", row)
    assert path.read_bytes() == (tmp_path / "others.csv").read_bytes()
    assert names(tmp_path) == ["cells.csv", "cells.json", "others.csv"]
    columns = metrics_csv.read(path)
    for name, column in columns.items():
        assert column.dtype == (np.float64 if name in ("lr", "loss") else np.int64)
        assert column.tolist() == [row[name] for row in ROWS]


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_rows_are_whole_wherever_a_process_is_killed(path, writes, monkeypatch):
    CheckedRows(path, SETTINGS).extend(ROWS[:2])
    before, whole, count = path.read_bytes(), files.write, []

    def killed(*arguments):
        count.append(arguments)
        if len(count) == writes:
            raise KeyboardInterrupt
        whole(*arguments)

    monkeypatch.setattr(files, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        CheckedRows(path, SETTINGS).extend(ROWS[2:])
    monkeypatch.setattr(files, "write", whole)
    assert (path.read_bytes() == before) == (writes < 3)
    rows = CheckedRows(path, SETTINGS)
    if writes < 3:
        rows.extend(ROWS[2:])
    assert metrics_csv.read(path)["round"].tolist() == list(range(5))


def test_damage_is_refused(path):
    CheckedRows(path, SETTINGS).extend(ROWS)
    record = path.with_suffix(".json")
    rows, about = path.read_bytes(), record.read_bytes()
    damages = [(path, text) for text in (rows[:-1], rows * 2, b"")]
    other = about.replace(b"a", b"b")
    damages += [(record, text) for text in (b"{}", b"[1]", b"\xff{", about[:-9], other)]
    for place, text in [*damages, (record, None)]:
        path.write_bytes(rows)
        record.write_bytes(about)
        place.unlink() if text is None else place.write_bytes(text)
        with pytest.raises(ValueError, match=r"delete both|were computed with"):
            CheckedRows(path, SETTINGS)


def test_rows_without_their_file_are_none(path):
    CheckedRows(path, SETTINGS).extend(ROWS)
    path.unlink()
    CheckedRows(path, SETTINGS).extend(ROWS[:1])
    assert metrics_csv.read(path)["round"].tolist() == [0]


def test_rows_of_other_settings_are_refused(path):
    CheckedRows(path, SETTINGS).extend(ROWS)
    for name, value, message in (
        ("rounds", 6, "computed with rounds 5, not with 6; start again"),
        ("hidden", (9,), r"with hidden \[8\], not with \[9\]"),
        ("more", 1, "with more absent, not with 1"),
    ):
        with pytest.raises(ValueError, match=message):
            CheckedRows(path, SETTINGS | {name: value})
    assert json.loads(path.with_suffix(".json").read_text())["settings"]["rounds"] == 5

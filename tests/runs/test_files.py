"""Files that are written whole or not at all, and rows that are checked."""

import contextlib
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import config, directory, files
from fedjax_muon.runs.files import CheckedRows

ROWS = [
    {"lr": 0.1, "seed": 3, "diverged": -1, "round": r, "loss": np.sqrt(2) / (r + 1)}
    for r in range(5)
]
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


def test_a_directory_whose_claim_was_cut_short_is_free(tmp_path):
    run = config.Run("fedavg", {"lr": 0.1}, 0, config.Config())
    (tmp_path / ".config.json.1.tmp").write_text('{"kind"')
    assert directory.create(tmp_path, run) == tmp_path
    assert directory.read(tmp_path) == run
    with pytest.raises(ValueError, match="is already used"):
        directory.create(tmp_path, run)


def test_simultaneous_claims_have_one_winner(tmp_path):
    run = lambda seed: config.Run("fedavg", {"lr": 0.1}, seed, config.Config())
    barrier, won = threading.Barrier(8), []

    def claim(seed):
        barrier.wait()
        with contextlib.suppress(ValueError):
            directory.create(tmp_path / "run", run(seed))
            won.append(seed)

    threads = [threading.Thread(target=claim, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (seed,) = won
    assert directory.read(tmp_path / "run") == run(seed)


def test_a_full_disk_leaves_the_directory_of_another_process_alone(
    tmp_path, monkeypatch
):
    run = lambda seed: config.Run("fedavg", {"lr": 0.1}, seed, config.Config())
    whole = files.claim

    def late(path, text):
        whole(path, directory.to_json(run(1)))  # another process is first
        raise OSError("no space left")

    monkeypatch.setattr(files, "claim", late)
    with pytest.raises(OSError, match="no space left"):
        directory.create(tmp_path / "run", run(2))
    assert directory.read(tmp_path / "run") == run(1)


def test_names_by_default_differ(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = config.Run("fedavg", {"lr": 0.1}, 0, config.Config())
    made = {directory.create(None, run, "fedavg") for _ in range(5)}
    assert len(made) == 5


@pytest.mark.parametrize("name", ["x[1]", "a*", "b?"])
def test_paths_that_orbax_cannot_read_are_refused(name, tmp_path):
    run = config.Run("fedavg", {"lr": 0.1}, 0, config.Config())
    with pytest.raises(ValueError, match="can't be read from a path with"):
        directory.create(tmp_path / name, run)
    assert names(tmp_path) == []


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


def test_settings_that_older_records_lack_have_their_values_of_then(path):
    CheckedRows(path, SETTINGS).extend(ROWS[:2])
    newer = {**SETTINGS, "form": ("direct",)}
    with pytest.raises(ValueError, match="computed with form absent, and are wanted"):
        CheckedRows(path, newer)
    with pytest.raises(ValueError, match=r"with form \['other'\], and are wanted with"):
        CheckedRows(path, newer, {"form": ("other",)})
    CheckedRows(path, newer, {"form": ("direct",)}).extend(ROWS[2:])
    assert len(metrics_csv.read(path)["loss"]) == len(ROWS)
    CheckedRows(path, newer)  # the record has it now


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


@pytest.mark.parametrize(
    "damage",
    [
        lambda csv, record: csv.write_bytes(csv.read_bytes()[:-1]),
        lambda csv, record: csv.write_bytes(csv.read_bytes() * 2),
        lambda csv, record: csv.write_bytes(b""),
        lambda csv, record: record.unlink(),
        lambda csv, record: record.write_text("{}"),
        lambda csv, record: record.write_text("[1]"),
        lambda csv, record: record.write_bytes(b"\xff{"),
        lambda csv, record: record.write_text(record.read_text()[:-9]),
        lambda csv, record: record.write_text(record.read_text().replace("a", "b")),
    ],
)
def test_damage_is_refused(path, damage):
    CheckedRows(path, SETTINGS).extend(ROWS)
    damage(path, path.with_suffix(".json"))
    with pytest.raises(ValueError, match=r"delete both|were computed with"):
        CheckedRows(path, SETTINGS)


def test_rows_without_their_file_are_none(path):
    CheckedRows(path, SETTINGS).extend(ROWS)
    path.unlink()
    CheckedRows(path, SETTINGS).extend(ROWS[:1])
    assert metrics_csv.read(path)["round"].tolist() == [0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 6}, "computed with rounds 5, and are wanted with 6; start anew"),
        ({"hidden": (9,)}, r"with hidden \[8\], and are wanted with \[9\]"),
        ({"more": 1}, "with more absent, and are wanted with 1"),
    ],
)
def test_rows_of_other_settings_are_refused(path, changes, message):
    CheckedRows(path, SETTINGS).extend(ROWS)
    with pytest.raises(ValueError, match=message):
        CheckedRows(path, SETTINGS | changes)
    assert json.loads(path.with_suffix(".json").read_text())["settings"]["rounds"] == 5

"""Files and directories of runs, and what their configs say."""

import contextlib
import csv
import dataclasses
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from command import refused, run

from fedjax_muon import files, models
from fedjax_muon.core.recipe import recipe_of
from fedjax_muon.data.dataset import Dataset, check
from fedjax_muon.experiments.checked_rows import CheckedRows
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import directory
from fedjax_muon.runs.build import algorithm_of, has_plain_rule
from fedjax_muon.runs.config import METHODS, MODELS, OF_AGENTS, Config, Run, Sweep
from fedjax_muon.runs.directory import from_json, to_json
from fedjax_muon.runs.errors import refusing
from fedjax_muon.runs.extend import extend

FIRST = {"lr": 0.1, "seed": 3, "diverged": -1}
ROWS = [FIRST | {"round": r, "loss": np.sqrt(2) / (r + 1)} for r in range(5)]
SETTINGS = {"rounds": 5, "alpha": 0.1, "hidden": (8,)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cells.csv"


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def run_of(seed: int) -> Run:
    return Run("fedavg", {"lr": 0.1}, seed, Config())


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
    (tmp_path / ".config.json.1.tmp").write_text('{"kind"')
    assert directory.create(tmp_path, run_of(0)) == tmp_path
    assert directory.read(tmp_path) == run_of(0)
    with pytest.raises(ValueError, match="is already used"):
        directory.create(tmp_path, run_of(0))


def test_simultaneous_claims_have_one_winner(tmp_path):
    barrier, won = threading.Barrier(8), []

    def claim(seed):
        barrier.wait()
        with contextlib.suppress(ValueError):
            directory.create(tmp_path / "run", run_of(seed))
            won.append(seed)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(claim, range(8)))
    (seed,) = won
    assert directory.read(tmp_path / "run") == run_of(seed)


def test_a_full_disk_leaves_the_directory_of_another_process(tmp_path, monkeypatch):
    whole = files.claim

    def late(path, text):
        whole(path, to_json(run_of(1)))  # another process is first
        raise OSError("no space left")

    monkeypatch.setattr(files, "claim", late)
    with pytest.raises(OSError, match="no space left"):
        directory.create(tmp_path / "run", run_of(2))
    assert directory.read(tmp_path / "run") == run_of(1)


def test_names_by_default_differ_and_orbax_can_read_all_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("x[1]", "a*", "b?"):
        with pytest.raises(ValueError, match="can't be read from a path with"):
            directory.create(tmp_path / name, run_of(0))
    assert names(tmp_path) == []
    assert len({directory.create(None, run_of(0), "fedavg") for _ in range(5)}) == 5


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


# ------------------------------- which errors are refusals, and which are faults
def test_errors_of_this_package_and_of_the_file_system_are_refusals(capsys, tmp_path):
    empty = np.zeros((0, 2), np.float32), np.zeros(0, int)
    for message, act in {
        "x_train must be non-empty": lambda: check(Dataset(*empty, *empty, ("a",))),
        "No such file": (tmp_path / "missing").read_text,
    }.items():
        with pytest.raises(SystemExit) as stop, refusing():
            act()
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    # those of another package are faults
    with pytest.raises(ValueError, match="could not be broadcast"), refusing():
        np.broadcast_to(np.zeros((2, 3)), (4, 3))


# --------------------------------- options of a config that change the algorithm

PLAIN = {
    "fedavg",
    "feddyn",
    "fedexp",
    "fedprox",
    "scaffold",
    "fedcm",
    "fedavg_m",
    "scaffold_m",
}


def arguments(name, **options):
    return recipe_of(algorithm_of(Run(name, {}, 0, Config(**options)))).arguments


def test_methods_with_plain_steps_and_models_of_the_library():
    found = {name for name, method in METHODS.items() if has_plain_rule(method)}
    assert found - OF_AGENTS.keys() == PLAIN | {"padamfed_vr", "stem", "fess_gda"}
    assert {*MODELS} == {*models.ALL}


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_weight_decay_is_added_to_plain_steps(name):
    rule = arguments(name, weight_decay=0.5)["rule"]
    x, g = jnp.array([2.0, -4.0]), jnp.array([1.0, 1.0])
    moved, _ = rule.update(g, rule.init(x), x)
    np.testing.assert_allclose(moved, [2.0, -1.0])
    plain = arguments(name)["rule"]
    np.testing.assert_array_equal(plain.update(g, plain.init(x), x)[0], g)


def test_other_methods_keep_their_own_decay():
    assert arguments("local_adamw", weight_decay=0.5) == arguments("local_adamw")
    with pytest.raises(ValueError, match="weight_decay must lie in"):
        Config(weight_decay=-0.1)


def test_a_config_of_another_version_is_refused_in_one_line():
    config = json.loads(to_json(Run("fedavg", {}, 0, Config())))
    for change in ({"newer": 1}, {}):
        words = config | {"config": config["config"] | change}
        if not change:
            del words["config"]["delta"]
        with pytest.raises(ValueError, match="written by another version") as error:
            from_json(json.dumps(words))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [None, "grid", [], {}])
def test_a_config_of_another_kind_is_refused_in_one_line(kind):
    with pytest.raises(ValueError, match="kind must be one of run, comparison"):
        from_json(json.dumps({"kind": kind, "config": {}}))


# -------------------------------------- larger grids in the directory of a sweep

SIZES = (
    *("--num-clients", 4, "--cohort-size", 2, "--local-steps", 1, "--batch-size", 4),
    *("--hidden", 4, "--rounds", 2, "--evaluate-every", 2),
)


def cells(place: Path, name: str) -> list[tuple[str, str, str]]:
    with (place / "cells" / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))[1::2]
    return [(row["lr"], row["seed"], row["seconds"]) for row in rows]


@pytest.mark.slow
def test_a_larger_grid_runs_what_is_missing(tmp_path, capsys):
    place = tmp_path / "sweep"
    small = ("sweep", "--algorithms", "fedavg", "--grid", "lr=0.1,0.3", "--seeds", 0)
    run(*small, *SIZES, "--output", place)
    before = cells(place, "fedavg")
    assert [cell[:2] for cell in before] == [("0.1", "0"), ("0.3", "0")]
    large = ("sweep", "--algorithms", "fedavg", "fedprox", "--seeds", "1,0")
    large = (*large, "--grid", "lr=0.3,1,0.1")
    run(*large, *SIZES, "--output", place)
    after = cells(place, "fedavg")
    assert after[:2] == before  # with their seconds: they did not run again
    rates, seeds = ("0.3", "1.0", "0.1"), ("1", "0")
    missing = [(lr, s) for lr in rates for s in seeds if s == "1" or lr == "1.0"]
    assert [cell[:2] for cell in after[2:]] == missing
    assert len(cells(place, "fedprox")) == 6
    assert directory.read(place).grids["fedavg"]["lr"] == (0.3, 1.0, 0.1)
    message = refused(capsys, *small, *SIZES, "--output", place)
    assert "algorithms had fedprox; seeds had 1; lr of fedavg had 1.0" in message


BASE = Sweep(("fedavg",), {"fedavg": {"lr": (0.1,)}}, (0, 1), 0.1, None, Config())
LARGER = dataclasses.replace(BASE, grids={"fedavg": {"lr": (0.01, 0.1, 1.0)}})
CONFIG = dataclasses.replace(BASE.config, dataset="fashion_mnist", rounds=7)
SERVER = {"fedavg": {"server_lr": (1.0,)}}
REFUSED = {
    "dataset was digits and is fashion_mnist; rounds was 100 and is 7": {
        "config": CONFIG
    },
    "validation was 0.1 and is 0.2": {"validation": 0.2},
    "seeds had 0": {"seeds": (1, 2)},
    "lr of fedavg had 0.1": {"grids": {"fedavg": {"lr": (0.3,)}}},
    "the grid of fedavg was over lr and is over server_lr": {"grids": SERVER},
}


def test_what_is_no_extension_is_refused_by_entry(tmp_path):
    place = directory.create(tmp_path / "sweep", BASE, "sweep")
    for said, change in REFUSED.items():
        with pytest.raises(ValueError, match="can't be extended") as error:
            extend(place, dataclasses.replace(LARGER, **change))
        assert said in str(error.value)
        assert directory.read(place) == BASE
    moved = dataclasses.replace(BASE.config, data_dir=tmp_path)  # no difference
    extend(place, dataclasses.replace(BASE, config=moved))
    extend(place, LARGER)
    assert directory.read(place) == LARGER

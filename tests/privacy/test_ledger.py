"""The ledger: what is paid, once, and what is refused; its file under all accidents."""

import dataclasses
import json
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime

import filelock
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon.data import Dataset
from fedjax_muon.privacy import Poisson, gaussian_epsilon, ledger as module
from fedjax_muon.privacy.ledger import (
    Cost,
    Entry,
    Ledger,
    composed_epsilon,
    fingerprint,
)
from tests.support.error_lines import refused

DELTA = 1e-5
DATA, OTHER = "a" * 64, "b" * 64
COST = Cost(8.0, "one example of one agent", "ADD_OR_REMOVE_ONE", DELTA)
SAMPLED = dataclasses.replace(COST, sampling=Poisson(91, 16), steps=5)
CLIENTS = dataclasses.replace(COST, unit="one client with all its examples")
ONE = gaussian_epsilon(8.0, DELTA)


def entry(run, cost=COST, label="DPMixSGD"):
    return Entry.now(run, label, cost)


def of_clients(run, clients):
    return Entry.now(run, "FedAvg", CLIENTS, clients=clients)


def four_times(run):
    """As much as one run with half the noise."""
    return [entry(f"{run}/{i}") for i in range(4)]


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger.json", DATA)


def test_all_runs_are_composed(ledger):
    assert ledger.entries() == ()
    assert ledger.charge([], DELTA) == 0.0
    assert not ledger.path.exists()
    assert ledger.charge([entry("a")], DELTA) == ONE
    four = gaussian_epsilon(4.0, DELTA)
    assert ledger.charge(four_times("b")[:3], DELTA) == pytest.approx(four, 1e-9)
    last = ledger.charge([entry("c", SAMPLED)], DELTA)
    assert last == composed_epsilon([*[COST] * 4, SAMPLED], DELTA) > four
    # as another process sees it
    entries = Ledger(ledger.path, DATA).entries()
    assert [e.run for e in entries] == ["a", "b/0", "b/1", "b/2", "c"]
    assert [e.cost for e in entries] == [*[COST] * 4, SAMPLED]
    assert entries[0].label == "DPMixSGD"
    charged = datetime.fromisoformat(entries[0].time)
    assert 0 <= (datetime.now(UTC) - charged).total_seconds() < 600


def test_a_resumed_run_does_not_pay_again(ledger):
    first = ledger.charge(four_times("a"), DELTA)
    before = ledger.path.read_bytes()
    assert ledger.charge(four_times("a"), DELTA) == first
    assert ledger.charge([entry("a/2", label="in other words")], DELTA) == first
    # it is not refused either, whatever the budget is now
    assert ledger.charge(four_times("a"), DELTA, budget=first / 2) == first
    assert ledger.check(four_times("a"), DELTA, budget=first / 2) == first
    assert ledger.path.read_bytes() == before
    # an entry that is given twice is charged once
    ledger.charge([entry("b"), entry("b"), entry("a/0")], DELTA)
    assert len(ledger.entries()) == 5


def test_what_does_not_fit_is_not_written(ledger):
    ledger.charge([entry("a")], DELTA)
    before = ledger.path.read_bytes()
    other = dataclasses.replace(COST, multiplier=9.0)
    replaced = dataclasses.replace(COST, adjacency="REPLACE_ONE")
    client_run = of_clients("b", "these")
    for said, *entries in (
        ("with another cost", entry("a", other)),
        ("with another cost", entry("b"), entry("b", other)),
        ("the same unit", client_run),
        ("the same adjacency", entry("b", replaced)),
    ):
        refused(said, ledger.charge, entries, DELTA)
    assert ledger.path.read_bytes() == before
    ledger = Ledger(ledger.path.with_name("other.json"), DATA)
    ledger.charge([client_run], DELTA)
    again = dataclasses.replace(client_run, clients="others")
    refused("has the run 'b' with other clients", ledger.charge, [again], DELTA)


def test_runs_of_other_clients_protect_none_together(ledger):
    two = gaussian_epsilon(8.0 / np.sqrt(2), DELTA)
    same = [of_clients("a", "these"), of_clients("b", "these")]
    assert ledger.charge(same, DELTA, budget=1.001 * two) == pytest.approx(two)
    other = [of_clients("c", "others")]
    refused("or with other clients, so no budget", ledger.check, other, DELTA, 1e9)
    assert ledger.charge(other, DELTA) == np.inf
    assert [len(each) for each in module.divisions_of(ledger.entries())] == [2, 1]
    # who the clients of a run in an older ledger are, nobody knows
    record = json.loads(ledger.path.read_bytes()) | {"version": 2}
    for fields in record["entries"]:
        del fields["clients"]
    for kept, epsilon in ((3, np.inf), (1, ONE)):
        old = record | {"entries": record["entries"][:kept]}
        ledger.path.write_text(json.dumps(old | {"sha256": module._digest(old)}))
        assert ledger.charge([of_clients("a", "these")], DELTA) == epsilon
    assert ledger.charge([of_clients("b", "these")], DELTA) == np.inf
    assert ledger.charge([], DELTA) == np.inf  # as it was written in this version


def test_the_budget(ledger):
    for act in (ledger.check, ledger.charge):
        refused("0 runs have spent", act, [entry("a")], DELTA, 0.999 * ONE)
    assert not ledger.path.exists()
    assert ledger.charge([entry("a")], DELTA, budget=ONE) == ONE  # all of it
    before = ledger.path.read_bytes()
    more = gaussian_epsilon(4.0, DELTA)
    # what is spent, what is asked for, and what is allowed
    match = rf"epsilon {ONE:.4g}; with 3 more.* {more:.4g}, but only 0\.5 is allowed"
    for act in (ledger.check, ledger.charge):
        refused(match, act, four_times("b")[1:], DELTA, 0.5)
    assert ledger.path.read_bytes() == before
    allowed = ledger.check(four_times("b")[1:], DELTA, more * (1 + 1e-9))
    assert allowed == pytest.approx(more)
    assert ledger.path.read_bytes() == before  # `check` adds nothing
    assert ledger.charge(four_times("b")[1:], DELTA, more * (1 + 1e-9)) == allowed
    refused("epsilon must lie in", ledger.charge, [], DELTA, 0.0)


def test_the_file_belongs_to_its_owner(ledger):
    old = os.umask(0)
    try:
        ledger.charge([entry("a")], DELTA)
        ledger.charge([entry("b")], DELTA)
    finally:
        os.umask(old)
    for path in ledger.path.parent.iterdir():  # the lock is one of them
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    ledger.path.chmod(0o644)
    ledger.charge([entry("c")], DELTA)
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


def test_folders_are_made_and_links_are_kept(tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "deep" / "down" / "ledger.json")
    Ledger(link, DATA).charge([entry("a")], DELTA)
    assert link.is_symlink()
    assert len(Ledger(link.resolve(), DATA).entries()) == 1


CHARGING = f"""
import sys
from pathlib import Path
from fedjax_muon.privacy import Poisson
from fedjax_muon.privacy.ledger import Cost
from fedjax_muon.privacy.ledger import Entry, Ledger
import dp_accounting
path, name = sys.argv[1:]
ledger, cost = Ledger(path, {DATA!r}), {COST!r}
print("ready", flush=True)
sys.stdin.readline()
for i in range(25):
    ledger.charge([Entry.now(f"{{name}}/{{i}}", "", cost)], 1e-5)
"""


@pytest.mark.slow
def test_processes_that_charge_at_once_lose_nothing(ledger):
    command = [sys.executable, "-c", CHARGING, str(ledger.path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([*command, name], **pipes) for name in ("a", "b")]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in both:
        process.communicate(timeout=300)
        assert process.returncode == 0
    runs = {e.run for e in ledger.entries()}
    assert runs == {f"{name}/{i}" for name in ("a", "b") for i in range(25)}


def test_a_ledger_that_stays_locked(ledger, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    with filelock.FileLock(f"{ledger.path}.lock"):
        refused("another process", ledger.charge, [entry("a")], DELTA)
    ledger.charge([entry("a")], DELTA)


def all_fail(ledger, match):
    before = ledger.path.read_bytes()
    refused(match, ledger.entries)
    for act in (ledger.check, ledger.charge):
        refused(match, act, [entry("z")], DELTA)
    assert ledger.path.read_bytes() == before


def test_a_damaged_file_is_not_started_anew(ledger):
    ledger.charge([entry("a"), entry("b", SAMPLED)], DELTA)
    good = ledger.path.read_bytes()
    record = json.loads(good)
    changed = json.loads(good)
    changed["entries"][0]["cost"]["multiplier"] = 80.0
    fewer = record | {"entries": record["entries"][1:]}
    unknown = record | {"entries": [{"run": "a", "label": "", "time": ""}]}
    unknown["sha256"] = module._digest(unknown)
    for content in (
        b"",
        good[: len(good) // 2],
        good + b"x",
        good.replace(b"8.0", b"9.0"),
        b"\xff\xfe\x00",
        b"[" * 10**5,
        *(json.dumps(one).encode() for one in (changed, fewer, unknown)),
    ):
        ledger.path.write_bytes(content)
        all_fail(ledger, "is damaged.*restore it from a backup")
    ledger.path.write_bytes(good)
    assert len(ledger.entries()) == 2


def test_a_foreign_file_is_not_overwritten(ledger):
    for content in ("[]", "3", "{}", '{"format": "csv"}', "null"):
        ledger.path.write_text(content)
        all_fail(ledger, "is not a privacy ledger")
    ledger.path.unlink()
    ledger.charge([entry("a")], DELTA)
    all_fail(Ledger(ledger.path, OTHER), "of another dataset.*aaaaaaaaaaaa.*bbbbbbbb")
    record = json.loads(ledger.path.read_bytes())
    for change in ({"version": 4}, {"version": None}, {"version": 4, "entries": {}}):
        ledger.path.write_text(json.dumps(record | change))
        version = f"version {change['version']}.*reads versions up to 3; update"
        all_fail(ledger, version)


def test_the_last_round_of_a_run_never_falls(ledger):
    ledger.charge([entry("a"), entry("b")], DELTA)
    assert ledger.round_of("a") == -1
    ledger.reach("a", 0)
    Ledger(ledger.path).reach("a", 3)
    ledger.reach("a", 3)
    assert [each.round for each in ledger.entries()] == [3, -1]
    refused("is an older copy; start again in another", ledger.reach, "a", 2)
    refused("has no run 'c'; start again", ledger.reach, "c", 0)
    refused("has no run 'c'; start again", ledger.round_of, "c")
    ledger.charge([entry("a")], DELTA)  # is there, and keeps its round
    assert ledger.round_of("a") == 3


def test_a_ledger_of_the_first_version_is_read(ledger):
    ledger.charge([entry("a")], DELTA)
    record = json.loads(ledger.path.read_bytes()) | {"version": 1}
    del record["entries"][0]["round"], record["entries"][0]["clients"]
    record["sha256"] = module._digest(record)
    ledger.path.write_text(json.dumps(record))
    assert ledger.round_of("a") == -1
    ledger.reach("a", 1)
    assert ledger.round_of("a") == 1


@pytest.mark.parametrize("broken", ["replace", "fsync", "open"])
def test_a_full_disk_keeps_the_old_file(ledger, monkeypatch, broken):
    ledger.charge([entry("a")], DELTA)
    before = ledger.path.read_bytes()
    files = set(ledger.path.parent.iterdir())
    right = getattr(os, broken)

    def full(*args, **further):
        if broken == "open" and not str(args[0]).endswith(".tmp"):
            return right(*args, **further)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, broken, full)
        refused("No space", ledger.charge, [entry("b")], DELTA, error=OSError)
    assert ledger.path.read_bytes() == before
    assert set(ledger.path.parent.iterdir()) == files
    ledger.charge([entry("b")], DELTA)
    assert len(ledger.entries()) == 2


def dataset(x, y, **further):
    rest = {"x_test": x[:1], "y_test": y[:1], "classes": ("no", "yes")} | further
    return Dataset(x, y, **rest)


def test_a_fingerprint_is_that_of_the_training_examples():
    x, y = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(4, dtype=np.int32)
    mark = fingerprint(dataset(x, y))
    assert len(mark) == 64
    same = (
        dataset(jnp.asarray(x), jnp.asarray(y)),
        dataset(np.asfortranarray(x), y),
        dataset(x.astype(">f4"), y),
        dataset(x, np.stack([y, y], axis=1)[:, 0]),
        dataset(x, y, x_test=x, y_test=y, classes=("0", "1")),
    )
    assert {fingerprint(one) for one in same} == {mark}
    changed = x.copy()
    changed[3, 2] += 1e-3
    others = (
        dataset(changed, y),
        dataset(x, y[::-1]),
        dataset(x.reshape(4, 1, 3), y),
        dataset(x.astype(np.float64), y),
        dataset(x, y.view(np.uint32)),
        dataset(x[:3], y[:3]),
        dataset(jnp.asarray(x, jnp.bfloat16), y),
        dataset(x[:0], y[:0]),
    )
    assert len({mark, *map(fingerprint, others)}) == len(others) + 1
    refused("x_train", fingerprint, dataset(x.astype(object), y), error=TypeError)

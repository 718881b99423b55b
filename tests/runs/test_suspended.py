"""Jobs of several runs that are stopped within one, and continued there."""

import os
import signal

import jax.numpy as jnp
import pytest
from command import SMALL, assert_same_but_for_seconds, refused, run

from fedjax_muon.runs.suspended import Suspended
from fedjax_muon.simulation import sweep_groups as sweeping
from fedjax_muon.simulation import training

# the states of FedAvg and FedProx have the same leaves
SWEEP = ("sweep", "--algorithms", "fedavg", "fedprox", "--grid", "lr=0.03,0.1")
SWEEP += ("--seeds", 0, *SMALL, "--hidden", 4, "--rounds", 12)
PRIVATE = ("private", "--methods", "dpmixsgd", "--epsilons", 4, 8, "--seeds", 0)
PRIVATE += ("--rounds", 12, "--graph", "ring", "--insecure-fixed-noise")
JOBS = {
    "sweep": (SWEEP, ["cells/fedavg.csv", "cells/fedprox.csv"], 2 * 12),
    "private": (PRIVATE, ["metrics.csv"], 2 * 12),
}


@pytest.fixture
def heard(monkeypatch):
    """The rounds of every call; with a number in `at`, SIGTERM comes after so many."""
    heard, whole = {"rounds": [], "at": None}, training.calls

    def calls(*arguments, **options):
        for call in whole(*arguments, **options):
            heard["rounds"].append(call.rounds)
            if heard["at"] is not None and sum(heard["rounds"]) >= heard["at"]:
                os.kill(os.getpid(), signal.SIGTERM)
                heard["at"] = None
            yield call

    monkeypatch.setattr(training, "calls", calls)
    monkeypatch.setattr(sweeping, "calls", calls)
    return heard


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_a_stopped_job_continues_where_it_was(tmp_path, capsys, heard, job):
    words, tables, rounds = JOBS[job]
    place, whole = tmp_path / "stopped", tmp_path / "whole"
    again = (*words, "--output", place)
    for at in (2, 19):  # in one run of the job, and in another
        heard["at"] = at
        with pytest.raises(SystemExit) as stop:
            run(*again)
        assert stop.value.code == 130
        printed = capsys.readouterr().out.replace("\n", "")
        assert f"fedjax-muon resume {place}" in printed
        again = ("resume", place)
    if job == "private":  # the key of the noise is in no file that is published
        secret = place.with_name("stopped.secret")
        assert secret.stat().st_mode & 0o077 == 0
        assert not (place / "suspended").exists()
    run("resume", place)
    assert not place.with_name("stopped.secret").exists()
    assert sum(heard["rounds"]) == rounds, "a round was lost"
    assert not (place / "suspended").exists()
    run(*words, "--output", whole)
    for table in tables:
        assert_same_but_for_seconds(place / table, whole / table)


@pytest.mark.slow
def test_cells_of_another_algorithm_are_not_taken(tmp_path, capsys):
    grid = (*SWEEP[:2], "fedavg", "fedprox", *SWEEP[4:])
    run(*grid, "--output", tmp_path)
    for suffix in (".csv", ".json"):
        cells = (tmp_path / "cells" / "fedavg").with_suffix(suffix)
        cells.replace(cells.with_stem("fedprox"))
    capsys.readouterr()
    said = refused(capsys, "resume", tmp_path)
    assert "were computed with algorithm fedavg, and are wanted with fedprox" in said


@pytest.mark.slow
def test_a_damaged_part_is_refused_and_may_be_deleted(tmp_path, capsys, heard):
    heard["at"] = 7
    place = tmp_path / "run"
    with pytest.raises(SystemExit):
        run(*SWEEP, "--output", place)
    capsys.readouterr()
    for path in (place / "suspended").rglob("*"):
        if path.is_file() and path.stat().st_size > 100:
            path.write_bytes(b"garbage")
    assert "is damaged; delete it" in refused(capsys, "resume", place)
    Suspended(place / "suspended").clear()
    run("resume", place)
    assert (place / "summary.csv").exists()


def test_another_part_is_not_taken(tmp_path):
    suspended, state = Suspended(tmp_path / "suspended"), {"w": jnp.arange(3.0)}
    suspended.save(["a", 1], state, {"rows": []})
    assert suspended.restore(["a", 2], state) is None
    assert suspended.restore(["a", 1], {"w": jnp.zeros(4)}) is None
    found, notes = suspended.restore(["a", 1], state)
    assert (found["w"] == state["w"]).all()
    assert notes == {"rows": []}
    suspended.save(["b"], state, {})
    assert suspended.restore(["a", 1], state) is None

"""`fedjax-muon private` as a user meets it."""

import contextlib
import csv
import io
import json
import re

import numpy as np
import pytest
from command import assert_same_but_for_seconds, refused, run

from fedjax_muon import data
from fedjax_muon.privacy.composition import composed_epsilon
from fedjax_muon.privacy.ledger import Ledger, fingerprint
from fedjax_muon.runs.config import Private
from fedjax_muon.runs.config_json import from_json, to_json

TINY = ("--rounds", 2, "--batch-size", 20, "--graph", "ring", "--seeds", 3)
PRIVATE = ("private", "--methods", "dpmixsgd", *TINY, "--epsilons")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place, printed = tmp_path_factory.mktemp("runs") / "private", io.StringIO()
    ledger = ("--ledger", place.parent / "ledger.json")
    with contextlib.redirect_stdout(printed):
        run(*PRIVATE, 1, 8, *ledger, "--output", place)
    return place, " ".join(printed.getvalue().split())


def test_what_is_left_and_is_not_drawn_as_curves(finished, capsys):
    place, printed = finished
    names = "config.json versions.json ledger.json privacy.txt graph.png metrics.csv"
    names += " metrics.json summary.csv utility.png"
    assert {path.name for path in place.iterdir()} == set(names.split())
    with (place / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    asked = [("dpmixsgd", "1.0"), ("dpmixsgd", "8.0")]
    assert [(row["method"], row["epsilon"]) for row in rows] == asked
    assert "DPMixSGD (clipped)" in printed
    assert not place.with_name("private.secret").exists()
    for row in rows:
        assert f"{100 * float(row['auc_mean']):.2f} ± -" in printed
    assert "whose figure is utility.png" in refused(capsys, "plot", place)


def test_statements_are_printed_and_kept(finished):
    place, printed = finished
    text = (place / "privacy.txt").read_text()
    assert text.count("-differential privacy for one example of one agent") == 2
    assert "(1, 1e-05)-differential privacy" in text
    assert "(8, 1e-05)-differential privacy" in text
    assert "(1, 1e-05)-differential privacy" in printed
    for line in ("cyclic: fixed batches of 20 of 91", "exact Gaussian mechanism"):
        assert line in " ".join(text.split())
    assert "the scaling and the share of positives" in text
    assert "seed" not in text
    mark = fingerprint(data.load("breast_cancer"))
    ledger = Ledger(place.parent / "ledger.json", mark)
    assert [entry.label for entry in ledger.entries()] == [
        "dpmixsgd at epsilon 1 on breast_cancer, seed 3",
        "dpmixsgd at epsilon 8 on breast_cancer, seed 3",
    ]
    composed = composed_epsilon([entry.cost for entry in ledger.entries()], 1e-5)
    assert composed > 8.1
    said = "all 2 runs of this job and 0 others on these data, composed: "
    said += f"({composed:.4g}"
    assert said in text
    assert said in printed
    assert "released: estimate together, 3 steps" in " ".join(text.split())


def test_metrics_are_public_and_less_noisy_for_a_larger_epsilon(finished):
    place, _ = finished
    with (place / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    public = "bytes_down bytes_up test_accuracy test_auc test_loss"
    assert {name for name in rows[0] if "_" in name} == set(public.split())
    ends = [row for row in rows if row["round"] == "2"]
    last = {row["epsilon"]: float(row["consensus"]) for row in ends}
    assert set(last) == {"8.0", "1.0"}
    assert 0 < 3 * last["8.0"] < last["1.0"]  # noise drives agents apart
    assert np.isfinite(last["1.0"])
    # runs of one seed share no noise
    first = [rows_of(place / "metrics.csv", e)[0].split(",") for e in (1.0, 8.0)]
    assert float(first[0][6]) != float(first[1][6])


def rows_of(path, epsilon):
    lines = path.read_text().splitlines()
    return [line for line in lines if line.startswith(f"dpmixsgd,{epsilon},")]


@pytest.mark.slow
def test_a_run_that_is_missing_is_run_and_the_others_are_not(tmp_path):
    place = tmp_path / "run"
    ledger = ("--ledger", tmp_path / "ledger.json")
    with contextlib.redirect_stdout(io.StringIO()):
        run(*PRIVATE, 1, *ledger, "--output", place)
        first = rows_of(place / "metrics.csv", 1.0)
        config = (place / "config.json").read_text()
        more = re.sub(r"\[\s*1\.0\s*\]", "[1.0, 8.0]", config)
        assert more != config
        (place / "config.json").write_text(more)
        run("resume", place)
        assert rows_of(place / "metrics.csv", 1.0) == first
        second = rows_of(place / "metrics.csv", 8.0)
        assert len(second) == len(first) == 3
        run("resume", place)
    assert rows_of(place / "metrics.csv", 8.0) == second
    entries = json.loads((tmp_path / "ledger.json").read_text())["entries"]
    assert len(entries) == 2  # charged once each, however often they are resumed


@pytest.mark.slow
def test_a_budget_is_kept_and_a_damaged_ledger_is_refused(tmp_path, capsys):
    ledger, place = tmp_path / "ledger.json", tmp_path / "second"
    given = ("--budget", 2, "--ledger", ledger, "--output")
    run(*PRIVATE, 1, *given, tmp_path / "first")
    capsys.readouterr()
    before = ledger.read_bytes()
    said = refused(capsys, *PRIVATE, 4, *given, place)
    assert "1 runs have spent epsilon 1, with 1 more it would be 4." in said
    assert not place.exists()
    assert ledger.read_bytes() == before
    run("resume", tmp_path / "first")  # is paid already
    assert ledger.read_bytes() == before
    ledger.write_text("{}")
    said = refused(capsys, *PRIVATE, 1, "--ledger", ledger, "--output", place)
    assert "is not a privacy ledger" in said
    assert not place.exists()


@pytest.mark.slow
def test_noise_from_the_seed_is_reproducible_and_not_private(tmp_path, capsys):
    for name in ("a", "b"):
        fixed = ("--insecure-fixed-noise", "--output", tmp_path / name)
        run(*PRIVATE, 1, *fixed, "--ledger", tmp_path / "ledger.json")
    assert_same_but_for_seconds(*(tmp_path / name / "metrics.csv" for name in "ab"))
    text = (tmp_path / "a" / "privacy.txt").read_text()
    assert "NO differential privacy" in text
    assert "nothing is charged" in text
    assert not (tmp_path / "ledger.json").exists()


@pytest.mark.slow
def test_training_metrics_are_published_on_request(tmp_path):
    run(*PRIVATE, 1, "--publish-training-metrics", "--output", tmp_path / "run")
    assert "train_loss" in (tmp_path / "run" / "metrics.csv").read_text()
    text = (tmp_path / "run" / "privacy.txt").read_text()
    assert "the guarantee does not hold for them" in text


@pytest.mark.slow
def test_rows_of_another_config_or_damaged_are_refused(finished, capsys):
    place, _ = finished
    path = place / "config.json"
    before = path.read_text()
    path.write_text(before.replace('"batch_size": 20', '"batch_size": 21'))
    assert "were computed with batch_size 20" in refused(capsys, "resume", place)
    path.write_text(before)
    metrics = place / "metrics.csv"
    rows = metrics.read_text()
    metrics.write_text("".join(rows.splitlines(keepends=True)[:-1]))
    assert "is not what metrics.json says of it" in refused(capsys, "resume", place)
    metrics.write_text(rows)


@pytest.mark.slow
def test_what_diverges_is_called_so(tmp_path):
    printed, place = io.StringIO(), tmp_path / "run"
    words = ("--lr", "dpmixsgd", 3.4e38, "--rounds", 8)
    words += ("--insecure-fixed-noise",)  # for the same numbers in every run
    with contextlib.redirect_stdout(printed):
        run(*PRIVATE, 1, *words, "--output", place)
    assert "diverged" in printed.getvalue()
    assert not (place / "utility.png").exists()  # nothing is left to draw
    assert (place / "summary.csv").read_text().splitlines()[1] == "dpmixsgd,1.0,nan,nan"


def test_configs_with_the_older_names_of_clip_norms_are_read():
    job = Private(clip_norm=0.3, change_clip_norm=0.05)
    older = to_json(job).replace('"change_clip_norm"', '"change"')
    older = older.replace('"clip_norm"', '"limit"')
    assert from_json(older) == from_json(to_json(job)) == job

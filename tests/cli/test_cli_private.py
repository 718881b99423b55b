"""`fedjax-muon private` as a user meets it."""

import contextlib
import csv
import io
import re

import numpy as np
import pytest
from command import refused, run

from fedjax_muon.runs.config import Private, from_json, to_json

TINY = ("--rounds", 2, "--batch-size", 20, "--graph", "ring", "--seeds", 3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place, printed = tmp_path_factory.mktemp("runs") / "private", io.StringIO()
    methods = ("--methods", "dsgda", "dpmixsgd", "--epsilons", 1, 8)
    with contextlib.redirect_stdout(printed):
        run("private", *methods, *TINY, "--output", place)
    return place, " ".join(printed.getvalue().split())


def test_what_is_left(finished):
    place, printed = finished
    assert {path.name for path in place.iterdir()} == {
        "config.json",
        "versions.json",
        "privacy.txt",
        "graph.png",
        "metrics.csv",
        "metrics.json",
        "summary.csv",
        "utility.png",
    }
    with (place / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    asked = [("dsgda", "inf"), ("dpmixsgd", "1.0"), ("dpmixsgd", "8.0")]
    assert [(row["method"], row["epsilon"]) for row in rows] == asked
    assert "D-SGDA" in printed
    for row in rows:
        assert f"{100 * float(row['auc_mean']):.2f} ± -" in printed


def test_statements_are_printed_and_kept(finished):
    place, printed = finished
    text = (place / "privacy.txt").read_text()
    assert text.count("-differential privacy for one example of one agent") == 2
    assert "(1, 1e-05)-differential privacy" in text
    assert "(8, 1e-05)-differential privacy" in text
    assert "(1, 1e-05)-differential privacy" in printed
    for line in ("cyclic: fixed batches of 20 of 91", "exact Gaussian mechanism"):
        assert line in " ".join(text.split())
    assert "scaling and share of positives of the whole data are public" in text
    assert "the seed stays secret" in text
    assert "released: estimate together, 3 steps" in " ".join(text.split())


def test_less_noise_for_a_larger_epsilon(finished):
    place, _ = finished
    with (place / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    last = {
        row["epsilon"]: float(row["consensus"]) for row in rows if row["round"] == "2"
    }
    assert set(last) == {"inf", "8.0", "1.0"}
    assert 0 < 3 * last["8.0"] < last["1.0"]  # noise drives agents apart
    assert np.isfinite(last["1.0"])


def without_seconds(path) -> list[list[str]]:
    lines = [line.split(",") for line in path.read_text().splitlines()]
    seconds = lines[0].index("seconds")
    return [[v for i, v in enumerate(line) if i != seconds] for line in lines]


def test_a_run_that_is_missing_is_run_and_the_others_are_not(finished):
    place, _ = finished
    path, config = place / "metrics.csv", (place / "config.json").read_text()
    whole, summary = without_seconds(path), (place / "summary.csv").read_text()
    path.unlink()
    fewer = re.sub(r"1\.0,\s*8\.0", "1.0", config)
    assert fewer != config
    (place / "config.json").write_text(fewer)
    with contextlib.redirect_stdout(io.StringIO()):
        run("resume", place)
        first = path.read_text()
        (place / "config.json").write_text(config)
        run("resume", place)
    assert path.read_text().startswith(first)
    assert len(first.splitlines()) < len(whole)
    assert without_seconds(path) == whole
    assert (place / "summary.csv").read_text() == summary


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


def test_a_private_directory_is_not_drawn_as_curves(finished, capsys):
    place, _ = finished
    assert "whose figure is utility.png" in refused(capsys, "plot", place)


def test_what_diverges_is_called_so(tmp_path):
    printed, place = io.StringIO(), tmp_path / "run"
    with contextlib.redirect_stdout(printed):
        run(
            "private",
            "--methods",
            "dsgda",
            *TINY,
            "--lr",
            "dsgda",
            1e30,
            "--output",
            place,
        )
    assert "diverged" in printed.getvalue()
    assert not (place / "utility.png").exists()  # nothing is left to draw
    assert (place / "summary.csv").read_text().splitlines()[1] == "dsgda,inf,nan,nan"


BAD = {
    "unknown method": ("unknown method 'dpsgd'; there are dsgda", "--methods dpsgd"),
    "twice": ("methods must be one or more, each once", "--methods dsgda,dsgda"),
    "epsilon twice": ("epsilons must be one or more, each once", "--epsilons 1,1"),
    "rate of nothing": ("unknown method 'sgd'", "--lr sgd 0.1"),
    "no epsilon": ("epsilon must lie in (0, infinity)", "--epsilons 0"),
    "large delta": ("delta must lie in (0, 0.01", "--delta 0.02"),
    "large batch": ("batch_size must lie between 1 and the 91", "--batch-size 92"),
    "ten classes": ("AUC is defined for two classes", "--dataset digits"),
    "no norm": ("clip_norm must lie in (0, infinity), got 0", "--clip-norm 0"),
    "agents": ("must be a whole number in 1..455", "--agents 1000"),
    "used": ("is already used; choose another --output", "--methods dsgda --output ."),
}


@pytest.mark.parametrize("case", BAD)
def test_refusals(case, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    message, words = BAD[case]
    assert message in refused(
        capsys, "private", "--methods", "dpmixsgd", *words.split()
    )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_configs_with_the_older_names_of_clip_norms_are_read():
    job = Private(clip_norm=0.3, change_clip_norm=0.05)
    older = to_json(job).replace('"change_clip_norm"', '"change"')
    older = older.replace('"clip_norm"', '"limit"')
    assert from_json(older) == from_json(to_json(job)) == job


def test_unknown_graphs_are_rejected(capsys):
    assert "invalid choice" in refused(capsys, "private", "--graph", "tree")

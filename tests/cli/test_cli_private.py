"""`fedjax-muon private` as a user meets it."""

import contextlib
import csv
import io

import numpy as np
import pytest
from command import refused, rejected, run

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


def test_a_cut_run_is_run_again_and_the_others_are_not(finished):
    place, _ = finished
    whole = (place / "metrics.csv").read_text().splitlines()
    summary = (place / "summary.csv").read_text()
    cut = [line for line in whole if not line.startswith("dpmixsgd,8.0")]
    (place / "metrics.csv").write_text("\n".join(cut) + "\n")
    with contextlib.redirect_stdout(io.StringIO()):
        run("resume", place)
    resumed = (place / "metrics.csv").read_text().splitlines()
    assert resumed[: len(cut)] == cut
    seconds = whole[0].split(",").index("seconds")
    without = lambda line: [v for i, v in enumerate(line.split(",")) if i != seconds]
    assert list(map(without, resumed)) == list(map(without, whole))
    assert (place / "summary.csv").read_text() == summary


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
    "no limit": ("limit must lie in (0, infinity), got 0", "--limit 0"),
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


def test_unknown_graphs_are_rejected(capsys):
    assert "invalid choice" in rejected(capsys, "private", "--graph", "tree")

"""Private runs as a user meets them: `train` and `compare` with `--epsilon`."""

import contextlib
import csv
import io
import json
import re
import shutil

import jax
import numpy as np
import pytest
from command import refused, run

from fedjax_muon import data
from fedjax_muon.experiments import recording
from fedjax_muon.privacy import ClientPrivacy
from fedjax_muon.privacy.ledger import Ledger, composed_epsilon, fingerprint
from fedjax_muon.runs import build, privacy, train as training
from fedjax_muon.runs.config import Config, Run
from fedjax_muon.runs.load import load_run

AGENTS = ("--rounds", 2, "--batch-size", 20, "--graph", "ring", "--evaluate-every", 1)
PRIVATE = ("compare", "dpmixsgd", *AGENTS, "--seeds", 3, "--epsilon")
ONE = ("train", "--algorithm", "dpmixsgd", *AGENTS, "--epsilon")
CLIENTS = ("--num-clients", 6, "--cohort-size", 3, "--hidden", 4, "--rounds", 2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place, printed = tmp_path_factory.mktemp("runs") / "private", io.StringIO()
    ledger = ("--ledger", place.parent / "ledger.json")
    with contextlib.redirect_stdout(printed):
        run(*PRIVATE, 1, 8, *ledger, "--output", place)
    return place, " ".join(printed.getvalue().split())


def rows_of(cell):
    with (cell / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def left_of(place):
    """The names of files beside the ledger of runs that are finished."""
    return {path.name for path in place.glob("ledger.secret/*/*")}


def test_a_comparison_over_epsilons(finished):
    place, printed = finished
    names = "config.json versions.json privacy.txt graph.png comparison.png utility.png"
    names += " summary.csv summary.tex dpmixsgd"
    assert {path.name for path in place.iterdir()} == set(names.split())
    with (place / "summary.csv").open() as file:
        labels = [row["method"] for row in csv.DictReader(file)]
    assert labels == [f"DPMixSGD (clipped), epsilon {e}" for e in (1, 8)]
    assert "DPMixSGD (clipped), epsilon 1" in printed
    assert "rates of dpmixsgd were not tuned with this clip norm and noise" in printed
    cells = [place / "dpmixsgd" / f"epsilon{e}" / "seed3" for e in (1, 8)]
    public = "bytes_down bytes_up test_accuracy test_auc test_loss"
    assert {n for n in rows_of(cells[0])[0] if "_" in n} == set(public.split())
    last = [float(rows_of(cell)[-1]["consensus"]) for cell in cells]
    assert 0 < 3 * last[1] < last[0]  # noise drives agents apart
    # runs of one seed share no noise
    assert len({rows_of(cell)[0]["test_loss"] for cell in cells}) == 2


def test_statements_are_printed_and_kept(finished):
    place, printed = finished
    text = (place / "privacy.txt").read_text()
    assert text.count("-differential privacy for one example of one agent") == 2
    for epsilon in (1, 8):
        assert f"({epsilon}, 1e-05)-differential privacy" in text
    assert "(1, 1e-05)-differential privacy" in printed
    for line in ("cyclic: fixed batches of 20 of 91", "exact Gaussian mechanism"):
        assert line in " ".join(text.split())
    assert "the scaling and the share of positives" in text
    mark = fingerprint(data.load("breast_cancer"))
    ledger = Ledger(place.parent / "ledger.json", mark)
    assert [entry.label for entry in ledger.entries()] == [
        "dpmixsgd at epsilon 1 on breast_cancer, seed 3",
        "dpmixsgd at epsilon 8 on breast_cancer, seed 3",
    ]
    composed = composed_epsilon([entry.cost for entry in ledger.entries()], 1e-5)
    assert composed > 8.1
    total = "all 2 runs of this job and 0 others that the ledger has seen, composed: "
    assert f"{total}({composed:.4g}" in text
    assert f"{total}({composed:.4g}" in printed


def test_what_is_left_of_a_finished_run_has_no_secrets(finished):
    place, _ = finished
    cell = place / "dpmixsgd" / "epsilon1" / "seed3"
    assert left_of(place.parent) == {"data.sha256"}
    state = load_run(cell).state
    assert not np.any(jax.random.key_data(state.key))
    assert np.all(np.isfinite(jax.tree.leaves(state.params)[0]))
    secret = [
        leaf
        for path, leaf in jax.tree.leaves_with_path(state.training)
        if not f".training{jax.tree_util.keystr(path)}".startswith(privacy.PUBLIC)
    ]
    assert secret
    assert not any(map(np.any, secret))
    scores = load_run(cell).evaluate()
    assert scores["test_auc"] == pytest.approx(float(rows_of(cell)[-1]["test_auc"]))


@pytest.mark.filterwarnings("ignore:messages have params", "ignore:the noise in the")
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_any_federated_method_protects_its_clients(name, tmp_path, capsys):
    place = tmp_path / "run"
    words = ("train", "--algorithm", name, *CLIENTS, "--delta", 0.01, "--epsilon", 8)
    run(*words, "--ledger", tmp_path / "ledger.json", "--output", place)
    assert "(8, 0.01)-differential privacy for one client" in capsys.readouterr().out
    assert "train_loss" not in rows_of(place)[-1]
    run("resume", place)  # is finished, and paid
    entries = json.loads((tmp_path / "ledger.json").read_text())["entries"]
    assert len(entries) == 1
    run("plot", place, "--output", tmp_path / "curves.png")


def test_a_run_without_its_secret_state_does_not_draw_other_noise(tmp_path, capsys):
    place = tmp_path / "run"
    run(*ONE, 4, "--ledger", tmp_path / "ledger.json", "--output", place)
    shutil.rmtree(place / "checkpoints")
    said = refused(capsys, "resume", place)
    assert "the secret state of" in said
    assert "start again in another directory, which the ledger charges again" in said


def test_a_copy_of_a_run_does_not_release_what_is_not_charged(
    tmp_path, capsys, monkeypatch
):
    place, copies = tmp_path / "run", [tmp_path / "before", tmp_path / "during"]
    original = training.train

    def copied(run, simulation, directory, *rest):
        """As a process that has not begun, and one that works in the directory."""
        shutil.copytree(directory, copies[0])
        begun = recording.Recorder.begin

        def begin(self, checkpoints):
            state = begun(self, checkpoints)
            shutil.copytree(directory, copies[1])
            with pytest.raises(ValueError, match="another process is using"):
                original(run, simulation, copies[1])
            return state

        monkeypatch.setattr(recording.Recorder, "begin", begin)
        return original(run, simulation, directory, *rest)

    monkeypatch.setattr(training, "train", copied)
    run(*ONE, 4, "--ledger", tmp_path / "ledger.json", "--output", place)
    monkeypatch.undo()
    for copy in copies:
        said = refused(capsys, "resume", copy)
        assert "or a copy of the run was finished" in said
        assert not (copy / "metrics.csv").exists()
    run("resume", place)  # which is finished


def test_a_run_that_ends_before_it_is_published_is_published_later(
    tmp_path, monkeypatch
):
    def interrupted(self, state):
        raise KeyboardInterrupt

    place, ledger = tmp_path / "run", ("--ledger", tmp_path / "ledger.json")
    monkeypatch.setattr(recording.Recorder, "publish", interrupted)
    with pytest.raises(SystemExit):
        run(*ONE, 4, *ledger, "--output", place)
    monkeypatch.undo()
    run("resume", place)
    assert load_run(place).state.round == 2
    assert left_of(tmp_path) == {"data.sha256"}


def test_the_mechanism_is_the_one_of_the_options():
    config = Config(
        epsilon=(8.0,), delta=0.01, clip_norm=0.3, cohort_size=4, rounds=2, hidden=(4,)
    )
    dataset = data.load("digits")
    simulation = build.simulation_of(Run("fedavg", {"lr": 0.1}, 0, config), dataset)
    expected = ClientPrivacy(
        clip_norm=0.3, cohort_size=4, rounds=2, epsilon=8.0, delta=0.01
    )
    assert simulation.settings.privacy == expected


def test_clients_and_examples_have_a_ledger_each():
    digits, config = data.load("digits"), Config(epsilon=(1.0,))
    units = "one client with all its examples", "one example of one agent"
    paths = [privacy.ledger_of(config, digits, unit).path for unit in units]
    assert [path.stem.partition("-")[2] for path in paths] == ["client", "example"]


@pytest.mark.slow
def test_a_run_that_is_missing_is_run_and_the_others_are_not(tmp_path):
    place = tmp_path / "run"
    ledger = ("--ledger", tmp_path / "ledger.json")
    with contextlib.redirect_stdout(io.StringIO()):
        run(*PRIVATE, 1, *ledger, "--output", place)
        first = rows_of(place / "dpmixsgd/epsilon1/seed3")
        config = (place / "config.json").read_text()
        more = re.sub(r"\[\s*1\.0\s*\]", "[1.0, 8.0]", config)
        assert more != config
        (place / "config.json").write_text(more)
        run("resume", place)
        assert rows_of(place / "dpmixsgd/epsilon1/seed3") == first
        second = rows_of(place / "dpmixsgd/epsilon8/seed3")
        assert len(second) == len(first) == 3
        run("resume", place / "dpmixsgd/epsilon8/seed3")
    assert rows_of(place / "dpmixsgd/epsilon8/seed3") == second
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
def test_noise_from_the_seed_is_not_private(tmp_path, capsys):
    ledger = ("--ledger", tmp_path / "ledger.json")
    run(*ONE, 1, "--insecure-fixed-noise", *ledger, "--output", tmp_path / "a")
    text = (tmp_path / "a" / "privacy.txt").read_text()
    assert "NO differential privacy" in text
    assert "NO differential privacy together" in text
    run(*ONE, 1, *ledger, "--output", tmp_path / "later")
    text = (tmp_path / "later" / "privacy.txt").read_text()
    assert "no guarantee: of 1 of them, the noise was drawn from the seed" in text
    said = refused(capsys, *ONE, 1, *ledger, "--budget", 9, "--output", tmp_path / "no")
    assert "contains, or would contain, runs without a guarantee" in said


@pytest.mark.slow
def test_training_metrics_are_published_on_request(tmp_path):
    place, ledger = tmp_path / "run", ("--ledger", tmp_path / "ledger.json")
    run(*ONE, 1, "--publish-training-metrics", *ledger, "--output", place)
    assert "train_loss" in (place / "metrics.csv").read_text()
    text = (place / "privacy.txt").read_text()
    assert "the guarantee does not hold for them" in text
    assert "no guarantee: of 1 of them, training metrics were published" in text


@pytest.mark.slow
def test_what_diverges_is_called_so(tmp_path):
    printed, place = io.StringIO(), tmp_path / "run"
    words = ("--lr", "dpmixsgd", 3.4e38, "--rounds", 8)
    words += ("--insecure-fixed-noise",)  # for the same numbers in every run
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as stop:
        run(*PRIVATE, 1, *words, "--output", place)
    assert stop.value.code == 1
    assert "diverged (round 0)" in (place / "summary.csv").read_text()
    assert "diverged (round" in printed.getvalue()
    assert not (place / "comparison.png").exists()  # nothing is left to draw

"""Comparisons, sweeps, and the commands that read what is there."""

import csv
import json
import re
import shutil
from importlib import import_module
from pathlib import Path

import pytest
from command import assert_same_but_for_seconds, refused, run
from tiny_images import write_npz

from fedjax_muon import data, runs
from fedjax_muon.algorithms import ADAPTERS, ALL
from fedjax_muon.algorithms.minimax import ALL as MINIMAX
from fedjax_muon.cli import commands, others
from fedjax_muon.cli.names import METHODS
from fedjax_muon.data import catalog, loading
from fedjax_muon.runs import metrics_csv
from fedjax_muon.runs.rates import RATES
from fedjax_muon.runs.search import around
from fedjax_muon.runs.simulate import name_of
from fedjax_muon.runs.sweep import check_sweep

SMALL = "--clients 4 --model mlp:hidden=8 --cohort 2 --local-steps 1 "
SMALL += "--batch-size 8 --rounds 4 --evaluate-every 2"


def rows(path):
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


# ------------------------------------------------------------------------- comparisons
def rates(words):
    """The rates and grids of a comparison, and what is said of them."""
    job = commands.parsed_compare(words.split())
    said = commands.take_rates(job)
    made = lambda rate: getattr(rate, "keywords", {}).get("lr", rate)
    fixed = {each.name: made(each.keywords.get("lr")) for each in job.calls}
    return fixed, [*job.grids.values()], said


def test_rates_are_those_of_the_default_problem_or_are_looked_for():
    usual = {name: best.lr for name, best in RATES["classification"].items()}
    assert rates("") == (usual, [{}] * len(usual), "")
    auc = {name: best.lr for name, best in RATES["auc"].items()}
    assert rates("--problem auc") == (auc, [{}] * len(auc), "")
    assert rates("dsgd --problem auc")[1:] == ([{}], "")  # whose usual data differ
    given = "fedavg:lr=0.5 fedmuon --model mlp:hidden=8"
    fixed, grids, _ = rates(given)
    assert (fixed["fedavg"], grids[0]) == (0.5, {})
    assert grids[1]["lr"] == pytest.approx(around(0.03))
    assert rates(f"{given} --quick")[1] == [{}, {}]
    assert rates("fedavg fedmuon --lr 0.1,0.2")[1] == [{"lr": (0.1, 0.2)}] * 2
    fixed, grids, said = rates("fedavg fedmuon:lr=0.1 --epsilon 4,8")
    assert grids == [{}, {}]
    assert said.startswith("the learning rates of fedavg were not tuned with this clip")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    place = tmp_path_factory.mktemp("compared") / "run"
    words = ("compare", "fedavg:lr=0.2", "fedmuon:lr=0.05", *SMALL.split())
    run(*words, "--seeds", "3,4", "--directory", place)
    return place


def test_a_comparison_has_the_runs_of_train(compared, tmp_path, capsys):
    words = ("train", "fedmuon:lr=0.05", *SMALL.split(), "--seed", 4)
    run(*words, "--directory", tmp_path / "run")
    (place,) = compared.glob("[Ff]ed[Mm]uon*/seed4")
    ours = tmp_path / "run/metrics.csv"
    assert_same_but_for_seconds(place / "metrics.csv", ours)
    final = metrics_csv.read(ours)["test_accuracy"][-1]
    by_name = {row["method"]: row for row in rows(compared / "summary.csv")}
    assert by_name["FedMuon"]["lr"] == "0.05"
    assert by_name["FedAvg"]["lr"] == "0.2"
    mean = float(by_name["FedMuon"]["score_mean"])
    other = metrics_csv.read(place.with_name("seed3") / "metrics.csv")
    assert 2 * mean - other["test_accuracy"][-1] == pytest.approx(final)
    assert "FedMuon & " in (compared / "summary.tex").read_text()
    assert (compared / "comparison.png").stat().st_size > 10_000


def test_a_comparison_is_resumed_extended_and_drawn(compared, tmp_path, capsys):
    place = Path(shutil.copytree(compared, tmp_path / "copy"))
    (lost,) = place.glob("[Ff]ed[Aa]vg*/seed4")
    shutil.rmtree(lost)
    run("resume", place, "--rounds", 6)
    assert "90% of the best" in " ".join(capsys.readouterr().out.split())
    for path in place.glob("*/seed*/metrics.csv"):
        assert metrics_csv.read(path)["round"].tolist()[-2:] == [4, 6]
    run("plot", compared, "--output", tmp_path / "a.pdf")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    said = refused(capsys, "plot", compared, place, "--output", tmp_path / "b.pdf")
    assert "rounds" in said
    words = ("compare", "fedavg:lr=0.3", *SMALL.split(), "--seeds", "3")
    said = refused(capsys, *words, "--directory", compared)
    assert "its method.lr is 0.2, not 0.3; choose another" in said


def test_accuracies_of_clients_are_shown(tmp_path, capsys):
    words = ("compare", "fedavg", *SMALL.split(), "--quick", "--client-tests")
    run(*words, "--seeds", "3", "--directory", tmp_path / "run")
    assert "Clients" in capsys.readouterr().out
    assert (tmp_path / "run/fairness.png").exists()


@pytest.mark.slow
def test_rates_that_are_not_settled_are_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(import_module("fedjax_muon.runs.sweep"), "MOST", 2)
    words = ("compare", "fedavg", "--lr", "0.0001,0.0003", *SMALL.split())
    run(*words, "--seeds", 3, "--directory", tmp_path / "run")
    said = " ".join(capsys.readouterr().out.split())
    assert "learning rates first: 4 runs of 4 rounds, more where" in said
    assert "learning rates that were not settled: FedAvg (edge); look further" in said
    assert (tmp_path / "run/tuning").is_dir()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the noise in the sum")
def test_several_epsilons_are_charged_together(tmp_path, capsys):
    words = ("compare", "fedavg:lr=0.1", *SMALL.replace("--cohort 2 ", "").split())
    words += ("--seeds", 0, "--delta", 0.01, "--epsilon", "4,8")
    ledger = ("--ledger", tmp_path / "ledger.json")
    said = refused(
        capsys, *words, *ledger, "--budget", 5, "--directory", tmp_path / "a"
    )
    assert "5 is allowed" in said
    assert not (tmp_path / "ledger.json").exists()
    run(*words, *ledger, "--budget", 20, "--directory", tmp_path / "b")
    assert len(json.loads((tmp_path / "ledger.json").read_text())["entries"]) == 2
    methods = [row["method"] for row in rows(tmp_path / "b/summary.csv")]
    assert sorted(methods) == ["FedAvg, epsilon 4", "FedAvg, epsilon 8"]


@pytest.mark.slow
def test_what_diverges_is_named_and_the_others_go_on(tmp_path, capsys):
    words = ("compare", "fedavg:lr=0.1", "fedavg_momentum:lr=1e30", *SMALL.split())
    with pytest.raises(SystemExit) as stop:
        run(*words, "--seeds", 0, "--directory", tmp_path / "run")
    assert stop.value.code == 1
    for name in ("summary.csv", "summary.tex"):
        written = (tmp_path / "run" / name).read_text()
        assert "diverged (round " in written
        assert "FedAvg" in written
    words = ("sweep", "fedavg", "--lr", "1e29,1e30", *SMALL.split())
    with pytest.raises(SystemExit) as stop:
        run(*words, "--directory", tmp_path / "sweep")
    assert stop.value.code == 1
    assert "diverged" in (tmp_path / "sweep/summary.csv").read_text()


# ------------------------------------------------------------------------------ sweeps
@pytest.mark.slow
def test_a_sweep_is_extended_by_a_larger_grid(tmp_path, capsys):
    place = tmp_path / "sweep"
    words = ("sweep", "fedavg", "fedprox", *SMALL.split(), "--directory", place)
    run(*words, "--lr", "0.1,0.3", "--no-extend")
    cells = {path: path.read_text() for path in place.glob("*/cells.csv")}
    assert [path.parent.name for path in sorted(cells)] == ["fedavg", "fedprox"]
    run(*words, "--lr", "0.1,0.3,0.9", "--no-extend")
    for path, before in cells.items():
        now = path.read_text()
        assert set(before.splitlines()) < set(now.splitlines())  # nothing is run again
    assert {row["method"] for row in rows(place / "summary.csv")} == {
        "FedAvg",
        "FedProx",
    }
    run("plot", place, "--output", tmp_path / "best.png")
    assert (tmp_path / "best.png").stat().st_size > 10_000
    capsys.readouterr()
    said = refused(capsys, *words, "--lr", "0.1,0.3", "--rounds", 5)
    assert "its rounds is 4, not 5; choose another" in said


@pytest.mark.parametrize("words", ["all", "all --problem auc"])
def test_published_grids_pass_the_checks_of_a_sweep(words, tmp_path, monkeypatch):
    checked, check = {}, check_sweep

    class End(BaseException):
        """The sweep would begin."""

    def noted(method, grid, *rest):
        check(method, grid, *rest)
        checked[name_of(method)] = grid

    def end(*_, **__):
        raise End

    monkeypatch.setattr(commands, "check_sweep", noted)
    monkeypatch.setattr(runs, "sweep", end)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(End):
        commands.sweep([*words.split(), "--grid", "paper", "--lr", "0.1,0.2"])
    known = MINIMAX if "auc" in words else ALL
    usable = known.keys() - ADAPTERS
    assert checked.keys() == usable
    assert ("auc" in words) == (usable == known.keys())


# ------------------------------------------------------------------ what reads is there
def test_figures_name_what_differs():
    fedavg = {"method.algorithm": "fedjax_muon.algorithms.fedavg.fedavg"}
    one, other = {**fedavg, "method.lr": "0.1"}, {**fedavg, "method.lr": "0.3"}
    muon = {"method.algorithm": "fedjax_muon.algorithms.fedmuon.fedmuon"}
    runs = [{**one, "seed": "0"}, {**one, "seed": "1"}, other, muon]
    expected = ["FedAvg, lr=0.1", "FedAvg, lr=0.1", "FedAvg, lr=0.3", "FedMuon"]
    assert others.distinct_labels(runs) == expected


def test_figures_name_cohorts_in_words():
    one = {"method.algorithm": "fedjax_muon.algorithms.fedmuon.fedmuon"}
    size = "simulation.cohorts.Sampled(size=10, draw=x, dropout=0.0, clock=c.<locals>"
    late = "simulation.arrivals.Buffered(concurrency=30, buffer=10, dropout=0.0)"
    cohorts = [f"{size})", f"{size}, deadline=10.0, groups=1)", late, "5"]
    found = others.distinct_labels([{**one, "cohort": each} for each in cohorts])
    words = ["10 clients", "deadline 10", "buffered 30/10", "cohort=5"]
    assert found == [f"FedMuon, {each}" for each in words]
    # the same words for two cohorts would make seeds of them
    clocks = [f"{size}, deadline=10.0, clock={clock})" for clock in "ab"]
    found = others.distinct_labels([{**one, "cohort": each} for each in clocks])
    assert found == [f"FedMuon, cohort={each}" for each in clocks]


def test_partition_draws_and_counts(tmp_path, capsys):
    figure = tmp_path / "parts.png"
    run("partition", "--clients", 5, "--divide", "iid", "--output", figure)
    assert "5 clients with 287 to 288 examples" in capsys.readouterr().out
    assert figure.stat().st_size > 10_000


@pytest.fixture
def listed(monkeypatch, capsys):
    """What is printed, and datasets by name: what there is, and what is to get."""
    monkeypatch.delenv(loading.DATA_DIR_VARIABLE, raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def listed(*words):
        run("list", *words)
        printed = capsys.readouterr().out
        here, _, rest = printed.partition("\ndatasets\n")[2].partition("\ndatasets to ")
        pairs = lambda text: dict(re.findall(r"^([\w:/]+): (.*)$", text, re.MULTILINE))
        return printed, pairs(here), pairs(rest.partition("\n--model: ")[0])

    return listed


def test_list_names_everything(listed):
    printed, here, rest = listed()
    names = [*METHODS, "resnet18", "vit_tiny", "dirichlet", "lognormal", "top_k"]
    assert [name for name in names if name not in printed] == []
    assert {*here, *rest} == {
        *data.NAMES,
        *(f"tfds:{name}" for name in catalog.PREPARED),
    }
    assert here["digits"] == "scikit-learn"
    assert rest["tfds:glue/sst2"] == "fedjax-muon prepare glue/sst2"
    assert rest["cifar10"].endswith("or fedjax-muon prepare cifar10")


def test_the_list_of_a_directory(listed, tmp_path, monkeypatch):
    write_npz(tmp_path / "cifar10_subset.npz")
    found = listed("--data-dir", tmp_path)
    assert found[1]["cifar10_subset"] == str(tmp_path / "cifar10_subset.npz")
    assert "cifar10" in found[2]
    monkeypatch.setenv(loading.DATA_DIR_VARIABLE, str(tmp_path))
    run("list")

"""Clients that differ, on the command line."""

import json

import numpy as np
import pytest

from fedjax_muon.cli import main
from fedjax_muon.data import client_tests, load
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import build
from fedjax_muon.runs.build import parts_of, simulation_of
from fedjax_muon.runs.config import Config, Run

SMALL = ("--train-share", "0.2", "--num-clients", "4", "--min-client-size", "1")
SMALL += ("--cohort-size", "4", "--rounds", "2", "--hidden", "8", "--batch-size", "16")
CLIENTS = ("--client-tests", "--local-epochs", "1", "2", "--weighting", "examples")


def refused(capsys, *argv):
    with pytest.raises(SystemExit) as ended:
        main([*argv])
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_comparison_shows_the_clients_accuracies(tmp_path, capsys):
    out = tmp_path / "run"
    methods = ("compare", "fedavg", "fednova", "--seeds", "0", "1")
    main([*methods, *SMALL, *CLIENTS, "--output", str(out)])
    said = capsys.readouterr().out
    for method, label in (("fedavg", "FedAvg"), ("fednova", "FedNova")):
        runs = [metrics_csv.read(out / method / f"seed{i}/metrics.csv") for i in (0, 1)]
        cells = []
        for name in ("min", "p10", "median", "std"):
            last = [run[f"client_test_accuracy_{name}"][-1] for run in runs]
            mean, spread = 100 * np.mean(last), 100 * np.std(last, ddof=1)
            cells.append(f"{mean:.2f} ± {spread:.2f}")
        table = said[said.index(" Clients ") :]
        (row,) = [line for line in table.splitlines() if f"│ {label} " in line]
        assert [cell.strip() for cell in row.split("│")[2:-1]] == cells
    assert (out / "fairness.png").stat().st_size > 5_000
    config = json.loads((out / "config.json").read_text())["config"]
    assert config["local_epochs"] == [1, 2]


@pytest.mark.slow
def test_clients_keep_their_last_layer(tmp_path, capsys):
    out = tmp_path / "run"
    own = ("--own-leaves", "Dense_1", "--client-tests")
    main(["train", "--algorithm", "fedavg", *SMALL, *own, "--output", str(out)])
    columns = metrics_csv.read(out / "metrics.csv")
    assert columns["own_accuracy_mean"][-1] > columns["test_accuracy"][-1]
    mean = f"{columns['own_accuracy_mean'][-1]:.4f}"
    assert f"clients with their own parameters {mean}" in capsys.readouterr().out
    up = columns["bytes_up"][-1]
    assert up == 2 * 4 * 4 * (64 * 8 + 8)  # rounds, clients, bytes, the first layer


def test_tests_follow_owners_or_proportions():
    config = Config(num_clients=4, client_tests=True, rounds=1, min_client_size=1)
    digits = load("digits")
    parts = parts_of(config, digits, 3)
    tests = build.tests_of(config, digits, parts, 3)
    assert sum(map(len, tests)) == len(digits.y_test)
    assert build.tests_of(Config(), digits, parts, 3) is None
    halves = digits._replace(
        owners=np.arange(len(digits.y_train)) % 2 + 5,
        test_owners=np.full(len(digits.y_test), 6),
    )
    of_owners = Config(partition="by_owner", client_tests=True, cohort_size=2)
    assert [len(t) for t in build.tests_of(of_owners, halves, parts, 0)] == [0, 360]
    simulation = simulation_of(Run("fedavg", {}, 0, of_owners), halves)
    assert simulation.own_tests.ids.shape == (360,)
    with pytest.raises(ValueError, match="does not say whose its test examples are"):
        build.tests_of(of_owners, halves._replace(test_owners=None), parts, 0)
    assert client_tests.by_owner([5, 5, 9], [9, 7, 5])[1].tolist() == [0]


def test_other_commands_say_what_they_lack(capsys, tmp_path):
    said = refused(capsys, "sweep", "--algorithms", "fedavg", *SMALL, "--client-tests")
    assert "leave out client_tests" in said
    deploy = ("deploy", "--local", "2", "--algorithm", "fedavg", *SMALL)
    said = refused(capsys, *deploy, "--local-epochs", "1")
    assert "deploy has no local_epochs, since nodes take the same local_steps" in said
    own = ("train", "--algorithm", "scaffold", *SMALL, "--own-leaves", "Dense_1")
    assert "whose clients average what they move" in refused(capsys, *own)

"""The written Flower app without Flower: its files, its nodes and its results."""

import dataclasses
import tomllib
from pathlib import Path

import numpy as np
import pytest
from command import refused, run
from deployed_run import (
    RUN,
    assert_simulated,
    data_of,
    nodes_from,
    without,
    written,
)

from fedjax_muon.deploy import in_process
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import flower_app
from fedjax_muon.runs.config import Config, Run

SMALL = ("--algorithm", "fedavg", "--num-clients", "3", "--hidden", "8")


@pytest.fixture(scope="module")
def data():
    return data_of(RUN)


@pytest.fixture
def app(tmp_path):
    """The directory of an app, and what its nodes have."""
    return tmp_path / "app", written(tmp_path / "app")


def test_the_command_writes_the_template_and_the_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("deploy", 'my "🌼"', *SMALL, "--largest-client", "4096")
    said = capsys.readouterr().out
    assert "flwr run 'my \"🌼\"' --stream" in said
    assert "--federation-config num-supernodes=3" in said
    place = tmp_path / 'my "🌼"'
    project = tomllib.loads((place / "pyproject.toml").read_text())["tool"]["flwr"]
    config = {"output": str(place), "deadline": 600.0, "patience": 60.0, "own-code": ""}
    assert project["app"]["config"] == config
    for component in project["app"]["components"].values():
        module, _, name = component.partition(":")
        source = (place / f"{module}.py").read_text()
        assert name in compile(source, module, "exec").co_names
    assert all((place / name[1:]).is_file() for name in project["app"]["fab-include"])
    job, facts = flower_app.read_app(place)
    assert (job.algorithm, job.config.hidden) == ("fedavg", (8,))
    assert facts.max_client_size == 4096
    assert "is already used" in refused(capsys, "deploy", place, *SMALL)
    assert "was made by `deploy`" in refused(capsys, "resume", place)
    (place / flower_app.FACTS).write_text("{}")
    with pytest.raises(ValueError, match="the same version of fedjax_muon"):
        flower_app.read_app(place)


def test_lost_clients_are_recorded_and_rows_after_the_checkpoint_replaced(app, data):
    """Here of nodes in this process, which have the numbers of `train`."""
    (place, configs), (dataset, _, facts) = app, data
    send = without(1, nodes_from(place, configs), after=3)
    flower_app.train_with(RUN, facts, dataset, send, place)
    rows = metrics_csv.read(place / "metrics.csv")
    assert rows["round"].tolist() == [0, 1, 2, 3, 4]
    # exchanges: the prologue, then one in every round
    assert rows["missing"].tolist() == [0, 0, 0, 1, 1]
    lost = [f"{round},1,1,no answer" for round in (2, 3)]
    assert (place / "missing.csv").read_text().splitlines()[1:] == lost
    assert_simulated(RUN, rows, rounds=2)
    flower_app.train_with(RUN, facts, dataset, send, place)  # it has ended
    again = metrics_csv.read(place / "metrics.csv")
    for name in ("round", "test_loss"):
        np.testing.assert_array_equal(rows[name], again[name])


def test_damaged_rows_do_not_stop_a_later_start(tmp_path):
    path = tmp_path / "missing.csv"
    good = [b"round,exchange,client,reason", b"-1,0,2,no answer", b"0,1,2,late"]
    long, later = b"0,1,1," + 200_000 * b"x", b"3,1,1,no answer"
    bad = [long, b"0,1", b"one,1,1,late", b"0,1,1,late,0", b"\xff\x00,1,1,x", later]
    path.write_bytes(b"\n".join((good[0], *bad, *good[1:])) + b"\n")
    flower_app._keep_before(path, 3)
    assert path.read_bytes().split() == b" ".join(good).split()
    path.write_bytes(long + b"\n" + good[1])  # no row is left
    flower_app._keep_before(path, 3)
    assert not path.exists()


def test_arrivals_are_recorded_once_whenever_the_server_is_killed(
    data, tmp_path, monkeypatch
):
    """After it has saved a checkpoint, and before it writes the rows of that round."""
    dataset, _, facts = data
    late = {"cohort_size": 3, "concurrency": 2, "buffer": 1, "rounds": 2}
    run = dataclasses.replace(RUN, config=dataclasses.replace(RUN.config, **late))
    place = tmp_path / "app"
    configs = written(place, run)
    arrivals, add = place / flower_app.ARRIVALS, flower_app._Record.add
    arrivals.write_text("round,client,start,seconds\n-1,0,-1,0.5\n")  # checkpoints gone
    inner = in_process(nodes_from(place, configs))

    def send(requests, deadline):  # client 1 is silent in the prologue
        there = {i: r for i, r in requests.items() if i != 1 or len(requests) == 1}
        return inner(there, deadline)

    def killed(record, progress, missing):
        if dying.pop(progress.state.round, False):
            raise InterruptedError
        add(record, progress, missing)

    dying = {0: True, 1: True}
    monkeypatch.setattr(flower_app._Record, "add", killed)
    monkeypatch.setattr(flower_app, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    for _ in range(len(dying)):
        with pytest.raises(InterruptedError):
            flower_app.train_with(run, facts, dataset, send, place)
    flower_app.train_with(run, facts, dataset, send, place)
    rows = metrics_csv.read(arrivals)
    assert rows["round"].tolist() == [-1, 0, 1]
    assert rows["client"][0] == 1
    late = dataclasses.replace(run.config, replay=str(arrivals))
    replay = dataclasses.replace(run, config=late)
    assert_simulated(replay, metrics_csv.read(place / "metrics.csv"), rounds=2)


def test_without_a_file_a_client_has_its_part_of_train(app, tmp_path):
    place, configs = app
    server = {"output": str(tmp_path), "own-code": ""}
    here = flower_app.node_of({"partition-id": 1}, server, place)
    there = nodes_from(place, configs)[1]
    np.testing.assert_array_equal(here._clients.x, there._clients.x)
    assert (tmp_path / "states1").is_dir()


def test_a_node_without_what_it_needs_is_refused(app, data):
    place, (config, *_) = app
    own = Path(config["data"])
    for client, message in ((None, "'partition-id=0'"), (3, "clients 0 to 2, got 3")):
        with pytest.raises(ValueError, match=message):
            flower_app.node_of(config | {"partition-id": client}, {}, place)
    for arrays, message in (
        ({"x": np.zeros((3, 5), "f4")}, r"float32 of shape \[n, 8, 8, 1\]"),
        ({"x": np.array([{}])}, "expected a NumPy .npz archive of plain arrays"),
        ({"z": np.zeros(3)}, "expected the arrays x, y, found no x"),
    ):
        np.savez(own, y=np.zeros(3, "i4"), **arrays)
        with pytest.raises(ValueError, match=message):
            flower_app.load_examples(own, data[-1])


def test_a_node_imports_only_what_its_user_names():
    own = Config(model="own_net:Gated")
    flower_app.check_own(Run("fedavg", {}, 0, Config()), "")
    flower_app.check_own(Run("fedavg", {}, 0, own), "os:abort own_net:Gated")
    why = 'only if this SuperNode has --node-config own-code="own_net:Gated"'
    with pytest.raises(ValueError, match=why):
        flower_app.check_own(Run("fedavg", {}, 0, own), "own_net:sized")
    with pytest.raises(ValueError, match="the server's algorithm is os:abort"):
        flower_app.check_own(Run("os:abort", {}, 0, Config()), "")
    cut = Run("fedavg", {}, 0, Config(partition="own_cut:dealt"))
    flower_app.check_own(cut, "")  # the node has its own examples
    with pytest.raises(ValueError, match="the server's partition is own_cut:dealt"):
        flower_app.check_own(cut, "", divides=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dropout", "0.1"), "deploy does not support dropout"),
        (("--plan", "vmapped"), "plan mapped; leave out plan, got vmapped"),
        (("--local-epochs", "1"), "deploy does not support local_epochs, since node"),
        (("--largest-client", "0"), "largest_client must be at least 1, got 0"),
        (("--buffer", "2", "--concurrency", "9"), "concurrency=9 of 3 clients"),
    ],
)
def test_options_that_a_deployment_can_not_have_are_refused(
    capsys, tmp_path, options, message
):
    assert message in refused(capsys, "deploy", tmp_path / "app", *SMALL, *options)
    assert not (tmp_path / "app").exists()

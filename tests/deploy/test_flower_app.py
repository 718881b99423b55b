"""The written Flower app without Flower: its files, its nodes and its results."""

import dataclasses
import importlib.util
import tomllib

import numpy as np
import pytest
from command import refused, run
from deployed_run import RUN, assert_simulated, data_of, nodes_from, without

from fedjax_muon.deploy import in_process
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import flower_app
from fedjax_muon.runs.config import Config, Run

OPTIONS = {"deadline": 5.0, "patience": 2.0}
SMALL = ("--algorithm", "fedavg", "--num-clients", "3", "--hidden", "8")


@pytest.fixture(scope="module")
def data():
    return data_of(RUN)


@pytest.fixture
def app(data, tmp_path):
    """The directory of an app, and the files of its clients."""
    dataset, parts, facts = data
    place = tmp_path / "app"
    flower_app.write_app(place, RUN, facts, **OPTIONS)
    return place, flower_app.save_examples(place, dataset, parts)


def test_an_app_has_the_files_of_flower_and_the_run(app, data):
    place, files = app
    project = tomllib.loads((place / "pyproject.toml").read_text())["tool"]["flwr"]
    assert project["app"]["config"] == {"output": "results", **OPTIONS}
    for component in project["app"]["components"].values():
        module, _, name = component.partition(":")
        source = (place / f"{module}.py").read_text()
        assert name in compile(source, module, "exec").co_names
    assert all((place / name[1:]).is_file() for name in project["app"]["fab-include"])
    assert flower_app.read_app(place) == (RUN, data[-1])
    for part, path in zip(data[1], files, strict=True):
        assert [other.name for other in path.parent.iterdir()] == ["examples.npz"]
        x, y = flower_app.load_examples(path, data[-1])
        np.testing.assert_array_equal(x, np.asarray(data[0].x_train)[part])
        np.testing.assert_array_equal(y, data[0].y_train[part])


def test_a_directory_belongs_to_one_run(app, data, tmp_path, capsys):
    place, *_ = app
    (place / "server_app.py").write_text("# of the user")
    flower_app.write_app(place, RUN, data[-1], **OPTIONS)
    assert (place / "server_app.py").read_text() == "# of the user"
    other = dataclasses.replace(RUN, seed=1)
    with pytest.raises(ValueError, match="made with other options"):
        flower_app.write_app(place, other, data[-1], **OPTIONS)
    fewer = dataclasses.replace(data[-1], max_client_size=1)
    with pytest.raises(ValueError, match="for other examples"):
        flower_app.write_app(place, RUN, fewer, **OPTIONS)
    with pytest.raises(ValueError, match="is already used"):
        flower_app.write_app(tmp_path, RUN, data[-1], **OPTIONS)
    (place / flower_app.FACTS).write_text("{}")
    with pytest.raises(ValueError, match="the same version of fedjax_muon"):
        flower_app.read_app(place)
    assert "was made by `deploy`" in refused(capsys, "resume", place)


def test_lost_clients_are_recorded_and_rows_after_the_checkpoint_replaced(app, data):
    """Here of nodes in this process, which have the numbers of `train`."""
    (place, files), (dataset, _, facts) = app, data
    send = without(1, nodes_from(place, files), after=3)
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
    dataset, parts, facts = data
    late = {"cohort_size": 3, "concurrency": 2, "buffer": 1, "rounds": 2}
    run = dataclasses.replace(RUN, config=dataclasses.replace(RUN.config, **late))
    flower_app.write_app(tmp_path, run, facts, **OPTIONS)
    files = flower_app.save_examples(tmp_path, dataset, parts)
    arrivals, add = tmp_path / flower_app.ARRIVALS, flower_app._Record.add
    arrivals.write_text("round,client,start,seconds\n-1,0,-1,0.5\n")  # checkpoints gone
    inner = in_process(nodes_from(tmp_path, files))

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
            flower_app.train_with(run, facts, dataset, send, tmp_path)
    flower_app.train_with(run, facts, dataset, send, tmp_path)
    rows = metrics_csv.read(arrivals)
    assert rows["round"].tolist() == [-1, 0, 1]
    assert rows["client"][0] == 1
    late = dataclasses.replace(run.config, replay=str(arrivals))
    replay = dataclasses.replace(run, config=late)
    assert_simulated(replay, metrics_csv.read(tmp_path / "metrics.csv"), rounds=2)


def test_without_a_file_a_client_has_its_part_of_train(app, data, tmp_path):
    place, files = app
    config = {"partition-id": 1, "output": str(tmp_path)}
    here, there = flower_app.node_of(config, place), nodes_from(place, files)[1]
    np.testing.assert_array_equal(here._clients.x, there._clients.x)
    assert (tmp_path / "states1").is_dir()


def test_a_node_without_what_it_needs_is_refused(app, data):
    place, files = app
    with pytest.raises(ValueError, match="--node-config 'partition-id=0'"):
        flower_app.node_of({"data": str(files[0])}, place)
    with pytest.raises(ValueError, match="clients 0 to 2, got 3"):
        flower_app.node_of({"partition-id": 3, "data": str(files[0])}, place)
    for arrays, message in (
        ({"x": np.zeros((3, 5), "f4")}, r"float32 of shape \[n, 8, 8, 1\]"),
        ({"x": np.array([{}])}, "expected a NumPy .npz archive of plain arrays"),
        ({"z": np.zeros(3)}, "expected the arrays x, y, found no x"),
    ):
        np.savez(files[0], y=np.zeros(3, "i4"), **arrays)
        with pytest.raises(ValueError, match=message):
            flower_app.load_examples(files[0], data[-1])


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
        (("--local", "0"), "num_clients must be at least 1, got 0"),
        (("--buffer", "2", "--concurrency", "9"), "concurrency=9 of 3 clients"),
    ],
)
def test_options_that_a_deployment_can_not_have_are_refused(
    capsys, tmp_path, monkeypatch, options, message
):
    monkeypatch.setattr("fedjax_muon.cli.deployments.check_installed", lambda *_: None)
    assert message in refused(capsys, "deploy", tmp_path / "app", *SMALL, *options)
    assert not (tmp_path / "app").exists()


def test_only_local_nodes_need_flower(capsys, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    without_flower = lambda name, *more: None if name == "flwr" else find(name, *more)
    monkeypatch.setattr(importlib.util, "find_spec", without_flower)
    said = refused(capsys, "deploy", tmp_path / "app", *SMALL, "--local", "2")
    assert (
        'deploy --local needs flwr, which is not installed; run: pip install "flwr'
        in said
    )
    run("deploy", tmp_path / "app", *SMALL, "--largest-client", "4096")
    assert f"flwr run {tmp_path / 'app'} --stream" in capsys.readouterr().out
    _, facts = flower_app.read_app(tmp_path / "app")
    assert facts.max_client_size == 4096

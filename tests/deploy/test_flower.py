"""Nodes over Flower: a grid in memory, and Flower's simulation on this machine."""

import importlib
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon.algorithms import ALL, fedmuon_correct
from fedjax_muon.cli import flower_app
from fedjax_muon.deploy import Node
from fedjax_muon.deploy.messages import MessageError
from fedjax_muon.runs import metrics_csv
from tests.deploy.deployed_run import RUN, assert_simulated, kill_processes, written
from tests.deploy.small_federation import (
    CLIENTS,
    PARTS,
    X,
    Y,
    asked,
    assert_same,
    described,
    refusal,
    served,
    simulated,
)
from tests.support.packages import needs

needs("flwr.serverapp", "flower")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from fedjax_muon.deploy import flower
from tests.deploy.fake_grid import RUN as RUN_ID, Echo, FakeGrid, echoes, failure

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """The process is a ServerApp's."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, RUN_ID)
    monkeypatch.setattr(flower, "LOOK", 0.01)
    monkeypatch.setattr(flower, "LOOK_FOR_NODES", 0.0)


def server_of(clients, number=2):
    """A grid of nodes with these clients, and a server that knows them."""
    grid = echoes(clients)
    server = flower.FlowerServer(grid, number)
    server.wait(number)
    return grid, server


# with states of clients, with a prologue, with messages that the server decodes
@pytest.mark.parametrize("name", ["fedmuon_correct", "fedmuon", "fedmuon_svd"])
def test_an_algorithm_has_the_bits_of_a_simulation(tmp_path, name):
    algorithm, made = ALL[name].function(lr=0.1), []
    shared = described(algorithm)

    def make_node(context):
        client = context.node_config["client"]
        made.append(client)
        own = PARTS[client]
        return Node(shared, client, X[own], Y[own], tmp_path / str(client))

    apps = dict.fromkeys(range(100, 100 + CLIENTS), flower.client_app(make_node))
    grid = FakeGrid(apps, lambda node: {"client": (node - 99) % CLIENTS})
    server = flower.FlowerServer(grid, CLIENTS)
    assert server.wait(CLIENTS, 5) == set(range(CLIENTS))
    ended, missing = served(shared, server.send)
    assert not missing
    assert_same(simulated(algorithm), ended)
    # as in a process for every message
    exchanges = CLIENTS * len(algorithm.prologue) + 3 * 3 * len(algorithm.exchanges)
    assert len(made) == CLIENTS + exchanges


@pytest.mark.parametrize("away", [0, 1])
def test_secure_sums_have_the_bits_of_a_simulation(tmp_path, away):
    algorithm = fm.secure_sums(fm.fedmuon(lr=0.1))
    shared = described(algorithm, cohort=CLIENTS)

    def make_node(context):
        client = context.node_config["client"]
        own = PARTS[client]
        return Node(shared, client, X[own], Y[own], tmp_path / str(client))

    apps = dict.fromkeys(range(100, 100 + CLIENTS), flower.client_app(make_node))
    grid = FakeGrid(apps, lambda node: {"client": (node - 99) % CLIENTS})
    server = flower.FlowerServer(grid, CLIENTS)
    server.wait(CLIENTS, 5)
    server.patience = 0.0
    grid.online -= {*range(100, 100 + away)}
    ended, missing = served(shared, server.secure_sum)
    gone = {(node - 99) % CLIENTS for node in range(100, 100 + away)}
    assert {lost.client for lost in missing} == gone
    if not away:
        assert_same(simulated(algorithm, cohort=CLIENTS), ended)
    kinds = {kind for _, kind in grid.asked}
    assert kinds == {"query.fedjax_muon", "train"}  # no single message


def test_a_client_that_fails_is_not_in_the_sum(tmp_path):
    algorithm = fm.secure_sums(fm.fedavg(lr=0.1))
    shared = described(algorithm, cohort=CLIENTS)
    other = described(fm.secure_sums(fm.fedavg(lr=0.2)), cohort=CLIENTS)

    def make_node(context):
        client = context.node_config["client"]
        own = PARTS[client]
        return Node(other if client == 1 else shared, client, X[own], Y[own])

    apps = dict.fromkeys(range(100, 100 + CLIENTS), flower.client_app(make_node))
    grid = FakeGrid(apps, lambda node: {"client": node - 100})
    server = flower.FlowerServer(grid, CLIENTS)
    server.wait(CLIENTS, 5)
    ended, missing = served(shared, server.secure_sum, rounds=2)
    assert [(lost.client, lost.reason) for lost in missing] == 2 * [(1, "no answer")]
    assert ended.state.round == 2


def test_too_few_clients_have_no_sum():
    algorithm = fm.secure_sums(fm.fedavg(lr=0.1))
    server = flower.FlowerServer(echoes([0, 1]), CLIENTS, patience=0.0)
    server.wait(2)
    _, missing = served(described(algorithm), server.secure_sum, rounds=1)
    assert {lost.reason for lost in missing} == {
        "a secure sum needs 3 clients, and 2 are there"
    }


def test_answers_are_yielded_as_they_arrive():
    grid, server = server_of([1, 0])
    grid.held = {100}
    answers = server.send({0: b"a", 1: b"b"}, 5.0)
    assert next(answers) == (0, b"a from 0")
    grid.held = set()
    assert list(answers) == [(1, b"b from 1")]


def test_a_late_answer_is_handed_on_and_is_not_taken_for_the_next():
    grid, server = server_of([0, 1])
    grid.held = {101}
    begin = time.monotonic()
    assert asked(server, 0.2, c0=b"a", c1=b"b") == [(0, b"a from 0")]
    assert 0.2 < time.monotonic() - begin < 2
    grid.held = set()
    assert asked(server, c1=b"c") == [(1, b"b from 1"), (1, b"c from 1")]
    assert asked(server, c1=b"d") == [(1, b"d from 1")]


def test_an_expired_request_is_forgotten():
    grid, server = server_of([0], 1)
    grid.held = {100}
    assert asked(server, 0.1, c0=b"a") == []
    ((name, late),) = grid.waiting.items()
    assert late.metadata.ttl == 0.1 + flower.SKEW
    grid.held = set()
    error = failure(late, ErrorCode.MESSAGE_UNAVAILABLE, "expired")
    grid.reply, reply = lambda message: error, grid.reply
    assert list(server._pull({})) == []
    grid.reply = reply
    assert asked(server, c0=b"b") == [(0, b"b from 0")]
    assert name not in grid.pulled[-1]


def test_errors_of_an_app_are_refusals_with_their_refusal():
    server = flower.FlowerServer(echoes([0, 1], client1=OSError("disk")), 2)
    (first, second) = asked(server, c0=b"a", c1=b"b")
    assert first == (0, b"a from 0")
    assert refusal(second[1]) == f"Flower: {OSError('disk')!r} (code 2)"
    shared = described(fedmuon_correct(lr=0.1))
    _, missing = served(shared, server.send, rounds=1, deadline=0.2)
    assert any(m.client == 1 and "disk" in m.reason for m in missing)


def test_an_app_of_another_kind_is_refused():
    other = ClientApp()
    client = flower.client_app(lambda context: Echo(0))

    @other.query(flower.KIND)
    def who(message, context):
        return client(message, context)

    @other.train(flower.KIND)
    def train(message, context):
        return Message(RecordDict({"a": ConfigRecord({"b": 1})}), reply_to=message)

    ((_, answer),) = asked(flower.FlowerServer(FakeGrid({100: other}), 1), c0=b"a")
    assert refusal(answer) == "the message has no bytes of fedjax_muon"
    foreign = Message(RecordDict(), 100, f"train.{flower.KIND}")
    with pytest.raises(MessageError, match="no bytes"):
        client(foreign, Context(RUN_ID, 100, {}, RecordDict(), {}))


def test_replies_to_the_messages_of_others_are_ignored():
    grid, server = server_of([0], 1)
    pull = grid.pull_messages

    def with_another(names):
        others = Message(RecordDict(), 100, f"train.{flower.KIND}")
        others.metadata.__dict__["_message_id"] = "of another run"
        return [Message(RecordDict(), reply_to=others), *pull(names)]

    grid.pull_messages = with_another
    assert asked(server, c0=b"a") == [(0, b"a from 0")]


def test_of_two_nodes_with_a_client_the_first_is_used_while_it_answers():
    grid = echoes([0, 0])
    server = flower.FlowerServer(grid, 1)
    grid.held = {101}
    server.wait(1)
    grid.held = set()
    said = "client 0 has SuperNode 100 already; SuperNode 101 is used if that one does"
    with pytest.warns(UserWarning, match=said):
        assert asked(server, c0=b"a") == [(0, b"a from 0")]
    assert said in server.refused[0]
    assert asked(server, c0=b"b") == [(0, b"b from 0")]
    trained = lambda: [node for node, kind in grid.asked if kind.startswith("train")]
    assert trained() == [100, 100]
    grid.held = {100}
    assert asked(server, 0.1, c0=b"c") == []
    assert asked(server, c0=b"d") == [(0, b"d from 0")]
    assert trained() == [100, 100, 101]


def test_a_client_that_is_not_there_is_refused():
    hostile = "\x1b[31m" + 5000 * "x"
    for client, text in ((2, "2"), (-1, "-1"), (hostile, hostile[1:])):
        server = flower.FlowerServer(echoes([0, client]), 2)
        said = f"SuperNode 101 is not used: there are clients 0 to 1, got {text}"
        said = said if len(said) < 200 else f"{said[:197]}..."
        with pytest.warns(UserWarning, match=re.escape(said)):
            assert server.wait(2, 0.1) == {0}
        assert server.refused == [said]


def test_a_node_has_one_reason_whatever_it_says_next():
    said = iter("abc")

    def make_node(context):
        raise ValueError(f"{next(said)}\n")

    server = flower.FlowerServer(FakeGrid({100: flower.client_app(make_node)}), 1)
    for word in "abc":
        with pytest.warns(UserWarning, match=f"not used: .*{word}"):
            server.wait(1, 0.0)
    (reason,) = server.refused
    assert "c" in reason


def test_a_node_that_does_not_tell_its_client_is_asked_again_by_the_next_call():
    def make_node(context):
        if not ready:
            raise ValueError("no data")
        return Echo(0)

    ready, grid = [], FakeGrid({100: flower.client_app(make_node)})
    server = flower.FlowerServer(grid, 1, patience=0.1)
    with pytest.warns(UserWarning, match=r"SuperNode 100 is not used: .*no data"):
        ((_, answer),) = asked(server, c0=b"a")
    assert refusal(answer) == "no SuperNode has this client"
    assert len(grid.asked) == 1
    ready.append(True)
    assert asked(server, c0=b"b") == [(0, b"b from 0")]


def test_a_node_in_place_of_one_that_has_gone_gets_the_request(monkeypatch):
    grid = echoes([0, 0])
    grid.online = {100}
    server = flower.FlowerServer(grid, 1)
    server.wait(1)
    grid.held = {100}
    restart = lambda seconds: setattr(grid, "online", {101})
    monkeypatch.setattr(time, "sleep", restart)
    assert asked(server, None, c0=b"a") == [(0, b"a from 0")]
    assert grid.asked[-1] == (101, f"train.{flower.KIND}")
    assert not server.refused


def test_a_client_without_a_node_is_waited_for_once():
    server = flower.FlowerServer(echoes([0]), 2, patience=0.3)
    begin = time.monotonic()
    _, (client, answer) = asked(server, None, c0=b"a", c1=b"a")
    assert 0.3 < time.monotonic() - begin < 3
    assert (client, refusal(answer)) == (1, "no SuperNode has this client")
    begin = time.monotonic()
    assert len(asked(server, None, c0=b"b", c1=b"b")) == 2
    assert time.monotonic() - begin < 0.3


def test_without_flower_the_pip_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.delitem(sys.modules, "fedjax_muon.deploy.flower")
    said = r"a node over Flower needs flwr, which is not installed; run: pip install"
    with pytest.raises(ImportError, match=said) as error:
        importlib.import_module("fedjax_muon.deploy.flower")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cohort", ["3", "buffered:3,2"])
def test_the_written_app_trains(tmp_path, monkeypatch, cohort):
    given = {"--rounds": "2", "--cohort": cohort}
    place, words = tmp_path / "app", [*RUN]
    for option, value in given.items():
        words[words.index(option) + 1] = value
    configs = dict(enumerate(written(place, words), 100))
    monkeypatch.syspath_prepend(place)
    for module in (names := ("client_app", "server_app")):
        monkeypatch.delitem(sys.modules, module, raising=False)
    client_app, server_app = map(importlib.import_module, names)
    grid = FakeGrid(dict.fromkeys(configs, client_app.app), configs.get)
    project = tomllib.loads((place / "pyproject.toml").read_text())
    options = project["tool"]["flwr"]["app"]["config"]
    server_app.app(grid, Context(RUN_ID, 1, {}, RecordDict(), options))
    again = {}
    if cohort != "3":
        record = place / flower_app.ARRIVALS
        again = {"cohort": fm.replayed(fm.buffered(3, 2), record)}
    found = metrics_csv.read(place / "metrics.csv")
    assert_simulated(words, found, rounds=2, **again)


@pytest.fixture
def flower_home(tmp_path, monkeypatch):
    """Flower's directory; ends the processes that have it, also from inside a test."""
    monkeypatch.setenv("FLWR_HOME", str(home := tmp_path / "flower"))
    for name in ("SUPERLINK_HTTP", "CONTROL"):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        monkeypatch.setenv(f"FLWR_LOCAL_{name}_API_PORT", port)
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.delenv("XLA_FLAGS")  # which Flower does not hand to all processes
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    kill = lambda: kill_processes("FLWR_HOME", str(home))
    yield kill
    kill()


def test_flwr_run_has_the_bits_of_train_though_it_is_killed(tmp_path, flower_home):
    options = "fedmuon_correct --problem digits:clients=3,model=mlp:8 --cohort 3 "
    options += "--batch-size 8 --local-steps 2 --rounds 8 --evaluate-every 1"
    place, trained = tmp_path / "app", tmp_path / "trained"

    def ours(*words):
        command = [sys.executable, "-m", "fedjax_muon.cli.main", *words]
        subprocess.run(command, check=True)

    ours("deploy", place, *options.split())
    command = ["flwr", "run", place, "--stream"]
    command += ["--federation-config", "num-supernodes=3"]
    with subprocess.Popen(command) as process:
        # the prologue's checkpoint, and a later one
        while sum(p.name.isdigit() for p in place.glob("checkpoints/*")) < 2:
            assert process.poll() is None
            time.sleep(0.1)
        flower_home()
    before = metrics_csv.read(place / "metrics.csv")
    assert len(before["round"]) < 9
    subprocess.run(command, check=True)
    after = metrics_csv.read(place / "metrics.csv")
    assert after["seconds"][0] == before["seconds"][0]  # it has not begun again
    assert not after["missing"].any()
    ours("train", *options.split(), "--plan", "mapped", "--directory", trained)
    expected = metrics_csv.read(trained / "metrics.csv")
    for name in ("round", "test_accuracy", "test_loss"):
        np.testing.assert_array_equal(after[name], expected[name])

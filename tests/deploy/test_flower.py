"""Nodes over Flower: a grid in memory, and a SuperLink with SuperNodes as processes."""

import importlib
import json
import re
import runpy
import signal
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from packages import needs
from small_federation import (
    CLIENTS,
    DATA,
    KEY,
    PARTS,
    TASK,
    X,
    Y,
    asked,
    assert_same,
    assert_saved,
    described,
    refusal,
    served,
    simulated,
)

from fedjax_muon import engine
from fedjax_muon.algorithms import ALL, fedmuon_correct
from fedjax_muon.deploy import Node, in_process, serve
from fedjax_muon.deploy.messages import MessageError
from fedjax_muon.simulation.federated import federate

needs("flwr.serverapp", "flower")

from fake_grid import RUN, Echo, FakeGrid, echoes, failure
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from fedjax_muon.deploy import flower

pytestmark = pytest.mark.slow

APP = Path(__file__).parent / "flower_app"
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how_to" / "deploy.md"
# By its path, since an installed wheel is tested without the checkout on the path.
ENGINE = runpy.run_path(str(ROOT / "benchmarks" / "flower_engine.py"))


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """The process is a ServerApp's."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, RUN)
    monkeypatch.setattr(flower, "LOOK", 0.01)
    monkeypatch.setattr(flower, "LOOK_FOR_NODES", 0.0)


def server_of(clients, number=2):
    """A grid of nodes with these clients, and a server that knows them."""
    grid = echoes(clients)
    server = flower.FlowerServer(grid, number)
    server.wait(number)
    return grid, server


def test_an_algorithm_has_the_bits_of_a_simulation(tmp_path):
    algorithm, made = fedmuon_correct(lr=0.1), []  # with states of clients
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
    assert len(made) == CLIENTS + 3 * 3  # as in a process for every message


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
        client(foreign, Context(RUN, 100, {}, RecordDict(), {}))


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
    for client in (2, -1):
        server = flower.FlowerServer(echoes([0, client]), 2)
        said = f"SuperNode 101 is not used: there are clients 0 to 1, got {client}"
        with pytest.warns(UserWarning, match=said):
            assert server.wait(2, 0.1) == {0}
        assert server.refused == [said]


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
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    monkeypatch.delitem(sys.modules, "fedjax_muon.deploy.flower")
    said = r"nodes over Flower need flwr: pip install \"flwr"
    with pytest.raises(ImportError, match=said) as error:
        importlib.import_module("fedjax_muon.deploy.flower")
    assert "\n" not in str(error.value)


def test_the_apps_that_are_shown_run(tmp_path):
    section = PAGE.read_text().partition("## Flower\n")[2].partition("\n## ")[0]
    (shown,) = re.findall("```py\n(.*?)```", section, re.DOTALL)
    names, nodes, configs = {}, {}, {}
    exec(shown.replace("rounds=10", "rounds=1"), names)
    rng = np.random.default_rng(0)
    for client in range(3):
        data = tmp_path / f"mine{client}.npz"
        x = rng.standard_normal((50, 8, 8, 1)).astype(np.float32)
        y = rng.integers(0, 10, 50)
        np.savez(data, x=x, y=y)
        states = str(tmp_path / f"states{client}")
        configs[100 + client] = {"client": client, "data": str(data), "states": states}
        nodes[client] = Node(names["shared"], client, x, y)
    grid = FakeGrid(dict.fromkeys(configs, names["node_app"]), configs.get)
    output = {"output": str(tmp_path / "parameters.npz")}
    names["server_app"](grid, Context(RUN, 1, {}, RecordDict(), output))
    key = jax.random.key(0)
    expected = serve(names["shared"], in_process(nodes), key, rounds=1).params
    assert_saved(output["output"], expected)


def of_simulation(method, apps):
    """The server's state after each round."""
    given = ALL[method].function(), TASK, DATA, PARTS[: apps.CLIENTS]
    simulation = federate(*given, plan=engine.plans.mapped, **apps.SIZES)
    state = simulation.init(KEY)
    for _ in range(apps.ROUNDS[method]):
        yield state.training.server
        state, _ = simulation.train_round(state)
    yield state.training.server


def test_processes_over_http_have_the_bits_of_simulations(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(APP)
    import apps

    configs = []
    for client, own in enumerate(PARTS[: apps.CLIENTS]):
        place = tmp_path / f"node{client}"
        place.mkdir()
        np.savez(place / "examples.npz", x=X[own], y=Y[own])
        configs.append({"client": client, "directory": str(place)})
    faster = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}  # seconds, by default 1
    with ENGINE["engine"](tmp_path / "engine", configs, faster) as running:
        pids = [node.pid for node in running.nodes]
        (tmp_path / "processes.json").write_text(json.dumps(pids))
        said = running.run(APP, {"output": str(tmp_path)}, seconds=600)
    assert (tmp_path / "ended.json").exists(), said
    ended = json.loads((tmp_path / "ended.json").read_text())
    killed = apps.METHODS[-1]
    last = [killed, apps.ROUNDS[killed], 0, ended["killed"], "no answer"]
    assert ended["missing"] == [last]
    assert not ended["refused"]
    for method in apps.METHODS:
        for round, state in enumerate(of_simulation(method, apps)):
            assert_saved(tmp_path / f"{method}_{round}.npz", state)
    assert running.nodes[ended["killed"]].returncode == -signal.SIGKILL
